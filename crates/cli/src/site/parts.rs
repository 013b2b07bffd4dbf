//! The source and the sinks of one stream, opened.

use std::sync::Arc;

use watchkeeper::core::options::WRONG_SETTING;
use watchkeeper::core::{Purpose, Target as Opened};
use watchkeeper::engine::delivery::filter::All;
use watchkeeper::{
    CheckpointStore, Cx, Error, ErrorKind, Filter, Namespaces, Result, SinkSpec, Source, StartAt, StreamSpec,
};

use super::{A_POSITION, OPEN_WITHIN, Site};
use crate::config::{Stream, Target};

/// Opens the source and the sinks of a stream of `group`.
///
/// # Errors
/// What is wrong with any of them.
pub(crate) async fn open(cx: &Cx, group: &str, described: &Stream) -> Result<StreamSpec> {
    let cx = &cx.within(OPEN_WITHIN);
    let source = source(cx, group, described).await?;
    let (mut sinks, mut checkpoints) = (Vec::new(), None);
    for target in &described.sinks {
        let (spec, opened) = sink(cx, group, described, target).await?;
        // A transactional target keeps the checkpoint; that there is one at most is validated below.
        checkpoints = checkpoints.or(opened.checkpoints);
        sinks.push(spec);
    }
    let stream = StreamSpec { settings: described.settings.clone(), source, sinks, checkpoints };
    stream.validate().map_err(|error| error.classed(WRONG_SETTING).at(&described.origin))?;
    Ok(stream)
}

fn purpose(group: &str, described: &Stream) -> Purpose {
    let reading = &described.source;
    Purpose::new(group, &described.settings.name)
        .with_lanes(described.settings.concurrency)
        .reading(&*reading.backend, &reading.options)
}

async fn source(cx: &Cx, group: &str, described: &Stream) -> Result<Arc<dyn Source>> {
    let purpose = purpose(group, described);
    let (system, mut options) = (&described.source, described.source.options.clone());
    let source = system.backend.source(cx, &purpose, &mut options).await;
    let source = source.map_err(|error| error.at(system.options.origin()))?;
    options.finish()?;
    if let StartAt::After(position) = &described.settings.start
        && source.compare(position, position).is_none()
    {
        let cause = format!("start = \"{position}\" is no position of a source of {}", described.source.backend.name());
        return Err(Error::config(cause).remedy(A_POSITION).classed(WRONG_SETTING).at(&described.origin));
    }
    Ok(source)
}

async fn sink(cx: &Cx, group: &str, described: &Stream, target: &Target) -> Result<(SinkSpec, Opened)> {
    let purpose = purpose(group, described);
    let named = described.namespaces(cx, &purpose, target).await.map_err(of_the_file)?;
    let purpose = purpose.with_namespaces(named.clone());
    let (system, mut options) = (&target.system, target.system.options.clone());
    let opened = system.backend.sink(cx, &purpose, &mut options).await;
    let opened = opened.map_err(|error| error.at(system.options.origin()))?;
    options.finish()?;
    let (name, on_reject) = (target.name.clone(), target.on_reject);
    let named = named.map(|names| Arc::new(names.into_iter().collect::<Namespaces>()) as Arc<dyn Filter>);
    let filters: Vec<_> = target.filter.iter().cloned().chain(named).collect();
    let filter = (!filters.is_empty()).then(|| Arc::new(All(filters)) as Arc<dyn Filter>);
    Ok((SinkSpec { name, sink: Arc::clone(&opened.sink), on_reject, filter }, opened))
}

/// A name in a filter that means nothing is wrong in the file.
fn of_the_file(error: Error) -> Error {
    if error.kind() == ErrorKind::Config { error.classed(WRONG_SETTING) } else { error }
}

impl Site {
    /// The source of a stream.
    ///
    /// # Errors
    /// What is wrong with it.
    pub(crate) async fn source(&self, stream: &Stream) -> Result<Arc<dyn Source>> {
        source(&self.seams.cx().within(OPEN_WITHIN), &self.settings.group, stream).await
    }

    /// A stream whose checkpoint is to be moved: its source, where its checkpoint is kept, and those of its sinks that can be
    /// opened, which tell what they make of a repetition.
    ///
    /// # Errors
    /// What is wrong with its source, or with the sink that keeps its checkpoint.
    pub(crate) async fn movable(&self, described: &Stream) -> Result<StreamSpec> {
        let source = self.source(described).await?;
        let (sinks, checkpoints) = self.sinks(described).await?;
        Ok(StreamSpec { settings: described.settings.clone(), source, sinks, checkpoints })
    }

    /// Where the checkpoint of a stream can be written.
    ///
    /// # Errors
    /// What is wrong with the sink that keeps it.
    pub(crate) async fn writable_keeper(&self, described: &Stream) -> Result<Arc<dyn CheckpointStore>> {
        let group = Arc::clone(&self.stores.checkpoints);
        if self.began_with_group(described).await? {
            return Ok(group);
        }
        let (_, checkpoints) = self.sinks(described).await?;
        Ok(checkpoints.unwrap_or(group))
    }

    /// The sinks of a stream that can be opened, and the store of one that keeps the stream's checkpoint.
    async fn sinks(&self, described: &Stream) -> Result<(Vec<SinkSpec>, Keeper)> {
        let cx = self.seams.cx().within(OPEN_WITHIN);
        let (mut sinks, mut checkpoints, mut failed) = (Vec::new(), None, None);
        for target in &described.sinks {
            match sink(&cx, &self.settings.group, described, target).await {
                Ok((spec, opened)) => {
                    checkpoints = checkpoints.or(opened.checkpoints);
                    sinks.push(spec);
                }
                Err(error) => {
                    tracing::warn!(sink = target.name, %error, "this sink can not be asked");
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
