//! Compares the images of a row before and after an update.

/// Appends the names of the columns whose values differ, as a JSON list; `false` without appending anything when the images do not have the
/// same columns. Both are what `row_to_json` makes of rows of one table.
///
/// The triggers leave this to the reader: it would be a third of what they cost the writers.
pub(super) fn append_changed(into: &mut Vec<u8>, before: &[u8], after: &[u8]) -> bool {
    let start = into.len();
    let (mut before, mut after) = (Members(before), Members(after));
    into.push(b'[');
    loop {
        match (before.next(), after.next()) {
            (Some((name, was)), Some((same_name, is_now))) if name == same_name => {
                if was != is_now {
                    if into.len() > start + 1 {
                        into.extend_from_slice(b", ");
                    }
                    into.extend_from_slice(name);
                }
            }
            (None, None) => break,
            _ => {
                into.truncate(start);
                return false;
            }
        }
    }
    into.push(b']');
    true
}

/// The members of a JSON object that is known to be valid, each as its name with quotation marks and its value, as they are written.
struct Members<'a>(&'a [u8]);

impl<'a> Iterator for Members<'a> {
    type Item = (&'a [u8], &'a [u8]);

    fn next(&mut self) -> Option<Self::Item> {
        // What is left begins with the brace or comma before a member.
        let rest = self.0.get(1..).filter(|rest| rest.first() == Some(&b'"'))?;
        let name = string_end(rest, 0);
        let value = (name + 1).min(rest.len());
        let end = value_end(rest, value);
        self.0 = &rest[end..];
        Some((&rest[..name], &rest[value..end]))
    }
}

/// Where the string that begins at `start` ends.
fn string_end(text: &[u8], start: usize) -> usize {
    let mut at = start + 1;
    while let Some(byte) = text.get(at) {
        match byte {
            b'"' => return at + 1,
            b'\\' => at += 2,
            _ => at += 1,
        }
    }
    text.len()
}

/// Where the value that begins at `start` ends: before the comma or brace of the object that it belongs to.
pub(super) fn value_end(text: &[u8], start: usize) -> usize {
    let (mut at, mut depth) = (start, 0_usize);
    while let Some(byte) = text.get(at) {
        match byte {
            b'"' => {
                at = string_end(text, at);
                continue;
            }
            b'{' | b'[' => depth += 1,
            b',' | b'}' if depth == 0 => return at,
            b'}' | b']' => depth = depth.saturating_sub(1),
            _ => {}
        }
        at += 1;
    }
    text.len()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn changed(before: &str, after: &str) -> Option<String> {
        let mut into = b"x".to_vec();
        let is_known = append_changed(&mut into, before.as_bytes(), after.as_bytes());
        let text = String::from_utf8(into).expect("it is made of text");
        assert!(is_known || text == "x", "nothing is left behind: {text}");
        is_known.then(|| text[1..].to_owned())
    }

    #[test]
    fn values_are_compared_as_they_are_written() {
        let before = r#"{"a":1.50,"b":"x,\"}\\","c": {"x": [1, {"y":"}"}]} ,"d":null,"e\"f":true}"#;
        assert_eq!(changed(before, before).as_deref(), Some("[]"));
        let after = r#"{"a":1.5,"b":"x,\"}\\\\","c": {"x": [1, {"y":"]"}]} ,"d":null,"e\"f":false}"#;
        assert_eq!(changed(before, after).as_deref(), Some(r#"["a", "b", "c", "e\"f"]"#));
        assert_eq!(changed("{}", "{}").as_deref(), Some("[]"));
    }

    #[test]
    fn images_of_other_columns_are_not_compared() {
        assert_eq!(changed(r#"{"a":1}"#, r#"{"b":1}"#), None);
        assert_eq!(changed(r#"{"a":1}"#, r#"{"a":1,"b":1}"#), None);
        assert_eq!(changed(r#"{"a":1,"b":1}"#, r#"{"a":2}"#), None);
    }

    #[test]
    fn text_that_is_cut_off_ends_the_comparison() {
        let (whole, other) = (r#"{"a":[1,"x\"y"],"b":"\u0000"}"#, r#"{"a":[2],"b":""}"#);
        for end in 0..whole.len() {
            changed(&whole[..end], other);
            changed(other, &whole[..end]);
        }
    }
}
