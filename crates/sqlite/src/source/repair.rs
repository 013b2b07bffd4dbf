//! Text that is not UTF-8, which SQLite keeps as it comes.

use std::borrow::Cow;
use std::fmt::Write;

/// JSON of the log as JSON for everybody. A string in it that is not UTF-8 becomes an object with its bytes,
/// `{"$textHex":"41FF42"}`: nothing of it is lost, two of them stay two, and none is taken for a blob (`$hex`).
pub(super) fn repaired(json: &[u8]) -> Cow<'_, str> {
    std::str::from_utf8(json).map_or_else(|_| Cow::Owned(rewritten(json)), Cow::Borrowed)
}

fn rewritten(mut json: &[u8]) -> String {
    let mut text = String::with_capacity(json.len() * 2);
    while let Some(start) = json.iter().position(|byte| *byte == b'"') {
        let (outside, from) = json.split_at(start);
        text.push_str(&String::from_utf8_lossy(outside));
        let (string, rest) = from.split_at(length(from));
        match std::str::from_utf8(string) {
            Ok(string) => text.push_str(string),
            Err(_) => mark(&mut text, string),
        }
        json = rest;
    }
    text.push_str(&String::from_utf8_lossy(json));
    text
}

/// The length of the string that `json` begins with, its quotes included.
fn length(json: &[u8]) -> usize {
    let mut at = 1;
    while let Some(byte) = json.get(at) {
        match byte {
            b'"' => return at + 1,
            b'\\' => at += 2,
            _ => at += 1,
        }
    }
    json.len()
}

fn mark(text: &mut String, string: &[u8]) {
    text.push_str(r#"{"$textHex":""#);
    for byte in unescaped(string) {
        // Writing to a string cannot fail.
        let _ = write!(text, "{byte:02X}");
    }
    text.push_str(r#""}"#);
}

/// The bytes that a quoted string stands for.
fn unescaped(string: &[u8]) -> Vec<u8> {
    let inner = string.strip_prefix(b"\"").unwrap_or(string);
    let inner = inner.strip_suffix(b"\"").unwrap_or(inner);
    let (mut bytes, mut rest) = (Vec::with_capacity(inner.len()), inner);
    while let Some((byte, after)) = rest.split_first() {
        rest = after;
        let (b'\\', Some((escaped, after))) = (*byte, rest.split_first()) else {
            bytes.push(*byte);
            continue;
        };
        rest = after;
        match escaped {
            b'b' => bytes.push(8),
            b'f' => bytes.push(12),
            b'n' => bytes.push(b'\n'),
            b'r' => bytes.push(b'\r'),
            b't' => bytes.push(b'\t'),
            b'u' => {
                let (digits, after) = rest.split_at(rest.len().min(4));
                rest = after;
                let number = std::str::from_utf8(digits).ok().and_then(|digits| u32::from_str_radix(digits, 16).ok());
                let character = number.and_then(char::from_u32).unwrap_or(char::REPLACEMENT_CHARACTER);
                bytes.extend_from_slice(character.encode_utf8(&mut [0; 4]).as_bytes());
            }
            itself => bytes.push(*itself),
        }
    }
    bytes
}

#[cfg(test)]
mod tests {
    use super::repaired;

    #[test]
    fn what_is_good_is_left_alone() {
        assert!(matches!(repaired("{\"a\":\"ö\"}".as_bytes()), std::borrow::Cow::Borrowed("{\"a\":\"ö\"}")));
    }

    #[test]
    fn only_the_bad_string_is_marked_with_the_bytes_that_it_stands_for() {
        let json = b"{\"ok\":\"\xc3\xb6 \\\" ,\",\"bad\":\"A\xff\\\"\\n\\u0001B\",\"n\":1}";
        assert_eq!(repaired(json), r#"{"ok":"ö \" ,","bad":{"$textHex":"41FF220A0142"},"n":1}"#);
    }

    #[test]
    fn a_character_that_was_cut_off_swallows_nothing() {
        assert_eq!(repaired(b"[\"\xe2\x82\",\"x\"]"), r#"[{"$textHex":"E282"},"x"]"#);
        assert_eq!(repaired(b"\"\xff"), r#"{"$textHex":"FF"}"#);
    }
}
