//! The task that owns the socket of a stream.
//!
//! It reads ahead by a few pieces and no more, answers for the reader while a target is slow, and tells the server what
//! was committed. The server ends a connection from which it hears nothing for `wal_sender_timeout`; it also listens while it waits
//! for room in the socket, so a reader that is held up only has to speak, not to read.

mod intake;
mod rewind;

use std::io;
use std::time::Duration;

use bytes::{BufMut, Bytes, BytesMut};
use postgres_protocol::message::frontend;
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::sync::{mpsc, watch};
use tokio::task::JoinHandle;
use watchkeeper_core::{BootClock, Clock, Moment};

use super::line::Socket;
use super::wire::{Failure, Wire};
use intake::{COPY_DATA, Intake, PIECE};
pub(super) use intake::{HEAD, LARGE_PIECE, frame_length, number};
use rewind::Rewind;

/// Pieces that wait for the reader.
const PIECES: usize = 2;

/// While behind, so long is waited after a read that did not fill a piece. The server sends message by message, and a reader
/// that wakes for each costs both of them more than the wait: with 2 ms little more than half as many changes came in a second.
/// The first pause is short, and each is twice as long as the one before: right after a relief there is little to catch up with,
/// and someone waits for it.
const PAUSES: [Duration; 2] = [Duration::from_millis(1), Duration::from_millis(10)];

/// Acknowledgements are told at most so often.
const TELL_EVERY: Duration = Duration::from_millis(50);

/// Without anything to tell, the server hears from us at least so often.
const SPEAK_EVERY: Duration = Duration::from_secs(5);

/// What the reader holds of a pump.
pub(super) struct Pumped {
    pub(super) pieces: mpsc::Receiver<Result<Bytes, Failure>>,
    /// Everything before this place of the log is committed.
    pub(super) committed: watch::Sender<u64>,
    pub(super) task: JoinHandle<()>,
}

/// How a pump behaves.
#[derive(Debug, Clone, Copy)]
pub(super) struct Manner {
    /// The server's `wal_sender_timeout`; zero means that it never loses patience.
    pub(super) patience: Duration,
    /// What was acknowledged is held back for so long, so that an operator can go back.
    pub(super) rewind: Duration,
}

struct Pump {
    socket: Box<dyn Socket>,
    intake: Intake,
    pieces: mpsc::Sender<Result<Bytes, Failure>>,
    committed: watch::Receiver<u64>,
    rewind: Rewind,
    speak_every: Duration,
    spoke: Moment,
    /// How long the next pause is.
    pause: Duration,
}

/// Begins to pump from a connection that streams.
pub(super) fn start(wire: Wire, manner: Manner) -> Pumped {
    let (pieces, receiver) = mpsc::channel(PIECES);
    let (committed, watched) = watch::channel(0);
    let task = tokio::spawn(async move {
        if let Err(failure) = pump(wire, manner, pieces.clone(), watched).await {
            let _ = pieces.send(Err(failure)).await;
        }
    });
    Pumped { pieces: receiver, committed, task }
}

async fn pump(
    wire: Wire,
    manner: Manner,
    pieces: mpsc::Sender<Result<Bytes, Failure>>,
    committed: watch::Receiver<u64>,
) -> Result<(), Failure> {
    let speak_every = match manner.patience {
        Duration::ZERO => SPEAK_EVERY,
        patience => (patience / 4).min(SPEAK_EVERY),
    };
    let (socket, intake) = (wire.socket, Intake::new(wire.buffer)?);
    let (rewind, spoke) = (Rewind::new(manner.rewind), BootClock.now());
    Pump { socket, intake, pieces, committed, rewind, speak_every, spoke, pause: PAUSES[0] }.run().await
}

impl Pump {
    async fn run(mut self) -> Result<(), Failure> {
        let mut pause = None;
        let mut due = BootClock.sleep_until(self.spoke + self.speak_every);
        let outlet = self.pieces.clone();
        loop {
            if let Some(ending) = self.intake.take_ending() {
                return Err(ending);
            }
            if self.intake.is_unwelcome() {
                // At once, also when the reader is held up: what is not handed over is read again.
                return Err(io::Error::other("the server wants to stop, and waits for its readers to leave").into());
            }
            if self.intake.asked {
                self.speak().await?;
            }
            // While the reader is held up, so much is read on that a piece gets full, and what the server says is heard.
            let has_room = self.intake.len() < PIECE || !self.intake.has_whole();
            tokio::select! {
                biased;
                () = outlet.closed() => return self.part().await,
                changed = self.committed.changed() => if changed.is_ok() {
                    let committed = *self.committed.borrow_and_update();
                    self.rewind.push(BootClock.now(), committed);
                    due = BootClock.sleep_until(self.spoke + TELL_EVERY);
                },
                () = &mut due => {
                    self.speak().await?;
                    due = BootClock.sleep_until(self.spoke + self.speak_every);
                }
                permit = outlet.reserve(), if pause.is_none() && self.intake.has_whole() => if let Ok(permit) = permit {
                    permit.send(Ok(self.intake.cut()));
                },
                () = async { if let Some(pause) = &mut pause { pause.await } }, if pause.is_some() => {
                    pause = None;
                    self.read_at_hand().await?;
                }
                read = self.intake.read(&mut *self.socket), if has_room && pause.is_none() && !self.intake.is_ending() => {
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
        if !self.intake.is_behind() {
            self.pause = PAUSES[0];
            return false;
        }
        self.intake.len() < PIECE && !self.intake.is_ending()
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
            read = self.intake.read(&mut *self.socket) => read,
            () = std::future::ready(()) => Ok(()),
        }
    }

    /// Tells the server how far we are. Zero as the committed place means that nothing new is told.
    async fn speak(&mut self) -> Result<(), Failure> {
        let now = BootClock.now();
        let confirmed = self.rewind.confirmed(now);
        let mut message = BytesMut::with_capacity(39);
        message.put_u8(COPY_DATA);
        message.put_u32(4 + 34);
        message.put_u8(b'r');
        message.put_u64(self.intake.received.max(confirmed));
        message.put_u64(confirmed);
        message.put_u64(confirmed);
        message.put_u64(BootClock.wall_millis().saturating_sub(946_684_800_000).saturating_mul(1_000));
        message.put_u8(0);
        self.socket.write_all(&message).await?;
        self.socket.flush().await?;
        (self.intake.asked, self.spoke) = (false, now);
        Ok(())
    }

    /// Ends the stream in order, so that the server lets go of the slot at once. What was committed last is told first.
    async fn part(mut self) -> Result<(), Failure> {
        let goodbye = async {
            let committed = *self.committed.borrow();
            self.rewind.push(BootClock.now(), committed);
            self.speak().await?;
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
