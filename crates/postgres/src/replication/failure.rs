//! What the failures of a replication connection mean.

use std::io;

use watchkeeper_core::{Error, ErrorKind};

use super::connect::NO_TLS;
use super::wire::{Failure, Refusal};
use crate::error::{CallPurpose, Class, REACH, UNREACHABLE, WITHOUT_TLS};

/// The core error of a failure while `doing` something that changes nothing, or nothing that a repetition would not find
/// done.
pub(super) fn to_error(doing: &str, failure: Failure) -> Error {
    match failure {
        Failure::Io(error) if error.kind() == io::ErrorKind::PermissionDenied => {
            Error::new(ErrorKind::Denied, format!("{doing}: {error}"))
                .remedy("set the password in the URL, PGPASSWORD or the password file")
                .caused_by(error)
        }
        Failure::Io(error) if error.to_string() == NO_TLS => {
            Error::config(format!("{doing}: {error}")).remedy(WITHOUT_TLS).caused_by(error)
        }
        // The sides do not agree on TLS or on how a password is proved.
        Failure::Io(error) if is_disagreement(error.kind()) => Error::config(format!("{doing}: {error}"))
            .remedy("name the authority that signed the server's certificate as sslrootcert, and the host as the certificate does; or correct sslmode and channel_binding")
            .caused_by(error),
        Failure::Io(error) if error.to_string().starts_with(UNREACHABLE) => {
            Error::unavailable(format!("{doing}: {error}")).remedy(REACH).caused_by(error)
        }
        Failure::Io(error) => Error::unavailable(format!("{doing}: {error}"))
            .remedy("it is tried again; look at the server's log if it stays so")
            .caused_by(error),
        Failure::Refused(refusal) => refused(doing, refusal),
    }
}

fn is_disagreement(kind: io::ErrorKind) -> bool {
    matches!(kind, io::ErrorKind::InvalidData | io::ErrorKind::InvalidInput | io::ErrorKind::Unsupported)
}

fn refused(doing: &str, refusal: Refusal) -> Error {
    if is_pooler(&refusal) {
        let cause = format!("{doing}: this is PgBouncer, which does not pass on what replication asks for: {refusal}");
        return Error::config(cause).remedy("name the server itself in the url of this source").caused_by(refusal);
    }
    let (kind, remedy) = meaning(&refusal);
    Error::new(kind, format!("{doing}: {refusal}")).remedy(remedy).caused_by(refusal)
}

/// Whether a pooler answers instead of a server: none of the parameters is unknown to those.
fn is_pooler(refusal: &Refusal) -> bool {
    refusal.message.starts_with("unsupported startup parameter")
}

/// The right that is missing, as far as the server's words tell.
fn missing_right(message: &str) -> &'static str {
    if message.contains("row-level security") {
        return "let its user see all rows, which a snapshot has to: ALTER ROLE … BYPASSRLS";
    }
    if message.starts_with("permission denied for") {
        return "grant its user SELECT on the published tables and USAGE on their schemas, which a snapshot needs";
    }
    "ALTER ROLE … REPLICATION, and let it own or read the published tables"
}

/// What a SQLSTATE means to a reader of the log, where that is more than the table of all calls says.
fn meaning(refusal: &Refusal) -> (ErrorKind, &'static str) {
    match refusal.code.as_str() {
        "28P01" | "28000" => (ErrorKind::Denied, "correct user and password, or let this user connect in pg_hba.conf"),
        "42501" => (ErrorKind::Denied, missing_right(&refusal.message)),
        "3D000" => (ErrorKind::Config, "correct the database in the URL"),
        // The log is decoded with the catalog of its own time.
        "42704" => (
            ErrorKind::Config,
            "create the publication or correct its name; a slot that is older than its publication has to be dropped and the gap accepted",
        ),
        // The segments that the slot needs are gone.
        "58P01" => {
            (ErrorKind::PositionLost, "raise max_slot_wal_keep_size, and accept the gap: watchkeeper accept-gap STREAM")
        }
        "53300" => (ErrorKind::Unavailable, "raise max_connections or max_wal_senders"),
        "53400" => (ErrorKind::Config, "raise max_replication_slots, or drop a slot that nobody reads"),
        code => match Class::of_code(code).kind(CallPurpose::Reading) {
            ErrorKind::Internal => {
                (ErrorKind::Unavailable, "it is tried again; look at the server's log if it stays so")
            }
            ErrorKind::Unavailable => (ErrorKind::Unavailable, "it is tried again"),
            kind => (kind, "correct what the cause names"),
        },
    }
}
