//! From a place to start to a stream.

use std::sync::{Arc, PoisonError};
use std::time::Duration;

use watchkeeper_core::{Cx, Error, Result, StartAt};

use super::decode::Decoder;
use super::lineage::Lineage;
use super::place::{Aside, Lsn, Place};
use super::pump::{self, Manner};
use super::reader::Reader;
use super::settings::{identifier, literal};
use super::slot::{self, Kind, Outlook, Slot};
use super::wire::{Failure, Wire};
use super::{Replication, publication};

/// How long a slot that someone else has is waited for.
const HELD_FOR: Duration = Duration::from_secs(10);

impl Replication {
    /// Opens the stream's own slot, which is made if this is the first time.
    pub(super) async fn open_own(&self, cx: &Cx, start: StartAt) -> Result<Reader> {
        let (mut wire, lineage, outlook) = self.look(cx).await?;
        outlook.require_logical(&self.place())?;
        let outlook = cx.run(self.prepare(&mut wire, outlook, &start)).await?;
        let name = &self.0.settings.slot;
        let place = cx.run(self.first_place(&mut wire, &outlook, &start)).await?;
        // Long enough, and early enough to say by whom it is held.
        let until = cx.now() + cx.remaining().map_or(HELD_FOR, |left| HELD_FOR.min(left / 2));
        let mut outlook = outlook;
        loop {
            let slot = outlook.slot_for(&self.0.settings, self.database(), &place)?;
            if cx.run(self.began(&mut wire, &outlook, &slot, cx, &place)).await? {
                break;
            }
            if cx.now() >= until {
                return Err(Error::unavailable(format!("slot {name} is held by {:?}", outlook.holder()))
                    .remedy("stop whoever reads it, or give this stream a slot of its own"));
            }
            outlook = cx.run(self.outlook(&mut wire)).await?;
        }
        let tenancy = Arc::new(());
        *self.0.tenancy.lock().unwrap_or_else(PoisonError::into_inner) = Arc::downgrade(&tenancy);
        Ok(self.reader(wire, &lineage, &outlook, place, start, Some(tenancy)))
    }

    /// Opens beside whoever reads the slot: a copy of it that ends with the connection.
    pub(super) async fn open_aside(&self, cx: &Cx, start: StartAt) -> Result<Reader> {
        let (mut wire, lineage, outlook) = self.look(cx).await?;
        outlook.require_logical(&self.place())?;
        let settings = &self.0.settings;
        let name = format!("watchkeeper_aside_{}", outlook.pid);
        let opened = cx.run(async {
            let told = |failure| self.told(failure);
            if !outlook.has_publication {
                return Err(publication::missing(settings));
            }
            let place = if outlook.has_slot() && !outlook.is_lost() {
                let place = self.first_place(&mut wire, &outlook, &start).await?;
                outlook.slot_for(settings, self.database(), &place)?;
                slot::copy(&mut wire, &settings.slot, &name).await.map_err(told)?;
                place
            } else if let StartAt::After(position) = &start {
                outlook.slot_for(settings, self.database(), &Place::read(position)?)?;
                Place::read(position)?
            } else {
                let made = slot::create(&mut wire, &name, outlook.version, Kind::Temporary, false).await;
                Place::before(made.map_err(told)?.begin)
            };
            wire.start(&self.command(&name, &place)).await.map_err(told)?;
            Ok(place)
        });
        let place = opened.await?;
        Ok(self.reader(wire, &lineage, &outlook, place, start, None))
    }

    async fn outlook(&self, wire: &mut Wire) -> Result<Outlook> {
        Outlook::take(wire, &self.0.settings).await.map_err(|failure| self.told(failure))
    }

    /// Makes what is missing, unless reading is to go on: then what is missing is lost. The publication comes first, since
    /// the log is decoded with the catalog of its own time.
    async fn prepare(&self, wire: &mut Wire, mut outlook: Outlook, start: &StartAt) -> Result<Outlook> {
        let (settings, resumes) = (&self.0.settings, matches!(start, StartAt::After(_)));
        let told = |failure: Failure| self.told(failure);
        if !outlook.has_publication {
            if resumes {
                return Err(publication::missing(settings));
            }
            publication::create(wire, settings, told).await?;
        }
        publication::require(settings, &publication::tables(wire, settings).await.map_err(told)?)?;
        if resumes {
            return Ok(outlook);
        }
        if outlook.has_slot() && outlook.is_lost() {
            // What it held is gone, and whoever starts anew has been told so.
            slot::drop_slot(wire, &settings.slot).await.map_err(told)?;
            outlook = self.outlook(wire).await?;
        }
        if !outlook.has_slot() {
            let kind = if settings.failover { Kind::Failover } else { Kind::Lasting };
            match slot::create(wire, &settings.slot, outlook.version, kind, false).await {
                // Another instance was quicker.
                Err(failure) if failure.code() == Some("42710") => {}
                made => drop(made.map_err(told)?),
            }
            outlook = self.outlook(wire).await?;
        }
        Ok(outlook)
    }

    /// Where reading begins.
    async fn first_place(&self, _wire: &mut Wire, outlook: &Outlook, start: &StartAt) -> Result<Place> {
        let confirmed = || -> Result<Lsn> {
            let slot = outlook.slot(&self.0.settings, self.database())?;
            slot.map(|slot| slot.confirmed).ok_or_else(|| Error::unavailable("the slot is gone again"))
        };
        Ok(match start {
            StartAt::After(position) => Place::read(position)?,
            StartAt::Now => Place::before(outlook.now()),
            StartAt::Oldest | StartAt::Snapshot => Place::before(confirmed()?),
            StartAt::Time(time) => Place { lsn: confirmed()?, ordinal: 0, aside: Aside::NotBefore(time.0) },
        })
    }

    /// Begins to stream; false when someone else has the slot.
    async fn began(&self, wire: &mut Wire, outlook: &Outlook, slot: &Slot, cx: &Cx, place: &Place) -> Result<bool> {
        let told = |failure: Failure| self.told(failure);
        if let Some(pid) = slot.holder {
            let is_ours = outlook.holder() == self.0.endpoint.application();
            slot::displace(cx, wire, is_ours, pid).await.map_err(told)?;
            return Ok(false);
        }
        match wire.start(&self.command(&self.0.settings.slot, place)).await {
            Ok(()) => Ok(true),
            Err(failure) if failure.code() == Some("55006") => Ok(false),
            Err(failure) => Err(told(failure)),
        }
    }

    fn command(&self, slot: &str, place: &Place) -> String {
        let publication = literal(&identifier(&self.0.settings.publication));
        let (slot, lsn) = (identifier(slot), place.lsn);
        format!("START_REPLICATION SLOT {slot} LOGICAL {lsn} (proto_version '1', publication_names {publication})")
    }

    fn reader(
        &self,
        wire: Wire,
        lineage: &Lineage,
        outlook: &Outlook,
        place: Place,
        start: StartAt,
        tenancy: Option<Arc<()>>,
    ) -> Reader {
        let time = match start {
            StartAt::After(position) => position.time,
            _ => None,
        };
        let manner = Manner { patience: outlook.patience(), rewind: self.0.settings.rewind };
        Reader {
            source: self.clone(),
            pumped: pump::start(wire, manner),
            decoder: Decoder::new(place, time, self.0.settings.qualified()),
            origin: lineage.origin().into(),
            piece: None,
            asked: None,
            failed: None,
            holds_back: outlook.keeps_all() && tenancy.is_some(),
            acknowledged: time,
            _tenancy: tenancy,
        }
    }
}
