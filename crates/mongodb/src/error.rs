//! One table from MongoDB's errors to kinds.
//!
//! *Unavailable* is reported to a writer only for what certainly had no effect: no server was found, the server was not
//! the primary, a transaction was aborted or never committed. A lost connection, a step-down and a missing majority are
//! *Unknown*.

mod cause;

use mongodb::error::{Error as Native, ErrorKind as NativeKind, WriteFailure};
use watchkeeper_core::{Error, ErrorKind};

use self::cause::cause_text;

/// What a call was about, which decides what an error leaves open.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum CallPurpose {
    /// Nothing can have changed: reading, or a statement of a transaction that was not committed.
    Reading,
    /// A write of its own, without retries.
    Writing,
    /// The commit of a transaction.
    Committing,
    /// Opening or reading a change stream from a position. Only then a code can mean that history is lost.
    Watching,
}

/// What an error means, before it is asked what it leaves open.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
#[non_exhaustive]
pub enum Class {
    /// The cursor was killed, or forgotten: open it again from our own token.
    CursorGone,
    /// The server is not the primary: it did nothing.
    NotPrimary,
    /// No server was found to send anything to.
    Unreachable,
    /// The server's certificate is signed by nobody who is trusted, or names another server.
    Untrusted,
    /// Servers answer, and none of them is a primary.
    NoPrimary,
    /// The servers are of another replica set than the URL names.
    OtherSet,
    /// There is no secondary, and nothing else may be read.
    NoSecondary,
    /// The driver's monitor lost touch with the server, and calls that were on their way were broken off.
    LostTouch,
    /// Network, elections, shutdown: open again, with back-off.
    Network,
    /// Someone else was in the way; the server undid what it had begun.
    Busy,
    /// The server was short of memory or at work on a backup; it did nothing.
    Overloaded,
    /// The transaction was larger than the server takes; it was undone.
    TransactionTooLarge,
    /// The collection takes no writes in a transaction.
    NotInTransaction,
    /// The server gave the operation up for a reason of its own.
    Failed,
    /// It took longer than it was allowed to.
    Late,
    /// The write was done, but it is not known whether by a majority.
    NotYetMajority,
    /// The position has left the oplog.
    HistoryLost,
    /// A capped collection (or the oplog) rolled over below a cursor: open once more, then as [`HistoryLost`](Self::HistoryLost).
    Overrun,
    /// The token's event is not visible through this pipeline, or the pipeline changed it: often recoverable from the token's time.
    TokenUnseen,
    /// The token was refused: from an invalidate (use `startAfter`), or of another scope.
    TokenRefused,
    /// The bytes are no token.
    TokenCorrupt,
    /// An event above 16 MiB.
    TooLarge,
    /// An image that is required is missing.
    ImageMissing,
    /// There is no such collection.
    NamespaceMissing,
    /// The server cannot, or may not, do what the settings ask for.
    Settings,
    /// The server does not take the pipeline.
    Pipeline,
    /// A name that the servers keep for themselves, or do not take.
    Reserved,
    /// A view or a time series, which has no changes of its own.
    Unwatchable,
    /// Credentials or privileges are missing.
    Denied,
    /// Another one wrote it first.
    Duplicate,
    /// Anything else.
    Other,
}

/// The codes of a class, and what to say of it.
struct Row {
    class: Class,
    codes: &'static [i32],
    cause: &'static str,
    remedy: &'static str,
}

const TABLE: &[Row] = &[
    Row {
        class: Class::CursorGone,
        codes: &[43, 237, 11601, 175],
        cause: "the server ended the cursor",
        remedy: "it is opened again",
    },
    Row {
        class: Class::NotPrimary,
        codes: &[10107, 13435, 13436],
        cause: "the server is not the primary",
        remedy: "wait for the election",
    },
    Row {
        class: Class::Unreachable,
        codes: &[],
        cause: "no server could be reached",
        remedy: "look at the servers and the network; those that take encrypted connections only need tls=true in the URL",
    },
    Row {
        class: Class::NoPrimary,
        codes: &[],
        cause: "servers answer, but none of them is a primary",
        remedy: "wait for the election; a replica set that is new has to be initiated once: rs.initiate()",
    },
    Row {
        class: Class::Untrusted,
        codes: &[],
        cause: "the certificate of the server is not trusted",
        remedy: "name the authority that signed it in the URL (tlsCAFile=…), and the server as its certificate does",
    },
    Row {
        class: Class::OtherSet,
        codes: &[],
        cause: "these servers are of another replica set than the one that replicaSet= names",
        remedy: "correct replicaSet= in the URL; rs.status().set tells the name",
    },
    Row {
        class: Class::NoSecondary,
        codes: &[],
        cause: "there is no secondary to read from",
        remedy: "start one, or write read_preference = \"secondaryPreferred\", which reads the primary meanwhile",
    },
    Row {
        class: Class::LostTouch,
        codes: &[],
        cause: "the driver lost touch with the server",
        remedy: "look at the server and the network; with slow ones, raise connectTimeoutMS in the URL",
    },
    Row {
        class: Class::Network,
        codes: &[6, 7, 63, 89, 91, 133, 150, 189, 234, 262, 317, 9001, 11600, 11602, 13388],
        cause: "the servers cannot be reached, or elect a primary",
        remedy: "look at the replica set and the network",
    },
    Row {
        class: Class::Busy,
        codes: &[24, 46, 112, 225, 239, 244, 246, 251, 290],
        cause: "another transaction was in the way",
        remedy: "it is tried again",
    },
    Row {
        class: Class::Overloaded,
        codes: &[365, 50915],
        cause: "the server is short of memory, or at work on a backup",
        remedy: "it is tried again; look at the load of the server if that goes on",
    },
    Row {
        class: Class::TransactionTooLarge,
        codes: &[257],
        cause: "the transaction is larger than the server takes",
        remedy: "it is tried again with fewer changes; raise transactionSizeLimitBytes of the server if that goes on",
    },
    Row {
        class: Class::NotInTransaction,
        codes: &[263],
        cause: "the collection takes no writes in a transaction",
        remedy: "write into a collection that is not capped, or use a mode that writes without a transaction (mode = \"versioned\")",
    },
    Row { class: Class::Failed, codes: &[96], cause: FAILED.0, remedy: FAILED.1 },
    Row {
        class: Class::Late,
        codes: &[50, 202],
        cause: "it took longer than it was allowed to",
        remedy: "look at the load of the server",
    },
    Row {
        class: Class::NotYetMajority,
        codes: &[64],
        cause: "a majority of the servers did not confirm it in time",
        remedy: "look at the replica set: a majority has to be up and in step",
    },
    Row {
        class: Class::HistoryLost,
        codes: &[286, 464, 40576, 40585, 40615],
        cause: "the position has left the oplog",
        remedy: "choose what becomes of the gap (on_history_lost), and enlarge the oplog",
    },
    Row {
        class: Class::Overrun,
        codes: &[136],
        cause: "the oplog rolled over below the cursor",
        remedy: "enlarge the oplog",
    },
    Row {
        class: Class::TokenUnseen,
        codes: &[280],
        cause: "the position is not visible through this pipeline",
        remedy: "use the scope, pipeline and options that the position was made with, and do not change _id",
    },
    Row {
        class: Class::TokenRefused,
        codes: &[260],
        cause: "the position does not fit this stream",
        remedy: "use the scope (collection, database or cluster) that the position was made with",
    },
    Row {
        class: Class::TokenCorrupt,
        codes: &[50811],
        cause: "the stored position is damaged",
        remedy: "go back to an earlier checkpoint from the history",
    },
    Row {
        class: Class::TooLarge,
        codes: &[10334],
        cause: "an event is larger than 16 MiB",
        remedy: "leave fields out of it with a $project, or use a server that splits events",
    },
    Row {
        class: Class::ImageMissing,
        codes: &[47],
        cause: "an image that is required is missing",
        remedy: "use \"whenAvailable\", or enable changeStreamPreAndPostImages on the collection",
    },
    Row {
        class: Class::NamespaceMissing,
        codes: &[26],
        cause: "there is no such collection",
        remedy: "create it, or correct its name",
    },
    Row {
        class: Class::Settings,
        codes: &[20, 72, 79, 100, 40415, 40573],
        cause: "the server does not do this",
        remedy: "correct the settings that the cause names; change streams need a replica set of MongoDB 5.0 or newer",
    },
    // These have hundreds of codes. Here are those that slips of the hand cause; `Feed::refused` knows the others by where
    // they come from.
    Row {
        class: Class::Pipeline,
        codes: &[2, 168, 15959, 31253, 31254, 31325, 40323, 40324],
        cause: "the server does not take the pipeline, or an option",
        remedy: "correct the stage or the option that the cause names",
    },
    Row {
        class: Class::Reserved,
        codes: &[73],
        cause: "this cannot be watched or written",
        remedy: "name a database and collections of your own, or watch all of them with scope = \"cluster\"",
    },
    Row {
        class: Class::Unwatchable,
        codes: &[166],
        cause: "a view or a time series has no change stream",
        remedy: "watch the collections that its documents come from",
    },
    Row {
        class: Class::Denied,
        codes: &[13, 18],
        cause: "access is denied",
        remedy: "correct user and password, or grant the privilege that the cause names",
    },
    Row {
        class: Class::Duplicate,
        codes: &[11000],
        cause: "another one wrote it first",
        remedy: "it is looked at again",
    },
];

const FAILED: (&str, &str) =
    ("the server failed the command", "it is tried again; look at the servers if that goes on");

const OTHER: (&str, &str) = ("the server refused it", "look at the cause; if nobody edited the collections, report it");

impl Class {
    /// The class of a server's code.
    pub fn of_code(code: i32) -> Self {
        TABLE.iter().find(|row| row.codes.contains(&code)).map_or(Self::Other, |row| row.class)
    }

    /// The class of a driver's error.
    pub fn of(native: &Native) -> Self {
        // Servers have one code for what they cannot do at all, and for stages that do not go with a change stream.
        if code(native) == Some(20) && native.kind.to_string().contains("$changeStream pipeline") {
            return Self::Pipeline;
        }
        let known = code(native).map(Self::of_code).filter(|class| *class != Self::Other);
        known.unwrap_or_else(|| match &*native.kind {
            NativeKind::Authentication { .. } => Self::Denied,
            // A certificate that is not trusted looks like a server that is not there.
            NativeKind::ServerSelection { message, .. } if message.contains("certificate") => Self::Untrusted,
            // The driver forgets servers that say they are of another set.
            NativeKind::ServerSelection { message, .. }
                if message.contains(", Set Name: ") && !message.contains("Servers: [") =>
            {
                Self::OtherSet
            }
            NativeKind::ServerSelection { message, .. } if message.contains(" criteria ReadPreference(Secondary {") => {
                Self::NoSecondary
            }
            NativeKind::InvalidArgument { .. }
            | NativeKind::InvalidTlsConfig { .. }
            | NativeKind::IncompatibleServer { .. }
            | NativeKind::SessionsNotSupported => Self::Settings,
            NativeKind::ServerSelection { message, .. }
                if message.contains("None of the available servers suitable") =>
            {
                Self::NoPrimary
            }
            // Nothing was sent.
            NativeKind::ServerSelection { .. } | NativeKind::DnsResolve { .. } => Self::Unreachable,
            // Either before a call was sent, or after: the driver does not tell which.
            NativeKind::ConnectionPoolCleared { .. } => Self::LostTouch,
            NativeKind::Io(_) | NativeKind::InvalidResponse { .. } => Self::Network,
            // A code of a newer server, with a word on what it is like.
            _ if native.contains_label("TransientTransactionError") => Self::Busy,
            _ if native.contains_label("RetryableWriteError") => Self::Network,
            _ if native.contains_label("ResumableChangeStreamError") => Self::CursorGone,
            _ => Self::Other,
        })
    }

    /// Whether it is about one event, which is not to be had as it was asked for; the position is good.
    pub(crate) fn is_about_one_event(self) -> bool {
        matches!(self, Self::TooLarge | Self::ImageMissing)
    }

    /// Whether it is about the position of a change stream. From any other call its codes are those of a failed command.
    fn is_about_a_position(self) -> bool {
        matches!(self, Self::HistoryLost | Self::Overrun | Self::TokenUnseen | Self::TokenRefused | Self::TokenCorrupt)
    }

    /// What to do about it, given what the call was about.
    pub fn kind(self, doing: CallPurpose) -> ErrorKind {
        match self {
            _ if self.is_about_a_position() && doing == CallPurpose::Reading => ErrorKind::Unavailable,
            _ if self.is_about_a_position() && doing != CallPurpose::Watching => ErrorKind::Unknown,
            Self::HistoryLost | Self::Overrun | Self::TokenUnseen => ErrorKind::PositionLost,
            Self::TokenCorrupt => ErrorKind::Corrupt,
            Self::TokenRefused | Self::TooLarge | Self::ImageMissing => ErrorKind::Config,
            Self::NamespaceMissing | Self::Settings | Self::Untrusted | Self::NotInTransaction => ErrorKind::Config,
            Self::Pipeline | Self::Reserved | Self::Unwatchable | Self::OtherSet => ErrorKind::Config,
            Self::Denied => ErrorKind::Denied,
            Self::NotPrimary | Self::NoPrimary | Self::Unreachable | Self::NoSecondary | Self::Busy | Self::Late => {
                ErrorKind::Unavailable
            }
            Self::Overloaded | Self::TransactionTooLarge => ErrorKind::Unavailable,
            Self::Network | Self::LostTouch | Self::NotYetMajority | Self::CursorGone | Self::Failed
                if matches!(doing, CallPurpose::Reading | CallPurpose::Watching) =>
            {
                ErrorKind::Unavailable
            }
            Self::Network | Self::LostTouch | Self::NotYetMajority | Self::CursorGone | Self::Failed => {
                ErrorKind::Unknown
            }
            Self::Duplicate | Self::Other => ErrorKind::Internal,
        }
    }

    /// Its name, by which errors are counted.
    pub fn name(self) -> &'static str {
        match self {
            Self::CursorGone => "cursor-gone",
            Self::NotPrimary => "not-primary",
            Self::Unreachable => "unreachable",
            Self::NoPrimary => "no-primary",
            Self::Untrusted => "untrusted",
            Self::OtherSet => "other-set",
            Self::NoSecondary => "no-secondary",
            Self::LostTouch => "lost-touch",
            Self::Network => "network",
            Self::Busy => "busy",
            Self::Overloaded => "overloaded",
            Self::TransactionTooLarge => "transaction-too-large",
            Self::NotInTransaction => "not-in-transaction",
            Self::Failed => "failed",
            Self::Late => "late",
            Self::NotYetMajority => "not-yet-majority",
            Self::HistoryLost => "history-lost",
            Self::Overrun => "overrun",
            Self::TokenUnseen => "token-unseen",
            Self::TokenRefused => "token-refused",
            Self::TokenCorrupt => "token-corrupt",
            Self::TooLarge => "too-large",
            Self::ImageMissing => "image-missing",
            Self::NamespaceMissing => "namespace-missing",
            Self::Settings => "settings",
            Self::Pipeline => "pipeline",
            Self::Reserved => "reserved",
            Self::Unwatchable => "unwatchable",
            Self::Denied => "denied",
            Self::Duplicate => "duplicate",
            Self::Other => "other",
        }
    }

    /// Cause and remedy.
    pub(crate) fn words(self, doing: CallPurpose) -> (&'static str, &'static str) {
        if self.is_about_a_position() && doing != CallPurpose::Watching {
            return FAILED;
        }
        TABLE.iter().find(|row| row.class == self).map_or(OTHER, |row| (row.cause, row.remedy))
    }
}

/// The server's code, if a server said it.
pub(crate) fn code(native: &Native) -> Option<i32> {
    match &*native.kind {
        NativeKind::Command(error) => Some(error.code),
        NativeKind::Write(WriteFailure::WriteError(error)) => Some(error.code),
        NativeKind::Write(WriteFailure::WriteConcernError(error)) => Some(error.code),
        NativeKind::InsertMany(error) => {
            let first = error.write_errors.iter().flatten().next().map(|error| error.code);
            first.or_else(|| error.write_concern_error.as_ref().map(|error| error.code))
        }
        _ => None,
    }
}

/// What a driver's error means for a call to `place`.
pub(crate) fn translate(native: Native, doing: CallPurpose, place: &str) -> Error {
    let class = Class::of(&native);
    let majority_missing = matches!(&*native.kind, NativeKind::Write(WriteFailure::WriteConcernError(_)));
    let undone =
        native.contains_label("TransientTransactionError") && !native.contains_label("UnknownTransactionCommitResult");
    let kind = match doing {
        // Whatever went wrong, the server has undone it.
        _ if undone => ErrorKind::Unavailable,
        // The driver asks twice: a refusal of the second question says nothing about the first.
        CallPurpose::Committing => ErrorKind::Unknown,
        CallPurpose::Writing if majority_missing => ErrorKind::Unknown,
        _ => class.kind(doing),
    };
    to_error(kind, (class, doing), &cause_text(&native), place).caused_by(native)
}

/// What a server's code inside of an answer means.
pub(crate) fn translate_code(code: i32, said: &str, kind: Option<ErrorKind>, place: &str) -> Error {
    let class = Class::of_code(code);
    let kind = kind.unwrap_or_else(|| class.kind(CallPurpose::Writing));
    to_error(kind, (class, CallPurpose::Writing), &format!("error {code}: {said}"), place)
}

/// What a code means when it was the answer to a statement of a sink, and the change is at fault.
pub(crate) fn translate_refusal(code: i32, said: &str, place: &str) -> Error {
    let class = Class::of_code(code);
    let (cause, remedy) = match code {
        11000 => (
            "a unique index of the target has this value in another document",
            "drop that index or that document of the target, then resume the stream",
        ),
        121 => (
            "a validator of the target refuses the document",
            "mend the validator of the target (collMod), or the document at the source, then resume the stream",
        ),
        10334 | 17419 | 17420 => (
            "the document is larger than the 16 MiB that the target takes",
            "leave fields out of it, with a pipeline of the source or at the source",
        ),
        17280 => ("a value is too long for an index of the target", "drop that index, then resume the stream"),
        _ => class.words(CallPurpose::Writing),
    };
    phrased(ErrorKind::Config, class, (cause, remedy), &format!("error {code}: {said}"), place)
}

/// What a code that is not in the table means, when it was the answer to a pipeline.
pub(crate) fn translate_pipeline(native: Native, place: &str) -> Error {
    to_error(ErrorKind::Config, (Class::Pipeline, CallPurpose::Watching), &cause_text(&native), place).caused_by(native)
}

/// The longest that is quoted of what a server said.
const QUOTED_CHARS_MAX: usize = 300;

fn to_error(kind: ErrorKind, (class, doing): (Class, CallPurpose), said: &str, place: &str) -> Error {
    let (cause, remedy) = class.words(doing);
    // A server that knows no TLS ends the connection as soon as the handshake begins.
    let refuses_tls = class == Class::Unreachable && said.contains("tls handshake eof");
    let remedy = if refuses_tls { WITHOUT_TLS } else { remedy };
    phrased(kind, class, (cause, remedy), said, place)
}

/// What to do about servers that end a TLS handshake at its beginning.
const WITHOUT_TLS: &str = "a server that ends the TLS handshake takes no encrypted connections: turn TLS on there, or leave tls=true \
                           out of the URL if they need not be encrypted";

fn phrased(kind: ErrorKind, class: Class, (cause, remedy): (&str, &str), said: &str, place: &str) -> Error {
    let said: String = said.replace('\n', " ").chars().take(QUOTED_CHARS_MAX).collect();
    let error = Error::new(kind, format!("{place}: {cause} ({said})")).remedy(remedy.to_owned()).classed(class.name());
    // As after a transaction that takes too long, the next one is smaller.
    if class == Class::TransactionTooLarge { error.late() } else { error }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn no_code_stands_in_two_rows() {
        let mut codes: Vec<i32> = TABLE.iter().flat_map(|row| row.codes).copied().collect();
        let count = codes.len();
        codes.sort_unstable();
        codes.dedup();
        assert_eq!(codes.len(), count);
    }

    #[test]
    fn errors_are_counted_by_their_class() {
        for row in TABLE {
            let class = row.codes.first().map(|code| translate_code(*code, "said", None, "here").class());
            assert!(class.is_none_or(|class| class == row.class.name()), "{class:?}");
            assert_eq!(TABLE.iter().filter(|other| other.class.name() == row.class.name()).count(), 1);
        }
        assert_eq!(translate_code(1, "said", None, "here").class(), "other");
    }

    /// A server that is not sharded cannot be made to say these.
    #[test]
    fn codes_of_shards_are_like_elections() {
        for code in [63, 150, 13388] {
            assert_eq!(Class::of_code(code), Class::Network, "{code}");
        }
    }

    #[test]
    fn only_what_certainly_did_nothing_is_unavailable_to_a_writer() {
        assert_eq!(Class::NotPrimary.kind(CallPurpose::Writing), ErrorKind::Unavailable);
        assert_eq!(Class::Network.kind(CallPurpose::Writing), ErrorKind::Unknown);
        assert_eq!(Class::Network.kind(CallPurpose::Reading), ErrorKind::Unavailable);
    }

    #[test]
    fn only_a_change_stream_loses_history() {
        for code in [286, 464, 40576, 40585, 40615, 136, 280] {
            let class = Class::of_code(code);
            assert_eq!(class.kind(CallPurpose::Watching), ErrorKind::PositionLost, "{code}");
            assert_eq!(class.kind(CallPurpose::Reading), ErrorKind::Unavailable, "{code}");
            assert_eq!(class.kind(CallPurpose::Writing), ErrorKind::Unknown, "{code}");
            assert_eq!(class.kind(CallPurpose::Committing), ErrorKind::Unknown, "{code}");
        }
    }
}
