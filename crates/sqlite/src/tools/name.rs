//! Names of tables as a person writes them.

/// The name of a table that may stand in double quotes as in SQL, with `main` before it: `"a.b"` and `main."a.b"` are `a.b`. Everything else
/// is a name as it stands, dots and all: a log has the tables of one file, and no schemas.
pub(crate) fn plain(text: &str) -> String {
    let rest = ["main.", "\"main\"."].iter().find_map(|schema| text.strip_prefix(schema)).unwrap_or(text);
    unquoted(rest).unwrap_or_else(|| text.to_owned())
}

/// What stands in quotes; `None` for a text that is not a name in quotes.
fn unquoted(text: &str) -> Option<String> {
    let inside = text.strip_prefix('"')?.strip_suffix('"')?;
    let is_name = !inside.is_empty() && !inside.replace("\"\"", "").contains('"');
    is_name.then(|| inside.replace("\"\"", "\""))
}

#[cfg(test)]
mod tests {
    use super::plain;

    #[test]
    fn quotes_are_taken_off_and_everything_else_stays() {
        for (text, name) in [
            ("orders", "orders"),
            ("a.b", "a.b"),
            (r#""a.b""#, "a.b"),
            (r#"main."a.b""#, "a.b"),
            (r#""main"."a.b""#, "a.b"),
            (r#""say ""x""""#, r#"say "x""#),
            ("main.orders", "main.orders"),
            (r#"""#, r#"""#),
            (r#""""#, r#""""#),
            (r#""a"b""#, r#""a"b""#),
        ] {
            assert_eq!(plain(text), name, "{text}");
        }
    }
}
