//! Values that are sent as the text which the input function of their type reads, since JSON would lose a part of them.

use watchkeeper_core::payload::{ValueRef, Visit};

use super::encode::{Encoded, write_text, write_value};

/// An array of JSON: in an array of JSON arrays its own dimensions could not be told from those of its elements.
#[derive(Debug, Default)]
pub(super) struct ArrayLiteral {
    has_json_strings: bool,
    text: String,
    /// How many dimensions are open.
    dimensions: usize,
    /// The element that is being written, with how many of its parts are open.
    element: Vec<u8>,
    open: usize,
    comma: bool,
    is_null: bool,
    refused: Option<&'static str>,
}

impl ArrayLiteral {
    pub(super) fn new(has_json_strings: bool) -> Self {
        Self { has_json_strings, ..Self::default() }
    }

    pub(super) fn finish(self) -> Encoded {
        if let Some(cause) = self.refused {
            return Encoded::Refused(cause.to_owned());
        }
        if self.is_null {
            return Encoded::Json(b"null".to_vec());
        }
        let mut json = Vec::new();
        write_text(&mut json, &self.text);
        Encoded::Json(json)
    }

    fn separate(&mut self) {
        if std::mem::replace(&mut self.comma, true) {
            if self.open > 0 { self.element.push(b',') } else { self.text.push(',') }
        }
    }

    /// Ends an element.
    fn quote(&mut self) {
        let element = std::mem::take(&mut self.element);
        quote(&mut self.text, &String::from_utf8_lossy(&element));
    }

    fn begin(&mut self, sign: u8) {
        self.separate();
        self.open += 1;
        self.element.push(sign);
        self.comma = false;
    }

    fn end(&mut self, sign: u8) {
        self.open -= 1;
        self.element.push(sign);
        self.comma = true;
        if self.open == 0 {
            self.quote();
        }
    }
}

impl Visit for ArrayLiteral {
    fn value(&mut self, value: ValueRef<'_>) {
        match (&value, self.dimensions) {
            (ValueRef::Null, 0) => self.is_null = true,
            // As the server itself writes an array.
            (ValueRef::Str(text), 0) => self.text.push_str(text),
            (_, 0) => self.refused = Some("this is no array"),
            (ValueRef::Null, _) if self.open == 0 => {
                self.separate();
                self.text.push_str("NULL");
            }
            _ => {
                self.separate();
                write_value(&mut self.element, &value);
                if self.open == 0 {
                    self.quote();
                }
            }
        }
    }

    fn begin_document(&mut self) {
        if self.dimensions == 0 {
            self.refused = Some("a document is no array");
        }
        self.begin(b'{');
    }

    fn key(&mut self, key: &str) {
        self.separate();
        write_text(&mut self.element, key);
        self.element.push(b':');
        self.comma = false;
    }

    fn end_document(&mut self) {
        self.end(b'}');
    }

    fn begin_array(&mut self) {
        if self.open > 0 {
            return self.begin(b'[');
        }
        if self.has_json_strings && self.dimensions > 0 {
            self.refused = Some(
                "an array of JSON with arrays in it: its source does not tell whether these are elements or a dimension",
            );
        }
        self.separate();
        self.text.push('{');
        self.dimensions += 1;
        self.comma = false;
    }

    fn end_array(&mut self) {
        if self.open > 0 {
            return self.end(b']');
        }
        self.dimensions -= 1;
        self.text.push('}');
        self.comma = true;
    }
}

/// Appends a text in quotes, as arrays and `hstore` have them.
fn quote(out: &mut String, text: &str) {
    out.push('"');
    for sign in text.chars() {
        if matches!(sign, '"' | '\\') {
            out.push('\\');
        }
        out.push(sign);
    }
    out.push('"');
}

/// JSON of texts that stand for composed values, and of arrays of such texts.
#[derive(Debug, Default)]
struct TextList {
    json: Vec<u8>,
    comma: bool,
    refused: Option<&'static str>,
}

impl TextList {
    fn finish(self) -> Encoded {
        match self.refused {
            Some(cause) => Encoded::Refused(cause.to_owned()),
            None => Encoded::Json(self.json),
        }
    }

    fn separate(&mut self) {
        if std::mem::replace(&mut self.comma, true) {
            self.json.push(b',');
        }
    }

    fn value(&mut self, value: &ValueRef<'_>) {
        self.separate();
        write_value(&mut self.json, value);
    }

    fn text(&mut self, text: &str) {
        self.separate();
        write_text(&mut self.json, text);
    }

    fn begin_array(&mut self) {
        self.separate();
        self.json.push(b'[');
        self.comma = false;
    }

    fn end_array(&mut self) {
        self.json.push(b']');
        self.comma = true;
    }
}

/// An `hstore`, or an array of them: documents become its pairs.
#[derive(Debug, Default)]
pub(super) struct HstoreLiteral {
    list: TextList,
    /// The pairs of the document that is open.
    pairs: Option<String>,
}

impl HstoreLiteral {
    pub(super) fn finish(self) -> Encoded {
        self.list.finish()
    }
}

const NESTED: &str = "an hstore has texts only, and no documents or arrays";

impl Visit for HstoreLiteral {
    fn value(&mut self, value: ValueRef<'_>) {
        let Some(pairs) = &mut self.pairs else { return self.list.value(&value) };
        match value {
            ValueRef::Null => pairs.push_str("NULL"),
            ValueRef::Str(text) => quote(pairs, &text),
            ValueRef::Bool(_) | ValueRef::Int32(_) | ValueRef::Int64(_) | ValueRef::Decimal(_) => {
                let mut text = Vec::new();
                write_value(&mut text, &value);
                quote(pairs, &String::from_utf8_lossy(&text));
            }
            _ => self.list.refused = Some(NESTED),
        }
    }

    fn begin_document(&mut self) {
        if self.pairs.is_some() {
            self.list.refused = Some(NESTED);
            return;
        }
        self.pairs = Some(String::new());
    }

    fn key(&mut self, key: &str) {
        let pairs = self.pairs.get_or_insert_default();
        if !pairs.is_empty() {
            pairs.push(',');
        }
        quote(pairs, key);
        pairs.push_str("=>");
    }

    fn end_document(&mut self) {
        if let Some(pairs) = self.pairs.take() {
            self.list.text(&pairs);
        }
    }

    fn begin_array(&mut self) {
        if self.pairs.is_some() {
            self.list.refused = Some(NESTED);
            return;
        }
        self.list.begin_array();
    }

    fn end_array(&mut self) {
        if self.pairs.is_none() {
            self.list.end_array();
        }
    }
}

/// A vector of the catalog, or an array of them: the innermost arrays become texts with blanks between their numbers.
#[derive(Debug, Default)]
pub(super) struct VectorLiteral {
    is_array: bool,
    list: TextList,
    /// How many arrays are open, without the vector itself.
    arrays: usize,
    /// The numbers of the vector that is open.
    vector: Option<String>,
}

impl VectorLiteral {
    pub(super) fn new(is_array: bool) -> Self {
        Self { is_array, ..Self::default() }
    }

    pub(super) fn finish(self) -> Encoded {
        self.list.finish()
    }
}

const NO_VECTOR: &str = "a vector has numbers only, in one dimension";

/// An element of a vector as the server reads it. JSON of the server has the numbers of an `oidvector` as texts.
fn vector_element(value: &ValueRef<'_>) -> Option<String> {
    match value {
        ValueRef::Int32(number) => Some(number.to_string()),
        ValueRef::Int64(number) => Some(number.to_string()),
        ValueRef::Str(digits) => digits.parse::<i64>().ok().map(|number| number.to_string()),
        _ => None,
    }
}

impl Visit for VectorLiteral {
    fn value(&mut self, value: ValueRef<'_>) {
        let Some(vector) = &mut self.vector else { return self.list.value(&value) };
        let Some(element) = vector_element(&value) else { return self.list.refused = Some(NO_VECTOR) };
        vector.push_str(if vector.is_empty() { "" } else { " " });
        vector.push_str(&element);
    }

    fn begin_document(&mut self) {
        self.list.refused = Some(NO_VECTOR);
    }

    fn key(&mut self, _key: &str) {}

    fn end_document(&mut self) {}

    fn begin_array(&mut self) {
        if self.vector.is_some() {
            self.list.refused = Some(NO_VECTOR);
        } else if self.is_array && self.arrays == 0 {
            self.arrays += 1;
            self.list.begin_array();
        } else {
            self.vector = Some(String::new());
        }
    }

    fn end_array(&mut self) {
        if let Some(vector) = self.vector.take() {
            return self.list.text(&vector);
        }
        self.arrays = self.arrays.saturating_sub(1);
        self.list.end_array();
    }
}

#[cfg(test)]
mod tests {
    use watchkeeper_core::payload::{JsonPayload, Payload};

    use super::*;

    fn shown(encoded: Encoded) -> String {
        match encoded {
            Encoded::Json(json) => serde_json::from_slice(&json).expect("it is a string"),
            other => format!("{other:?}"),
        }
    }

    fn array(json: &str) -> String {
        let mut literal = ArrayLiteral::new(true);
        JsonPayload.walk(json.as_bytes(), &mut literal).expect("it is JSON");
        shown(literal.finish())
    }

    #[test]
    fn elements_of_json_are_quoted() {
        assert_eq!(array("[]"), "{}");
        assert_eq!(
            array(r#"[1,null,"a\"b",{"a":[1,[2]],"b":1.50}]"#),
            r#"{"1",NULL,"\"a\\\"b\"","{\"a\":[1,[2]],\"b\":1.50}"}"#
        );
        assert!(array("[[1]]").contains("dimension"));
        assert!(array("{}").contains("no array"));
    }

    #[test]
    fn dimensions_are_reported_from_elements_where_the_source_does() {
        let mut literal = ArrayLiteral::new(false);
        literal.begin_array();
        for text in ["[1, 2]", "null"] {
            literal.begin_array();
            literal.value(ValueRef::Json(text.into()));
            literal.value(ValueRef::Null);
            literal.end_array();
        }
        literal.end_array();
        assert_eq!(shown(literal.finish()), r#"{{"[1, 2]",NULL},{"null",NULL}}"#);
    }

    #[test]
    fn vectors_are_texts_with_blanks_between_their_numbers() {
        let vector = |is_array, json: &str| {
            let mut literal = VectorLiteral::new(is_array);
            JsonPayload.walk(json.as_bytes(), &mut literal).expect("it is JSON");
            literal.finish()
        };
        assert_eq!(vector(false, "[1,-2]"), Encoded::Json(br#""1 -2""#.to_vec()));
        assert_eq!(vector(false, "[]"), Encoded::Json(br#""""#.to_vec()));
        // As the change log has an oidvector.
        assert_eq!(vector(false, r#"["1","4294967295"]"#), Encoded::Json(br#""1 4294967295""#.to_vec()));
        assert!(matches!(vector(false, r#"["one"]"#), Encoded::Refused(_)));
        assert_eq!(vector(false, "null"), Encoded::Json(b"null".to_vec()));
        assert_eq!(vector(true, r#"[[1,2],null,"3 4"]"#), Encoded::Json(br#"["1 2",null,"3 4"]"#.to_vec()));
        assert!(matches!(vector(false, "[[1]]"), Encoded::Refused(_)));
    }

    #[test]
    fn documents_are_the_pairs_of_an_hstore() {
        let mut literal = HstoreLiteral::default();
        JsonPayload.walk(br#"{"a":"1","q\"\\":null,"":"x=>y"}"#, &mut literal).expect("it is JSON");
        assert_eq!(shown(literal.finish()), r#""a"=>"1","q\"\\"=>NULL,""=>"x=>y""#);
        let mut literal = HstoreLiteral::default();
        JsonPayload.walk(br#"{"a":{"b":"c"}}"#, &mut literal).expect("it is JSON");
        assert!(matches!(literal.finish(), Encoded::Refused(_)));
    }
}
