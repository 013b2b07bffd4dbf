//! The fields of a document that become columns, as PostgreSQL's own input functions read them.

use watchkeeper_core::Result;
use watchkeeper_core::payload::{JsonPayload, Payload, ValueRef, Visit};

use super::encode::{Encoded, Encoder, Kind, Texts};

/// Which field of a document a column is taken from.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct Column {
    pub(super) name: String,
    /// The way to it, from the outermost document.
    pub(super) path: Vec<String>,
    pub(super) in_key: bool,
    pub(super) kind: Kind,
}

/// What became of a column.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub(super) enum ColumnValue {
    /// There is no field where its way begins.
    #[default]
    Missing,
    /// Its way begins, but leads to nothing.
    Absent,
    /// The source did not send it, since it did not change.
    Unchanged,
    /// Its value, as JSON.
    Value(Vec<u8>),
    /// The null of JSON, which is not that of SQL.
    JsonNull,
    /// Why its value would become another one.
    Refused(String),
}

impl From<Encoded> for ColumnValue {
    fn from(encoded: Encoded) -> Self {
        match encoded {
            Encoded::Json(json) => Self::Value(json),
            Encoded::JsonNull => Self::JsonNull,
            Encoded::Refused(cause) => Self::Refused(cause),
        }
    }
}

/// Takes the columns out of a document as it is visited.
#[derive(Debug)]
pub(super) struct Fields<'a> {
    columns: &'a [Column],
    /// What text of the source may stand for.
    texts: Texts,
    values: Vec<ColumnValue>,
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
    encoder: Encoder,
}

impl<'a> Fields<'a> {
    /// The `columns` of a document of this payload.
    pub(super) fn of(columns: &'a [Column], payload: &dyn Payload) -> Self {
        let inner = (0..columns.len()).filter(|at| columns[*at].path.len() > 1).collect();
        let values = vec![ColumnValue::Missing; columns.len()];
        let (has_json_strings, has_binary_bytes) = (payload.has_json_strings(), payload.has_binary_bytes());
        let texts = Texts { has_json_strings, has_binary_bytes };
        Self { columns, texts, values, way: Vec::new(), open: Vec::new(), inner }
    }

    /// What there is of each column.
    pub(super) fn into_values(self) -> Vec<ColumnValue> {
        self.values
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
        !matches!(self.values[column], ColumnValue::Missing | ColumnValue::Absent)
    }

    /// Notes that everything from here on did not change.
    fn note_unchanged(&mut self) {
        for (column, wanted) in self.columns.iter().enumerate() {
            if !self.is_found(column) && self.is_on_way(&wanted.path) {
                self.values[column] = ColumnValue::Unchanged;
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
                let encoder = Encoder::new(wanted.kind, self.texts);
                self.open.push(Open { column, depth: self.way.len(), encoder });
            }
        }
    }

    /// Ends those that began here.
    fn end_columns(&mut self) {
        let depth = self.way.len();
        while self.open.last().is_some_and(|open| open.depth == depth) {
            if let Some(open) = self.open.pop() {
                self.values[open.column] = open.encoder.finish().into();
            }
        }
    }

    /// Visits the inside of a JSON document. Its texts are strings of JSON, whatever those of the source are.
    fn enter_json(&mut self, text: &str) -> Result<()> {
        let texts = std::mem::replace(&mut self.texts, Texts::JSON);
        let walked = JsonPayload.walk(text.as_bytes(), self);
        self.texts = texts;
        walked
    }

    fn enter(&mut self, step: Step, begin: fn(&mut dyn Visit)) {
        self.begin_columns();
        self.open.iter_mut().for_each(|open| begin(open.encoder.visit()));
        self.way.push(step);
    }

    fn leave(&mut self, end: fn(&mut dyn Visit)) {
        self.way.pop();
        self.open.iter_mut().for_each(|open| end(open.encoder.visit()));
        self.end_columns();
    }
}

impl Visit for Fields<'_> {
    fn value(&mut self, value: ValueRef<'_>) {
        if value == ValueRef::Unchanged {
            return self.note_unchanged();
        }
        if let ValueRef::Json(text) = &value
            && self.is_entered(&value)
            && self.enter_json(text).is_ok()
        {
            return;
        }
        self.begin_columns();
        self.open.iter_mut().for_each(|open| open.encoder.visit().value(value.clone()));
        self.end_columns();
    }

    fn begin_document(&mut self) {
        self.enter(Step::Document(None), |visit| visit.begin_document());
    }

    fn key(&mut self, key: &str) {
        if let Some(Step::Document(current)) = self.way.last_mut() {
            *current = Some(key.to_owned());
        }
        for column in self.inner.iter().filter(|_| self.way.len() == 1) {
            if self.values[*column] == ColumnValue::Missing && self.columns[*column].path[0] == key {
                self.values[*column] = ColumnValue::Absent;
            }
        }
        self.open.iter_mut().for_each(|open| open.encoder.visit().key(key));
    }

    fn end_document(&mut self) {
        self.leave(|visit| visit.end_document());
    }

    fn begin_array(&mut self) {
        self.enter(Step::Array, |visit| visit.begin_array());
    }

    fn end_array(&mut self) {
        self.leave(|visit| visit.end_array());
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn column(path: &str) -> Column {
        let path: Vec<String> = path.split('.').map(str::to_owned).collect();
        Column { name: path.join("_"), path, in_key: false, kind: Kind::default() }
    }

    fn shown(fields: Fields<'_>) -> Vec<String> {
        let shown = |values: ColumnValue| match values {
            ColumnValue::Value(json) => String::from_utf8(json).expect("JSON is text"),
            other => format!("{other:?}"),
        };
        fields.into_values().into_iter().map(shown).collect()
    }

    #[test]
    fn fields_are_found_at_the_end_of_their_ways() {
        let columns = ["a", "b.c", "b", "d", "list.x", "d.e"].map(column);
        let body = br#"{"x":{"a":1},"a":[1,{"a":2}],"b":{"c":"t","e":null},"list":[{"x":3}],"a":9}"#;
        let mut fields = Fields::of(&columns, &JsonPayload);
        JsonPayload.walk(body, &mut fields).expect("it is JSON");
        let values = [r#"[1,{"a":2}]"#, r#""t""#, r#"{"c":"t","e":null}"#, "Missing", "Absent", "Missing"];
        assert_eq!(shown(fields), values);
    }

    #[test]
    fn json_is_entered_and_what_did_not_change_is_unchanged_all_the_way() {
        let columns = ["a", "a.b", "a.n.c", "a.x", "big", "big.y", "one.z"].map(column);
        let mut fields = Fields::of(&columns, &JsonPayload);
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
        let values = [r#"{"b":1.10,"n":{"c":"t"}}"#, "1.10", r#""t""#, "Absent", "Unchanged", "Unchanged", "Absent"];
        assert_eq!(shown(fields), values);
    }

    #[test]
    fn a_string_inside_of_json_is_a_string_whatever_text_is_to_the_source() {
        let column = Column { kind: Kind::new("jsonb", "U", false), ..column("doc.s") };
        let columns = [column, Column { kind: Kind::new("jsonb", "U", false), ..self::column("s") }];
        let mut fields = Fields::of(&columns, &crate::replication::RowPayload);
        fields.begin_document();
        fields.key("doc");
        fields.value(ValueRef::Json(r#"{"s": "[1]"}"#.into()));
        fields.key("s");
        fields.value(ValueRef::Str("[1]".into()));
        fields.end_document();
        assert_eq!(shown(fields), [r#""[1]""#, "[1]"]);
    }
}
