//! The task that owns the socket of a stream.
//!
//! It reads ahead by a few pieces and no more, answers for the reader while a target is slow, and tells the server what
//! was committed. The server ends a connection from which it hears nothing for `wal_sender_timeout`; it also listens while it waits
//! for room in the socket, so a reader that is held up only has to speak, not to read.

mod receive_buffer;
mod rewind;

use std::io;
use std::time::Duration;

use bytes::{BufMut, Bytes, BytesMut};
use postgres_protocol::message::frontend;
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::sync::{mpsc, watch};
use tokio::task::JoinHandle;
use watchkeeper_core::{BootClock, Clock, Moment};

use super::socket::Socket;
use super::wire::{Failure, Wire};
use receive_buffer::{COPY_DATA, PIECE, ReceiveBuffer};
pub(super) use receive_buffer::{HEAD, LARGE_PIECE, frame_length, number};
use rewind::Rewind;

/// Pieces that wait for the reader.
const PIECES: usize = 2;

/// While behind, so long is waited after a read that did not fill a piece. The server sends message by message, and a reader
/// that wakes for each costs both of them more than the wait: with 2 ms little more than half as many changes came in a second.
/// The first pause is short, and each is twice as long as the one before: right after a relief there is little to catch up with,
/// and someone waits for it.
const PAUSES: [Duration; 2] = [Duration::from_millis(1), Duration::from_millis(10)];

/// Acknowledgements are told at most so often.
const REPORT_EVERY: Duration = Duration::from_millis(50);

/// Without anything to tell, the server hears from us at least so often.
const SPEAK_EVERY: Duration = Duration::from_secs(5);

/// What the reader holds of a pump.
pub(super) struct ReplicationTaskHandle {
    pub(super) pieces: mpsc::Receiver<Result<Bytes, Failure>>,
    /// Everything before this place of the log is committed.
    pub(super) committed: watch::Sender<u64>,
    pub(super) task: JoinHandle<()>,
}

/// How a pump behaves.
#[derive(Debug, Clone, Copy)]
pub(super) struct TaskSettings {
    /// The server's `wal_sender_timeout`; zero means that it never loses patience.
    pub(super) patience: Duration,
    /// What was acknowledged is held back for so long, so that an operator can go back.
    pub(super) rewind: Duration,
}

struct ReplicationTask {
    socket: Box<dyn Socket>,
    incoming: ReceiveBuffer,
    pieces: mpsc::Sender<Result<Bytes, Failure>>,
    committed: watch::Receiver<u64>,
    rewind: Rewind,
    speak_every: Duration,
    spoke: Moment,
    /// How long the next pause is.
    pause: Duration,
}

/// Begins to pump from a connection that streams.
pub(super) fn start(wire: Wire, manner: TaskSettings) -> ReplicationTaskHandle {
    let (pieces, receiver) = mpsc::channel(PIECES);
    let (committed, watched) = watch::channel(0);
    let task = tokio::spawn(async move {
        if let Err(failure) = replication_task(wire, manner, pieces.clone(), watched).await {
            let _ = pieces.send(Err(failure)).await;
        }
    });
    ReplicationTaskHandle { pieces: receiver, committed, task }
}

async fn replication_task(
    wire: Wire,
    manner: TaskSettings,
    pieces: mpsc::Sender<Result<Bytes, Failure>>,
    committed: watch::Receiver<u64>,
) -> Result<(), Failure> {
    let speak_every = match manner.patience {
        Duration::ZERO => SPEAK_EVERY,
        patience => (patience / 4).min(SPEAK_EVERY),
    };
    let (socket, incoming) = (wire.socket, ReceiveBuffer::new(wire.buffer)?);
    let (rewind, spoke) = (Rewind::new(manner.rewind), BootClock.now());
    ReplicationTask { socket, incoming, pieces, committed, rewind, speak_every, spoke, pause: PAUSES[0] }.run().await
}

impl ReplicationTask {
    async fn run(mut self) -> Result<(), Failure> {
        let mut pause = None;
        let mut due = BootClock.sleep_until(self.spoke + self.speak_every);
        let outlet = self.pieces.clone();
        loop {
            if let Some(ending) = self.incoming.take_ending() {
                return Err(ending);
            }
            if self.incoming.is_unwelcome() {
                // At once, also when the reader is held up: what is not handed over is read again.
                return Err(io::Error::other("the server wants to stop, and waits for its readers to leave").into());
            }
            if self.incoming.asked {
                self.send_status().await?;
            }
            // While the reader is held up, so much is read on that a piece gets full, and what the server says is heard.
            let has_room = self.incoming.len() < PIECE || !self.incoming.has_whole();
            tokio::select! {
                biased;
                () = outlet.closed() => return self.part().await,
                changed = self.committed.changed() => if changed.is_ok() {
                    let committed = *self.committed.borrow_and_update();
                    self.rewind.push(BootClock.now(), committed);
                    due = BootClock.sleep_until(self.spoke + REPORT_EVERY);
                },
                () = &mut due => {
                    self.send_status().await?;
                    due = BootClock.sleep_until(self.spoke + self.speak_every);
                }
                permit = outlet.reserve(), if pause.is_none() && self.incoming.has_whole() => if let Ok(permit) = permit {
                    permit.send(Ok(self.incoming.cut()));
                },
                () = async { if let Some(pause) = &mut pause { pause.await } }, if pause.is_some() => {
                    pause = None;
                    self.read_at_hand().await?;
                }
                read = self.incoming.read(&mut *self.socket), if has_room && pause.is_none() && !self.incoming.is_ending() => {
                    read?;
                    if self.wants_pause() {
                        self.socket.rest()?;
                        pause = Some(BootClock.sleep_until(BootClock.now() + self.next_pause()));
                    }
                }
            }
        }
    }

    /// Whether more should arrive before it is looked at.
    fn wants_pause(&mut self) -> bool {
        if !self.incoming.is_behind() {
            self.pause = PAUSES[0];
            return false;
        }
        self.incoming.len() < PIECE && !self.incoming.is_ending()
    }

    fn next_pause(&mut self) -> Duration {
        let next = self.pause;
        self.pause = (next * 2).min(PAUSES[1]);
        next
    }

    /// After a pause: reads what has arrived, without waiting for more.
    async fn read_at_hand(&mut self) -> Result<(), Failure> {
        tokio::select! {
            biased;
            read = self.incoming.read(&mut *self.socket) => read,
            () = std::future::ready(()) => Ok(()),
        }
    }

    /// Tells the server how far we are. Zero as the committed place means that nothing new is told.
    async fn send_status(&mut self) -> Result<(), Failure> {
        let now = BootClock.now();
        let confirmed = self.rewind.confirmed(now);
        let mut message = BytesMut::with_capacity(39);
        message.put_u8(COPY_DATA);
        message.put_u32(4 + 34);
        message.put_u8(b'r');
        message.put_u64(self.incoming.received.max(confirmed));
        message.put_u64(confirmed);
        message.put_u64(confirmed);
        message.put_u64(BootClock.wall_millis().saturating_sub(946_684_800_000).saturating_mul(1_000));
        message.put_u8(0);
        self.socket.write_all(&message).await?;
        self.socket.flush().await?;
        (self.incoming.asked, self.spoke) = (false, now);
        Ok(())
    }

    /// Ends the stream in order, so that the server lets go of the slot at once. What was committed last is told first.
    async fn part(mut self) -> Result<(), Failure> {
        let goodbye = async {
            let committed = *self.committed.borrow();
            self.rewind.push(BootClock.now(), committed);
            self.send_status().await?;
            let mut message = BytesMut::new();
            frontend::copy_done(&mut message);
            frontend::terminate(&mut message);
            self.socket.write_all(&message).await?;
            self.socket.shutdown().await?;
            let mut rest = [0; 4096];
            // What was under way is read and dropped until the server has closed, too.
            while self.socket.read(&mut rest).await? > 0 {}
            Ok::<_, Failure>(())
        };
        let patience = BootClock.sleep_until(BootClock.now() + SPEAK_EVERY);
        tokio::select! {
            biased;
            // Nobody listens any more, so how it went is told to nobody.
            _ = goodbye => {}
            () = patience => {}
        }
        Ok(())
    }
}
