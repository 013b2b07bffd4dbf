//! An instance in a few lines.
//!
//! [`Watchkeeper::builder`] names the group; a store and at least one [`Stream`] are needed, all else has a default:
//! the lease of 5 s, the host's name as the label for people, and peers over TCP on the loopback address, so that
//! the death of an instance on this machine is noticed at once.
//!
//! ```no_run
//! use watchkeeper::{Operation, Result, Stream, Watchkeeper, open};
//!
//! #[tokio::main]
//! async fn main() -> Result<()> {
//!     let orders = Stream::new("orders", open::source("sqlite:shop.db", "shop", "orders").await?)
//!         .on("orders", Operation::Insert, |change| async move {
//!             println!("{}: {}", change.id(), change.json()?);
//!             Ok(())
//!         });
//!     let store = open::stores("sqlite:state.db").await?;
//!     let watch = Watchkeeper::builder("shop").store(store).stream(orders).start().await?;
//!     watch.until(std::future::pending()).await
//! }
//! ```
//!
//! Run it twice: one of the two has the watch. Everything that the engine can be told can be told here too, by
//! [`Builder::configure`] and [`Stream::configure`].

mod stream;

use std::future::Future;
use std::sync::Arc;
use std::time::Duration;

use watchkeeper_core::{Error, Follower, NoPeers, Peers, Result};
use watchkeeper_engine::instance::{Running, Stores};
use watchkeeper_engine::listener::StreamStatus;
use watchkeeper_engine::seams::Seams;
use watchkeeper_engine::settings::{InstanceSettings, LeaseSettings};
use watchkeeper_peers::{Settings as PeerSettings, TcpPeers};

use crate::operate::StreamOperator;

pub use stream::Stream;

/// Where one begins: [`Watchkeeper::builder`].
#[derive(Debug, Clone, Copy)]
pub struct Watchkeeper;

impl Watchkeeper {
    /// Builds an instance of `group`. Instances of one group, on one store, share the work.
    pub fn builder(group: &str) -> Builder {
        Builder {
            settings: InstanceSettings::new(group, &host_name()),
            stores: None,
            streams: Vec::new(),
            peers: Peering::default(),
            seams: None,
        }
    }
}

/// The name of this host or pod.
fn host_name() -> String {
    let uname = rustix::system::uname();
    let name = uname.nodename().to_string_lossy();
    if name.is_empty() { "unnamed".to_owned() } else { name.into_owned() }
}

/// How the instance proves deaths.
#[derive(Debug)]
enum Peering {
    Tcp(PeerSettings),
    Given(Arc<dyn Peers>),
}

impl Default for Peering {
    fn default() -> Self {
        Self::Tcp(PeerSettings::default())
    }
}

/// Builds an instance.
///
/// ```no_run
/// # async fn build(orders: watchkeeper::Stream) -> watchkeeper::Result<()> {
/// use std::time::Duration;
///
/// use watchkeeper::{Watchkeeper, open, peers};
///
/// let watch = Watchkeeper::builder("shop")
///     .named("vm-1")
///     .store(open::stores("sqlite:state.db").await?)
///     .stream(orders)
///     .lease(Duration::from_secs(10))
///     .peers(peers::Settings { listen: "10.0.0.7:7420".parse().expect("an address"), ..peers::Settings::default() })
///     .configure(|settings| settings.shutdown_grace = Duration::from_secs(20))
///     .start()
///     .await?;
/// # watch.shutdown().await
/// # }
/// ```
#[derive(Debug)]
#[must_use = "nothing runs before `start`"]
pub struct Builder {
    settings: InstanceSettings,
    stores: Option<Stores>,
    streams: Vec<Stream>,
    peers: Peering,
    seams: Option<Seams>,
}

impl Builder {
    /// Where the group keeps its leases, checkpoints and records; see [`open::stores`](crate::open::stores). The three
    /// may be of different systems.
    pub fn store(mut self, stores: Stores) -> Self {
        self.stores = Some(stores);
        self
    }

    /// A stream that this instance can run.
    pub fn stream(mut self, stream: Stream) -> Self {
        self.streams.push(stream);
        self
    }

    /// The label for people, instead of the host's name.
    pub fn named(mut self, name: &str) -> Self {
        name.clone_into(&mut self.settings.name);
        self
    }

    /// For how long leases are granted; with the usual relations of everything that follows from it.
    pub fn lease(mut self, ttl: Duration) -> Self {
        self.settings.lease = LeaseSettings::new(ttl);
        self
    }

    /// Changes any setting of the instance.
    pub fn configure(mut self, change: impl FnOnce(&mut InstanceSettings)) -> Self {
        change(&mut self.settings);
        self
    }

    /// Where to listen for peers, and what to tell them: needed when instances run on several machines.
    pub fn peers(mut self, settings: PeerSettings) -> Self {
        self.peers = Peering::Tcp(settings);
        self
    }

    /// Without peers: a crash is noticed when the lease expires.
    pub fn without_peers(mut self) -> Self {
        self.peers = Peering::Given(Arc::new(NoPeers));
        self
    }

    /// Other time, tasks and randomness, and their form of peers, instead of those of a running program.
    pub fn seams(mut self, seams: Seams) -> Self {
        self.peers = Peering::Given(Arc::clone(&seams.peers));
        self.seams = Some(seams);
        self
    }

    /// Starts it.
    ///
    /// # Errors
    /// `Config` when something is missing or wrong. A store that does not answer is no error: it is tried again.
    ///
    /// # Panics
    /// Outside a tokio runtime, unless it was given other [`seams`](Self::seams).
    pub async fn start(self) -> Result<Watch> {
        let no_store = || Error::config("the group has no store").remedy("give one to the builder with `store`");
        let stores = self.stores.ok_or_else(no_store)?;
        if self.streams.is_empty() {
            return Err(Error::config("there is no stream to watch").remedy("give one to the builder with `stream`"));
        }
        let cx = crate::open::cx();
        for stream in &self.streams {
            stream.check_routes(&cx).await?;
        }
        let streams = self.streams.into_iter().map(Stream::build).collect::<Result<_>>()?;
        let peers: Arc<dyn Peers> = match self.peers {
            Peering::Tcp(settings) => Arc::new(TcpPeers::new(settings)?),
            Peering::Given(peers) => peers,
        };
        let seams = Seams { peers, ..self.seams.unwrap_or_else(Seams::system) };
        let running = Running::start(seams, stores.clone(), self.settings, streams).await?;
        Ok(Watch { running, stores })
    }
}

/// A running instance. Dropping it ends it at once, as a crash would; [`shutdown`](Self::shutdown) ends it in
/// order.
///
/// ```no_run
/// # async fn watch(watch: watchkeeper::Watch, signal: impl Future<Output = ()>) -> watchkeeper::Result<()> {
/// let mut status = watch.status("orders").expect("the stream is configured");
/// let seen = status.see().clone();
/// println!("{:?}, lag {:?}", seen.state, seen.lag);
///
/// let orders = watch.operate("orders").expect("the stream is connected");
/// orders.hand_over(Some("vm-2")).await?;
///
/// // Runs until the signal, drains, commits, and releases the lease last.
/// watch.until(signal).await
/// # }
/// ```
#[derive(Debug)]
pub struct Watch {
    running: Running,
    stores: Stores,
}

impl Watch {
    /// Follows what people see of a stream; `None` when there is no such stream.
    pub fn status(&self, stream: &str) -> Option<Follower<StreamStatus>> {
        self.running.status(stream)
    }

    /// Operates a stream, on whichever instance it runs: pauses, resumes, hands over, settles dead letters. `None` when there is no such
    /// stream.
    pub fn operate(&self, stream: &str) -> Option<StreamOperator> {
        let post = self.running.posts().iter().find(|post| post.name() == stream)?;
        let instance = Arc::clone(self.running.instance());
        Some(StreamOperator::new(instance, self.stores.clone(), Arc::clone(&post.connected()?.spec)))
    }

    /// The engine's own handle, for all else.
    pub fn running(&self) -> &Running {
        &self.running
    }

    /// Begins to shut down; [`join`](Self::join) waits for it.
    pub fn begin_shutdown(&self) {
        self.running.shutdown();
    }

    /// Shuts down in order: drains, commits, closes, and releases last.
    ///
    /// # Errors
    /// Why it could not join the group.
    pub async fn shutdown(self) -> Result<()> {
        self.begin_shutdown();
        self.join().await
    }

    /// Waits until it has ended: after [`begin_shutdown`](Self::begin_shutdown), or because it could not join the group.
    ///
    /// # Errors
    /// Why it could not join the group.
    ///
    /// # Cancel safety
    /// Dropping it ends the instance, as a crash would.
    pub async fn join(mut self) -> Result<()> {
        self.running.join().await
    }

    /// Runs until `end` (a signal, for example), and then shuts down in order.
    ///
    /// # Errors
    /// Why it could not join the group.
    ///
    /// # Cancel safety
    /// Dropping it ends the instance, as a crash would.
    pub async fn until(mut self, end: impl Future<Output = ()>) -> Result<()> {
        tokio::select! {
            biased;
            ended = self.running.join() => return ended,
            () = end => {}
        }
        self.shutdown().await
    }
}
