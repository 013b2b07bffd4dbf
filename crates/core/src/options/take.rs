//! Taking settings, each in the form that its reader wants.

use std::time::Duration;

use crate::error::{Error, Result};

use super::{Options, Renewable, Setting, WrittenSetting};

impl Options {
    /// Takes whatever is written under `name`.
    pub fn take(&mut self, name: &str) -> Option<WrittenSetting> {
        let taken = self.entries.remove(name);
        if taken.is_some() || !self.asked.contains_key(name) {
            self.asked.insert(name.to_owned(), taken.as_ref().map(|value| value.origin.clone()));
        }
        taken
    }

    fn take_as<T>(
        &mut self,
        name: &str,
        is: &str,
        wanted: &str,
        convert: impl FnOnce(&Setting) -> Option<T>,
    ) -> Result<Option<T>> {
        let Some(value) = self.take(name) else { return Ok(None) };
        match convert(&value.setting) {
            Some(converted) => Ok(Some(converted)),
            None => {
                let cause = not_wanted(&value.setting, is);
                let error = self.wrong_at(&value.origin, name, cause).remedy(format!("write {wanted}"));
                self.report(error).map(|()| None)
            }
        }
    }

    /// Takes a text.
    pub fn text(&mut self, name: &str) -> Result<Option<String>> {
        self.take_as(name, "a text", "a text in quotes", |setting| match setting {
            Setting::Text(text) => Some(text.clone()),
            _ => None,
        })
    }

    /// Takes a text that has to be there. `example` is what to write.
    pub fn required(&mut self, name: &str, example: &str) -> Result<String> {
        match self.take(name) {
            None => Err(self.missing(name, example)),
            Some(WrittenSetting { setting: Setting::Text(text), .. }) => Ok(text),
            Some(value) => {
                let cause = not_wanted(&value.setting, "a text");
                Err(self.wrong_at(&value.origin, name, cause).remedy("write a text in quotes"))
            }
        }
    }

    /// Takes a text that has to be there and may have changed when it is needed again.
    pub fn renewable(&mut self, name: &str, example: &str) -> Result<Renewable> {
        Ok(Renewable::new(self.required(name, example)?, self.reread(name).cloned()))
    }

    /// The error of a setting that has to be there.
    pub fn missing(&self, name: &str, example: &str) -> Error {
        self.wrong_at(&self.origin, name, "this is missing").remedy(format!("write {name} = {example}"))
    }

    /// Takes yes or no. The words are understood too, since variables are always texts.
    pub fn flag(&mut self, name: &str) -> Result<Option<bool>> {
        self.take_as(name, "true or false", "true or false", |setting| match setting {
            Setting::Flag(flag) => Some(*flag),
            Setting::Text(text) => text.parse().ok(),
            _ => None,
        })
    }

    /// Takes a whole number that is not negative.
    pub fn count(&mut self, name: &str) -> Result<Option<u64>> {
        if matches!(self.peek(name), Some(WrittenSetting { setting: Setting::Integer(..0), .. })) {
            let error = self.wrong(name, "this number is negative").remedy("write a positive whole number, such as 4");
            self.take(name);
            return self.report(error).map(|()| None);
        }
        self.take_as(name, "a whole number", "a whole number, such as 4", |setting| match setting {
            Setting::Integer(number) => u64::try_from(*number).ok(),
            Setting::Text(text) => text.parse().ok(),
            _ => None,
        })
    }

    /// Takes a whole number of things in memory.
    pub fn size(&mut self, name: &str) -> Result<Option<usize>> {
        Ok(self.count(name)?.map(|count| usize::try_from(count).unwrap_or(usize::MAX)))
    }

    /// Takes a time with its unit.
    pub fn duration(&mut self, name: &str) -> Result<Option<Duration>> {
        self.take_as(name, "a time", "a time with its unit, such as \"5s\", \"250ms\" or \"1h\"", |setting| {
            match setting {
                Setting::Text(text) => humantime::parse_duration(text).ok(),
                _ => None,
            }
        })
    }

    /// Takes a size in bytes with its unit.
    pub fn bytes(&mut self, name: &str) -> Result<Option<u64>> {
        self.take_as(name, "a size", "a size with its unit, such as \"64MiB\"", |setting| match setting {
            Setting::Text(text) if text.contains(|letter: char| letter.is_ascii_alphabetic()) => {
                text.parse::<bytesize::ByteSize>().ok().map(|size| size.as_u64())
            }
            _ => None,
        })
    }

    /// Takes one of several words.
    pub fn choice<T: Clone>(&mut self, name: &str, choices: &[(&str, T)]) -> Result<Option<T>> {
        let words: Vec<String> = choices.iter().map(|(word, _)| format!("{word:?}")).collect();
        let Some(value) = self.take(name) else { return Ok(None) };
        let wrong = |cause: String| {
            let error = self.wrong_at(&value.origin, name, cause).remedy(format!("write {}", words.join(" or ")));
            self.report(error).map(|()| None)
        };
        let Setting::Text(text) = &value.setting else { return wrong(format!("this is {}", value.setting.kind())) };
        match choices.iter().find(|(word, _)| word == text) {
            Some((_, choice)) => Ok(Some(choice.clone())),
            None => wrong(format!("{text:?} is not known")),
        }
    }

    /// Takes a list of texts; a single text is a list of one.
    pub fn texts(&mut self, name: &str) -> Result<Option<Vec<String>>> {
        self.take_as(name, "a list of texts", "a list of texts, such as [\"orders\"]", |setting| match setting {
            Setting::Text(text) => Some(vec![text.clone()]),
            Setting::List(list) => list
                .iter()
                .map(|value| match &value.setting {
                    Setting::Text(text) => Some(text.clone()),
                    _ => None,
                })
                .collect(),
            _ => None,
        })
    }

    /// Takes settings of their own.
    pub fn table(&mut self, name: &str) -> Result<Option<Options>> {
        self.take_as(name, "a table", &format!("a table, such as {name} = {{ … }}"), |setting| match setting {
            Setting::Table(table) => Some(table.clone()),
            _ => None,
        })
    }

    /// Takes several tables; none is an empty list.
    pub fn tables(&mut self, name: &str) -> Result<Vec<Options>> {
        // Elements are called by their names or numbers, which do not stand in the heads of tables.
        let head = match self.path.split(['.', '[']).next() {
            Some("") | None => name.to_owned(),
            Some(above) => format!("{above}.{name}"),
        };
        let wanted = format!("tables, each headed [[{head}]]");
        let tables = self.take_as(name, "a list of tables", &wanted, |setting| match setting {
            Setting::List(list) => list
                .iter()
                .map(|value| match &value.setting {
                    Setting::Table(table) => Some(table.clone()),
                    _ => None,
                })
                .collect::<Option<Vec<_>>>(),
            _ => None,
        })?;
        Ok(tables.unwrap_or_default())
    }

    /// Takes whatever is there as JSON: for settings whose form another system defines.
    pub fn json(&mut self, name: &str) -> Option<serde_json::Value> {
        self.take(name).map(|value| json(&value.setting))
    }
}

/// What is wrong with a setting that is not what it has to be.
fn not_wanted(setting: &Setting, is: &str) -> String {
    match setting {
        // A text may be of the right kind and yet mean nothing: then the text itself is what is wrong.
        Setting::Text(text) => format!("{text:?} is not {is}"),
        other => format!("this is {}", other.kind()),
    }
}

fn json(setting: &Setting) -> serde_json::Value {
    match setting {
        Setting::Text(text) => text.clone().into(),
        Setting::Integer(number) => (*number).into(),
        Setting::Float(number) => (*number).into(),
        Setting::Flag(flag) => (*flag).into(),
        Setting::List(list) => list.iter().map(|value| json(&value.setting)).collect(),
        Setting::Table(table) => {
            table.entries.iter().map(|(name, value)| (name.clone(), json(&value.setting))).collect()
        }
    }
}
