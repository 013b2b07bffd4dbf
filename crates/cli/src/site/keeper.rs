//! Where the checkpoint of a stream is kept, found out without opening the stream.

use std::sync::Arc;
use std::time::Duration;

use watchkeeper::engine::group::store_binding::StoreBindings;
use watchkeeper::{CheckpointStore, Cx, Error, Result};

use super::Site;
use crate::config::Stream;

/// How long a sink may take to answer a look: the rest is worth seeing without it.
const SINK: Duration = Duration::from_secs(3);

/// A store of checkpoints, or why the sink that has it cannot be asked.
pub(crate) type SinkCheckpoints = Result<Arc<dyn CheckpointStore>, Error>;

impl Site {
    fn bindings(&self) -> StoreBindings {
        StoreBindings::new(Arc::clone(&self.stores.records), &self.settings.group)
    }

    /// Whether the checkpoint of a stream is kept in the group's store, as far as that is known.
    pub(super) async fn began_with_group(&self, stream: &Stream) -> Result<bool> {
        let cx = self.read_context();
        let home = cx.run(self.bindings().store(&cx, &stream.settings.name)).await?;
        Ok(home.is_some() && home == Some(cx.run(self.stores.checkpoints.identity(&cx)).await?))
    }

    /// Where the checkpoint of a stream can be looked at: in the group's store, or with the sink in whose store it began. Only that
    /// sink is asked, and nothing is changed there.
    ///
    /// # Errors
    /// What the group's store says. That a sink cannot be asked is the answer.
    pub(crate) async fn keeper(&self, stream: &Stream) -> Result<SinkCheckpoints> {
        let group = Arc::clone(&self.stores.checkpoints);
        if self.began_with_group(stream).await? {
            return Ok(Ok(group));
        }
        let cx = self.read_context();
        let home = cx.run(self.bindings().store(&cx, &stream.settings.name)).await?;
        let mut failed = None;
        for target in &stream.sinks {
            match self.kept_with(stream, target, home).await {
                Ok(Some(store)) => return Ok(Ok(store)),
                Ok(None) => {}
                Err(error) => failed = failed.or(Some(error)),
            }
        }
        Ok(match failed {
            Some(error) => Err(error),
            // It has not begun, or in a store that none of its sinks has any more.
            None => Ok(group),
        })
    }

    /// The store of a sink, if the checkpoint of the stream is kept there.
    async fn kept_with(
        &self,
        stream: &Stream,
        target: &crate::config::Target,
        home: Option<watchkeeper::StoreIdentity>,
    ) -> Result<Option<Arc<dyn CheckpointStore>>> {
        let cx = self.seams.cx().within(SINK);
        let offer = async {
            let mut options = target.system.options.clone();
            target.system.backend.peek_store(&cx, &mut options).await
        };
        let Some(store) = cx.run(offer).await?.and_then(|offer| offer.checkpoints) else { return Ok(None) };
        let is_kept = match home {
            Some(home) => cx.run(store.identity(&cx)).await? == home,
            // An operator may have placed it before the stream ever ran.
            None => self.has_checkpoint(&cx, &*store, stream).await?,
        };
        Ok(is_kept.then_some(store))
    }

    async fn has_checkpoint(&self, cx: &Cx, store: &dyn CheckpointStore, stream: &Stream) -> Result<bool> {
        Ok(cx.run(store.load(cx, &self.key(stream))).await?.is_some())
    }
}
