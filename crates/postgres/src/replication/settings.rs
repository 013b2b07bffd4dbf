//! How the log is read.

use std::path::PathBuf;
use std::time::Duration;

use watchkeeper_core::{Error, Options, Purpose, Result};

use crate::table_name::TableName;

/// The longest name that PostgreSQL keeps whole.
const NAME_MAX: usize = 63;

/// Which slot, which publication, which tables.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Settings {
    /// The replication slot. It is created if it is not there when a stream starts for the first time.
    pub slot: String,
    /// The publication. It is created for `tables` if it is not there.
    pub publication: String,
    /// The stream that reads, as its group knows it. Its readers are ended when it is taken over, and those of no other stream, even
    /// if it was given the same slot.
    pub stream: Option<String>,
    /// The tables whose changes are given out, with or without their schema; all that are published without any.
    pub tables: Vec<String>,
    /// What was acknowledged is held back for so long, so that an operator can go back. It costs disk on the server.
    pub rewind: Duration,
    /// Whether the slot is kept on standbys too, where the server can do that (17 and newer).
    pub failover: bool,
    /// Whether the server tells large transactions before they are committed, instead of keeping them. They are laid aside
    /// here until they are.
    pub streaming: bool,
    /// So many bytes of such transactions are held in memory.
    pub spool_memory: usize,
    /// So many bytes of them at most are laid aside, in memory and in files.
    pub spool_limit: u64,
    /// Where the files lie. They have no name there, so that nothing of them is left behind.
    pub spool_folder: PathBuf,
    /// What becomes of rows of tables without a key, which cannot be told apart.
    pub keyless: Keyless,
}

/// What becomes of rows that nothing tells apart.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub enum Keyless {
    /// The stream does not go on.
    #[default]
    Refuse,
    /// They are passed over, and the log of the program names their table.
    Pass,
}

/// What is held of large transactions in memory, and at all, if the settings do not say.
const SPOOL_MEMORY: usize = 16 << 20;
const SPOOL_LIMIT: u64 = 8 << 30;

impl Settings {
    /// Reads through this slot what this publication tells.
    pub fn new(slot: impl Into<String>, publication: impl Into<String>) -> Self {
        Self {
            slot: slot.into(),
            publication: publication.into(),
            stream: None,
            tables: Vec::new(),
            rewind: Duration::ZERO,
            failover: true,
            streaming: false,
            spool_memory: SPOOL_MEMORY,
            spool_limit: SPOOL_LIMIT,
            spool_folder: std::env::temp_dir(),
            keyless: Keyless::Refuse,
        }
    }

    /// The settings `slot`, `publication`, `table`, `tables`, `rewind`, `failover`, `streaming`, `spool_memory`, `spool_limit`,
    /// `spool_folder` and `keyless` of a stream's source.
    ///
    /// # Errors
    /// `Config` with the place where the setting was written.
    pub fn from_options(purpose: &Purpose, options: &mut Options) -> Result<Self> {
        let usual = own_name(&purpose.group, &purpose.stream);
        let slot = options.text("slot")?.unwrap_or_else(|| usual.clone());
        if !is_slot_name(&slot) {
            let cause = format!("{slot:?} is no name for a slot");
            options.report(options.wrong("slot", cause).remedy("write a-z, 0-9 and _, at most 63 of them"))?;
        }
        let publication = options.text("publication")?.unwrap_or(usual);
        let mut settings = Self::new(slot, publication);
        settings.stream = Some(format!("{}/{}", purpose.group, purpose.stream));
        settings.tables = options.texts("tables")?.unwrap_or_default();
        settings.tables.extend(options.text("table")?);
        if let Err(error) = settings.refuse_dotted_schemas() {
            let remedy = error.advice().unwrap_or_default().to_owned();
            options.report(options.wrong("tables", error.message()).remedy(remedy))?;
        }
        settings.rewind = options.duration("rewind")?.unwrap_or(settings.rewind);
        settings.failover = options.flag("failover")?.unwrap_or(settings.failover);
        let streaming = options.choice("streaming", &[("off", false), ("on", true)])?;
        settings.streaming = streaming.unwrap_or(settings.streaming);
        let spool_memory = options.bytes("spool_memory")?.map(|bytes| usize::try_from(bytes).unwrap_or(usize::MAX));
        settings.spool_memory = spool_memory.unwrap_or(settings.spool_memory);
        settings.spool_limit = options.bytes("spool_limit")?.unwrap_or(settings.spool_limit);
        settings.spool_folder = options.text("spool_folder")?.map_or(settings.spool_folder, PathBuf::from);
        let keyless = options.choice("keyless", &[("refuse", Keyless::Refuse), ("pass", Keyless::Pass)])?;
        settings.keyless = keyless.unwrap_or(settings.keyless);
        Ok(settings)
    }

    /// Refuses tables in schemas with a dot in their name.
    pub(super) fn refuse_dotted_schemas(&self) -> Result<()> {
        let is_dotted = |name: &TableName| name.schema.as_ref().is_some_and(|schema| schema.contains('.'));
        let mut names = self.tables.iter().filter_map(|table| TableName::parse(table).ok());
        names.find(is_dotted).map_or(Ok(()), |name| Err(dotted_schema(&name.written())))
    }

    /// The tables with their schema, as changes name them.
    pub(crate) fn qualified(&self) -> Vec<String> {
        let qualify = |table: &String| match TableName::parse(table) {
            Ok(TableName { schema, table }) => format!("{}.{table}", schema.as_deref().unwrap_or("public")),
            // What is not written as SQL has it is taken as changes have it.
            Err(_) if table.contains('.') => table.clone(),
            Err(_) => format!("public.{table}"),
        };
        self.tables.iter().map(qualify).collect()
    }

    /// Whether changes of a table are given out if they are published, where Watchkeeper's own tables lie in `own`.
    pub(crate) fn gives_out(&self, table: &str, own: &str) -> bool {
        Choice::of(self, own).has(table)
    }
}

/// Which of the published tables are given out.
#[derive(Debug, Clone)]
pub(super) enum Choice {
    These(Vec<String>),
    /// All but those in this schema, which are Watchkeeper's own: every commit would be a change to be committed.
    AllBut(String),
}

impl Choice {
    /// What these settings choose, where Watchkeeper's own tables lie in `own`.
    pub(super) fn of(settings: &Settings, own: &str) -> Self {
        if settings.tables.is_empty() { Self::AllBut(format!("{own}.")) } else { Self::These(settings.qualified()) }
    }

    /// Whether a table is given out.
    pub(super) fn has(&self, table: &str) -> bool {
        match self {
            Self::These(tables) => tables.iter().any(|wanted| wanted == table),
            Self::AllBut(own) => !table.starts_with(own.as_str()),
        }
    }

    /// Whether tables of a schema may be given out.
    pub(super) fn has_some_in(&self, schema: &str) -> bool {
        let is_in = |table: &String| table.split_once('.').is_some_and(|(of, _)| of == schema);
        match self {
            Self::These(tables) => tables.iter().any(is_in),
            Self::AllBut(own) => own.strip_suffix('.') != Some(schema),
        }
    }

    /// Another number for other tables.
    pub(super) fn digest(&self) -> u64 {
        let text = match self {
            Self::These(tables) => tables.join("\n"),
            Self::AllBut(own) => format!("\n{own}"),
        };
        xxhash_rust::xxh3::xxh3_64(text.as_bytes())
    }
}

/// A name for the slot and the publication of a stream: readable, and its own whatever the names hold.
pub(super) fn own_name(group: &str, stream: &str) -> String {
    let whole = format!("{group}/{stream}");
    let safe = |sign: char| if sign.is_ascii_alphanumeric() { sign.to_ascii_lowercase() } else { '_' };
    let hash = xxhash_rust::xxh3::xxh3_64(whole.as_bytes());
    let readable: String = format!("watchkeeper_{whole}").chars().map(safe).take(NAME_MAX - 9).collect();
    format!("{readable}_{:08x}", hash >> 32)
}

fn is_slot_name(name: &str) -> bool {
    let allowed = |byte: u8| byte.is_ascii_lowercase() || byte.is_ascii_digit() || byte == b'_';
    (1..=NAME_MAX).contains(&name.len()) && name.bytes().all(allowed)
}

/// A name as SQL takes it.
pub(super) fn identifier(name: &str) -> String {
    format!("\"{}\"", name.replace('"', "\"\""))
}

/// `schema.table` as SQL takes it.
pub(super) fn table_identifier(table: &str) -> Result<String> {
    let (schema, name) = table.split_once('.').ok_or_else(|| {
        Error::config(format!("{table:?} names no table")).remedy("write \"schema.table\" or \"table\"")
    })?;
    Ok(format!("{}.{}", identifier(schema), identifier(name)))
}

/// The error of a table in a schema with a dot in its name: changes name a table `schema.table`, which has one meaning only without.
pub(super) fn dotted_schema(table: &str) -> Error {
    let cause =
        format!("the schema of {table} has a dot in its name: changes could not be told from those of another table");
    Error::config(cause).remedy("move the table into a schema without one, or leave it out of the stream")
}

/// Text as SQL takes it.
pub(super) fn literal(text: &str) -> String {
    let quoted = text.replace('\'', "''");
    if text.contains('\\') { format!(" E'{}'", quoted.replace('\\', "\\\\")) } else { format!("'{quoted}'") }
}

#[cfg(test)]
mod tests {
    use super::{identifier, is_slot_name, literal, own_name};

    #[test]
    fn every_stream_has_a_slot_of_its_own() {
        let names = [("shop", "orders"), ("shop", "Orders"), ("shop", "ordërs"), ("shop", &"x".repeat(200))];
        let mut made: Vec<_> = names.iter().map(|(group, stream)| own_name(group, stream)).collect();
        assert!(made.iter().all(|name| is_slot_name(name)), "{made:?}");
        assert!(made[0].starts_with("watchkeeper_shop_orders_"));
        made.sort();
        made.dedup();
        assert_eq!(made.len(), 4);
    }

    #[test]
    fn names_and_texts_cannot_break_out() {
        assert_eq!(identifier("a\"b"), "\"a\"\"b\"");
        assert_eq!(literal("it's"), "'it''s'");
        assert_eq!(literal("a\\"), " E'a\\\\'");
    }
}
