//! Tables for people, and the bars that were kept or missed.

use crate::args::Options;

/// What has been measured so far. Tables are printed as they come.
#[derive(Debug)]
pub(crate) struct Report {
    bars: Vec<Bar>,
}

#[derive(Debug)]
struct Bar {
    what: String,
    measured: String,
    limit: String,
    kept: bool,
}

impl Report {
    /// Prints what the figures depend on.
    pub(crate) fn new(options: Options) -> Self {
        let cores = std::thread::available_parallelism().map_or(0, usize::from);
        println!("The engine alone: source, sink and stores in memory; {cores} cores.");
        println!("Medians of {} rounds, (min – max). The counting allocator is part of every figure.", options.rounds);
        println!("CPU time of a busy machine is noisy (caches, turbo, neighbours): compare within a run, not across.");
        if cfg!(debug_assertions) {
            println!("This is a debug build: its figures mean nothing.");
        }
        Self { bars: Vec::new() }
    }

    /// Notes whether a bar was kept.
    pub(crate) fn bar(&mut self, what: &str, measured: String, limit: String, kept: bool) {
        self.bars.push(Bar { what: what.to_owned(), measured, limit, kept });
    }

    /// Prints the bars; false when one was missed.
    pub(crate) fn conclude(&self) -> bool {
        let mut table = Table::new("Bars", &["", "measured", "bar", ""]);
        for bar in &self.bars {
            let verdict = if bar.kept { "kept" } else { "MISSED" };
            table.row([bar.what.clone(), bar.measured.clone(), bar.limit.clone(), verdict.to_owned()]);
        }
        table.print();
        self.bars.iter().all(|bar| bar.kept)
    }
}

/// A table whose first column is on the left and whose others are on the right.
#[derive(Debug)]
pub(crate) struct Table {
    title: String,
    rows: Vec<Vec<String>>,
}

impl Table {
    /// A table with these column heads.
    pub(crate) fn new(title: &str, heads: &[&str]) -> Self {
        Self { title: title.to_owned(), rows: vec![heads.iter().map(|head| (*head).to_owned()).collect()] }
    }

    /// Appends a row.
    pub(crate) fn row(&mut self, cells: impl IntoIterator<Item = String>) {
        self.rows.push(cells.into_iter().collect());
    }

    /// Prints it.
    pub(crate) fn print(&self) {
        println!("\n{}", self.title);
        let columns = self.rows.iter().map(Vec::len).max().unwrap_or(0);
        let width = |column: usize| {
            let cells = self.rows.iter().filter_map(|row| row.get(column));
            cells.map(|cell| cell.chars().count()).max().unwrap_or(0)
        };
        let widths: Vec<_> = (0..columns).map(width).collect();
        for row in &self.rows {
            println!("  {}", line(row, &widths).trim_end());
        }
    }
}

fn line(row: &[String], widths: &[usize]) -> String {
    let cells = row.iter().zip(widths).enumerate().map(|(column, (cell, width))| match column {
        0 => format!("{cell:<width$}"),
        _ => format!("  {cell:>width$}"),
    });
    cells.collect()
}

/// The middle, least and greatest of some figures.
#[derive(Debug, Clone, Copy, PartialEq)]
pub(crate) struct Spread {
    /// The middle one; of an even number the mean of the two in the middle.
    pub(crate) median: f64,
    pub(crate) min: f64,
    pub(crate) max: f64,
}

impl Spread {
    /// The spread of `figures`; zeros when there are none.
    pub(crate) fn of(figures: impl IntoIterator<Item = f64>) -> Self {
        let mut figures: Vec<_> = figures.into_iter().collect();
        figures.sort_by(f64::total_cmp);
        let at = |index: usize| figures.get(index).copied().unwrap_or_default();
        let last = figures.len().saturating_sub(1);
        Self { median: f64::midpoint(at(last / 2), at(last - last / 2)), min: at(0), max: at(last) }
    }

    /// As people read it, with so many digits after the point.
    pub(crate) fn show(self, digits: usize) -> String {
        let Self { median, min, max } = self;
        format!("{median:.digits$} ({min:.digits$} – {max:.digits$})")
    }
}

/// A number of changes as people read it.
pub(crate) fn millions(changes: u64) -> String {
    format!("{} million", changes as f64 / 1e6)
}

/// Bytes as people read them.
pub(crate) fn bytes(bytes: usize) -> String {
    const UNITS: [(&str, f64); 2] = [("MiB", 1_048_576.0), ("KiB", 1_024.0)];
    let bytes = bytes as f64;
    let unit = UNITS.iter().find(|(_, size)| bytes >= *size);
    unit.map_or_else(|| format!("{bytes} B"), |(name, size)| format!("{:.1} {name}", bytes / size))
}

#[cfg(test)]
mod tests {
    use super::{Report, Spread, bytes, line};

    #[test]
    fn the_median_is_in_the_middle() {
        assert_eq!(Spread::of([3.0, 1.0, 2.0]), Spread { median: 2.0, min: 1.0, max: 3.0 });
        assert_eq!(Spread::of([4.0, 1.0, 2.0, 3.0]).median, 2.5);
        assert_eq!(Spread::of([7.0]), Spread { median: 7.0, min: 7.0, max: 7.0 });
    }

    #[test]
    fn one_missed_bar_is_enough() {
        let mut report = Report { bars: Vec::new() };
        report.bar("a", String::new(), String::new(), true);
        assert!(report.conclude());
        report.bar("b", String::new(), String::new(), false);
        assert!(!report.conclude());
    }

    #[test]
    fn columns_are_aligned() {
        assert_eq!(line(&["a".to_owned(), "b".to_owned()], &[2, 3]), "a     b");
        assert_eq!(
            [bytes(12), bytes(2_048), bytes(3 << 20)],
            ["12 B".to_owned(), "2.0 KiB".to_owned(), "3.0 MiB".to_owned()]
        );
    }
}
