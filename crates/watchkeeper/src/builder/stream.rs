use std::future::Future;
use std::sync::Arc;

use watchkeeper_core::{Change, CheckpointStore, Cx, Error, ErrorKind, Result, Sink, Source, StartAt};
use watchkeeper_engine::delivery::{
    Handler, HandlerContext, HandlerError, HandlerSettings, ObserverExecutor, OnReject, Operations, Pattern, Routes,
    handler, handler_with,
};
use watchkeeper_engine::settings::StreamSettings;
use watchkeeper_engine::stream::{SinkSpec, StreamSpec};

use crate::pull::{self, Changes};

/// A stream: a source, and what becomes of its changes.
///
/// ```no_run
/// # async fn orders() -> watchkeeper::Result<watchkeeper::Stream> {
/// use serde::Deserialize;
/// use watchkeeper::{HandlerError, OnReject, Operation, Park, StartAt, Stream, open};
///
/// #[derive(Deserialize)]
/// struct Order {
///     id: i64,
///     item: String,
/// }
///
/// let source = open::source("postgres://app@db/shop", "shop", "orders").await?;
/// let orders = Stream::new("orders", source)
///     .start_at(StartAt::Oldest)
///     .on_reject(OnReject::DeadLetter { park: Park::Key })
///     .on("orders", [Operation::Insert, Operation::Update], |change| async move {
///         let order = change.after::<Order>()?.ok_or_else(|| HandlerError::reject("there is no row"))?;
///         println!("{}: {}", order.id, order.item);
///         Ok(())
///     });
/// # Ok(orders)
/// # }
/// ```
#[derive(Debug)]
#[must_use = "a stream does nothing before it is given to an instance"]
pub struct Stream {
    settings: StreamSettings,
    source: Arc<dyn Source>,
    routes: Routes,
    handlers: HandlerSettings,
    on_reject: OnReject,
    sinks: Vec<SinkSpec>,
    checkpoints: Option<Arc<dyn CheckpointStore>>,
}

impl Stream {
    /// A stream of this name, which its lease, checkpoint and records are kept under.
    pub fn new(name: &str, source: Arc<dyn Source>) -> Self {
        Self {
            settings: StreamSettings::new(name),
            source,
            routes: Routes::new(),
            handlers: HandlerSettings::default(),
            on_reject: OnReject::default(),
            sinks: Vec::new(),
            checkpoints: None,
        }
    }

    /// Calls `handle` with the changes whose namespace and operation match: `"orders"` (as the source resolves it: `public.orders` in
    /// PostgreSQL, `shop.orders` in the database `shop` of MongoDB), `"shop.*"` or `"*"`; one
    /// [`Operation`](crate::Operation), several, or [`Operations::ANY`]. See [`Handler`] for what it may rely on.
    ///
    /// A name that no change of the source can have is refused when the instance starts. A name that none of the first 1,000 changes had
    /// is warned about once.
    pub fn on<F, Fut>(self, namespace: impl Into<Pattern>, operations: impl Into<Operations>, handle: F) -> Self
    where
        F: Fn(Change) -> Fut + Send + Sync + 'static,
        Fut: Future<Output = Result<(), HandlerError>> + Send + 'static,
    {
        self.handler(namespace, operations, handler(handle))
    }

    /// As [`on`](Self::on), with a closure that is also told on whose behalf it is called: the stream, and the epoch to hand to its
    /// target.
    pub fn on_with<F, Fut>(self, namespace: impl Into<Pattern>, operations: impl Into<Operations>, handle: F) -> Self
    where
        F: Fn(Change, HandlerContext) -> Fut + Send + Sync + 'static,
        Fut: Future<Output = Result<(), HandlerError>> + Send + 'static,
    {
        self.handler(namespace, operations, handler_with(handle))
    }

    /// As [`on`](Self::on), with a [`Handler`] that is not a closure.
    pub fn handler(
        mut self,
        namespace: impl Into<Pattern>,
        operations: impl Into<Operations>,
        handler: impl Handler + 'static,
    ) -> Self {
        self.routes = self.routes.on(namespace, operations, handler);
        self
    }

    /// Declares what the handlers' target does with stale and repeated writes.
    pub fn handlers(mut self, settings: HandlerSettings) -> Self {
        self.handlers = settings;
        self
    }

    /// What becomes of a change that the handlers, or the caller who pulls, will never take.
    pub fn on_reject(mut self, on_reject: OnReject) -> Self {
        self.on_reject = on_reject;
        self
    }

    /// Brings all changes to this target, too.
    pub fn sink(self, name: &str, sink: impl Sink + 'static) -> Self {
        self.sink_spec(SinkSpec::new(name, Arc::new(sink)))
    }

    /// As [`sink`](Self::sink), with a filter and a policy for rejected changes.
    pub fn sink_spec(mut self, spec: SinkSpec) -> Self {
        self.sinks.push(spec);
        self
    }

    /// Keeps the checkpoint of this stream here and not in the group's store: what a transactional sink needs.
    pub fn checkpoints(mut self, checkpoints: impl CheckpointStore + 'static) -> Self {
        self.checkpoints = Some(Arc::new(checkpoints));
        self
    }

    /// Brings all changes to a caller who pulls them; see [`pull`].
    ///
    /// # Errors
    /// What [`pull::Settings::validate`] says.
    pub fn pull(self, settings: pull::Settings) -> Result<(Self, Changes)> {
        let (feed, changes) = pull::feed(settings)?;
        let spec = SinkSpec { on_reject: self.on_reject, ..SinkSpec::new("pull", Arc::new(feed)) };
        Ok((self.sink_spec(spec), changes))
    }

    /// Where to start when there is no checkpoint yet; now, by default.
    pub fn start_at(mut self, start: StartAt) -> Self {
        self.settings.start = start;
        self
    }

    /// How many changes are dealt with beside each other; those of one key stay in order.
    pub fn concurrency(mut self, lanes: usize) -> Self {
        self.settings.concurrency = lanes;
        self
    }

    /// Changes any setting of the stream.
    pub fn configure(mut self, change: impl FnOnce(&mut StreamSettings)) -> Self {
        change(&mut self.settings);
        self
    }

    /// Refuses routes that no change of the source can match. A source that does not answer is no error: its names are asked for
    /// again when the stream is opened.
    ///
    /// # Errors
    /// `Config`, naming the route.
    pub(super) async fn check_routes(&self, cx: &Cx) -> Result<()> {
        match cx.run(self.source.resolve_names(cx, self.routes.names())).await {
            Err(error) if matches!(error.kind(), ErrorKind::Config | ErrorKind::Denied) => {
                let cause =
                    format!("stream {:?}: a handler would never be called: {}", self.settings.name, error.message());
                let advice = error.advice().unwrap_or("correct the name of the route").to_owned();
                Err(Error::new(error.kind(), cause).remedy(advice))
            }
            _ => Ok(()),
        }
    }

    /// The stream as the engine takes it.
    ///
    /// # Errors
    /// `Config` when the handlers are declared transactional.
    pub fn build(self) -> Result<StreamSpec> {
        let Self { settings, source, routes, handlers, on_reject, mut sinks, checkpoints } = self;
        if !routes.is_empty() {
            let handlers = ObserverExecutor::new(routes).for_source(Arc::clone(&source)).with_settings(handlers)?;
            sinks.insert(0, SinkSpec { on_reject, ..SinkSpec::new("handlers", Arc::new(handlers.sink())) });
        }
        Ok(StreamSpec { settings, source, sinks, checkpoints })
    }
}
