//! Proof of death over TCP.
//!
//! Every instance listens, and publishes its address beside its leases. A standby connects to the holder and
//! asks for the tenure that it sees in the store; only the process that has this tenure answers. From then on
//! nobody says anything. When the process dies, its kernel closes the connection and refuses a new one, and this
//! pair is the proof ([`Verdict::Dead`]). It needs no thread of the dead process, and no time-out.
//!
//! # What proves nothing
//!
//! * **Silence.** A stopped process (`SIGSTOP`), a full queue or a broken network: the connection stays open, or a
//!   new one is not answered. The lease has to expire.
//! * **A closed connection alone.** A proxy or a firewall may have closed it. A new one is tried at once; where it is
//!   accepted it is asked again, and if the tenure answers there the watch goes on.
//! * **A refused connection alone.** It has to be refused after the tenure had answered on this very
//!   connection: an address that was wrong from the start refuses, too.
//! * **A new connection that is accepted and not answered.** Another process may have got the port of the dead
//!   one. That would be a proof as well, but it looks just like a holder that is too busy to answer.
//! * **A listener that was closed in order.** It says farewell on all its connections before it closes them, so
//!   neither a shutdown nor an instance that is dropped inside a living process looks like a death.
//!
//! A refused connection is a kernel's own word only on the same machine ([`is_local`](Peers::is_local)). From elsewhere a
//! firewall that begins to reject could say the same; what then may be done is decided by
//! the engine's settings (`takeover`).
//!
//! # Who may ask
//!
//! There is no secret but the tenure itself, a random UUID that is known to those who can read the store. Strangers
//! can connect; they are given nothing, only a bounded number of them is listened to, for a bounded time and a bounded number
//! of bytes, and the newest of them pushes out the oldest. Those who have been answered are not touched by it.
//!
//! Sockets are closed on `exec`, so that a child cannot keep its dead parent's connections open. A child that is
//! forked without `exec` could, and would hide the death until it ends.
//!
//! # Modules
//!
//! | module | contents |
//! |---|---|
//! | `listener` | answers for the tenures of this process |
//! | `watch` | watches a holder until its death is proved or cannot be |
//! | `protocol` | one question, one answer, and the message that precedes an orderly close |
//! | `local` | which addresses belong to this machine |
//! | `reactor` | the thread that does the I/O |
#![deny(missing_docs)]

mod listener;
mod local;
mod protocol;
mod reactor;
mod watch;

use std::net::{Ipv4Addr, SocketAddr};
use std::sync::Arc;
use std::time::Duration;

use async_trait::async_trait;
use tokio::net::TcpListener;
use watchkeeper_core::{Address, Cx, Error, HeldTenures, Listening, Peers, Result, TenureId, Verdict};

use listener::TcpListening;
use reactor::Reactor;

/// Where to listen, and what to tell the others.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Settings {
    /// Where to listen. The default is the loopback address and a free port: only for peers on this machine.
    pub listen: SocketAddr,
    /// What to publish instead, as `host:port`, when others reach this instance by another name. Port 0 stands for
    /// the port that it listens on.
    pub publish: Option<String>,
    /// How long a connection and an answer may take.
    pub answer_within: Duration,
}

impl Default for Settings {
    fn default() -> Self {
        Self {
            listen: SocketAddr::from((Ipv4Addr::LOCALHOST, 0)),
            publish: None,
            answer_within: Duration::from_secs(2),
        }
    }
}

impl Settings {
    /// Refuses what cannot work.
    ///
    /// # Errors
    /// `Config`, saying what is wrong.
    pub fn validate(&self) -> Result<()> {
        if self.publish.is_none() && self.listen.ip().is_unspecified() {
            let cause = format!("peers cannot connect to {}, which means all addresses of a machine", self.listen);
            return Err(Error::config(cause).remedy("say what to publish, as host:port"));
        }
        if let Some(publish) = &self.publish {
            split(publish)?;
        }
        if self.answer_within.is_zero() {
            return Err(Error::config("peers have no time to answer").remedy("set answer_within to 2s"));
        }
        Ok(())
    }

    /// Refuses an address that this machine does not have. Any free port is tried, so that it does not matter whether the one
    /// that is named is in use.
    ///
    /// # Errors
    /// `Config`.
    pub fn require_own_address(&self) -> Result<()> {
        let bound = std::net::TcpListener::bind((self.listen.ip(), 0));
        bound.map(drop).map_err(|error| {
            let cause = format!("cannot listen for peers on {}: {error}", self.listen);
            Error::config(cause).remedy("write an address of this machine, or 0.0.0.0 with `advertise`, or \"off\"")
        })
    }

    /// What is published when `bound` is listened on.
    fn published(&self, bound: SocketAddr) -> Result<Address> {
        let text = match &self.publish {
            None => bound.to_string(),
            Some(publish) => match split(publish)? {
                (host, 0) => format!("{host}:{}", bound.port()),
                _ => publish.clone(),
            },
        };
        Ok(Address(text.into()))
    }
}

/// Host and port of a published address; an IPv6 host stays in its brackets.
fn split(address: &str) -> Result<(&str, u16)> {
    let parts = address.rsplit_once(':').and_then(|(host, port)| Some((host, port.parse().ok()?)));
    let bare = |host: &str| !host.is_empty() && (!host.contains(':') || host.starts_with('[') && host.ends_with(']'));
    parts.filter(|(host, _)| bare(host)).ok_or_else(|| {
        let cause = format!("the address {address:?} is not of the form host:port");
        Error::config(cause).remedy("write it as in shop-1.internal:7400 or [2001:db8::1]:7400")
    })
}

/// Peers over TCP.
///
/// They have a thread of their own: handlers that block all workers of the program can then not keep it from
/// answering, just when it may be about to be killed for it. (The proof itself needs no thread.)
#[derive(Debug)]
pub struct TcpPeers {
    settings: Settings,
    reactor: Arc<Reactor>,
}

impl TcpPeers {
    /// Peers with these settings. Nothing is opened before [`listen`](Peers::listen).
    ///
    /// # Errors
    /// `Config` when the settings are wrong, `Unavailable` when no thread can be started.
    pub fn new(settings: Settings) -> Result<Self> {
        settings.validate()?;
        Ok(Self { settings, reactor: Arc::new(Reactor::start()?) })
    }
}

#[async_trait]
impl Peers for TcpPeers {
    /// By number: the loopback addresses, and those of this machine's interfaces. A name other than `localhost` is
    /// not resolved, and so not local.
    fn is_local(&self, address: &Address) -> bool {
        split(&address.0).is_ok_and(|(host, _)| local::is_local(host))
    }

    async fn listen(&self, cx: &Cx, held_tenures: HeldTenures) -> Result<Box<dyn Listening>> {
        let wanted = self.settings.listen;
        let bind = self.reactor.run(async move { TcpListener::bind(wanted).await });
        let bound = cx.run(bind).await?.map_err(|error| {
            let remedy = "choose a free port, or 0, and an address of this machine";
            Error::config(format!("cannot listen for peers on {wanted}: {error}")).remedy(remedy).caused_by(error)
        })?;
        let address =
            bound.local_addr().map_err(|error| Error::unavailable("a socket has no address").caused_by(error))?;
        let published = self.settings.published(address)?;
        tracing::debug!(%address, %published, "listening for peers");
        let answer_within = self.settings.answer_within;
        Ok(Box::new(TcpListening::start(Arc::clone(&self.reactor), bound, published, held_tenures, answer_within)))
    }

    async fn watch(&self, cx: &Cx, address: &Address, tenure: TenureId) -> Result<Verdict> {
        let watch = watch::watch(address.clone(), tenure, self.settings.answer_within);
        cx.run(self.reactor.run(watch)).await
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn addresses_are_host_and_port() {
        for (address, expected) in [
            ("shop-1:7400", Some(("shop-1", 7400))),
            ("10.0.0.7:0", Some(("10.0.0.7", 0))),
            ("[::1]:80", Some(("[::1]", 80))),
            ("::1:80", None),
            ("shop-1", None),
            (":80", None),
            ("shop-1:http", None),
            ("shop-1:70000", None),
        ] {
            assert_eq!(split(address).ok(), expected, "{address}");
        }
    }

    #[test]
    fn what_is_published_may_be_configured_apart() {
        let bound = SocketAddr::from(([0, 0, 0, 0], 4711));
        for (publish, expected) in
            [(None, "0.0.0.0:4711"), (Some("shop-1:80"), "shop-1:80"), (Some("shop-1:0"), "shop-1:4711")]
        {
            let settings = Settings { publish: publish.map(str::to_owned), ..Settings::default() };
            assert_eq!(&*settings.published(bound).expect("the address is good").0, expected);
        }
        let everywhere = Settings { listen: bound, ..Settings::default() };
        assert!(everywhere.validate().expect_err("nobody can connect to that").to_string().contains("host:port"));
        assert!(Settings { publish: Some("shop-1:0".to_owned()), ..everywhere }.validate().is_ok());
    }
}
