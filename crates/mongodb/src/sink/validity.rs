//! What servers store and not every statement takes: fields that are there twice, and text that is not UTF-8.

use mongodb::bson::{Document, RawBson, rawdoc};

use crate::payload::scan::Fields;

/// The name of a field that a document has twice, at whatever depth. What is damaged is left to the server.
pub(super) fn repeated_field(document: &[u8]) -> Option<String> {
    let fields: Vec<_> = Fields::of(document).ok()?.filter_map(Result::ok).collect();
    let mut names: Vec<&[u8]> = fields.iter().map(|field| field.name).collect();
    names.sort_unstable();
    let repeated = names.windows(2).find(|pair| pair[0] == pair[1]);
    let name = repeated.map(|pair| String::from_utf8_lossy(pair[0]).into_owned());
    name.or_else(|| fields.iter().filter_map(|field| field.inner()).find_map(repeated_field))
}

/// Whether the driver cannot make a value of this, as with text that is not UTF-8.
pub(super) fn has_unreadable_text(value: &RawBson) -> bool {
    let holds_text = matches!(
        value,
        RawBson::Document(_) | RawBson::Array(_) | RawBson::JavaScriptCodeWithScope(_) | RawBson::Binary(_)
    );
    holds_text && Document::try_from(rawdoc! { "_id": value.clone() }).is_err()
}

#[cfg(test)]
mod tests {
    use mongodb::bson::raw::cstr;
    use mongodb::bson::{Bson, JavaScriptCodeWithScope, RawDocumentBuf, doc};

    use super::*;

    fn twice() -> RawDocumentBuf {
        let mut document = rawdoc! { "a": 1, "b": 2 };
        document.append(cstr!("a"), 3);
        document
    }

    #[test]
    fn a_field_that_is_there_twice_is_found_at_every_depth() {
        let scoped = {
            let scope = doc! { "s": 1, "z": 2 };
            let code = JavaScriptCodeWithScope { code: "f()".to_owned(), scope };
            let document = RawDocumentBuf::try_from(&doc! { "code": Bson::JavaScriptCodeWithScope(code) });
            // The names of the scope differ by their first letter only.
            let bytes = document.expect("a document").into_bytes();
            RawDocumentBuf::from_bytes(bytes.iter().map(|byte| if *byte == b'z' { b's' } else { *byte }).collect())
        };
        for (document, name) in [
            (twice(), Some("a")),
            (rawdoc! { "in": { "deep": twice() } }, Some("a")),
            (rawdoc! { "list": [1, [twice()]] }, Some("a")),
            (scoped.expect("its length is the same"), Some("s")),
            (rawdoc! { "a": { "a": 1, "b": [{ "a": 1 }, { "a": 1 }] }, "b": 1 }, None),
            (rawdoc! {}, None),
        ] {
            assert_eq!(repeated_field(document.as_bytes()).as_deref(), name, "{document:?}");
        }
    }
}
