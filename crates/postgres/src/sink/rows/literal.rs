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

/// An `hstore`, or an array of them: documents become its pairs.
#[derive(Debug, Default)]
pub(super) struct HstoreLiteral {
    json: Vec<u8>,
    comma: bool,
    /// The pairs of the document that is open.
    pairs: Option<String>,
    refused: Option<&'static str>,
}

impl HstoreLiteral {
    pub(super) fn finish(self) -> Encoded {
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
}

const NESTED: &str = "an hstore has texts only, and no documents or arrays";

impl Visit for HstoreLiteral {
    fn value(&mut self, value: ValueRef<'_>) {
        let Some(pairs) = &mut self.pairs else {
            self.separate();
            return write_value(&mut self.json, &value);
        };
        match value {
            ValueRef::Null => pairs.push_str("NULL"),
            ValueRef::Str(text) => quote(pairs, &text),
            ValueRef::Bool(_) | ValueRef::Int32(_) | ValueRef::Int64(_) | ValueRef::Decimal(_) => {
                let mut text = Vec::new();
                write_value(&mut text, &value);
                quote(pairs, &String::from_utf8_lossy(&text));
            }
            _ => self.refused = Some(NESTED),
        }
    }

    fn begin_document(&mut self) {
        if self.pairs.is_some() {
            self.refused = Some(NESTED);
            return;
        }
        self.separate();
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
            write_text(&mut self.json, &pairs);
        }
    }

    fn begin_array(&mut self) {
        if self.pairs.is_some() {
            self.refused = Some(NESTED);
            return;
        }
        self.separate();
        self.json.push(b'[');
        self.comma = false;
    }

    fn end_array(&mut self) {
        if self.pairs.is_none() {
            self.json.push(b']');
            self.comma = true;
        }
    }
}
