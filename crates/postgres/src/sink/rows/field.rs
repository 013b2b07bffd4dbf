//! The fields of a document that become columns, as PostgreSQL's own input functions read them.

use std::io::Write;

use watchkeeper_core::payload::{JsonPayload, Payload, ValueRef, Visit};

/// Which field of a document a column is taken from.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct Column {
    pub(super) name: String,
    /// The way to it, from the outermost document.
    pub(super) path: Vec<String>,
    pub(super) in_key: bool,
}

/// What became of a column.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub(super) enum Told {
    /// There is no field where its way begins.
    #[default]
    Missing,
    /// Its way begins, but leads to nothing.
    Absent,
    /// The source did not send it, since it did not change.
    Unchanged,
    /// Its value, as JSON.
    Value(Vec<u8>),
}

/// Takes the columns out of a document as it is visited.
#[derive(Debug)]
pub(super) struct Fields<'a> {
    columns: &'a [Column],
    told: Vec<Told>,
    /// The keys on the way to what is visited; none inside of arrays.
    way: Vec<Step>,
    /// The columns whose values are under way, with where each began and what is written of it.
    open: Vec<Open>,
    /// The columns that are taken from inside of a field.
    inner: Vec<usize>,
}

#[derive(Debug)]
enum Step {
    Document(Option<String>),
    Array,
}

#[derive(Debug)]
struct Open {
    column: usize,
    depth: usize,
    json: Vec<u8>,
    comma: bool,
}

impl<'a> Fields<'a> {
    pub(super) fn of(columns: &'a [Column]) -> Self {
        let inner = (0..columns.len()).filter(|at| columns[*at].path.len() > 1).collect();
        Self { columns, told: vec![Told::Missing; columns.len()], way: Vec::new(), open: Vec::new(), inner }
    }

    /// What there is of each column.
    pub(super) fn told(self) -> Vec<Told> {
        self.told
    }

    /// Whether nothing has begun: what is visited now is all there is.
    pub(super) fn is_outside(&self) -> bool {
        self.way.is_empty()
    }

    /// Whether what is visited now is a field of the document itself.
    pub(super) fn is_outermost(&self) -> bool {
        self.way.len() == 1
    }

    /// Whether what is visited now stands where `path` leads.
    fn is_at(&self, path: &[String]) -> bool {
        self.way.len() == path.len() && self.is_on_way(path)
    }

    /// Whether what is visited now stands on the way to where `path` leads.
    fn is_on_way(&self, path: &[String]) -> bool {
        let key = |step: &Step, wanted: &String| matches!(step, Step::Document(Some(key)) if key == wanted);
        self.way.len() <= path.len() && self.way.iter().zip(path).all(|(step, wanted)| key(step, wanted))
    }

    /// Whether a column was found already: the first wins where a key stands twice.
    fn is_found(&self, column: usize) -> bool {
        !matches!(self.told[column], Told::Missing | Told::Absent)
    }

    /// Notes that everything from here on did not change.
    fn note_unchanged(&mut self) {
        for (column, wanted) in self.columns.iter().enumerate() {
            if !self.is_found(column) && self.is_on_way(&wanted.path) {
                self.told[column] = Told::Unchanged;
            }
        }
    }

    /// Whether this is a JSON document that a column is taken from the inside of.
    fn is_entered(&self, value: &ValueRef<'_>) -> bool {
        let ValueRef::Json(text) = value else { return false };
        let is_inside = |column: &usize| self.is_on_way(&self.columns[*column].path);
        text.trim_start().starts_with('{') && self.inner.iter().any(is_inside)
    }

    /// Begins the columns that are taken from here.
    fn begin_columns(&mut self) {
        for (column, wanted) in self.columns.iter().enumerate() {
            if !self.is_found(column) && self.is_at(&wanted.path) {
                self.open.push(Open { column, depth: self.way.len(), json: Vec::new(), comma: false });
            }
        }
    }

    /// Ends those that began here.
    fn end_columns(&mut self) {
        let depth = self.way.len();
        while self.open.last().is_some_and(|open| open.depth == depth) {
            if let Some(open) = self.open.pop() {
                self.told[open.column] = Told::Value(open.json);
            }
        }
    }

    fn enter(&mut self, step: Step, sign: u8) {
        self.begin_columns();
        for open in &mut self.open {
            open.separate();
            open.json.push(sign);
            open.comma = false;
        }
        self.way.push(step);
    }

    fn leave(&mut self, sign: u8) {
        self.way.pop();
        for open in &mut self.open {
            open.json.push(sign);
            open.comma = true;
        }
        self.end_columns();
    }
}

impl Open {
    fn separate(&mut self) {
        if std::mem::replace(&mut self.comma, true) {
            self.json.push(b',');
        }
    }
}

impl Visit for Fields<'_> {
    fn value(&mut self, value: ValueRef<'_>) {
        if value == ValueRef::Unchanged {
            return self.note_unchanged();
        }
        if let ValueRef::Json(text) = &value
            && self.is_entered(&value)
            && JsonPayload.walk(text.as_bytes(), self).is_ok()
        {
            return;
        }
        self.begin_columns();
        for open in &mut self.open {
            open.separate();
            write_value(&mut open.json, &value);
        }
        self.end_columns();
    }

    fn begin_document(&mut self) {
        self.enter(Step::Document(None), b'{');
    }

    fn key(&mut self, key: &str) {
        if let Some(Step::Document(current)) = self.way.last_mut() {
            *current = Some(key.to_owned());
        }
        for column in self.inner.iter().filter(|_| self.way.len() == 1) {
            if self.told[*column] == Told::Missing && self.columns[*column].path[0] == key {
                self.told[*column] = Told::Absent;
            }
        }
        for open in &mut self.open {
            open.separate();
            write_text(&mut open.json, key);
            open.json.push(b':');
            open.comma = false;
        }
    }

    fn end_document(&mut self) {
        self.leave(b'}');
    }

    fn begin_array(&mut self) {
        self.enter(Step::Array, b'[');
    }

    fn end_array(&mut self) {
        self.leave(b']');
    }
}

fn write_text(out: &mut Vec<u8>, text: &str) {
    // Writing to a vector can not fail.
    let _ = serde_json::to_writer(out, text);
}

/// Whether digits are a number of JSON, too: infinities and the like are not.
fn is_number(digits: &str) -> bool {
    serde_json::from_str::<serde_json::Number>(digits).is_ok()
}

/// A value as JSON that is converted by the type of its column: what has no JSON of its own is the text that the server reads.
fn write_value(out: &mut Vec<u8>, value: &ValueRef<'_>) {
    match value {
        ValueRef::Bool(truth) => drop(write!(out, "{truth}")),
        ValueRef::Int32(number) => drop(write!(out, "{number}")),
        ValueRef::Int64(number) => drop(write!(out, "{number}")),
        ValueRef::Double(number) if number.is_finite() => drop(serde_json::to_writer(out, number)),
        ValueRef::Double(number) if number.is_nan() => write_text(out, "NaN"),
        ValueRef::Double(number) => write_text(out, if *number > 0.0 { "Infinity" } else { "-Infinity" }),
        ValueRef::Decimal(digits) if is_number(digits) => out.extend_from_slice(digits.as_bytes()),
        ValueRef::Decimal(digits) => write_text(out, digits),
        ValueRef::Str(text) => write_text(out, text),
        ValueRef::Binary(4, bytes) if bytes.len() == 16 => write_text(out, &hex(bytes)),
        ValueRef::Binary(_, bytes) => write_text(out, &format!("\\x{}", hex(bytes))),
        ValueRef::ObjectId(bytes) => write_text(out, &hex(bytes)),
        ValueRef::DateTime(millis) => write_text(out, &date(*millis)),
        ValueRef::Timestamp(seconds, _) => write_text(out, &date(i64::from(*seconds) * 1_000)),
        ValueRef::Regex(pattern, options) => write_text(out, &format!("/{pattern}/{options}")),
        ValueRef::Json(text) => out.extend_from_slice(text.as_bytes()),
        ValueRef::Document => out.extend_from_slice(b"{}"),
        ValueRef::Array => out.extend_from_slice(b"[]"),
        _ => out.extend_from_slice(b"null"),
    }
}

fn hex(bytes: &[u8]) -> String {
    bytes.iter().map(|byte| format!("{byte:02x}")).collect()
}

/// A moment in UTC, as PostgreSQL reads it, in whichever year.
fn date(millis: i64) -> String {
    let (days, in_day) = (millis.div_euclid(86_400_000), millis.rem_euclid(86_400_000));
    // Days since 0000-03-01, so that leap days fall at the end of a year.
    let days = days + 719_468;
    let (era, day_of_era) = (days.div_euclid(146_097), days.rem_euclid(146_097));
    let year_of_era = (day_of_era - day_of_era / 1_460 + day_of_era / 36_524 - day_of_era / 146_096) / 365;
    let day_of_year = day_of_era - (365 * year_of_era + year_of_era / 4 - year_of_era / 100);
    let month_from_march = (5 * day_of_year + 2) / 153;
    let day = day_of_year - (153 * month_from_march + 2) / 5 + 1;
    let month = if month_from_march < 10 { month_from_march + 3 } else { month_from_march - 9 };
    let year = year_of_era + era * 400 + i64::from(month <= 2);
    let (hour, minute, second) = (in_day / 3_600_000, in_day / 60_000 % 60, in_day / 1_000 % 60);
    // There is no year 0: before 1 stands 1 BC.
    let (year, before) = if year > 0 { (year, "") } else { (1 - year, " BC") };
    format!("{year:04}-{month:02}-{day:02} {hour:02}:{minute:02}:{second:02}.{:03}+00{before}", in_day % 1_000)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn column(path: &str) -> Column {
        let path: Vec<String> = path.split('.').map(str::to_owned).collect();
        Column { name: path.join("_"), path, in_key: false }
    }

    fn shown(fields: Fields<'_>) -> Vec<String> {
        let shown = |told: Told| match told {
            Told::Value(json) => String::from_utf8(json).expect("JSON is text"),
            other => format!("{other:?}"),
        };
        fields.told().into_iter().map(shown).collect()
    }

    #[test]
    fn fields_are_found_at_the_end_of_their_ways() {
        let columns = ["a", "b.c", "b", "d", "list.x", "d.e"].map(column);
        let body = br#"{"x":{"a":1},"a":[1,{"a":2}],"b":{"c":"t","e":null},"list":[{"x":3}],"a":9}"#;
        let mut fields = Fields::of(&columns);
        JsonPayload.walk(body, &mut fields).expect("it is JSON");
        let told = [r#"[1,{"a":2}]"#, r#""t""#, r#"{"c":"t","e":null}"#, "Missing", "Absent", "Missing"];
        assert_eq!(shown(fields), told);
    }

    #[test]
    fn json_is_entered_and_what_did_not_change_is_unchanged_all_the_way() {
        let columns = ["a", "a.b", "a.n.c", "a.x", "big", "big.y", "one.z"].map(column);
        let mut fields = Fields::of(&columns);
        fields.begin_document();
        for (key, value) in [
            ("a", ValueRef::Json(r#" {"b": 1.10, "n": {"c": "t"}}"#.into())),
            ("big", ValueRef::Unchanged),
            ("one", ValueRef::Json("1.50".into())),
        ] {
            fields.key(key);
            fields.value(value);
        }
        fields.end_document();
        let told = [r#"{"b":1.10,"n":{"c":"t"}}"#, "1.10", r#""t""#, "Absent", "Unchanged", "Unchanged", "Absent"];
        assert_eq!(shown(fields), told);
    }

    #[test]
    fn values_are_written_as_the_server_reads_them() {
        let id = [0xab; 16];
        for (value, json) in [
            (ValueRef::Decimal("1.50".into()), "1.50"),
            (ValueRef::Decimal("NaN".into()), "\"NaN\""),
            (ValueRef::Double(f64::NEG_INFINITY), "\"-Infinity\""),
            (ValueRef::Binary(0, vec![0, 255].into()), "\"\\\\x00ff\""),
            (ValueRef::Binary(4, id.to_vec().into()), "\"abababababababababababababababab\""),
            (ValueRef::DateTime(-1), "\"1969-12-31 23:59:59.999+00\""),
            (ValueRef::DateTime(1_709_164_800_000), "\"2024-02-29 00:00:00.000+00\""),
            (ValueRef::DateTime(-62_135_596_800_001), "\"0001-12-31 23:59:59.999+00 BC\""),
        ] {
            let mut out = Vec::new();
            write_value(&mut out, &value);
            assert_eq!(String::from_utf8_lossy(&out), json, "{value:?}");
        }
    }
}
