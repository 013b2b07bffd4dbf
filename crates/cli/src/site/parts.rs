//! The source and the sinks of one stream, opened.

use std::sync::Arc;

use watchkeeper::core::options::WRONG_SETTING;
use watchkeeper::core::{Purpose, Target as Opened};
use watchkeeper::engine::delivery::filter::All;
use watchkeeper::{Cx, Error, ErrorKind, Filter, Namespaces, Result, SinkSpec, Source, StartAt, StreamSpec};

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
        let names = described.namespaces(cx, &purpose(group, described), target).await.map_err(of_the_file)?;
        let (spec, opened) = sink(cx, group, described, (target, names)).await?;
        // A transactional target keeps the checkpoint; that there is one at most is validated below.
        checkpoints = checkpoints.or(opened.checkpoints);
        sinks.push(spec);
    }
    let stream = StreamSpec { settings: described.settings.clone(), source, sinks, checkpoints };
    stream.validate().map_err(|error| error.classed(WRONG_SETTING).at(&described.origin))?;
    Ok(stream)
}

pub(super) fn purpose(group: &str, described: &Stream) -> Purpose {
    let reading = &described.source;
    Purpose::new(group, &described.settings.name)
        .with_lanes(described.settings.concurrency)
        .reading(&*reading.backend, &reading.options)
}

pub(super) async fn source(cx: &Cx, group: &str, described: &Stream) -> Result<Arc<dyn Source>> {
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

/// A sink that gets changes of the namespaces `named`, or of all.
pub(super) async fn sink(
    cx: &Cx,
    group: &str,
    described: &Stream,
    (target, named): (&Target, Option<Vec<String>>),
) -> Result<(SinkSpec, Opened)> {
    let purpose = purpose(group, described).with_namespaces(named.clone());
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
}
