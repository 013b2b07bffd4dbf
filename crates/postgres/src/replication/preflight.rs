//! Where a stream would begin, looked at before anything is made for it.

use std::sync::PoisonError;

use watchkeeper_core::{Cx, Error, OperationTime, Pedigree, Result, StartAt};

use super::keys::KnownKeys;
use super::lineage::SourceLineage;
use super::position::{self, ReplicationPosition};
use super::publication_definition::PublicationDefinition;
use super::publication_diff::PublicationDiff;
use super::slot::ServerState;
use super::wire::Failure;
use super::{PreparedConnection, Replication, publication, publication_definition};

/// The log of PostgreSQL has places and times, but no operation times.
pub(super) fn unknown(time: OperationTime) -> Error {
    time.unknown_to("replication from PostgreSQL")
}

/// Refuses an operation time before a slot or a publication is made for it.
pub(crate) fn refuse_operation(start: &StartAt) -> Result<()> {
    match start {
        StartAt::Operation(time) => Err(unknown(*time)),
        _ => Ok(()),
    }
}

/// Whether a stream that begins here still has to read rows of a snapshot.
pub(super) fn is_in_snapshot(start: &StartAt) -> bool {
    matches!(start, StartAt::After(position) if position::has_unfinished_snapshot(position))
}

impl Replication {
    /// Everything that is looked at before reading begins. Nobody is displaced from the slot, and neither it nor the publication
    /// is made. What the publication does not tell any more is given back, in words.
    pub(super) async fn vetted(&self, cx: &Cx, start: &StartAt, pedigree: Option<&Pedigree>) -> Result<Vec<String>> {
        refuse_operation(start)?;
        if position::resolve_start(start.clone()) == StartAt::Snapshot {
            return self.require_readable(cx).await.map(|()| Vec::new());
        }
        let StartAt::After(position) = start else { return Ok(Vec::new()) };
        let place = ReplicationPosition::read(position)?;
        let to_error = |failure: Failure| self.to_error(failure);
        let PreparedConnection { mut wire, lineage, outlook, .. } = self.inspect(cx).await?;
        if let Some(pedigree) = pedigree {
            let recognised = lineage.recognise(&mut wire, &place, pedigree);
            cx.run(async { recognised.await.map_err(to_error) }).await??;
        }
        let settings = &self.0.settings;
        outlook.require(settings, self.database(), &place)?;
        if !outlook.has_publication() {
            return Err(publication::missing(settings));
        }
        let before = pedigree.and_then(SourceLineage::from_pedigree).and_then(|stored| stored.publication);
        let diff = self.compared(before, outlook.publication.as_ref())?;
        let published = publication::tables(&mut wire, settings);
        publication::require(settings, &cx.run(async { published.await.map_err(to_error) }).await?)?;
        Ok(diff.left)
    }

    /// What became of the publication since it was `before`.
    pub(super) fn compared(
        &self,
        before: Option<PublicationDefinition>,
        now: Option<&PublicationDefinition>,
    ) -> Result<PublicationDiff> {
        let before = before.map(|before| before.narrowed(&self.choice()));
        PublicationDiff::between(before.as_ref(), now)
    }

    /// Keeps what the publication was found to be for whoever goes on from a place.
    pub(super) fn remember(&self, found: Option<(ReplicationPosition, Option<PublicationDefinition>)>) {
        *self.0.remembered.lock().unwrap_or_else(PoisonError::into_inner) = found;
    }

    /// What is remembered from here on by a reader that begins at `start`, and what is known of the log that comes. It goes on from what was remembered for that place:
    /// the publication may have been altered since that was found to be good.
    pub(super) fn remembering(
        &self,
        lineage: SourceLineage,
        start: &StartAt,
        outlook: &ServerState,
    ) -> Result<(SourceLineage, KnownKeys)> {
        let remembered = self.0.remembered.lock().unwrap_or_else(PoisonError::into_inner).clone();
        let before = match (start, remembered) {
            (StartAt::After(position), Some((place, scope))) if ReplicationPosition::read(position)? == place => scope,
            _ => None,
        };
        let mut known = KnownKeys::of(before.as_ref());
        let diff = self.compared(before, outlook.publication.as_ref())?;
        diff.warn();
        let now = outlook.publication.iter().chain(&diff.scope).filter_map(|scope| scope.keys.as_ref());
        now.flatten().for_each(|key| known.choose(key.id));
        Ok((SourceLineage { publication: diff.scope, ..lineage }, known))
    }

    /// Looks now whether the publication is what `pedigree` remembers.
    pub(super) async fn require_as_remembered(&self, cx: &Cx, pedigree: &Pedigree) -> Result<()> {
        let mut wire = self.0.endpoint.connect_to_ask(cx).await?;
        let to_error = |failure: Failure| self.to_error(failure);
        let now =
            cx.run(async { publication_definition::ask(&mut wire, &self.0.settings).await.map_err(to_error) }).await?;
        let now = now.map(|now| now.narrowed(&self.choice()));
        let before = SourceLineage::from_pedigree(pedigree).and_then(|stored| stored.publication);
        self.compared(before, now.as_ref()).map(drop)
    }
}
