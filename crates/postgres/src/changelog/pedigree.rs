//! Whose log it is, and whether a place in it is of its own past.

use std::fmt;

use tokio_postgres::Row;
use watchkeeper_core::{Error, Pedigree, Result, SourceTime};

use super::position::LogPosition;
use super::query::{Raw, Script, UNFLUSHED, time};
use super::snapshot::Snapshot;
use crate::client::quoted;

/// What positions are stored beside. After a restore or a failover to a server that lagged behind, transactions and changes
/// have numbers that had been given before; each of these parts is another one then.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct Identity {
    system: String,
    timeline: String,
    /// The table itself: a dump that is restored makes another one.
    table: String,
    log: String,
}

impl fmt::Display for Identity {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}/{}/{}/{}", self.system, self.timeline, self.table, self.log)
    }
}

impl Identity {
    pub(super) fn pedigree(&self) -> Pedigree {
        Pedigree(self.to_string().into())
    }

    /// The first part of the ids of changes.
    pub(super) fn origin(&self) -> String {
        if self.log.is_empty() { format!("{}-{}", self.system, self.table) } else { self.log.clone() }
    }

    /// Refuses the pedigree of another log, and says what is other.
    pub(super) fn require(&self, pedigree: &Pedigree) -> Result<()> {
        let known = String::from_utf8_lossy(&pedigree.0);
        let parts: Vec<&str> = known.split('/').collect();
        let [system, timeline, table, log] = parts[..] else {
            return Err(another("the checkpoint belongs to another kind of log"));
        };
        if system != self.system {
            return Err(another("the checkpoint belongs to another server: this one has another system identifier"));
        }
        if log != self.log {
            return Err(another("the checkpoint belongs to another log than the one that answers now"));
        }
        if table != self.table {
            return Err(another("the log's table is another one since the checkpoint: was a dump restored?"));
        }
        if timeline != self.timeline {
            let (was, now) = (timeline, &self.timeline);
            let cause = format!(
                "the server went on from a backup or a standby since the checkpoint: timeline {now}, was {was}"
            );
            return Err(another(&cause));
        }
        Ok(())
    }
}

fn another(cause: &str) -> Error {
    Error::position_lost(cause).remedy(
        "point the stream at the log it was reading, copy the tables again, or accept the gap: watchkeeper accept-gap STREAM",
    )
}

/// What a look at the log told.
#[derive(Debug, Clone)]
pub(super) struct LogObservation {
    pub(super) identity: Identity,
    pub(super) now: Snapshot,
    /// How far the write-ahead log has to be on the disk for that to be certain.
    pub(super) unflushed: Option<String>,
    /// What was pruned; nothing of an outbox is pruned by us.
    pub(super) pruned: Snapshot,
    pruned_id: Option<u64>,
    /// The time of the change that was asked for, if it is still there.
    proof: Option<Option<SourceTime>>,
}

impl LogObservation {
    /// The statement that looks, for the change with this number too.
    pub(super) fn sql(script: &Script, own: Option<&str>, number: u64) -> String {
        let (table, id) = (&script.table, quoted(&script.columns.id));
        let time = script.columns.time.as_ref().map_or_else(|| "NULL".to_owned(), |name| quoted(name));
        let (log, pruned, pruned_id) = match own {
            Some(meta) => (
                format!("(SELECT log_uuid::text FROM {meta})"),
                format!("(SELECT pruned_through::text FROM {meta})"),
                format!("(SELECT pruned_id FROM {meta})"),
            ),
            None => ("''".to_owned(), "NULL::text".to_owned(), "NULL::bigint".to_owned()),
        };
        let name = super::columns::literal(table);
        format!(
            "SELECT pg_is_in_recovery(), (SELECT system_identifier::text FROM pg_control_system()),
                CASE WHEN NOT pg_is_in_recovery() THEN substr(pg_walfile_name(pg_current_wal_lsn()), 1, 8) END,
                (SELECT oid::text FROM pg_database WHERE datname = current_database()) || '.' || {name}::regclass::oid::text,
                {log}, pg_current_snapshot()::text, {pruned}, {pruned_id},
                EXISTS (SELECT FROM {table} WHERE {id} = {number}),
                (SELECT {time}::timestamptz FROM {table} WHERE {id} = {number}),
                CASE WHEN NOT pg_is_in_recovery() THEN {UNFLUSHED} END"
        )
    }

    pub(super) fn of(row: &Row) -> Result<Self> {
        if row.get(0) {
            return Err(Error::config(
                "a standby cannot tell which transactions are still in progress, so that changes would be lost",
            )
            .remedy("name the primary, or all servers with target_session_attrs=read-write"));
        }
        let text = |n: usize| row.get::<_, Option<String>>(n).unwrap_or_default();
        let identity = Identity { system: text(1), timeline: text(2), table: text(3), log: text(4) };
        let pruned: Option<String> = row.get(6);
        let pruned = pruned.map_or_else(|| Ok(Snapshot::nothing()), |text| text.parse())?;
        let pruned_id = row.get::<_, Option<i64>>(7).map(i64::unsigned_abs);
        let time_there: Option<Raw<'_>> = row.get(9);
        let proof = row.get::<_, bool>(8).then(|| time_there.and_then(|raw| time(raw.0)));
        Ok(Self { identity, now: text(5).parse()?, unflushed: row.get(10), pruned, pruned_id, proof })
    }

    /// Refuses a place whose history is gone, or has not happened here. The look was for its last change.
    pub(super) fn require(&self, place: &LogPosition) -> Result<()> {
        require_unpruned(&self.pruned, place)?;
        let end = place.target.as_ref().unwrap_or(&place.read);
        if end.xmax() > self.now.xmax() {
            return Err(another(
                "the checkpoint lies after the newest transaction of this server: was it restored from a backup?",
            ));
        }
        let number = place.last;
        match (self.proof, place.time) {
            (Some(Some(there)), Some(read)) if there != read => Err(another(&format!(
                "change {number} is not the one that was read: was the server restored from a backup?"
            ))),
            (None, _) if self.pruned_id.is_some_and(|pruned| number > pruned) => Err(another(&format!(
                "change {number} was read, and is not there: was the server restored from a backup?"
            ))),
            _ => Ok(()),
        }
    }
}

/// Refuses a place before which the log was pruned.
pub(super) fn require_unpruned(pruned: &Snapshot, place: &LogPosition) -> Result<()> {
    if pruned.is_in(&place.read) {
        return Ok(());
    }
    Err(Error::position_lost(format!(
        "the changes after the checkpoint are gone: the log is pruned, or rows of it were deleted, through transaction {}",
        pruned.xmax()
    ))
    .remedy("accept the gap (watchkeeper accept-gap STREAM), or copy the tables again; a longer retention prevents it"))
}
