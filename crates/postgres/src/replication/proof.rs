//! A message of our own in the log, by which a stream recognises it later.
//!
//! A server whose data folder was restored has the same identifier and timeline, and its log may have grown past the position of a stream
//! again: what was written in between would be skipped. So the last transaction before a position is read again at every opening and has to
//! be the same. Where there is none, because the tables were quiet while the log grew, the server is asked to write a transaction that
//! holds nothing but a logical message. Everybody may do that by default, and nothing but the log is changed by it.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};

use watchkeeper_core::{Finding, Severity};

use super::position::Lsn;
use super::settings::identifier;
use super::wire::{Failure, Wire};

/// The prefix of our messages.
pub(super) const PREFIX: &str = "watchkeeper";

/// The first version that sends logical messages to readers.
pub(super) const SINCE_MAJOR: u32 = 14;

/// What the reader and the task that writes messages tell each other.
#[derive(Debug, Clone, Default)]
pub(super) struct ProofRequests(Arc<Shared>);

#[derive(Debug, Default)]
struct Shared {
    is_wanted: AtomicBool,
    /// Where the last message was written.
    written: AtomicU64,
    is_impossible: AtomicBool,
}

impl ProofRequests {
    /// Asks for a message, for a reader that has received everything up to `received`. Whether that is news: the last one that was asked for
    /// may still have to come.
    pub(super) fn request(&self, received: Lsn) -> bool {
        let is_coming = received.0 < self.0.written.load(Ordering::Relaxed);
        !is_coming && !self.is_impossible() && !self.0.is_wanted.swap(true, Ordering::Relaxed)
    }

    /// Whether the server cannot write messages for this user.
    pub(super) fn is_impossible(&self) -> bool {
        self.0.is_impossible.load(Ordering::Relaxed)
    }

    /// Writes a message if one was asked for.
    pub(super) async fn write_if_wanted(&self, wire: &mut Wire) -> Result<(), Failure> {
        if !self.0.is_wanted.load(Ordering::Relaxed) {
            return Ok(());
        }
        match write(wire).await? {
            Some(lsn) => self.0.written.store(lsn.0, Ordering::Relaxed),
            None => {
                tracing::warn!(
                    "the server cannot be asked to write messages into its log: after much log without a change of the tables, a server \
                     that was restored from a backup is not recognised; `watchkeeper check` says why"
                );
                self.0.is_impossible.store(true, Ordering::Relaxed);
            }
        }
        self.0.is_wanted.store(false, Ordering::Relaxed);
        Ok(())
    }
}

/// Whether this user may call the function. Its arguments depend on the version.
const MAY_WRITE: &str = "coalesce((SELECT pg_catalog.bool_or(pg_catalog.has_function_privilege(p.oid, 'EXECUTE'))
    FROM pg_catalog.pg_proc p WHERE p.proname = 'pg_logical_emit_message' AND p.pronamespace = 'pg_catalog'::regnamespace), false)";

/// Writes a message; where it lies in the log. None where the server or the user cannot.
async fn write(wire: &mut Wire) -> Result<Option<Lsn>, Failure> {
    if obstacle(wire).await?.is_some() {
        return Ok(None);
    }
    let sql = format!("SELECT pg_catalog.pg_logical_emit_message(true, '{PREFIX}', '')");
    let rows = wire.query(&sql).await?;
    Ok(rows.first().and_then(|row| row.first()?.as_deref()).and_then(Lsn::parse))
}

/// Why messages cannot be written.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Obstacle {
    Version,
    Standby,
    Privilege,
}

async fn obstacle(wire: &mut Wire) -> Result<Option<Obstacle>, Failure> {
    if wire.major < SINCE_MAJOR {
        return Ok(Some(Obstacle::Version));
    }
    let rows = wire.query(&format!("SELECT pg_catalog.pg_is_in_recovery(), {MAY_WRITE}")).await?;
    let is = |at: usize| rows.first().and_then(|row| row.get(at)).and_then(Option::as_deref) == Some("t");
    Ok(match (is(0), is(1)) {
        (true, _) => Some(Obstacle::Standby),
        (_, false) => Some(Obstacle::Privilege),
        _ => None,
    })
}

/// What `check` says where no messages can be written.
pub(super) async fn findings(wire: &mut Wire, user: &str) -> Result<Option<Finding>, Failure> {
    let Some(obstacle) = obstacle(wire).await? else { return Ok(None) };
    let unrecognised = "after 16 MiB of log without a change of the tables, or one transaction of more than 1 MiB, a server that was \
        restored from a backup on the same timeline is not recognised, and its changes before the position are skipped";
    let (why, remedy) = match obstacle {
        Obstacle::Version => (
            "this version of the server does not send logical messages".to_owned(),
            "use PostgreSQL 14 or newer; until then drop the slot when such a server is restored, so that the stream halts".to_owned(),
        ),
        Obstacle::Standby => (
            "a standby cannot write messages into the log".to_owned(),
            "read from the primary; otherwise drop the slot when the server is restored, so that the stream halts".to_owned(),
        ),
        Obstacle::Privilege => (
            format!("{user} may not call pg_logical_emit_message"),
            format!("GRANT EXECUTE ON FUNCTION pg_catalog.pg_logical_emit_message TO {}", identifier(user)),
        ),
    };
    Ok(Some(Finding { severity: Severity::Warning, what: format!("{why}: {unrecognised}"), remedy: Some(remedy) }))
}
