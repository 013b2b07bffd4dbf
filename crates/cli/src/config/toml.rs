//! From TOML to a tree of settings that know their lines.

use std::ops::Range;

use toml::de::{DeTable, DeValue};
use watchkeeper::core::{Options, Origin, Setting, WrittenSetting};
use watchkeeper::{Error, Result};

/// Reads `text`, which stands in the file `name`.
///
/// # Errors
/// `Config` with the line and what is expected there.
pub(super) fn read(name: &str, text: &str) -> Result<Options> {
    let page = SourceText::File { name, text };
    let parsed = DeTable::parse(text).map_err(|error| not_toml(&error, &page.origin(&error.span().unwrap_or(0..0))))?;
    page.table("", parsed.get_ref(), page.origin(&(0..0)))
}

/// Reads a single value as it would be written in a file: `["a", "b"]`, `{ every = "1s" }`.
///
/// # Errors
/// `Config` at `origin`.
pub(super) fn value(origin: &Origin, path: &str, text: &str) -> Result<Setting> {
    let parsed = DeValue::parse(text).map_err(|error| not_toml(&error, origin))?;
    SourceText::Variable(origin).setting(path, parsed.get_ref(), origin)
}

fn not_toml(error: &toml::de::Error, origin: &Origin) -> Error {
    // The parser's own words may go over several lines; an error is one.
    let cause = error.message().lines().collect::<Vec<_>>().join(", ");
    Error::config(format!("this is not TOML: {cause}")).remedy("correct it there").at(origin)
}

/// What spans refer to.
enum SourceText<'t> {
    File {
        name: &'t str,
        text: &'t str,
    },
    /// A variable has no lines.
    Variable(&'t Origin),
}

impl SourceText<'_> {
    fn origin(&self, at: &Range<usize>) -> Origin {
        match self {
            Self::Variable(origin) => (*origin).clone(),
            Self::File { name, text } => {
                let before = &text.as_bytes()[..at.start.min(text.len())];
                let line = 1 + before.iter().filter(|byte| **byte == b'\n').count();
                Origin::new(format!("{name}:{line}"))
            }
        }
    }

    fn table(&self, path: &str, table: &DeTable<'_>, origin: Origin) -> Result<Options> {
        let mut options = Options::new(path, origin);
        for (key, value) in table {
            let name = key.get_ref();
            let below = if path.is_empty() { name.to_string() } else { format!("{path}.{name}") };
            let origin = self.origin(&key.span());
            let setting = self.setting(&below, value.get_ref(), &origin)?;
            options.insert(name.to_string(), WrittenSetting { setting, origin });
        }
        Ok(options)
    }

    fn setting(&self, path: &str, value: &DeValue<'_>, origin: &Origin) -> Result<Setting> {
        Ok(match value {
            DeValue::String(text) => Setting::Text(text.to_string()),
            DeValue::Boolean(flag) => Setting::Flag(*flag),
            DeValue::Datetime(time) => Setting::Text(time.to_string()),
            DeValue::Float(number) => Setting::Float(number.as_str().parse().unwrap_or(f64::NAN)),
            DeValue::Integer(number) => {
                let parsed = i64::from_str_radix(number.as_str(), number.radix());
                Setting::Integer(parsed.map_err(|_| {
                    Error::config(format!("{path}: the number is too large")).remedy("write a smaller one").at(origin)
                })?)
            }
            DeValue::Table(table) => Setting::Table(self.table(path, table, origin.clone())?),
            DeValue::Array(list) => {
                let elements = list.iter().enumerate();
                let elements = elements.map(|(at, value)| self.element(path, at, value.get_ref(), &value.span()));
                Setting::List(elements.collect::<Result<_>>()?)
            }
        })
    }

    /// An element of a list. A table among several is called by its name, if it has one.
    fn element(&self, path: &str, at: usize, value: &DeValue<'_>, span: &Range<usize>) -> Result<WrittenSetting> {
        let origin = self.origin(span);
        let name = value.as_table().and_then(|table| table.get("name")?.get_ref().as_str());
        let below = name.map_or_else(|| format!("{path}[{at}]"), |name| format!("{path}.{name}"));
        Ok(WrittenSetting { setting: self.setting(&below, value, &origin)?, origin })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const FILE: &str = "# shop\n[group]\nname = \"shop\"\nlease = \"5s\"\n\n[[stream]]\nname = \"orders\"\n\
                        source = { url = \"sqlite:app.db\", tables = [\"a\"] }\n\n[[stream.sink]]\ntype = \"file\"\nn = 0x10\n";

    #[test]
    fn every_setting_knows_its_line() {
        let mut file = read("shop.toml", FILE).expect("it is TOML");
        let mut group = file.table("group").expect("a table").expect("it is there");
        assert_eq!(group.origin().to_string(), "shop.toml:2");
        assert_eq!(group.origin_of("lease").to_string(), "shop.toml:4");
        let mut stream = file.tables("stream").expect("tables").remove(0);
        assert_eq!((stream.path(), stream.origin().to_string().as_str()), ("stream.orders", "shop.toml:6"));
        let source = stream.table("source").expect("a table").expect("it is there");
        assert_eq!(source.origin_of("tables").to_string(), "shop.toml:8");
        let mut sink = stream.tables("sink").expect("tables").remove(0);
        assert_eq!((sink.path(), sink.origin().to_string().as_str()), ("stream.orders.sink[0]", "shop.toml:10"));
        assert_eq!(sink.count("n").expect("a number"), Some(16));
        assert_eq!(group.count("lease").expect_err("it is a time").place(), Some("shop.toml:4"));
    }

    #[test]
    fn what_is_no_toml_names_its_line_in_one_line() {
        for (text, line) in [("[group\n", 1), ("a = 1\n\nb = = 2\n", 3), ("a = 1\na = 2\n", 2)] {
            let error = read("shop.toml", text).expect_err("it is broken");
            assert_eq!(error.place(), Some(format!("shop.toml:{line}").as_str()), "{error}");
            assert!(!error.to_string().contains('\n'), "{error}");
        }
    }

    #[test]
    fn numbers_keep_to_what_can_be_counted() {
        let error = read("shop.toml", "\na = 99999999999999999999").expect_err("it is too large");
        assert_eq!(error.to_string(), "shop.toml:2: a: the number is too large [WK-CONFIG]; write a smaller one");
        let mut file = read("shop.toml", "a = 1_000\nb = 1_0.5").expect("it is TOML");
        assert_eq!(file.count("a").expect("a number"), Some(1_000));
        assert_eq!(file.json("b"), Some(serde_json::json!(10.5)));
    }
}
