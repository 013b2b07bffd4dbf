//! Where a stream would begin, looked at before anything is made for it.

use std::sync::PoisonError;

use watchkeeper_core::{Cx, Error, OperationTime, Pedigree, Result, StartAt};

use super::drift::Drift;
use super::keys::Known;
use super::lineage::Lineage;
use super::place::{self, Place};
use super::scope::Scope;
use super::slot::Outlook;
use super::wire::Failure;
use super::{Replication, Spare, publication, scope};

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

/// Whether a stream that begins here still has to read rows of a snapshot.
pub(super) fn is_in_snapshot(start: &StartAt) -> bool {
    matches!(start, StartAt::After(position) if place::has_unfinished_snapshot(position))
}

impl Replication {
    /// Everything that is looked at before reading begins. Nobody is displaced from the slot, and neither it nor the publication
    /// is made. What the publication does not tell any more is given back, in words.
    pub(super) async fn vetted(&self, cx: &Cx, start: &StartAt, pedigree: Option<&Pedigree>) -> Result<Vec<String>> {
        refuse_operation(start)?;
        if place::resolve_start(start.clone()) == StartAt::Snapshot {
            return self.require_readable(cx).await.map(|()| Vec::new());
        }
        let StartAt::After(position) = start else { return Ok(Vec::new()) };
        let place = Place::read(position)?;
        let told = |failure: Failure| self.told(failure);
        let Spare { mut wire, lineage, outlook, .. } = self.look(cx).await?;
        if let Some(pedigree) = pedigree {
            let recognised = lineage.recognise(&mut wire, &place, pedigree);
            cx.run(async { recognised.await.map_err(told) }).await??;
        }
        let settings = &self.0.settings;
        outlook.require(settings, self.database(), &place)?;
        if !outlook.has_publication() {
            return Err(publication::missing(settings));
        }
        let before = pedigree.and_then(Lineage::from_pedigree).and_then(|stored| stored.publication);
        let drift = self.compared(before, outlook.publication.as_ref())?;
        let published = publication::tables(&mut wire, settings);
        publication::require(settings, &cx.run(async { published.await.map_err(told) }).await?)?;
        Ok(drift.left)
    }

    /// What became of the publication since it was `before`.
    pub(super) fn compared(&self, before: Option<Scope>, now: Option<&Scope>) -> Result<Drift> {
        let before = before.map(|before| before.narrowed(&self.choice()));
        Drift::between(before.as_ref(), now)
    }

    /// Keeps what the publication was found to be for whoever goes on from a place.
    pub(super) fn remember(&self, found: Option<(Place, Option<Scope>)>) {
        *self.0.remembered.lock().unwrap_or_else(PoisonError::into_inner) = found;
    }

    /// What is remembered from here on by a reader that begins at `start`, and what is known of the log that comes. It goes on from what was remembered for that place:
    /// the publication may have been altered since that was found to be good.
    pub(super) fn remembering(&self, lineage: Lineage, start: &StartAt, outlook: &Outlook) -> Result<(Lineage, Known)> {
        let remembered = self.0.remembered.lock().unwrap_or_else(PoisonError::into_inner).clone();
        let before = match (start, remembered) {
            (StartAt::After(position), Some((place, scope))) if Place::read(position)? == place => scope,
            _ => None,
        };
        let mut known = Known::of(before.as_ref());
        let drift = self.compared(before, outlook.publication.as_ref())?;
        drift.warn();
        let now = outlook.publication.iter().chain(&drift.scope).filter_map(|scope| scope.keys.as_ref());
        now.flatten().for_each(|key| known.choose(key.id));
        Ok((Lineage { publication: drift.scope, ..lineage }, known))
    }

    /// Looks now whether the publication is what `pedigree` remembers.
    pub(super) async fn require_as_remembered(&self, cx: &Cx, pedigree: &Pedigree) -> Result<()> {
        let mut wire = self.0.endpoint.connect_to_ask(cx).await?;
        let told = |failure: Failure| self.told(failure);
        let now = cx.run(async { scope::ask(&mut wire, &self.0.settings).await.map_err(told) }).await?;
        let now = now.map(|now| now.narrowed(&self.choice()));
        let before = Lineage::from_pedigree(pedigree).and_then(|stored| stored.publication);
        self.compared(before, now.as_ref()).map(drop)
    }
}
