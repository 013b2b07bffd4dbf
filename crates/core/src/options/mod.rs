//! Settings as someone wrote them: each knows where it was written, and none is passed over silently.
//!
//! A file, variables and flags become one tree of [`Options`]. Whoever knows a setting *takes* it; at the end
//! [`finish`](Options::finish) refuses what nobody took and says what was probably meant. So there is no list of
//! known keys that could go out of date, and every error names file and line.

mod collector;
mod renewable;
mod take;

use std::collections::BTreeMap;
use std::fmt;
use std::sync::Arc;

use crate::error::{Error, Result};

pub use collector::Collector;
pub use renewable::{Renewable, Reread};

/// The [class](Error::class) of errors that only another text in the file mends.
pub const WRONG_SETTING: &str = "setting";

/// Where a setting was written: a file and line, a variable, a flag.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Origin(Arc<str>);

impl Origin {
    /// A place, as it stands at the beginning of an error.
    pub fn new(place: impl Into<Arc<str>>) -> Self {
        Self(place.into())
    }
}

impl fmt::Display for Origin {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.0)
    }
}

/// The value of a setting.
#[derive(Clone, PartialEq)]
pub enum Setting {
    /// A text; also times and sizes, which are written with their unit.
    Text(String),
    /// A whole number.
    Integer(i64),
    /// A number.
    Float(f64),
    /// Yes or no.
    Flag(bool),
    /// Several values.
    List(Vec<WrittenSetting>),
    /// Settings of its own.
    Table(Options),
}

impl Setting {
    /// What it is, for messages.
    fn kind(&self) -> &'static str {
        match self {
            Self::Text(_) => "a text",
            Self::Integer(_) => "a whole number",
            Self::Float(_) => "a number",
            Self::Flag(_) => "true or false",
            Self::List(_) => "a list",
            Self::Table(_) => "a table",
        }
    }
}

/// A value with the place where it was written.
#[derive(Clone, PartialEq)]
pub struct WrittenSetting {
    /// The value.
    pub setting: Setting,
    /// Where it was written.
    pub origin: Origin,
}

impl WrittenSetting {
    /// A text.
    pub fn text(text: impl Into<String>, origin: Origin) -> Self {
        Self { setting: Setting::Text(text.into()), origin }
    }
}

/// Values never appear in debug output: any of them may hold a password.
impl fmt::Debug for WrittenSetting {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{} at {}", self.setting.kind(), self.origin)
    }
}

impl fmt::Debug for Setting {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.kind())
    }
}

/// Settings by name.
#[derive(Debug, Clone, PartialEq)]
pub struct Options {
    path: String,
    origin: Origin,
    entries: BTreeMap<String, WrittenSetting>,
    /// How texts are read again that may have changed, by name.
    rereads: BTreeMap<String, Reread>,
    /// Every name that someone asked for, to tell what was probably meant, and where it was written.
    asked: BTreeMap<String, Option<Origin>>,
    /// Where errors go, if they are collected.
    collector: Option<Collector>,
}

impl Options {
    /// No settings yet. `path` is what they are called in messages, such as `stream.orders.source`.
    pub fn new(path: impl Into<String>, origin: Origin) -> Self {
        let (entries, rereads, asked) = (BTreeMap::new(), BTreeMap::new(), BTreeMap::new());
        Self { path: path.into(), origin, entries, rereads, asked, collector: None }
    }

    /// What they are called in messages.
    pub fn path(&self) -> &str {
        &self.path
    }

    /// Where `name` was written, also when it has been taken; where these settings begin, if it was not written.
    pub fn origin_of(&self, name: &str) -> &Origin {
        let left = self.entries.get(name).map(|value| &value.origin);
        left.or_else(|| self.asked.get(name)?.as_ref()).unwrap_or(&self.origin)
    }

    /// Where they begin.
    pub fn origin(&self) -> &Origin {
        &self.origin
    }

    /// Writes a setting, over what was there.
    pub fn insert(&mut self, name: impl Into<String>, value: WrittenSetting) -> Option<WrittenSetting> {
        let name = name.into();
        self.rereads.remove(&name);
        self.entries.insert(name, value)
    }

    /// Says how the text under `name` is read again.
    pub fn set_reread(&mut self, name: impl Into<String>, reread: Reread) {
        self.rereads.insert(name.into(), reread);
    }

    /// How the text under `name` is read again, if it may have changed.
    pub fn reread(&self, name: &str) -> Option<&Reread> {
        self.rereads.get(name)
    }

    /// What is written under `name`, without taking it.
    pub fn peek(&self, name: &str) -> Option<&WrittenSetting> {
        self.entries.get(name)
    }

    /// What is written under `name`, to change it in place.
    pub fn peek_mut(&mut self, name: &str) -> Option<&mut WrittenSetting> {
        self.entries.get_mut(name)
    }

    /// All that has not been taken.
    pub fn iter_mut(&mut self) -> impl Iterator<Item = (&str, &mut WrittenSetting)> {
        self.entries.iter_mut().map(|(name, value)| (name.as_str(), value))
    }

    /// The text under `name`, without taking it.
    pub fn peek_text(&self, name: &str) -> Option<&str> {
        match &self.entries.get(name)?.setting {
            Setting::Text(text) => Some(text),
            _ => None,
        }
    }

    /// An error about the setting `name`, at the place where it was written.
    pub fn wrong(&self, name: &str, cause: impl fmt::Display) -> Error {
        self.wrong_at(self.origin_of(name), name, cause)
    }

    fn wrong_at(&self, origin: &Origin, name: &str, cause: impl fmt::Display) -> Error {
        Error::config(format!("{}: {cause}", self.full(name))).classed(WRONG_SETTING).at(origin)
    }

    fn full(&self, name: &str) -> String {
        if self.path.is_empty() { name.to_owned() } else { format!("{}.{name}", self.path) }
    }

    /// Refuses what nobody took.
    ///
    /// # Errors
    /// `Config` naming such a setting, where it was written, and the nearest name that is known: the first one, or where errors
    /// are collected all of them there.
    pub fn finish(&self) -> Result<()> {
        self.entries.iter().try_for_each(|(name, value)| self.report(self.unknown(name, &value.origin)))
    }

    fn unknown(&self, name: &str, origin: &Origin) -> Error {
        let error = self.wrong_at(origin, name, "there is no such setting");
        let nearest = self.asked.keys().min_by_key(|known| distance(known, name));
        match nearest.filter(|known| distance(known, name) <= 1 + name.len() / 3) {
            Some(known) => error.remedy(format!("did you mean {known:?}?")),
            None if self.asked.is_empty() => error.remedy("leave it out: nothing can be set here"),
            None => error.remedy(format!("known here: {}", Vec::from_iter(self.asked.keys().cloned()).join(", "))),
        }
    }
}

/// How many letters have to be changed, or swapped with the next one, to come from `a` to `b`.
fn distance(a: &str, b: &str) -> usize {
    let (a, b): (Vec<char>, Vec<char>) = (a.chars().collect(), b.chars().collect());
    let mut rows: Vec<Vec<usize>> = vec![(0..=b.len()).collect()];
    for i in 1..=a.len() {
        let mut row = vec![i];
        for j in 1..=b.len() {
            let changed = rows[i - 1][j - 1] + usize::from(a[i - 1] != b[j - 1]);
            let is_swap = i > 1 && j > 1 && (a[i - 1], a[i - 2]) == (b[j - 2], b[j - 1]);
            let swapped = if is_swap { rows[i - 2][j - 2] + 1 } else { usize::MAX };
            row.push(changed.min(row[j - 1] + 1).min(rows[i - 1][j] + 1).min(swapped));
        }
        rows.push(row);
    }
    rows[a.len()][b.len()]
}

/// A URL as it may be shown: without its password.
pub fn without_password(url: &str) -> String {
    let Some((scheme, rest)) = url.split_once("://") else { return url.to_owned() };
    let end = rest.find(['/', '?', '#']).unwrap_or(rest.len());
    // The last one: an unescaped "@" inside a password must not let its tail through.
    let Some(at) = rest[..end].rfind('@').or_else(|| rest.rfind('@')) else { return url.to_owned() };
    let user = rest[..at].split(':').next().unwrap_or_default();
    let shown = if rest[..at].contains(':') { format!("{user}:***") } else { user.to_owned() };
    format!("{scheme}://{shown}{}", &rest[at..])
}

#[cfg(test)]
mod tests;
