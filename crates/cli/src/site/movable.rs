//! Streams whose checkpoint is to be moved, with their source or without it.

use std::sync::Arc;

use watchkeeper::core::options::WRONG_SETTING;
use watchkeeper::core::{Pedigree, Positions};
use watchkeeper::{CheckpointStore, Cx, Error, Position, Result, SinkSpec, Source, StreamSpec};

use super::parts::{purpose, sink, source};
use super::{A_POSITION, OPEN_WITHIN, Site};
use crate::config::Stream;
use crate::console::Unverified;

/// A stream whose checkpoint is to be moved.
pub(crate) struct Movable {
    /// Its source, where its checkpoint is kept, and those of its sinks that can be opened, which tell what they make of a repetition.
    pub(crate) spec: StreamSpec,
    /// Why its source could not be asked, if so: then nobody has verified the new position.
    pub(crate) unreached: Option<Error>,
}

impl Site {
    /// For a move that asks the source, say for what happened at a time; `requested` says for which one.
    ///
    /// # Errors
    /// What is wrong with its source, or with the sink that keeps its checkpoint.
    pub(crate) async fn movable(&self, described: &Stream, requested: &str) -> Result<Movable> {
        let source = self.reached(described).await?.map_err(|error| needs_source(described, requested, &error))?;
        Ok(Movable { spec: self.moved(described, source).await?, unreached: None })
    }

    /// For a move to a position that is known already. Where the source cannot be reached, the stream verifies it when it opens.
    ///
    /// # Errors
    /// What is wrong with the sink that keeps its checkpoint.
    pub(crate) async fn movable_to_known(&self, described: &Stream, to: Option<&[u8]>) -> Result<Movable> {
        let error = match self.reached(described).await? {
            Ok(source) => return Ok(Movable { spec: self.moved(described, source).await?, unreached: None }),
            Err(error) => error,
        };
        let source = self.unverified(described, to, &error).await?;
        Ok(Movable { spec: self.moved(described, source).await?, unreached: Some(error) })
    }

    /// For a move that has no new position to verify.
    ///
    /// # Errors
    /// What is wrong with the sink that keeps its checkpoint.
    pub(crate) async fn movable_to_start(&self, described: &Stream) -> Result<Movable> {
        let source = Unverified { positions: self.positions(described)?, pedigree: None };
        Ok(Movable { spec: self.moved(described, Arc::new(source)).await?, unreached: None })
    }

    /// A stream that is resumed: only where its checkpoint is kept has to answer.
    ///
    /// # Errors
    /// What is wrong with the sink that keeps its checkpoint.
    pub(crate) async fn resumable(&self, described: &Stream) -> Result<StreamSpec> {
        let checkpoints = self.writable_keeper(described).await?;
        let source = Arc::new(Unverified { positions: None, pedigree: None });
        let settings = described.settings.clone();
        Ok(StreamSpec { settings, source, sinks: Vec::new(), checkpoints: Some(checkpoints) })
    }

    async fn moved(&self, described: &Stream, source: Arc<dyn Source>) -> Result<StreamSpec> {
        let (sinks, checkpoints) = self.sinks(described).await?;
        Ok(StreamSpec { settings: described.settings.clone(), source, sinks, checkpoints })
    }

    /// The source of a stream if it can be reached, and otherwise why it cannot. Some are opened without a connection.
    ///
    /// # Errors
    /// What a person has to change, be the source there or not.
    async fn reached(&self, described: &Stream) -> Result<Result<Arc<dyn Source>>> {
        let cx = &self.seams.cx().within(OPEN_WITHIN);
        let source = match source(cx, &self.settings.group, described).await {
            Ok(source) => source,
            Err(error) if error.class() == WRONG_SETTING => return Err(error),
            Err(error) => return Ok(Err(error)),
        };
        match cx.run(source.identity(cx)).await {
            Ok(_) => Ok(Ok(source)),
            Err(error) if error.kind().is_away() => Ok(Err(error)),
            Err(error) => Err(error),
        }
    }

    fn positions(&self, described: &Stream) -> Result<Option<Arc<dyn Positions>>> {
        let purpose = purpose(&self.settings.group, described);
        described.source.backend.positions(&purpose, &mut described.source.options.clone())
    }

    /// Stands for a source that cannot be reached because of `error`.
    async fn unverified(&self, described: &Stream, to: Option<&[u8]>, error: &Error) -> Result<Arc<dyn Source>> {
        let positions = self.positions(described)?;
        let pedigree = self.stored_pedigree(&self.read_context(), described, to).await?;
        if let Some(bytes) = to {
            let position = Position::new(bytes.to_vec(), None);
            if positions.as_ref().is_some_and(|positions| positions.compare(&position, &position).is_none()) {
                let system = described.source.backend.name();
                let cause = format!("{position} is no position of a source of {system}");
                return Err(Error::config(cause).remedy(A_POSITION));
            }
            if pedigree.is_none() {
                let requested = "to a position, before the stream has committed one,";
                return Err(needs_source(described, requested, error));
            }
        }
        Ok(Arc::new(Unverified { positions, pedigree }))
    }

    /// The log that the stream has read: where it was at this position, or most recently.
    async fn stored_pedigree(&self, cx: &Cx, described: &Stream, to: Option<&[u8]>) -> Result<Option<Pedigree>> {
        let entries = cx.run(self.history(described).read(cx, usize::MAX)).await?;
        let at = entries.iter().find(|entry| Some(&entry.position.bytes[..]) == to);
        if let Some(pedigree) = at.and_then(|entry| entry.pedigree.clone()) {
            return Ok(Some(pedigree));
        }
        let current = self.checkpoint(cx, described).await?;
        let newest = || entries.into_iter().next()?.pedigree;
        Ok(current.and_then(|current| current.pedigree).or_else(newest))
    }

    /// Where the checkpoint of a stream can be written.
    ///
    /// # Errors
    /// What is wrong with the sink that keeps it.
    async fn writable_keeper(&self, described: &Stream) -> Result<Arc<dyn CheckpointStore>> {
        let group = Arc::clone(&self.stores.checkpoints);
        if self.began_with_group(described).await? {
            return Ok(group);
        }
        let (_, checkpoints) = self.sinks(described).await?;
        Ok(checkpoints.unwrap_or(group))
    }

    /// The sinks of a stream that can be opened, and the store of one that keeps the stream's checkpoint. The names in their filters
    /// stay as they are written: only the source knows what they are in changes.
    async fn sinks(&self, described: &Stream) -> Result<(Vec<SinkSpec>, Keeper)> {
        let cx = self.seams.cx().within(OPEN_WITHIN);
        let (mut sinks, mut checkpoints, mut failed) = (Vec::new(), None, None);
        for target in &described.sinks {
            match sink(&cx, &self.settings.group, described, (target, target.namespaces.clone())).await {
                Ok((spec, opened)) => {
                    checkpoints = checkpoints.or(opened.checkpoints);
                    sinks.push(spec);
                }
                Err(error) => {
                    tracing::warn!(sink = target.name, %error, "this sink cannot be asked");
                    failed = failed.or(Some(error));
                }
            }
        }
        match failed {
            Some(error) if checkpoints.is_none() && !self.began_with_group(described).await? => Err(error),
            _ => Ok((sinks, checkpoints)),
        }
    }
}

/// The store of a sink that keeps the checkpoint of its stream.
type Keeper = Option<Arc<dyn CheckpointStore>>;

/// The error of a move that cannot be made without the source.
fn needs_source(described: &Stream, requested: &str, error: &Error) -> Error {
    let name = &described.settings.name;
    let cause =
        format!("a move {requested} needs the source of stream {name}, which cannot be reached: {}", error.message());
    let known =
        format!("a position of `watchkeeper checkpoint history {name}`, `rewind --steps` and `reset` need no source");
    let remedy = error.advice().map(|advice| format!("{advice}; {known}")).unwrap_or(known);
    let described = Error::new(error.kind(), cause).remedy(remedy);
    match error.place() {
        Some(place) => described.at(place),
        None => described,
    }
}
