//! Draws plans.

mod schema;

use watchkeeper_core::Entropy;

use super::model::{Rows, at};
use super::{Column, Fields, Kind, Plan, Sink, Source, Start, Statement, Step, Table};
use crate::servers::postgres::Version;

/// What a plan is narrowed down to.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct Narrow {
    /// To this source.
    pub source: Option<Source>,
    /// To this sink.
    pub sink: Option<Sink>,
}

/// How many pairs of a source and a sink there are.
const PAIRS: u64 = (Source::ALL.len() * Sink::ALL.len()) as u64;

/// How many rows a snapshot that is broken off has at least.
const LONG_SNAPSHOT_ROWS: u64 = 600;

/// The randomness of a seed. Its state is itself drawn: the generator adds a constant for each draw, so seeds that were spread by a multiple
/// of that constant would all draw the same numbers, each seed a few draws later than the one before.
fn entropy_of(seed: u64) -> Entropy {
    Entropy::seeded(Entropy::seeded(seed).next())
}

impl Plan {
    /// The plan of a seed. Seeds that follow each other go through all pairs of a source and a sink: the numbers of sources and of sinks have
    /// no common factor, so both change with every seed, and the first few seeds reach all systems.
    pub fn drawn(seed: u64, narrow: Narrow) -> Self {
        let source = narrow.source.unwrap_or(Source::ALL[(seed % Source::ALL.len() as u64) as usize]);
        let sink = narrow.sink.unwrap_or(Sink::ALL[(seed % Sink::ALL.len() as u64) as usize]);
        Drawing::new(seed, source, sink).plan()
    }
}

/// Not by the parity of the seed, which goes with the source: every source and sink comes with both versions.
fn postgres_of(seed: u64) -> Version {
    Version::ALL[((seed / Source::ALL.len() as u64 + seed / (2 * PAIRS)) % 2) as usize]
}

struct Drawing {
    seed: u64,
    entropy: Entropy,
    source: Source,
    sink: Sink,
    tables: Vec<Rows>,
    rev: u64,
    steps: Vec<Step>,
    running: bool,
}

impl Drawing {
    fn new(seed: u64, source: Source, sink: Sink) -> Self {
        let entropy = entropy_of(seed);
        let mut drawing =
            Self { seed, entropy, source, sink, tables: Vec::new(), rev: 0, steps: Vec::new(), running: false };
        // Typed rows take one table; a copy in MongoDB has one collection for what is not one itself.
        let one = sink.has_typed_columns() || (sink.is_mongodb() && source != Source::Mongodb);
        let count = if one { 1 } else { 1 + drawing.below(3) };
        for number in 0..count {
            let table = drawing.table(number);
            drawing.tables.push(Rows::of(table));
        }
        drawing
    }

    fn below(&self, bound: u64) -> u64 {
        self.entropy.below(bound)
    }

    fn one_in(&self, count: u64) -> bool {
        self.below(count) == 0
    }

    fn pick(&self, kinds: &[Kind]) -> Kind {
        kinds[at(&self.entropy, kinds.len())]
    }

    /// Whether source and target are different systems, between which not every type has one form.
    fn is_foreign(&self) -> bool {
        match self.source {
            Source::Mongodb => !self.sink.is_mongodb() && self.sink.has_typed_columns(),
            Source::Sqlite => self.sink.is_postgres() || self.sink.is_mongodb(),
            Source::ChangeLog | Source::Replication => self.sink.is_mongodb(),
        }
    }

    fn table(&self, number: u64) -> Table {
        let foreign = self.is_foreign();
        let key = self.pick(Kind::of_keys(self.source, foreign));
        let column = |number| Column { name: format!("c{number}"), kind: self.pick(Kind::of(self.source, foreign)) };
        let columns = (1..=1 + self.below(5)).map(column).collect();
        Table { name: format!("t{number}"), key, columns }
    }

    fn plan(mut self) -> Plan {
        let tables: Vec<Table> = self.tables.iter().map(|rows| rows.table.clone()).collect();
        let can_begin_with_snapshot = matches!(self.source, Source::Replication | Source::Mongodb);
        let start = if can_begin_with_snapshot && self.below(5) < 3 { Start::Snapshot } else { Start::Oldest };
        // What a slot tells begins with the first start.
        let early = !(start == Start::Oldest && self.source == Source::Replication);
        if early {
            for _ in 0..self.below(30) + 1 {
                self.transaction(40);
            }
        } else {
            self.start();
            self.steps.push(Step::CatchUp);
        }
        let breaks_snapshot = start == Start::Snapshot && !self.one_in(4);
        if breaks_snapshot {
            self.broken_snapshot();
        }
        self.start();
        for _ in 0..3 + self.below(4) {
            self.turn();
        }
        self.start();
        // Only seven of eleven sinks cannot follow a rename, so theirs is drawn more often.
        let odds = if self.source == Source::Mongodb { 2 } else { 4 };
        let halt = if self.one_in(odds) { self.fatal_end() } else { None };
        if halt.is_none() {
            self.marker();
        }
        let Self { seed, source, sink, steps, entropy, .. } = self;
        // A snapshot that is to be broken off has to take many batches.
        let batches = if breaks_snapshot { [3, 20, 50] } else { [3, 20, 1_000] };
        let (concurrency, batch_rows) = (1 + 3 * entropy.below(2), batches[at(&entropy, 3)]);
        // Seeds go through all pairs, so it is not drawn: both are tried with every sink.
        let keeps_missing = source != Source::Mongodb || (seed / PAIRS).is_multiple_of(2);
        let postgres = postgres_of(seed);
        Plan { seed, source, sink, postgres, start, concurrency, batch_rows, keeps_missing, tables, steps, halt }
    }

    /// A snapshot of many rows, which is broken off up to three times; in between rows change and go.
    fn broken_snapshot(&mut self) {
        self.fill();
        for _ in 0..1 + self.below(3) {
            let after_ms = if self.one_in(2) { 0 } else { self.below(60) };
            self.steps.push(Step::BreakSnapshot { after_ms });
            for _ in 0..self.below(4) {
                self.transaction(6);
            }
        }
    }

    /// Many rows of one table at once.
    fn fill(&mut self) {
        let number = at(&self.entropy, self.tables.len());
        let mut rows = self.tables[number].clone();
        let mut statements = Vec::new();
        for _ in 0..LONG_SNAPSHOT_ROWS + self.below(LONG_SNAPSHOT_ROWS) {
            self.rev += 1;
            let key = rows.free_key(&self.entropy);
            rows.insert(key);
            let (table, key) = (rows.table.name.clone(), rows.table.key.key(key));
            statements.push(Statement::Insert { table, key, rev: self.rev, fields: self.fields(&rows, true) });
        }
        self.tables[number] = rows;
        self.steps.push(Step::Transaction { statements, commit: true });
    }

    fn start(&mut self) {
        if !self.running {
            self.steps.push(Step::Start);
            self.running = true;
        }
    }

    /// Some writes with the instance as it is, then something that happens to it.
    fn turn(&mut self) {
        for _ in 0..self.below(12) {
            if self.one_in(8) {
                self.schema_change();
            } else {
                self.transaction(6);
            }
        }
        match self.below(5) {
            0 | 1 if self.running => {
                self.steps.push(Step::Kill { after_ms: self.below(400) });
                self.running = false;
            }
            2 if self.running => {
                self.steps.push(Step::Stop);
                self.running = false;
            }
            3 if self.running => self.steps.push(Step::CatchUp),
            _ => {}
        }
        if self.one_in(2) {
            self.start();
        }
    }

    /// The last change of every table: when they have arrived, everything was read.
    fn marker(&mut self) {
        let mut statements = Vec::new();
        for number in 0..self.tables.len() {
            self.rev += 1;
            let mut rows = self.tables[number].clone();
            let key = rows.table.key.key(rows.free_key(&self.entropy));
            let (table, fields) = (rows.table.name.clone(), self.fields(&rows, true));
            statements.push(Statement::Insert { table, key, rev: self.rev, fields });
        }
        self.steps.push(Step::Transaction { statements, commit: true });
    }

    fn transaction(&mut self, statements_max: u64) {
        let before = self.tables.clone();
        let statements: Vec<_> = (0..=self.below(statements_max)).map(|_| self.statement()).collect();
        let commit = !self.one_in(8);
        if !commit {
            self.tables = before;
        }
        self.steps.push(Step::Transaction { statements, commit });
    }

    fn fields(&self, rows: &Rows, all: bool) -> Fields {
        let wanted = rows.table.columns.iter().filter(|_| all || self.below(2) == 0);
        wanted.map(|column| (column.name.clone(), column.kind.draw(&self.entropy))).collect()
    }

    fn statement(&mut self) -> Statement {
        let number = at(&self.entropy, self.tables.len());
        self.rev += 1;
        let rev = self.rev;
        let mut rows = self.tables[number].clone();
        let (table, kind) = (rows.table.name.clone(), rows.table.key);
        let statement = match (self.below(20), rows.some_key(&self.entropy)) {
            (0..5, Some(key)) => {
                Statement::Update { table, key: kind.key(key), rev, fields: self.fields(&rows, false) }
            }
            (5..7, Some(key)) if self.source == Source::Mongodb => {
                Statement::Replace { table, key: kind.key(key), rev, fields: self.fields(&rows, true) }
            }
            (5..7, Some(key)) => {
                let to = rows.free_key(&self.entropy);
                rows.remove(key);
                rows.keys.push(to);
                Statement::MoveKey { table, from: kind.key(key), to: kind.key(to), rev }
            }
            (7..11, Some(key)) => {
                rows.remove(key);
                Statement::Delete { table, key: kind.key(key) }
            }
            (11, Some(_)) if self.source.is_postgres() && self.one_in(4) => {
                rows.clear();
                Statement::Truncate { table }
            }
            _ => {
                let key = rows.free_key(&self.entropy);
                rows.insert(key);
                Statement::Insert { table, key: kind.key(key), rev, fields: self.fields(&rows, true) }
            }
        };
        self.tables[number] = rows;
        statement
    }
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeSet;

    use super::super::SchemaChange;
    use super::*;

    #[test]
    fn the_seed_is_the_plan() {
        let plan = |seed| Plan::drawn(seed, Narrow::default());
        assert_eq!(plan(7), plan(7));
        assert_ne!(plan(7).steps, plan(7 + 44).steps);
    }

    #[test]
    fn no_two_seeds_draw_the_same_numbers() {
        let mut drawn = BTreeSet::new();
        for seed in 0..200 {
            let entropy = entropy_of(seed);
            assert!((0..100).all(|_| drawn.insert(entropy.next())), "seed {seed} repeats another one's numbers");
        }
    }

    fn plans(seeds: std::ops::Range<u64>) -> impl Iterator<Item = Plan> {
        seeds.map(|seed| Plan::drawn(seed, Narrow::default()))
    }

    #[test]
    fn all_pairs_of_source_and_sink_are_reached() {
        let pairs: BTreeSet<_> = plans(0..44).map(|plan| (plan.source, plan.sink)).collect();
        assert_eq!(pairs.len(), 44);
    }

    #[test]
    fn the_first_ten_seeds_reach_every_system_on_both_sides() {
        let sources: BTreeSet<_> = plans(0..10).map(|plan| plan.source).collect();
        assert_eq!(sources.len(), Source::ALL.len());
        let system = |sink: Sink| sink.as_str().split('-').next().expect("there is a first part");
        let targets: BTreeSet<_> = plans(0..10).map(|plan| system(plan.sink)).collect();
        assert_eq!(targets.into_iter().collect::<Vec<_>>(), ["file", "mongodb", "postgres", "sqlite"]);
        let versions: BTreeSet<_> = plans(0..10)
            .filter(|plan| plan.source.is_postgres() || plan.sink.is_postgres())
            .map(|plan| (plan.source.is_postgres(), plan.postgres))
            .collect();
        assert_eq!(versions.len(), 4, "both versions, as source and as target");
    }

    #[test]
    fn every_pair_has_both_versions_and_both_treatments_of_missing_fields() {
        let seen: BTreeSet<_> =
            plans(0..176).map(|plan| (plan.source, plan.sink, plan.postgres, plan.keeps_missing)).collect();
        let of_tables = 33 * 2;
        assert_eq!(seen.len(), of_tables + 11 * 4);
    }

    #[test]
    fn every_change_of_the_schema_is_drawn_where_it_can_be() {
        let kind = |change: &SchemaChange| format!("{change:?}").split(' ').next().unwrap_or_default().to_owned();
        let mut drawn: BTreeSet<(Source, bool, String)> = BTreeSet::new();
        for plan in plans(0..200) {
            for step in &plan.steps {
                if let Step::Schema(change) = step {
                    drawn.insert((
                        plan.source,
                        plan.halt.is_some() && step == &plan.steps[plan.steps.len() - 1],
                        kind(change),
                    ));
                }
            }
        }
        let has = |source, is_fatal, name: &str| drawn.contains(&(source, is_fatal, name.to_owned()));
        let missing = |source, is_fatal, names: &[&str]| -> Vec<String> {
            let missing = names.iter().filter(|name| !has(source, is_fatal, name));
            missing.map(|name| format!("{source:?} {name} {is_fatal}")).collect()
        };
        let columns = ["AddColumn", "DropColumn", "RenameColumn"];
        let ends = ["DropTable", "RebuildTable", "Rename"];
        let replaced = ["Rename", "RenameOver", "Out"];
        let all = [
            missing(Source::Sqlite, false, &columns),
            missing(Source::Sqlite, true, &ends),
            missing(Source::ChangeLog, false, &[&columns[..], &["RenameAndBack"]].concat()),
            missing(Source::ChangeLog, true, &ends[..2]),
            missing(Source::Replication, false, &[&columns[..], &["RenameAndBack"]].concat()),
            missing(Source::Replication, true, &ends),
            missing(Source::Mongodb, false, &[&replaced[..], &["DropCollection"]].concat()),
            missing(Source::Mongodb, true, &replaced),
        ];
        assert_eq!(all.concat(), Vec::<String>::new());
    }

    #[test]
    fn snapshots_are_broken_off_while_there_is_much_to_read() {
        let mut broken = 0;
        for plan in plans(0..200) {
            let Some(first) = plan.steps.iter().position(|step| matches!(step, Step::BreakSnapshot { .. })) else {
                continue;
            };
            broken += 1;
            assert_eq!(plan.start, Start::Snapshot);
            let rows = |step: &Step| match step {
                Step::Transaction { statements, commit: true } => statements.len(),
                _ => 0,
            };
            assert!(plan.steps[..first].iter().map(rows).sum::<usize>() >= 600, "{plan}");
            assert!(!plan.steps[..first].contains(&Step::Start), "{plan}");
        }
        assert!(broken > 30, "{broken}");
    }

    #[test]
    fn the_instance_runs_at_the_end() {
        for seed in 0..200 {
            let plan = Plan::drawn(seed, Narrow::default());
            let ends = |step: &&Step| {
                matches!(step, Step::Start | Step::Kill { .. } | Step::BreakSnapshot { .. } | Step::Stop)
            };
            assert_eq!(plan.steps.iter().rfind(ends), Some(&Step::Start), "{plan}");
        }
    }

    #[test]
    fn statements_are_valid_where_they_stand() {
        for seed in 0..400 {
            let plan = Plan::drawn(seed, Narrow::default());
            let mut present: BTreeSet<String> = BTreeSet::new();
            for step in &plan.steps {
                let Step::Transaction { statements, commit } = step else {
                    if let Step::Schema(change) = step
                        && change.empties_collection()
                    {
                        present.retain(|row| !row.starts_with(&format!("{} ", change.table())));
                    }
                    continue;
                };
                let before = present.clone();
                for statement in statements {
                    check(&mut present, statement).unwrap_or_else(|row| panic!("{row}: {statement:?} in {plan}"));
                }
                if !commit {
                    present = before;
                }
            }
        }
    }

    #[test]
    fn only_collections_that_exist_are_renamed() {
        for seed in 0..1_000 {
            let plan = Plan::drawn(seed, Narrow { source: Some(Source::Mongodb), ..Narrow::default() });
            let mut existing: BTreeSet<&str> = plan.tables.iter().map(|table| table.name.as_str()).collect();
            for step in &plan.steps {
                match step {
                    Step::Schema(SchemaChange::Rename { table, .. }) => {
                        assert!(existing.remove(table.as_str()), "{table} does not exist: {plan}");
                    }
                    Step::Schema(SchemaChange::DropCollection { table }) => {
                        existing.remove(table.as_str());
                    }
                    Step::Schema(change) => {
                        existing.insert(change.table());
                    }
                    Step::Transaction { statements, commit: true } => {
                        existing.extend(statements.iter().filter_map(|statement| match statement {
                            Statement::Insert { table, .. } => Some(table.as_str()),
                            _ => None,
                        }));
                    }
                    _ => {}
                }
            }
        }
    }

    fn check(present: &mut BTreeSet<String>, statement: &Statement) -> Result<(), String> {
        let row = |table: &String, key| format!("{table} {key:?}");
        let expect = |holds: bool, row: String| if holds { Ok(()) } else { Err(row) };
        match statement {
            Statement::Insert { table, key, .. } => expect(present.insert(row(table, key)), row(table, key)),
            Statement::Update { table, key, .. } | Statement::Replace { table, key, .. } => {
                expect(present.contains(&row(table, key)), row(table, key))
            }
            Statement::Delete { table, key } => expect(present.remove(&row(table, key)), row(table, key)),
            Statement::MoveKey { table, from, to, .. } => {
                expect(present.remove(&row(table, from)), row(table, from))?;
                expect(present.insert(row(table, to)), row(table, to))
            }
            Statement::Truncate { table } => {
                present.retain(|row| !row.starts_with(&format!("{table} ")));
                Ok(())
            }
        }
    }
}
