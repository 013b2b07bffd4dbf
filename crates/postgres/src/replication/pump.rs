//! The task that owns the socket of a stream.
//!
//! It reads ahead by a few pieces and no more, answers for the reader while a target is slow, and tells the server what
//! was committed. The server ends a connection from which it hears nothing for `wal_sender_timeout`; it also listens while it waits
//! for room in the socket, so a reader that is held up only has to speak, not to read.

use std::collections::VecDeque;
use std::io;
use std::time::Duration;

use bytes::{BufMut, Bytes, BytesMut};
use postgres_protocol::message::backend::Message;
use postgres_protocol::message::frontend;
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::sync::{mpsc, watch};
use tokio::task::JoinHandle;
use watchkeeper_core::{BootClock, Clock, Moment};

use super::wire::{Failure, Refusal, Socket, Wire};

/// How much room a read finds, and how large a piece gets unless one message is larger.
const PIECE: usize = 256 * 1024;

/// Pieces that wait for the reader.
const PIECES: usize = 2;

/// A read of less than this is a short one.
const SHORT: usize = 64 * 1024;

/// While behind, so long is waited after a short read. The server sends message by message, and a reader that wakes for each
/// costs both of them more than the wait.
const PAUSE: Duration = Duration::from_millis(2);

/// A transaction that was committed longer ago than this when it was sent is history: whoever reads it is behind.
const BEHIND_MICROS: i64 = 50_000;

/// Acknowledgements are told at most so often.
const TELL_EVERY: Duration = Duration::from_millis(50);

/// Without anything to tell, the server hears from us at least so often.
const SPEAK_EVERY: Duration = Duration::from_secs(5);

/// At most this many entries stand for the time that the history is held back.
const REWIND_STEPS: u32 = 32;

/// So many demands for an answer within a second are not a server that misses us: it wants to stop, and waits until everything
/// that it sent is confirmed, which may be never. Whoever leaves lets it stop.
const DEMANDS_MAX: u32 = 8;
const DEMANDS_WITHIN: Duration = Duration::from_secs(1);

const COPY_DATA: u8 = b'd';
const XLOG_DATA: u8 = b'w';
const KEEPALIVE: u8 = b'k';

/// Bytes before the message of the plugin: tag and length of the copy data, tag, two places, a time.
pub(super) const HEAD: usize = 5 + 25;

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
    buffer: BytesMut,
    /// How much of the buffer has been looked through, which is whole messages.
    scanned: usize,
    pieces: mpsc::Sender<Result<Bytes, Failure>>,
    committed: watch::Receiver<u64>,
    /// The newest place that was received.
    received: u64,
    /// The send time of the newest message, and the commit time of the newest transaction, by the server's clock.
    sent_micros: i64,
    commit_micros: i64,
    asked: bool,
    /// Since when, and how often, the server has asked for an answer.
    demands: (Moment, u32),
    ending: Option<Failure>,
    rewind: Rewind,
    speak_every: Duration,
    spoke: Moment,
}

/// Begins to pump from a connection that streams.
pub(super) fn start(wire: Wire, manner: Manner) -> Pumped {
    let (pieces, receiver) = mpsc::channel(PIECES);
    let (committed, watched) = watch::channel(0);
    let speak_every = match manner.patience {
        Duration::ZERO => SPEAK_EVERY,
        patience => (patience / 4).min(SPEAK_EVERY),
    };
    let pump = Pump {
        socket: wire.socket,
        buffer: wire.buffer,
        scanned: 0,
        pieces,
        committed: watched,
        received: 0,
        sent_micros: 0,
        commit_micros: i64::MAX,
        asked: false,
        demands: (BootClock.now(), 0),
        ending: None,
        rewind: Rewind::new(manner.rewind),
        speak_every,
        spoke: BootClock.now(),
    };
    let task = tokio::spawn(async move {
        let sender = pump.pieces.clone();
        if let Err(failure) = pump.run().await {
            let _ = sender.send(Err(failure)).await;
        }
    });
    Pumped { pieces: receiver, committed, task }
}

impl Pump {
    async fn run(mut self) -> Result<(), Failure> {
        self.scan()?;
        let mut pause = None;
        let mut due = BootClock.sleep_until(self.spoke + self.speak_every);
        let outlet = self.pieces.clone();
        loop {
            if self.scanned == 0
                && let Some(ending) = self.ending.take()
            {
                return Err(ending);
            }
            if self.demands.1 >= DEMANDS_MAX {
                // At once, also when the reader is held up: what is not handed over is read again.
                return Err(io::Error::other("the server wants to stop, and waits for its readers to leave").into());
            }
            if self.asked {
                self.speak().await?;
            }
            // While the reader is held up, so much is read on that a piece gets full, and what the server says is heard.
            let has_room = self.buffer.len() < PIECE || self.scanned == 0;
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
                permit = outlet.reserve(), if pause.is_none() && self.scanned > 0 => if let Ok(permit) = permit {
                    permit.send(Ok(self.cut()));
                },
                () = async { if let Some(pause) = &mut pause { pause.await } }, if pause.is_some() => {
                    pause = None;
                    self.read_at_hand().await?;
                }
                read = self.socket.read_buf(&mut self.buffer), if has_room && pause.is_none() && self.ending.is_none() => {
                    self.received_some(read?)?;
                    if self.is_behind() && self.buffer.len() < SHORT && self.ending.is_none() {
                        pause = Some(BootClock.sleep_until(BootClock.now() + PAUSE));
                    }
                }
            }
        }
    }

    /// After a pause: reads what has arrived, without waiting for more.
    async fn read_at_hand(&mut self) -> Result<(), Failure> {
        let read = tokio::select! {
            biased;
            read = self.socket.read_buf(&mut self.buffer) => read?,
            () = std::future::ready(()) => return Ok(()),
        };
        self.received_some(read)
    }

    fn received_some(&mut self, count: usize) -> Result<(), Failure> {
        if count == 0 {
            let gone = io::Error::new(io::ErrorKind::UnexpectedEof, "the server closed the connection");
            self.ending.get_or_insert(Failure::Io(gone));
            return Ok(());
        }
        self.scan()
    }

    fn is_behind(&self) -> bool {
        self.sent_micros.saturating_sub(self.commit_micros) > BEHIND_MICROS
    }

    /// Takes the whole messages out of the buffer.
    fn cut(&mut self) -> Bytes {
        let piece = self.buffer.split_to(std::mem::take(&mut self.scanned)).freeze();
        self.buffer.reserve(PIECE);
        piece
    }

    /// Looks through the messages that are whole, without looking into rows.
    fn scan(&mut self) -> Result<(), Failure> {
        while let Some(length) = frame_length(&self.buffer[self.scanned..]) {
            let rest = &self.buffer[self.scanned..];
            let Some(frame) = rest.get(..length) else {
                let missing = length - rest.len();
                self.buffer.reserve(missing.max(PIECE));
                break;
            };
            match (frame[0], frame.get(5)) {
                (COPY_DATA, Some(&XLOG_DATA)) if frame.len() > HEAD => {
                    self.received = self.received.max(number(frame, 14));
                    self.sent_micros = number(frame, 22).cast_signed();
                    if frame[HEAD] == b'B' && frame.len() >= HEAD + 17 {
                        self.commit_micros = number(frame, HEAD + 9).cast_signed();
                    }
                }
                (COPY_DATA, Some(&KEEPALIVE)) if frame.len() >= 23 => {
                    self.received = self.received.max(number(frame, 6));
                    self.sent_micros = number(frame, 14).cast_signed();
                    let is_asked = frame[22] == 1;
                    self.asked |= is_asked;
                    if is_asked {
                        self.demanded();
                    }
                }
                (COPY_DATA, _) => {}
                _ => return self.hear_the_end(length),
            }
            self.scanned += length;
        }
        if self.buffer.capacity() - self.buffer.len() < PIECE / 4 {
            self.buffer.reserve(PIECE);
        }
        Ok(())
    }

    fn demanded(&mut self) {
        let now = BootClock.now();
        if now.since(self.demands.0) > DEMANDS_WITHIN {
            self.demands = (now, 0);
        }
        self.demands.1 += 1;
    }

    /// Anything but data: an error, or the end of the stream. Notices are passed over.
    fn hear_the_end(&mut self, length: usize) -> Result<(), Failure> {
        let whole = self.buffer.split_to(self.scanned);
        let mut message = self.buffer.split_to(length);
        let ending = match Message::parse(&mut message) {
            Ok(Some(Message::ErrorResponse(body))) => Some(Failure::Refused(Refusal::read(&body))),
            Ok(Some(Message::NoticeResponse(_) | Message::ParameterStatus(_))) => None,
            Ok(_) => Some(Failure::Io(io::Error::other("the server ended the stream"))),
            Err(error) => Some(Failure::Io(io::Error::other(error))),
        };
        let mut kept = whole;
        kept.unsplit(self.buffer.split());
        self.buffer = kept;
        if let Some(ending) = ending {
            self.ending.get_or_insert(ending);
            // Nothing after it is looked at.
            self.buffer.truncate(self.scanned);
            return Ok(());
        }
        self.scan()
    }

    /// Tells the server how far we are. Zero as the committed place means that nothing new is told.
    async fn speak(&mut self) -> Result<(), Failure> {
        let now = BootClock.now();
        let confirmed = self.rewind.confirmed(now);
        let mut message = BytesMut::with_capacity(39);
        message.put_u8(COPY_DATA);
        message.put_u32(4 + 34);
        message.put_u8(b'r');
        message.put_u64(self.received.max(confirmed));
        message.put_u64(confirmed);
        message.put_u64(confirmed);
        message.put_u64(BootClock.wall_millis().saturating_sub(946_684_800_000).saturating_mul(1_000));
        message.put_u8(0);
        self.socket.write_all(&message).await?;
        self.socket.flush().await?;
        (self.asked, self.spoke) = (false, now);
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

/// The length of the message that begins here, as soon as that is known.
pub(super) fn frame_length(bytes: &[u8]) -> Option<usize> {
    let head: &[u8; 4] = bytes.get(1..)?.first_chunk()?;
    Some(u32::from_be_bytes(*head) as usize + 1)
}

/// Eight bytes of a frame as a number; zero where they are missing.
pub(super) fn number(frame: &[u8], at: usize) -> u64 {
    frame.get(at..).and_then(<[u8]>::first_chunk).map_or(0, |bytes| u64::from_be_bytes(*bytes))
}

/// What may be confirmed when acknowledgements are held back for a while.
struct Rewind {
    span: Duration,
    held: VecDeque<(Moment, u64)>,
    /// The newest one, while it is too near to the last that is held to be worth an entry.
    newest: Option<(Moment, u64)>,
    confirmed: u64,
}

impl Rewind {
    fn new(span: Duration) -> Self {
        Self { span, held: VecDeque::new(), newest: None, confirmed: 0 }
    }

    fn push(&mut self, now: Moment, committed: u64) {
        let last = self.newest.or(self.held.back().copied());
        if committed <= last.map_or(self.confirmed, |(_, place)| place) {
            return;
        }
        match self.held.back() {
            Some((since, _)) if now.since(*since) < self.span / REWIND_STEPS => self.newest = Some((now, committed)),
            _ => {
                self.held.push_back((now, committed));
                self.newest = None;
            }
        }
    }

    fn confirmed(&mut self, now: Moment) -> u64 {
        loop {
            if self.held.is_empty() {
                self.held.extend(self.newest.take());
            }
            match self.held.front() {
                Some((since, place)) if now.since(*since) >= self.span => self.confirmed = self.confirmed.max(*place),
                _ => return self.confirmed,
            }
            self.held.pop_front();
        }
    }
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use watchkeeper_core::Moment;

    use super::Rewind;

    #[test]
    fn what_can_be_gone_back_to_is_not_confirmed() {
        let at = |millis: u64| Moment::from_nanos(millis * 1_000_000);
        let mut rewind = Rewind::new(Duration::from_millis(1_000));
        for step in 1..=500 {
            rewind.push(at(step * 10), step);
            let oldest_allowed = (step * 10).saturating_sub(1_000) / 10;
            assert!(rewind.confirmed(at(step * 10)) <= oldest_allowed, "too much is confirmed at step {step}");
        }
        assert!(rewind.held.len() <= 34, "{} entries are kept", rewind.held.len());
        assert!(rewind.confirmed >= 380, "only {} is confirmed", rewind.confirmed);
        assert_eq!(rewind.confirmed(at(10_000)), 500);
    }

    #[test]
    fn without_a_span_everything_is_confirmed_at_once() {
        let mut rewind = Rewind::new(Duration::ZERO);
        rewind.push(Moment::from_nanos(1), 7);
        rewind.push(Moment::from_nanos(1), 5);
        assert_eq!(rewind.confirmed(Moment::from_nanos(1)), 7);
    }
}
