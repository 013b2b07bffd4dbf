//! Names of tables as a person writes them: `table`, `schema.table`, and either part in double quotes where it has a dot or begins with a quote.

use watchkeeper_core::{Error, Result};

use crate::client::quoted;

/// A table's name, taken apart.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct TableName {
    pub(crate) schema: Option<String>,
    pub(crate) table: String,
}

impl TableName {
    /// # Errors
    /// `Config` for a text that names no table.
    pub(crate) fn parse(text: &str) -> Result<Self> {
        let wrong = || {
            Error::config(format!("{text:?} does not name a table")).remedy(
                "write `table` or `schema.table`; a part with a dot in its name stands in double quotes: schema.\"a.b\"",
            )
        };
        let (first, rest) = part(text).ok_or_else(wrong)?;
        let Some(rest) = rest else { return Ok(Self { schema: None, table: first }) };
        match part(rest).ok_or_else(wrong)? {
            (table, None) => Ok(Self { schema: Some(first), table }),
            (_, Some(_)) => Err(wrong()),
        }
    }

    /// As a person writes it, so that it can be read again.
    pub(crate) fn written(&self) -> String {
        let part =
            |part: &String| if part.contains('.') || part.starts_with('"') { quoted(part) } else { part.clone() };
        self.schema.iter().chain(std::iter::once(&self.table)).map(part).collect::<Vec<_>>().join(".")
    }

    /// As SQL names it.
    pub(crate) fn sql(&self) -> String {
        let parts = self.schema.iter().chain(std::iter::once(&self.table));
        parts.map(|part| quoted(part)).collect::<Vec<_>>().join(".")
    }
}

/// The first part of a name and what comes after its dot, if there is one.
fn part(text: &str) -> Option<(String, Option<&str>)> {
    let Some(inside) = text.strip_prefix('"') else {
        let (part, rest) = text.split_once('.').map_or((text, None), |(part, rest)| (part, Some(rest)));
        return (!part.is_empty()).then(|| (part.to_owned(), rest));
    };
    let (mut part, mut rest) = (String::new(), inside);
    loop {
        let (before, after) = rest.split_once('"')?;
        part.push_str(before);
        match after.strip_prefix('"') {
            // Two quotes are one of the name.
            Some(after) => {
                part.push('"');
                rest = after;
            }
            None if part.is_empty() => return None,
            None if after.is_empty() => return Some((part, None)),
            None => return after.strip_prefix('.').map(|after| (part, Some(after))),
        }
    }
}

/// A table by its name, with or without its schema, as SQL names it.
///
/// # Errors
/// `Config` for a text that names no table.
pub(crate) fn table_name(name: &str) -> Result<String> {
    Ok(TableName::parse(name)?.sql())
}

/// The name under which the log knows a table, as a person writes it for a command. No schema of a logged table has a dot in its name.
pub(crate) fn written(entity: &str) -> String {
    match entity.split_once('.') {
        Some((schema, table)) if table.contains(['.', '"']) => format!("{schema}.{}", quoted(table)),
        _ => entity.to_owned(),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_are_taken_apart_and_quoted() {
        for (text, sql) in [
            ("orders", r#""orders""#),
            ("Shop.Orders", r#""Shop"."Orders""#),
            (r#""a.b""#, r#""a.b""#),
            (r#"public."a.b""#, r#""public"."a.b""#),
            (r#""x.y".z"#, r#""x.y"."z""#),
            (r#""say ""x""""#, r#""say ""x""""#),
            // Quotes that do not begin a part are of the name.
            (r#"say "x""#, r#""say ""x""""#),
        ] {
            assert_eq!(table_name(text).expect("it names a table"), sql, "{text}");
        }
        for wrong in ["", ".", "a.", ".b", "a.b.c", "\"", "\"\"", "\"a", "\"a\"b", "a.\"b\".c"] {
            assert!(table_name(wrong).is_err(), "{wrong}");
        }
    }

    #[test]
    fn what_the_log_knows_is_written_so_that_it_can_be_read_again() {
        for (entity, text) in [("public.orders", "public.orders"), ("public.a.b", r#"public."a.b""#)] {
            assert_eq!(written(entity), text);
            let name = TableName::parse(text).expect("it names a table");
            assert_eq!(format!("{}.{}", name.schema.unwrap_or_default(), name.table), entity);
        }
    }
}
