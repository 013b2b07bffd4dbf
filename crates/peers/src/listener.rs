//! Answers for the tenures of this process.

use std::collections::VecDeque;
use std::sync::{Arc, mpsc};
use std::time::Duration;

use tokio::io::AsyncReadExt;
use tokio::net::{TcpListener, TcpStream};
use tokio::task::{AbortHandle, JoinSet};
use tokio_util::sync::CancellationToken;
use watchkeeper_core::{Address, HeldTenures, Listening};

use crate::protocol::{CLOSING, answer};
use crate::reactor::Reactor;

/// Those who have connected and not asked yet. With more, the oldest has to go: a real peer asks at once.
const ASKING_MAX: usize = 64;

/// Those who have been answered: peers that know a tenure.
const ANSWERED_MAX: usize = 1024;

/// After an accept that failed, for example because files ran out.
const ACCEPT_AGAIN: Duration = Duration::from_millis(20);

/// How long a drop waits for the farewells. They need no network round trip.
const FAREWELLS: Duration = Duration::from_secs(1);

/// An open listener; dropping it says farewell and closes it.
#[derive(Debug)]
pub(crate) struct TcpListening {
    address: Address,
    stop: CancellationToken,
    /// Closed when everything is. Behind a lock only because it has to be shared.
    closed: std::sync::Mutex<mpsc::Receiver<()>>,
    _reactor: Arc<Reactor>,
}

impl TcpListening {
    pub(crate) fn start(
        reactor: Arc<Reactor>,
        listener: TcpListener,
        address: Address,
        held_tenures: HeldTenures,
        answer_within: Duration,
    ) -> Self {
        let stop = CancellationToken::new();
        let (closing, closed) = mpsc::sync_channel(1);
        let agent = ListenerState { listener, held_tenures, answer_within, stop: stop.clone() };
        drop(reactor.launch(async move {
            agent.serve().await;
            drop(closing);
        }));
        Self { address, stop, closed: std::sync::Mutex::new(closed), _reactor: reactor }
    }
}

impl Listening for TcpListening {
    fn address(&self) -> Option<Address> {
        Some(self.address.clone())
    }
}

impl Drop for TcpListening {
    fn drop(&mut self) {
        self.stop.cancel();
        if let Ok(closed) = self.closed.get_mut() {
            // Either it is closed, or time is up; nothing is ever sent.
            let _ = closed.recv_timeout(FAREWELLS);
        }
    }
}

struct ListenerState {
    listener: TcpListener,
    held_tenures: HeldTenures,
    answer_within: Duration,
    stop: CancellationToken,
}

impl ListenerState {
    async fn serve(self) {
        let mut asking = PendingRequests::default();
        let mut answered = JoinSet::new();
        loop {
            tokio::select! {
                biased;
                () = self.stop.cancelled() => break,
                Some(peer) = asking.next() => drop(peer.map(|peer| answered.spawn(keep(peer, self.stop.clone())))),
                Some(_) = answered.join_next() => {}
                accepted = self.listener.accept() => match accepted {
                    Ok((socket, _)) if answered.len() < ANSWERED_MAX => {
                        asking.add(read_question(socket, self.held_tenures.clone(), self.answer_within));
                    }
                    Ok(_) => {}
                    Err(error) => {
                        tracing::debug!(%error, "a peer could not be accepted");
                        tokio::time::sleep(ACCEPT_AGAIN).await;
                    }
                },
            }
        }
        // All of them say farewell, and only then the port is given back.
        while answered.join_next().await.is_some() {}
    }
}

/// Those who have not been answered yet.
#[derive(Default)]
struct PendingRequests {
    tasks: JoinSet<Option<TcpStream>>,
    /// The oldest first.
    handles: VecDeque<AbortHandle>,
}

impl PendingRequests {
    fn add(&mut self, hearing: impl Future<Output = Option<TcpStream>> + Send + 'static) {
        self.handles.retain(|handle| !handle.is_finished());
        if self.handles.len() >= ASKING_MAX
            && let Some(oldest) = self.handles.pop_front()
        {
            oldest.abort();
        }
        self.handles.push_back(self.tasks.spawn(hearing));
    }

    /// The next one that has been dealt with: answered, or not. `None` when there is nobody.
    async fn next(&mut self) -> Option<Option<TcpStream>> {
        self.tasks.join_next().await.map(|heard| heard.ok().flatten())
    }
}

/// Hears one question, for a while. Nothing else is read.
async fn read_question(mut socket: TcpStream, held_tenures: HeldTenures, within: Duration) -> Option<TcpStream> {
    let answered = tokio::time::timeout(within, answer(&mut socket, &held_tenures)).await;
    matches!(answered, Ok(Ok(true))).then_some(socket)
}

/// Keeps a connection open until the peer ends it or this listener is closed.
async fn keep(mut socket: TcpStream, stop: CancellationToken) {
    let mut more = [0; 1];
    tokio::select! {
        biased;
        () = stop.cancelled() => {
            // Twenty bytes at most have been written before, so there is room for one.
            let _ = socket.try_write(&[CLOSING]);
        }
        // Its end; or more words, which no peer has.
        _ = socket.read(&mut more) => {}
    }
}
