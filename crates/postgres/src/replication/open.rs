//! From a place to start to a stream.

use std::sync::{Arc, PoisonError};
use std::time::Duration;

use watchkeeper_core::{Cx, Error, ErrorKind, Moment, Result, StartAt};

use super::decode::Decoder;
use super::lineage::SourceLineage;
use super::position::{Lsn, PositionContext, Progress, ReplicationPosition};
use super::preflight::unknown;
use super::publication_definition::PublicationDefinition;
use super::publication_watcher::PublicationWatcher;
use super::reader::Reader;
use super::settings::{identifier, literal};
use super::slot::{self, Kind, ServerState, Slot};
use super::snapshot::Snapshot;
use super::spool::Spool;
use super::standby_snapshot_logger::StandbySnapshotLogger;
use super::task::{self, TaskSettings};
use super::wire::{Failure, Wire};
use super::{PreparedConnection, Replication, proof, publication};

/// How long a slot that someone else has is waited for.
const HELD_FOR: Duration = Duration::from_secs(5);

/// What was asked so shortly ago is not asked again before reading begins.
const AT_HAND_FOR: Duration = Duration::from_millis(100);

/// Long enough for a holder to go, and early enough to say who it is.
fn held_until(cx: &Cx) -> Moment {
    cx.now() + cx.remaining().map_or(HELD_FOR, |left| HELD_FOR.min(left / 2))
}

impl Replication {
    /// Opens the stream's own slot, which is made if this is the first time.
    pub(super) async fn open_own(&self, cx: &Cx, start: StartAt) -> Result<Reader> {
        if let Some(prepared) = self.take_ready(cx, &start).await? {
            match self.open_over(cx, start.clone(), prepared, None).await {
                // Its connection may have ended since.
                Err(error) if error.kind() == ErrorKind::Unavailable => {}
                opened => return opened,
            }
        }
        let (prepared, line) = tokio::try_join!(biased; self.prepared(cx, &start), self.unspoilt(cx))?;
        self.open_over(cx, start, prepared, Some(line)).await
    }

    /// Opens the slot over a connection, or where that was asked about tables over `line`.
    async fn open_over(
        &self,
        cx: &Cx,
        start: StartAt,
        prepared: PreparedConnection,
        mut line: Option<Wire>,
    ) -> Result<Reader> {
        let PreparedConnection { mut wire, lineage, outlook, .. } = prepared;
        let (mut snapshot, mut place) = (None, None);
        let mut outlook = match start {
            StartAt::After(ref position) if !outlook.begins_anew(&ReplicationPosition::read(position)?) => outlook,
            StartAt::Snapshot => {
                let (begun, begin) = self.make_with_snapshot(cx, &mut wire, outlook).await?;
                place = Some(ReplicationPosition {
                    lsn: begin,
                    ordinal: 0,
                    aside: PositionContext::Snapshot(Box::default()),
                });
                snapshot = Some(begun);
                cx.run(self.outlook(&mut wire)).await?
            }
            _ => self.making(cx, &self.0.settings.slot, self.make_slot(&mut wire, outlook)).await?,
        };
        self.keep_unspoilt(cx, &outlook, &mut line).await?;
        let (lineage, known) = self.remembering(lineage, &start, &outlook)?;
        let place = place.map_or_else(|| self.first_place(&outlook, &start), Ok)?;
        let until = held_until(cx);
        loop {
            let slot = outlook.slot_for(&self.0.settings, self.database(), &place)?;
            if cx.run(self.began((&mut wire, line.as_mut()), &outlook, &slot, cx, &place)).await? {
                break;
            }
            self.require_patience(cx, until, &outlook)?;
            outlook = cx.run(self.outlook_again(&mut wire, outlook.publication.as_ref())).await?;
            self.keep_unspoilt(cx, &outlook, &mut line).await?;
        }
        if let (None, PositionContext::Snapshot(progress)) = (&snapshot, &place.aside)
            && !progress.complete
        {
            snapshot = Some(self.another_snapshot(cx, outlook.version, progress).await?);
        }
        let taken = snapshot.as_ref().map(Snapshot::taken);
        let tenancy = Arc::new(());
        *self.0.tenancy.lock().unwrap_or_else(PoisonError::into_inner) = Arc::downgrade(&tenancy);
        let mut reader = self.reader(line.unwrap_or(wire), lineage, &outlook, place, start, Some(tenancy));
        reader.snapshot = snapshot;
        reader.decoder.expect_keys(known);
        taken.into_iter().for_each(|taken| reader.decoder.catch_up_with(taken));
        Ok(reader)
    }

    /// What was verified a moment ago, if nothing has to be asked that would spoil it.
    async fn take_ready(&self, cx: &Cx, start: &StartAt) -> Result<Option<PreparedConnection>> {
        let StartAt::After(position) = start else { return Ok(None) };
        let Some(prepared) = self.take_verified(cx, &ReplicationPosition::read(position)?) else { return Ok(None) };
        if prepared.is_spoilt {
            self.put_prepared(prepared);
            return Ok(None);
        }
        prepared.outlook.require_logical(&self.place())?;
        if prepared.outlook.holding().is_none() && cx.now().since(prepared.asked) < AT_HAND_FOR {
            return Ok(Some(prepared));
        }
        self.seen_again(cx, prepared).await
    }

    /// The same as it is now: its connection may have ended since, and the slot may have another holder or none.
    async fn seen_again(&self, cx: &Cx, mut prepared: PreparedConnection) -> Result<Option<PreparedConnection>> {
        let again = self.outlook_again(&mut prepared.wire, prepared.outlook.publication.as_ref());
        let Ok(outlook) = cx.run(again).await else { return Ok(None) };
        Ok(outlook.presumes.then_some(PreparedConnection { outlook, ..prepared }))
    }

    /// A connection over which everything is ready for a slot.
    async fn prepared(&self, cx: &Cx, start: &StartAt) -> Result<PreparedConnection> {
        if let StartAt::After(position) = start
            && let Some(mut prepared) = self.take_verified(cx, &ReplicationPosition::read(position)?)
            && cx.run(self.prepare_publication(&mut prepared.wire, &prepared.outlook, start)).await.is_ok()
        {
            return Ok(prepared);
        }
        // Also when that connection has ended since.
        let mut prepared = self.inspect(cx).await?;
        prepared.outlook.require_logical(&self.place())?;
        cx.run(self.prepare_publication(&mut prepared.wire, &prepared.outlook, start)).await?;
        Ok(prepared)
    }

    fn require_patience(&self, cx: &Cx, until: Moment, outlook: &ServerState) -> Result<()> {
        if cx.now() < until {
            return Ok(());
        }
        let name = &self.0.settings.slot;
        Err(Error::unavailable(format!("slot {name} is held by {:?}", outlook.holder()))
            .remedy("stop whoever reads it, or give this stream a slot of its own"))
    }

    /// Makes the slot anew, with a snapshot of what its log begins after. One that is left from an attempt of which nothing was
    /// committed is removed first.
    async fn make_with_snapshot(&self, cx: &Cx, wire: &mut Wire, mut outlook: ServerState) -> Result<(Snapshot, Lsn)> {
        let (settings, until) = (&self.0.settings, held_until(cx));
        while outlook.has_slot() {
            outlook.require_own(settings, self.database())?;
            match outlook.holding() {
                Some(pid) => {
                    let is_ours = self.0.endpoint.is_ours(outlook.holder());
                    let displaced = slot::terminate_holder(cx, wire, is_ours, pid);
                    cx.run(async { displaced.await.map_err(|failure| self.to_error(failure)) }).await?;
                }
                None => cx.run(self.remove(wire)).await?,
            }
            self.require_patience(cx, until, &outlook)?;
            outlook = cx.run(self.outlook(wire)).await?;
        }
        let kind = self.kind();
        let made = slot::create(wire, &settings.slot, outlook.version, kind, true);
        let made =
            self.making(cx, &settings.slot, async { made.await.map_err(|failure| self.to_error(failure)) }).await?;
        let name = made.snapshot.unwrap_or_default();
        // The snapshot is taken up before anything else is asked over the connection that made it.
        Ok((Snapshot::begin(self, cx, &name, made.begin, &Progress::default()).await?, made.begin))
    }

    /// A snapshot for the tables that are left: the first one went with its connection. The log is read up to it first.
    async fn another_snapshot(&self, cx: &Cx, version: u32, progress: &Progress) -> Result<Snapshot> {
        let mut wire = self.connect(cx).await?;
        let name = cx.run(self.outlook(&mut wire)).await?.aside_name();
        let made = slot::create(&mut wire, &name, version, Kind::Temporary, true);
        let made = self.making(cx, &name, async { made.await.map_err(|failure| self.to_error(failure)) }).await?;
        Snapshot::begin(self, cx, &made.snapshot.unwrap_or_default(), made.begin, progress).await
    }

    /// Removes the slot; someone may be quicker and take it.
    async fn remove(&self, wire: &mut Wire) -> Result<()> {
        match slot::drop_slot(wire, &self.0.settings.slot).await {
            Err(failure) if matches!(failure.code(), Some("55006" | "42704")) => Ok(()),
            removed => removed.map_err(|failure| self.to_error(failure)),
        }
    }

    fn kind(&self) -> Kind {
        if self.0.settings.failover { Kind::Failover } else { Kind::Lasting }
    }

    /// A connection over which nothing was asked about tables. What the server's process once looked up in the catalog of now it keeps,
    /// and decodes the log of then with it: columns that were renamed, dropped or added since would be told wrong.
    async fn unspoilt(&self, cx: &Cx) -> Result<Wire> {
        self.connect(cx).await
    }

    /// Makes a connection for the log where more was asked over the only one than it can be read over after.
    async fn keep_unspoilt(&self, cx: &Cx, outlook: &ServerState, line: &mut Option<Wire>) -> Result<()> {
        if line.is_none() && !outlook.presumes {
            *line = Some(self.unspoilt(cx).await?);
        }
        Ok(())
    }

    /// Opens beside whoever reads the slot: a copy of it that ends with the connection.
    pub(super) async fn open_aside(&self, cx: &Cx, start: StartAt) -> Result<Reader> {
        let (PreparedConnection { lineage, outlook, .. }, mut wire) =
            tokio::try_join!(biased; self.inspect(cx), self.unspoilt(cx))?;
        outlook.require_logical(&self.place())?;
        let settings = &self.0.settings;
        let (lineage, _) = self.remembering(lineage, &start, &outlook)?;
        let name = outlook.aside_name();
        let opened = cx.run(async {
            let to_error = |failure| self.to_error(failure);
            if !outlook.has_publication() {
                return Err(publication::missing(settings));
            }
            let place = if outlook.has_slot() && !outlook.is_lost() {
                let place = self.first_place(&outlook, &start)?;
                outlook.slot_for(settings, self.database(), &place)?;
                slot::copy(&mut wire, &settings.slot, &name).await.map_err(to_error)?;
                place
            } else if let StartAt::After(position) = &start
                && !outlook.begins_anew(&ReplicationPosition::read(position)?)
            {
                outlook.slot_for(settings, self.database(), &ReplicationPosition::read(position)?)?;
                ReplicationPosition::read(position)?
            } else {
                let made = slot::create(&mut wire, &name, outlook.version, Kind::Temporary, false).await;
                // Whoever goes on from here later needs a slot of its own, which begins where it is made.
                ReplicationPosition { lsn: made.map_err(to_error)?.begin, ordinal: 0, aside: PositionContext::Anew }
            };
            wire.start(&self.command(wire.major, &name, &place)).await.map_err(to_error)?;
            // A snapshot that nobody begins here: the stream takes one when it goes on from this position.
            let aside = if start == StartAt::Snapshot { PositionContext::SnapshotAnew } else { place.aside };
            Ok(ReplicationPosition { aside, ..place })
        });
        let place = opened.await?;
        Ok(self.reader(wire, lineage, &outlook, place, start, None))
    }

    async fn outlook(&self, wire: &mut Wire) -> Result<ServerState> {
        self.outlook_again(wire, None).await
    }

    /// The same, where the publication is presumed to be what is remembered of it.
    async fn outlook_again(&self, wire: &mut Wire, remembered: Option<&PublicationDefinition>) -> Result<ServerState> {
        let taken = ServerState::take(wire, &self.0.settings, &self.choice(), remembered).await;
        taken.map_err(|failure| self.to_error(failure))
    }

    /// Makes the publication if it is missing, unless reading is to go on: the log is decoded with the catalog of its own time,
    /// so that it comes before the slot.
    async fn prepare_publication(&self, wire: &mut Wire, outlook: &ServerState, start: &StartAt) -> Result<()> {
        let settings = &self.0.settings;
        let to_error = |failure: Failure| self.to_error(failure);
        if !outlook.has_publication() {
            if matches!(start, StartAt::After(_)) {
                return Err(publication::missing(settings));
            }
            publication::create(wire, settings, to_error).await?;
        }
        publication::require(settings, &publication::tables(wire, settings).await.map_err(to_error)?)
    }

    /// Makes the slot if it is missing, or lost: what it held is gone, and whoever starts anew has been told so.
    async fn make_slot(&self, wire: &mut Wire, mut outlook: ServerState) -> Result<ServerState> {
        if outlook.has_slot() && outlook.is_lost() {
            outlook.require_own(&self.0.settings, self.database())?;
            self.remove(wire).await?;
            outlook = self.outlook(wire).await?;
        }
        if !outlook.has_slot() {
            match slot::create(wire, &self.0.settings.slot, outlook.version, self.kind(), false).await {
                // Another instance was quicker.
                Err(failure) if failure.code() == Some("42710") => {}
                made => drop(made.map_err(|failure| self.to_error(failure))?),
            }
            outlook = self.outlook(wire).await?;
        }
        Ok(outlook)
    }

    /// Where reading begins.
    fn first_place(&self, outlook: &ServerState, start: &StartAt) -> Result<ReplicationPosition> {
        let confirmed = || -> Result<Lsn> {
            let slot = outlook.slot(&self.0.settings, self.database())?;
            slot.map(|slot| slot.confirmed).ok_or_else(|| Error::unavailable("the slot is gone again"))
        };
        Ok(match start {
            StartAt::After(position) => match ReplicationPosition::read(position)? {
                // The slot was made for it, now or by an attempt of which nothing was committed.
                ReplicationPosition { aside: PositionContext::Anew, .. } => ReplicationPosition::before(confirmed()?),
                place => place,
            },
            StartAt::Now => ReplicationPosition::before(outlook.now()),
            StartAt::Oldest | StartAt::Snapshot => ReplicationPosition::before(confirmed()?),
            StartAt::Time(time) => {
                ReplicationPosition { lsn: confirmed()?, ordinal: 0, aside: PositionContext::NotBefore(time.0) }
            }
            StartAt::Operation(time) => return Err(unknown(*time)),
            unknown => return Err(unknown.unknown_to("replication")),
        })
    }

    /// Begins to stream, over the second connection if there is one; false when someone else has the slot.
    async fn began(
        &self,
        (wire, line): (&mut Wire, Option<&mut Wire>),
        outlook: &ServerState,
        slot: &Slot,
        cx: &Cx,
        place: &ReplicationPosition,
    ) -> Result<bool> {
        let to_error = |failure: Failure| self.to_error(failure);
        if let Some(pid) = slot.holder {
            let is_ours = self.0.endpoint.is_ours(outlook.holder());
            slot::terminate_holder(cx, wire, is_ours, pid).await.map_err(to_error)?;
            return Ok(false);
        }
        let wire = line.unwrap_or(wire);
        match wire.start(&self.command(wire.major, &self.0.settings.slot, place)).await {
            Ok(()) => Ok(true),
            Err(failure) if failure.code() == Some("55006") => Ok(false),
            Err(failure) => Err(to_error(failure)),
        }
    }

    fn command(&self, major: u32, slot: &str, place: &ReplicationPosition) -> String {
        let publication = literal(&identifier(&self.0.settings.publication));
        let (slot, lsn) = (identifier(slot), place.lsn);
        let protocol = if self.0.settings.streaming { "'2', streaming 'on'" } else { "'1'" };
        let messages = if major < proof::SINCE_MAJOR { "" } else { ", messages 'true'" };
        format!(
            "START_REPLICATION SLOT {slot} LOGICAL {lsn} (proto_version {protocol}, publication_names {publication}{messages})"
        )
    }

    fn reader(
        &self,
        wire: Wire,
        lineage: SourceLineage,
        outlook: &ServerState,
        place: ReplicationPosition,
        start: StartAt,
        tenancy: Option<Arc<()>>,
    ) -> Reader {
        let time = match start {
            StartAt::After(position) => position.time,
            _ => None,
        };
        let manner = TaskSettings { patience: outlook.patience(), rewind: self.0.settings.rewind };
        let pumped = task::start(wire, manner);
        let committed = tenancy.is_some().then(|| pumped.committed.subscribe());
        Reader {
            source: self.clone(),
            pumped,
            decoder: Decoder::new(place, time, (self.choice(), self.0.settings.keyless), Spool::new(&self.0.settings)),
            origin: lineage.origin(),
            snapshot: None,
            piece: None,
            replay: None,
            asked: None,
            is_rekeyed: false,
            failed: None,
            holds_back: outlook.keeps_all() && tenancy.is_some(),
            pedigree: lineage.to_pedigree(),
            watcher: tenancy.is_some().then(|| PublicationWatcher::begin(self.clone(), lineage, outlook.presumes)),
            _anchor: committed
                .and_then(|committed| StandbySnapshotLogger::begin(self.clone(), outlook.version, committed)),
            _tenancy: tenancy,
        }
    }
}
