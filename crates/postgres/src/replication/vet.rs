//! Where a stream would begin, looked at before anything is made for it.

use watchkeeper_core::{Cx, Error, OperationTime, Pedigree, Result, StartAt};

use super::place::Place;
use super::wire::Failure;
use super::{Replication, Spare, publication};

/// The log of PostgreSQL has places and times, but no operation times.
pub(super) fn unknown(time: OperationTime) -> Error {
    time.unknown_to("replication from PostgreSQL")
}

/// Refuses an operation time before a slot or a publication is made for it.
pub(super) fn refuse_operation(start: &StartAt) -> Result<()> {
    match start {
        StartAt::Operation(time) => Err(unknown(*time)),
        _ => Ok(()),
    }
}

impl Replication {
    /// Everything that is looked at before reading begins. Nobody is displaced from the slot, and neither it nor the publication
    /// is made.
    pub(super) async fn vetted(&self, cx: &Cx, start: &StartAt, pedigree: Option<&Pedigree>) -> Result<()> {
        refuse_operation(start)?;
        if *start == StartAt::Snapshot {
            return self.require_readable(cx).await;
        }
        let StartAt::After(position) = start else { return Ok(()) };
        let place = Place::read(position)?;
        let told = |failure: Failure| self.told(failure);
        let Spare { mut wire, lineage, outlook, .. } = self.look(cx).await?;
        if let Some(pedigree) = pedigree {
            let recognised = lineage.recognise(&mut wire, &place, pedigree);
            cx.run(async { recognised.await.map_err(told) }).await??;
        }
        let settings = &self.0.settings;
        outlook.require(settings, self.database(), &place)?;
        if !outlook.has_publication {
            return Err(publication::missing(settings));
        }
        let published = publication::tables(&mut wire, settings);
        publication::require(settings, &cx.run(async { published.await.map_err(told) }).await?)
    }
}
