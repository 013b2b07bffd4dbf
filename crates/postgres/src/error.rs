//! One table from SQLSTATE to kinds.

use std::error::Error as _;

use tokio_postgres::Error as Native;
use watchkeeper_core::{Error, ErrorKind};

/// What a call was about, which decides what an error leaves open.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum CallPurpose {
    /// Nothing can have changed: reading, or a statement of a transaction that was not committed.
    Reading,
    /// A statement whose transaction ends with it: what the server refuses is undone, and silence may mean anything.
    Writing,
    /// The commit of a transaction.
    Committing,
}

/// What an error means, before it is asked what it leaves open.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord)]
#[non_exhaustive]
pub enum Class {
    /// The connection broke.
    Network,
    /// The server goes down, is not up yet, or ended this session.
    Ended,
    /// The server takes no writes.
    NotPrimary,
    /// Someone else was in the way; the server undid what had been begun.
    Busy,
    /// It took longer than it was allowed to.
    Late,
    /// Something ran out: disk, memory, connections.
    Exhausted,
    /// A database, table, column or function is missing.
    Missing,
    /// The server cannot do what the settings ask for.
    Settings,
    /// Credentials or privileges are missing.
    Denied,
    /// Another one made it first.
    Duplicate,
    /// The table does not take this row: a constraint, or a value out of its type.
    Refused,
    /// The server's files are damaged.
    Damaged,
    /// Anything else.
    Other,
}

/// The codes of a class, and what to say of it. A code of two letters stands for all that begin with it and have no row of their own.
struct Row {
    class: Class,
    codes: &'static [&'static str],
    cause: &'static str,
    remedy: &'static str,
}

const TABLE: &[Row] = &[
    Row {
        class: Class::Network,
        codes: &["08"],
        cause: "the connection to the server broke",
        remedy: "look at the server and the network",
    },
    Row {
        class: Class::Ended,
        codes: &["57P01", "57P02", "57P03", "57P05", "25P03", "25P04"],
        cause: "the server ended the session",
        remedy: "look whether the server was stopped, or someone ended this session",
    },
    Row {
        class: Class::NotPrimary,
        codes: &["25006"],
        cause: "the server takes no writes",
        remedy: "name the primary, or all servers with target_session_attrs=read-write",
    },
    Row {
        class: Class::Busy,
        codes: &["40", "55P03", "55006"],
        cause: "another transaction was in the way",
        remedy: "it is tried again",
    },
    Row {
        class: Class::Late,
        codes: &["57014"],
        cause: "it took longer than it was allowed to",
        remedy: "look at the load of the server, and for locks in pg_stat_activity",
    },
    Row {
        class: Class::Exhausted,
        codes: &["53"],
        cause: "the server has run out of something",
        remedy: "look at its disk, its memory and max_connections",
    },
    Row {
        class: Class::Missing,
        codes: &["3D000", "3F000", "42P01", "42703", "42704", "42883"],
        cause: "something does not exist",
        remedy: "restore or create it, or correct its name; Watchkeeper's own tables are made by `watchkeeper postgres setup`",
    },
    Row {
        class: Class::Settings,
        codes: &["0A000", "21000", "22023", "42601", "42602", "42P02", "42P10", "42804", "42809", "42939", "55000"],
        cause: "the server does not do this",
        remedy: "use PostgreSQL 14 or newer, and correct the setting that the cause names",
    },
    Row {
        class: Class::Denied,
        codes: &["28", "42501"],
        cause: "access is denied",
        remedy: "correct user and password, or grant the privilege that the cause names",
    },
    Row {
        class: Class::Duplicate,
        codes: &["42P04", "42P06", "42P07", "42710"],
        cause: "another one made it first",
        remedy: "it is looked at again",
    },
    Row {
        class: Class::Refused,
        codes: &["22", "23", "44000", "54000", "54001", "P0001"],
        cause: "the table does not take it",
        remedy: "correct the row or the table, or choose what becomes of refused changes (on_reject)",
    },
    Row {
        class: Class::Damaged,
        codes: &["XX001", "XX002", "58030"],
        cause: "the server's files are damaged",
        remedy: "look at the server's log and disk; restore it from a backup",
    },
];

const OTHER: (&str, &str) = ("the server refused it", "look at the cause; if nobody edited the tables, report it");

impl Class {
    /// The class of an SQLSTATE.
    pub fn of_code(code: &str) -> Self {
        let with = |wanted: &str| TABLE.iter().find(|row| row.codes.contains(&wanted)).map(|row| row.class);
        with(code).or_else(|| with(code.get(..2)?)).unwrap_or(Self::Other)
    }

    /// Every code that has a row, with its class. Two letters stand for all codes that begin with them.
    pub fn codes() -> impl Iterator<Item = (&'static str, Self)> {
        TABLE.iter().flat_map(|row| row.codes.iter().map(|code| (*code, row.class)))
    }

    /// The class of a driver's error.
    pub fn of(native: &Native) -> Self {
        if let Some(code) = native.code() {
            return Self::of_code(code.code());
        }
        let said = native.to_string();
        match said.as_str() {
            "error performing TLS handshake" if !is_broken(native) => Self::Settings,
            "invalid configuration" if native.source().is_some_and(|cause| cause.to_string() == "password missing") => {
                Self::Denied
            }
            "invalid configuration" | "invalid connection string" => Self::Settings,
            // Such as a channel binding that is required.
            "authentication error" => Self::Denied,
            "error communicating with the server" | "connection closed" | "error connecting to server" => Self::Network,
            "timeout waiting for server" | "error performing TLS handshake" => Self::Network,
            _ if said.starts_with("error serializing parameter") => Self::Refused,
            _ => Self::Other,
        }
    }

    /// What to do about it, given what the call was about.
    pub fn kind(self, doing: CallPurpose) -> ErrorKind {
        match self {
            Self::Network if doing != CallPurpose::Reading => ErrorKind::Unknown,
            Self::Ended if doing == CallPurpose::Committing => ErrorKind::Unknown,
            Self::Network | Self::Ended | Self::NotPrimary | Self::Busy | Self::Late => ErrorKind::Unavailable,
            Self::Exhausted | Self::Duplicate => ErrorKind::Unavailable,
            Self::Missing | Self::Settings | Self::Refused => ErrorKind::Config,
            Self::Denied => ErrorKind::Denied,
            Self::Damaged => ErrorKind::Corrupt,
            Self::Other => ErrorKind::Internal,
        }
    }

    fn words(self) -> (&'static str, &'static str) {
        TABLE.iter().find(|row| row.class == self).map_or(OTHER, |row| (row.cause, row.remedy))
    }
}

/// Whether the connection broke in the middle of a handshake, rather than that its sides did not agree.
fn is_broken(native: &Native) -> bool {
    use std::io::ErrorKind::{BrokenPipe, ConnectionAborted, ConnectionReset, UnexpectedEof};
    let io = native.source().and_then(|cause| cause.downcast_ref::<std::io::Error>());
    io.is_some_and(|io| matches!(io.kind(), BrokenPipe | ConnectionAborted | ConnectionReset | UnexpectedEof))
}

/// The longest that is quoted of what a server said.
const QUOTED_CHARS_MAX: usize = 300;

/// What a driver's error means for a call to `place`.
pub fn to_error(native: Native, doing: CallPurpose, place: &str) -> Error {
    let class = Class::of(&native);
    let (cause, remedy) = class.words();
    let remedy = nearer_remedy(&native).unwrap_or(remedy);
    let quoted = |said: String| said.replace('\n', " ").chars().take(QUOTED_CHARS_MAX).collect::<String>();
    let cause = match unconnected(&native).map(quoted) {
        Some(said) => format!("{place}: {UNREACHABLE} ({said})"),
        None => match named(&native, class) {
            Some((missing, code)) => format!("{place}: {} ({code})", quoted(missing)),
            None => format!("{place}: {cause} ({})", quoted(cause_text(&native))),
        },
    };
    Error::new(class.kind(doing), cause).remedy(remedy).caused_by(native)
}

/// What to do about an error of which more is known than its class.
fn nearer_remedy(native: &Native) -> Option<&'static str> {
    let by_code = || match native.code()?.code() {
        "3D000" => Some("create the database, or correct its name in the URL"),
        "42501" => Some("grant the privilege that the cause names"),
        _ => None,
    };
    let unreachable = || unconnected(native).map(|_| REACH);
    tls_remedy(native)
        .or_else(|| hidden_remedy(native))
        .or_else(|| merged_remedy(native))
        .or_else(by_code)
        .or_else(unreachable)
}

/// What is said where no connection came about.
pub(crate) const UNREACHABLE: &str = "the server cannot be reached";

/// What to do about it.
pub(crate) const REACH: &str =
    "start the server, or correct its host and port in the URL; look at the network and its firewalls";

/// Why no connection came about, if that is what failed.
fn unconnected(native: &Native) -> Option<String> {
    if native.to_string() != "error connecting to server" {
        return None;
    }
    native.source().map(|cause| without_number(&cause.to_string()))
}

/// The words of the operating system, without its number for them.
pub(crate) fn without_number(said: &str) -> String {
    said.split(" (os error").next().unwrap_or(said).to_owned()
}

/// The server's own words and code for what is missing: they name it.
fn named(native: &Native, class: Class) -> Option<(String, &str)> {
    let said = native.as_db_error().filter(|_| class == Class::Missing)?;
    let detail = said.detail().map(|detail| format!("; {detail}")).unwrap_or_default();
    Some((format!("{}{detail}", said.message()), said.code().code()))
}

/// What was said: the server's own words, or the innermost cause.
fn cause_text(native: &Native) -> String {
    if let Some(error) = native.as_db_error() {
        let detail = error.detail().map(|detail| format!("; {detail}")).unwrap_or_default();
        return format!("{}: {}{detail}", error.code().code(), error.message());
    }
    match native.source() {
        Some(cause) => format!("{native}: {cause}"),
        None => native.to_string(),
    }
}

/// What to do about a server that takes no encrypted connections.
pub(crate) const WITHOUT_TLS: &str = "let the server take encrypted connections (ssl = on), or write sslmode=disable in the URL if they need not be encrypted";

fn tls_remedy(native: &Native) -> Option<&'static str> {
    let handshake = native.to_string() == "error performing TLS handshake" && !is_broken(native);
    // The server answered before any certificate was seen.
    let refused = native.source().is_some_and(|cause| cause.to_string().contains("server does not support TLS"));
    if handshake && refused {
        return Some(WITHOUT_TLS);
    }
    handshake.then_some(
        "name the authority that signed the server's certificate as sslrootcert, and the host as the certificate does",
    )
}

/// What to do about policies that would hide rows.
pub(crate) const UNHIDE: &str =
    "let the role see all rows (ALTER ROLE … BYPASSRLS), or be the table's owner without FORCE ROW LEVEL SECURITY";

fn hidden_remedy(native: &Native) -> Option<&'static str> {
    let said = native.as_db_error().filter(|said| said.code().code() == "42501")?;
    said.message().contains("row-level security").then_some(UNHIDE)
}

/// What to do about rows with different keys that have the same one in their target.
fn merged_remedy(native: &Native) -> Option<&'static str> {
    let said = native.as_db_error().filter(|said| said.code().code() == "21000")?;
    said.message().contains("ON CONFLICT").then_some(
        "give the primary key of the target types that hold as much as those of the source: different keys become one there",
    )
}

/// What the driver had said, of an error that was made of it.
pub(crate) fn native(error: &Error) -> Option<&Native> {
    error.native()
}

/// Whether a table has a column no more that a statement named.
pub(crate) fn is_column_gone(error: &Error) -> bool {
    native(error).and_then(Native::code).is_some_and(|code| code.code() == "42703")
}

/// Whether a server has refused a statement for a reason that may lie in the statement, the table or the values: input functions of types
/// raise whatever error their author chose.
pub(crate) fn is_doubtful(error: &Error) -> bool {
    let is_said = |native: &&Native| native.as_db_error().is_some() && !is_column_gone(error);
    let class = native(error).filter(is_said).map(Class::of);
    matches!(class, Some(Class::Missing | Class::Settings | Class::Other))
}

/// What is not known of something that no one can see is at least no change.
pub(crate) fn unchanged(error: Error) -> Error {
    match error.kind() {
        ErrorKind::Unknown => {
            let certain = Error::unavailable(error.message().to_owned())
                .remedy(error.advice().unwrap_or("it is tried again").to_owned());
            let certain = if error.is_late() { certain.late() } else { certain };
            certain.caused_by(error)
        }
        _ => error,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn no_code_stands_in_two_rows() {
        let mut codes: Vec<&str> = TABLE.iter().flat_map(|row| row.codes).copied().collect();
        let count = codes.len();
        codes.sort_unstable();
        codes.dedup();
        assert_eq!(codes.len(), count);
    }

    #[test]
    fn the_nearer_row_counts() {
        assert_eq!(Class::of_code("22023"), Class::Settings);
        assert_eq!(Class::of_code("22001"), Class::Refused);
        assert_eq!(Class::of_code("40P01"), Class::Busy);
        assert_eq!(Class::of_code("XX000"), Class::Other);
        assert_eq!(Class::of_code(""), Class::Other);
    }

    #[test]
    fn only_what_certainly_did_nothing_is_unavailable_to_a_writer() {
        assert_eq!(Class::Busy.kind(CallPurpose::Committing), ErrorKind::Unavailable);
        assert_eq!(Class::Network.kind(CallPurpose::Writing), ErrorKind::Unknown);
        assert_eq!(Class::Ended.kind(CallPurpose::Committing), ErrorKind::Unknown);
        assert_eq!(Class::Network.kind(CallPurpose::Reading), ErrorKind::Unavailable);
    }
}
