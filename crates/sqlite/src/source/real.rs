//! Numbers that the log's triggers have written as integers, or with more digits than needed (see `tools/written.rs`).

use std::borrow::Cow;

/// Quotes inside of a string are escaped, so this is found in no text.
const BEGIN: &str = r#"{"$real":""#;
const END: &str = r#""}"#;

/// The power of two that the low part is counted in, as its negative exponent.
const LOW_BITS: i32 = 62;

/// From here on SQLite writes numbers with an exponent.
const DIGITS_MAX: i32 = 15;

/// JSON of the log with such numbers as JSON has them.
///
/// They are written as SQLite writes them since it writes them exactly: keys that sinks keep stay the same.
pub(super) fn with_numbers(json: Cow<'_, str>) -> Cow<'_, str> {
    if !json.contains(BEGIN) {
        return json;
    }
    let (mut text, mut rest) = (String::with_capacity(json.len()), &*json);
    while let Some((before, marked)) = rest.split_once(BEGIN) {
        text.push_str(before);
        let number = marked.split_once(END).and_then(|(parts, after)| Some((joined(parts)?, after)));
        // What is no mark of ours (somebody has edited the log) stays as it is, for the payload to show it.
        let Some((number, after)) = number else {
            text.push_str(BEGIN);
            rest = marked;
            continue;
        };
        text.push_str(&written(number));
        rest = after;
    }
    text.push_str(rest);
    Cow::Owned(text)
}

/// The number of `high,low,bits`, or of a decimal.
fn joined(parts: &str) -> Option<f64> {
    if !parts.contains(',') {
        return parts.parse().ok().filter(|number: &f64| number.is_finite());
    }
    let parts: Vec<i64> = parts.split(',').map(|part| part.parse().ok()).collect::<Option<_>>()?;
    let [high, low, bits] = parts[..] else { return None };
    let bits = i32::try_from(bits).ok().filter(|bits| (-LOW_BITS..=0).contains(bits))?;
    // Both parts come from one `double`, so neither they nor their sum have more bits than one has.
    Some((high as f64 + low as f64 * 2f64.powi(-LOW_BITS)) * 2f64.powi(bits))
}

/// The shortest digits that are this number, in the form that SQLite gives them.
fn written(number: f64) -> String {
    let shortest = format!("{number:e}");
    let (digits, exponent) = shortest.split_once('e').unwrap_or((&shortest, "0"));
    let exponent: i32 = exponent.parse().unwrap_or_default();
    if (-4..DIGITS_MAX).contains(&exponent) {
        return format!("{number:?}");
    }
    let point = if digits.contains('.') { "" } else { ".0" };
    let sign = if exponent < 0 { '-' } else { '+' };
    format!("{digits}{point}e{sign}{:02}", exponent.unsigned_abs())
}

#[cfg(test)]
mod tests {
    use super::with_numbers;

    fn read(json: &str) -> String {
        with_numbers(json.into()).into_owned()
    }

    #[test]
    fn parts_are_one_number_again() {
        let tenth = r#"{"a":{"$real":"0,461168601842738816,0"},"b":1}"#;
        assert_eq!(read(tenth), r#"{"a":0.1,"b":1}"#);
        assert_eq!(read(r#"[{"$real":"-1,-2305843009213693952,0"},"x"]"#), r#"[-1.5,"x"]"#);
        assert_eq!(read(r#"[{"$real":"115292150460,3157586288740139008,-60"}]"#), "[1.0e-07]");
        assert_eq!(read(r#"[{"$real":"5.31691198313966349162e+36"}]"#), "[5.316911983139664e+36]");
        assert_eq!(read(r#"[{"$real":"4.94065645841246544177e-324"}]"#), "[5.0e-324]");
        assert_eq!(read(r#"[{"$real":"0,4835703278458517,0"}]"#), "[0.001048576]");
    }

    #[test]
    fn text_and_damage_are_left_alone() {
        for json in [r#"["{\"$real\":\"1,0,0\"}"]"#, r#"[{"$real":"1,0"}]"#, r#"[{"$real":"x,0,0"}]"#, "[1]"] {
            assert_eq!(read(json), json);
        }
        assert_eq!(read(r#"[{"$real":"1,"},{"$real":"1,2305843009213693952,0"}]"#), r#"[{"$real":"1,"},1.5]"#);
    }
}
