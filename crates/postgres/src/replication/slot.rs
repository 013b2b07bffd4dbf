//! The slot: whether it is there, what it still holds, who has it.

use std::time::Duration;

use serde::Deserialize;
use serde_json::Value;
use watchkeeper_core::source::ACCEPT_GAP;
use watchkeeper_core::{Cx, Error, Result};

use super::position::{Lsn, PositionContext, ReplicationPosition};
use super::publication_definition::{self, PublicationDefinition};
use super::publication_fingerprint::{self, PublicationFingerprint};
use super::settings::{Choice, Settings, identifier, literal};
use super::wire::{Failure, Wire};

/// Everything that is asked of the server before reading, as one document: columns that a version does not have are then
/// simply not there. A new process of the server answers, and whatever it has not used yet costs it time: so functions are asked,
/// not the views over them.
#[derive(Debug, Clone, Deserialize)]
pub(super) struct ServerState {
    slot: Option<Value>,
    /// The database that the slot belongs to.
    database: Option<String>,
    holder: Option<String>,
    now: Option<String>,
    /// The server's process that answers.
    pid: i64,
    pub(super) version: u32,
    wal_level: String,
    patience_millis: u64,
    /// Whether the server keeps everything that the slot needs, whatever it costs.
    keeps_all: bool,
    /// The publication, if there is one.
    #[serde(default)]
    pub(super) publication: Option<PublicationDefinition>,
    /// What it is known by, where no more was asked for.
    #[serde(default)]
    mark: Option<PublicationFingerprint>,
    /// Whether it is only presumed to be what was remembered of it.
    #[serde(skip)]
    pub(super) presumes: bool,
}

/// A slot as it is now.
#[derive(Debug, Clone)]
pub(super) struct Slot {
    /// Everything before it was confirmed, and will not be sent again whatever is asked for.
    pub(super) confirmed: Lsn,
    /// The process that has it.
    pub(super) holder: Option<i64>,
}

impl ServerState {
    /// Looks at the server. Where the publication is `remembered`, it is presumed to be as it was if it has the same mark: what it
    /// is made of takes the server's new process longer to find out than all the rest.
    pub(super) async fn take(
        wire: &mut Wire,
        settings: &Settings,
        choice: &Choice,
        remembered: Option<&PublicationDefinition>,
    ) -> Result<Self, Failure> {
        let remembered = remembered
            .filter(|scope| scope.name == settings.publication && publication_fingerprint::is_enough_for(scope));
        let slot = literal(&settings.slot);
        let publication = match remembered {
            Some(scope) => format!("'mark', {}", publication_fingerprint::expression(scope, wire.major)),
            None => format!("'publication', {}", publication_definition::expression(settings, wire.major)),
        };
        let sql = format!(
            "SELECT pg_catalog.jsonb_build_object(
                'slot', (SELECT pg_catalog.to_jsonb(s) FROM pg_catalog.pg_get_replication_slots() s WHERE s.slot_name = {slot}),
                'database', (SELECT d.datname FROM pg_catalog.pg_get_replication_slots() s
                    JOIN pg_catalog.pg_database d ON d.oid = s.datoid WHERE s.slot_name = {slot}),
                'holder', (SELECT a.application_name FROM pg_catalog.pg_get_replication_slots() s,
                    pg_catalog.pg_stat_get_activity(s.active_pid) a WHERE s.slot_name = {slot} AND s.active),
                'now', CASE WHEN pg_catalog.pg_is_in_recovery() THEN pg_catalog.pg_last_wal_replay_lsn()
                    ELSE pg_catalog.pg_current_wal_insert_lsn() END,
                'pid', pg_catalog.pg_backend_pid(),
                'version', pg_catalog.current_setting('server_version_num')::int,
                'wal_level', pg_catalog.current_setting('wal_level'),
                'patience_millis', (extract(epoch FROM pg_catalog.current_setting('wal_sender_timeout')::interval) * 1000)::bigint,
                'keeps_all', pg_catalog.current_setting('max_slot_wal_keep_size') = '-1',
                {publication})"
        );
        let rows = wire.query(&sql).await?;
        let text = rows.first().and_then(|row| row.first()).and_then(Option::as_deref).unwrap_or_default();
        let outlook: Self = serde_json::from_str(text).map_err(|error| Failure::Io(std::io::Error::other(error)))?;
        let as_before = remembered.filter(|scope| outlook.mark.as_ref().is_some_and(|mark| mark.is_of(scope)));
        let publication = match (as_before, &outlook.mark) {
            (Some(remembered), _) => Some(remembered.clone()),
            (None, Some(_)) => publication_definition::ask(wire, settings).await?,
            (None, None) => outlook.publication,
        };
        let publication = publication.map(|publication| publication.narrowed(choice));
        Ok(Self { publication, presumes: as_before.is_some(), ..outlook })
    }

    /// Where the log ends now.
    pub(super) fn now(&self) -> Lsn {
        self.now.as_deref().and_then(Lsn::parse).unwrap_or_default()
    }

    pub(super) fn patience(&self) -> Duration {
        Duration::from_millis(self.patience_millis)
    }

    /// Whether the server keeps everything that the slot needs, whatever it costs.
    pub(super) fn keeps_all(&self) -> bool {
        self.keeps_all
    }

    /// A name for a slot that lives as long as this connection.
    pub(super) fn aside_name(&self) -> String {
        format!("watchkeeper_aside_{}", self.pid)
    }

    /// The process that has the slot.
    pub(super) fn holding(&self) -> Option<i64> {
        self.slot.as_ref()?.get("active_pid")?.as_i64()
    }

    pub(super) fn has_slot(&self) -> bool {
        self.slot.is_some()
    }

    pub(super) fn has_publication(&self) -> bool {
        self.publication.is_some()
    }

    /// Whether what the slot would need is gone for good.
    pub(super) fn is_lost(&self) -> bool {
        let text = |name: &str| self.slot.as_ref()?.get(name)?.as_str();
        let conflicting = self.slot.as_ref().and_then(|slot| slot.get("conflicting")).and_then(Value::as_bool);
        text("wal_status") == Some("lost") || text("invalidation_reason").is_some() || conflicting == Some(true)
    }

    /// Whether a slot has to be made to go on from `place`: it was chosen when there was none, or for a snapshot that is still to be taken.
    pub(super) fn begins_anew(&self, place: &ReplicationPosition) -> bool {
        match place.aside {
            PositionContext::Anew => !self.has_slot() || self.is_lost(),
            PositionContext::SnapshotAnew => true,
            _ => false,
        }
    }

    /// Refuses a server that cannot do it at all.
    pub(super) fn require_logical(&self, place: &str) -> Result<()> {
        if self.wal_level == "logical" {
            return Ok(());
        }
        Err(Error::config(format!(
            "{place}: wal_level is {}, and changes can be read only from logical",
            self.wal_level
        ))
        .remedy("ALTER SYSTEM SET wal_level = logical, and restart the server"))
    }

    /// Refuses a slot of this name that somebody made for something else: whatever is done to it would be done to them.
    pub(super) fn require_own(&self, settings: &Settings, database: &str) -> Result<()> {
        let Some(slot) = &self.slot else { return Ok(()) };
        let text = |name: &str| slot.get(name).and_then(Value::as_str);
        let name = &settings.slot;
        if text("slot_type") != Some("logical") || text("plugin") != Some("pgoutput") {
            return Err(Error::config(format!("slot {name} is not a logical one of pgoutput"))
                .remedy("choose another name, or drop it: SELECT pg_drop_replication_slot(…)"));
        }
        if self.database.as_deref() != Some(database) {
            let other = self.database.as_deref().unwrap_or_default();
            return Err(Error::config(format!("slot {name} belongs to the database {other}, not to {database}"))
                .remedy("choose another name: the names of slots are shared by all databases of a server"));
        }
        Ok(())
    }

    /// The slot, if it is there, is of the kind that is read here, and holds what it promised.
    pub(super) fn slot(&self, settings: &Settings, database: &str) -> Result<Option<Slot>> {
        self.require_own(settings, database)?;
        let Some(slot) = &self.slot else { return Ok(None) };
        let text = |name: &str| slot.get(name).and_then(Value::as_str);
        let name = &settings.slot;
        if self.is_lost() {
            let why = text("invalidation_reason").unwrap_or("it needed more than max_slot_wal_keep_size");
            return Err(Error::position_lost(format!("slot {name} was invalidated by the server ({why})"))
                .remedy(format!("a new slot is needed: {ACCEPT_GAP}")));
        }
        let confirmed = text("confirmed_flush_lsn").and_then(Lsn::parse);
        let confirmed = confirmed.ok_or_else(|| Error::unavailable(format!("slot {name} is still being created")))?;
        Ok(Some(Slot { confirmed, holder: self.holding() }))
    }

    /// The slot, if reading can go on from `place`.
    ///
    /// A slot that was dropped and made anew has confirmed everything up to its making, which lies after whatever was read
    /// through the one before it: so it is recognised, without a mark of our own.
    pub(super) fn slot_for(&self, settings: &Settings, database: &str, place: &ReplicationPosition) -> Result<Slot> {
        let name = &settings.slot;
        let accept = ACCEPT_GAP;
        let Some(slot) = self.slot(settings, database)? else {
            return Err(Error::position_lost(format!("slot {name} is not there any more"))
                .remedy(format!("nobody held the log for this stream since; {accept}")));
        };
        if slot.confirmed > place.lsn {
            return Err(Error::position_lost(format!(
                "slot {name} has passed {}, where the stream stands: it begins at {}",
                place.lsn, slot.confirmed
            ))
            .remedy(format!("the slot was made anew, moved, or the checkpoint went back too far; {accept}")));
        }
        if place.lsn > self.now() {
            return Err(Error::position_lost(format!(
                "the stream stands at {}, but the log of the server ends at {}: it was restored from a backup",
                place.lsn,
                self.now()
            ))
            .remedy(format!("point the stream at the right server, or {accept}")));
        }
        Ok(slot)
    }

    /// Makes sure that reading can go on from `place`, be it with a slot that is still to be made.
    pub(super) fn require(&self, settings: &Settings, database: &str, place: &ReplicationPosition) -> Result<()> {
        if self.begins_anew(place) { Ok(()) } else { self.slot_for(settings, database, place).map(drop) }
    }

    /// Who has the slot, in words.
    pub(super) fn holder(&self) -> &str {
        self.holder.as_deref().unwrap_or("unknown")
    }
}

/// A new slot.
#[derive(Debug)]
pub(super) struct Created {
    /// Where its log begins.
    pub(super) begin: Lsn,
    /// A snapshot of all rows at that place, good until the next command.
    pub(super) snapshot: Option<String>,
}

/// Makes a slot. The server waits for the transactions that run meanwhile.
pub(super) async fn create(
    wire: &mut Wire,
    name: &str,
    version: u32,
    kind: Kind,
    export: bool,
) -> Result<Created, Failure> {
    let options = match (version >= 150_000, export) {
        (true, true) => "SNAPSHOT 'export'",
        (true, false) => "SNAPSHOT 'nothing'",
        (false, true) => "EXPORT_SNAPSHOT",
        (false, false) => "NOEXPORT_SNAPSHOT",
    };
    let failover = if version >= 170_000 && kind == Kind::Failover { ", FAILOVER true" } else { "" };
    let options = if version >= 150_000 { format!("({options}{failover})") } else { options.to_owned() };
    let temporary = if kind == Kind::Temporary { "TEMPORARY " } else { "" };
    let sql = format!("CREATE_REPLICATION_SLOT {} {temporary}LOGICAL pgoutput {options}", identifier(name));
    let rows = wire.query(&sql).await?;
    let field = |at: usize| rows.first().and_then(|row| row.get(at)).and_then(Option::as_deref);
    let begin = field(1).and_then(Lsn::parse);
    let begin = begin.ok_or_else(|| Failure::Io(std::io::Error::other("a new slot without a beginning")))?;
    Ok(Created { begin, snapshot: field(2).map(str::to_owned) })
}

/// How long a slot lives.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Kind {
    Lasting,
    /// Also on standbys.
    Failover,
    /// As long as its connection.
    Temporary,
}

/// Removes a slot that nobody has.
pub(super) async fn drop_slot(wire: &mut Wire, name: &str) -> Result<(), Failure> {
    wire.query(&format!("SELECT pg_catalog.pg_drop_replication_slot({})", literal(name))).await.map(drop)
}

/// Makes a temporary copy of a slot, which begins where that one does.
pub(super) async fn copy(wire: &mut Wire, name: &str, copy: &str) -> Result<(), Failure> {
    let (name, copy) = (literal(name), literal(copy));
    wire.query(&format!("SELECT pg_catalog.pg_copy_logical_replication_slot({name}, {copy}, true)")).await.map(drop)
}

/// How long a look at a slot that is held lasts before the next.
const INSPECT_EVERY: Duration = Duration::from_millis(5);

/// Ends the process that has the slot, if it is one of ours (by the name that they give themselves), and waits a moment.
///
/// Whoever opens a stream holds its lease and has claimed its checkpoint, so another reader of its slot is one that died, was
/// cut off, or does not know yet that its time is over.
pub(super) async fn terminate_holder(cx: &Cx, wire: &mut Wire, is_ours: bool, pid: i64) -> Result<(), Failure> {
    if is_ours {
        let ended = wire.query(&format!("SELECT pg_catalog.pg_terminate_backend({pid})")).await;
        // Without the right to do so there is still the hope that it ends by itself.
        match ended {
            Err(failure) if failure.code() == Some("42501") => {}
            ended => drop(ended?),
        }
    }
    cx.sleep(INSPECT_EVERY).await;
    Ok(())
}
