//! Who keeps an eye on the publication while the log is read.
//!
//! The log does not tell that a table was taken out and put back: the publication itself has to be looked at. That is done
//! beside the reading, over a connection of its own that is closed again. What is looked at may be ahead of what is being read; but then
//! the part of the log that is still to come has the hole, so that the end comes early rather than late.

use std::sync::Arc;
use std::time::Duration;

use tokio::sync::{Notify, mpsc};
use tokio::task::JoinSet;
use watchkeeper_core::{BootClock, Clock, Cx, Error, Pedigree, Result};

use super::lineage::SourceLineage;
use super::proof::ProofRequests;
use super::wire::{Failure, Wire};
use super::{Replication, publication, publication_definition};

/// Without another occasion the publication is looked at so often.
const INSPECT_EVERY: Duration = Duration::from_secs(10);

/// Occasions that come sooner after a look than this have to wait.
const REST: Duration = Duration::from_secs(1);

/// Looks after a publication until it is dropped.
pub(super) struct PublicationWatcher {
    /// What is remembered from now on, or why reading must not go on.
    found: mpsc::Receiver<Result<Pedigree>>,
    occasion: Arc<Notify>,
    /// Messages of our own that are to be written into the log on the same occasions.
    pub(super) proofs: ProofRequests,
    _task: JoinSet<()>,
}

impl PublicationWatcher {
    /// Begins to look after the publication that `lineage` remembers. One that is only presumed to be as it was is looked at soon.
    pub(super) fn begin(source: Replication, lineage: SourceLineage, presumes: bool) -> Self {
        let (sender, found) = mpsc::channel(1);
        let occasion = Arc::new(Notify::new());
        let proofs = ProofRequests::default();
        let watch =
            PublicationObserver { source, lineage, presumes, occasion: Arc::clone(&occasion), proofs: proofs.clone() };
        if watch.lineage.publication.is_none() {
            watch.occasion.notify_one();
        }
        let mut task = JoinSet::new();
        task.spawn(watch.run(sender));
        Self { found, occasion, proofs, _task: task }
    }

    /// Gives an occasion to look now.
    pub(super) fn alert(&self) {
        self.occasion.notify_one();
    }

    /// What was found since, if anything.
    pub(super) fn heard(&mut self) -> Option<Result<Pedigree>> {
        self.found.try_recv().ok()
    }

    /// What is found next. Waits for ever when there will be nothing more.
    ///
    /// # Cancel safety
    /// Cancel safe: what was not given out stays.
    pub(super) async fn next(&mut self) -> Result<Pedigree> {
        match self.found.recv().await {
            Some(found) => found,
            None => std::future::pending().await,
        }
    }
}

/// What came of a look.
enum PublicationObservation {
    AsBefore,
    /// There is more or less of it than there was.
    Altered,
    /// Reading must not go on.
    Broken(Error),
}

struct PublicationObserver {
    source: Replication,
    lineage: SourceLineage,
    /// Whether nobody has looked since it was remembered.
    presumes: bool,
    occasion: Arc<Notify>,
    proofs: ProofRequests,
}

impl PublicationObserver {
    async fn run(mut self, found: mpsc::Sender<Result<Pedigree>>) {
        loop {
            let rest = if self.presumes { REST } else { INSPECT_EVERY };
            tokio::select! {
                biased;
                () = self.occasion.notified() => {}
                () = BootClock.sleep_until(BootClock.now() + rest) => {}
            }
            let to_error = match self.inspect().await {
                Ok(PublicationObservation::AsBefore) => Ok(()),
                Ok(PublicationObservation::Altered) => found.send(Ok(self.lineage.to_pedigree())).await,
                Ok(PublicationObservation::Broken(error)) => return drop(found.send(Err(error)).await),
                // Whether the server is there is found out by those who read.
                Err(error) => {
                    tracing::warn!(%error, "the publication could not be looked at; it is tried again");
                    Ok(())
                }
            };
            if to_error.is_err() {
                return;
            }
            BootClock.sleep_until(BootClock.now() + REST).await;
        }
    }

    async fn inspect(&mut self) -> Result<PublicationObservation> {
        let (source, settings) = (&self.source, self.source.settings());
        let cx = Cx::new(Arc::new(BootClock)).within(INSPECT_EVERY);
        let mut wire = source.0.endpoint.connect_to_ask(&cx).await?;
        let to_error = |failure: Failure| source.to_error(failure);
        cx.run(async { self.proofs.write_if_wanted(&mut wire).await.map_err(to_error) }).await?;
        let now = cx.run(async { publication_definition::ask(&mut wire, settings).await.map_err(to_error) }).await?;
        let Some(now) = now.map(|now| now.narrowed(&source.choice())) else {
            return Ok(PublicationObservation::Broken(publication::missing(settings)));
        };
        let diff = match source.compared(self.lineage.publication.clone(), Some(&now)) {
            Ok(diff) => diff,
            Err(error) => return Ok(PublicationObservation::Broken(error)),
        };
        diff.warn();
        if (self.presumes || !diff.left.is_empty())
            && let Err(error) = self.require_named(&cx, &mut wire).await?
        {
            return Ok(PublicationObservation::Broken(error));
        }
        self.presumes = false;
        if diff.scope == self.lineage.publication {
            return Ok(PublicationObservation::AsBefore);
        }
        self.lineage.publication = diff.scope;
        Ok(PublicationObservation::Altered)
    }

    /// Refuses a publication that tells no longer of a table that the settings name.
    async fn require_named(&self, cx: &Cx, wire: &mut Wire) -> Result<Result<()>> {
        let settings = self.source.settings();
        let published = publication::tables(wire, settings);
        let published = cx.run(async { published.await.map_err(|failure| self.source.to_error(failure)) }).await?;
        Ok(publication::require(settings, &published))
    }
}
