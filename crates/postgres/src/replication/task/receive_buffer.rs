//! What has been received: whole messages, of which only the outside is looked at.

use std::io;
use std::time::Duration;

use bytes::{Bytes, BytesMut};
use postgres_protocol::message::backend::Message;
use tokio::io::AsyncReadExt;
use watchkeeper_core::{BootClock, Clock, Moment};

use crate::replication::socket::Socket;
use crate::replication::wire::{Failure, Refusal};

/// How much room a read finds, and how large a piece gets unless one message is larger.
pub(super) const PIECE: usize = 256 * 1024;

/// A piece that is larger than this holds a message of a large row.
pub(in crate::replication) const LARGE_PIECE: usize = 8 << 20;

/// A transaction that was committed longer ago than this when it was sent is history: whoever reads it is behind.
const BEHIND_MICROS: i64 = 50_000;

/// So many demands for an answer within a second are not a server that misses us: it wants to stop, and waits until everything
/// that it sent is confirmed, which may be never. Whoever leaves lets it stop.
const DEMANDS_MAX: u32 = 8;
const DEMANDS_WITHIN: Duration = Duration::from_secs(1);

pub(super) const COPY_DATA: u8 = b'd';
const XLOG_DATA: u8 = b'w';
const KEEPALIVE: u8 = b'k';

/// Bytes before the message of the plugin: tag and length of the copy data, tag, two places, a time.
pub(in crate::replication) const HEAD: usize = 5 + 25;

/// Messages on their way from the socket to the reader.
pub(super) struct ReceiveBuffer {
    buffer: BytesMut,
    /// How much of the buffer has been looked through, which is whole messages.
    scanned: usize,
    /// The newest place that was received.
    pub(super) received: u64,
    /// The send time of the newest message, and the commit time of the newest transaction, by the server's clock.
    sent_micros: i64,
    commit_micros: i64,
    /// Whether the server waits for an answer.
    pub(super) asked: bool,
    /// Since when, and how often, the server has asked for an answer.
    demands: (Moment, u32),
    ending: Option<Failure>,
}

impl ReceiveBuffer {
    /// Begins with what was received already.
    pub(super) fn new(buffer: BytesMut) -> Result<Self, Failure> {
        let mut incoming = Self {
            buffer,
            scanned: 0,
            received: 0,
            sent_micros: 0,
            commit_micros: i64::MAX,
            asked: false,
            demands: (BootClock.now(), 0),
            ending: None,
        };
        incoming.scan()?;
        Ok(incoming)
    }

    /// How much is here, whole or not.
    pub(super) fn len(&self) -> usize {
        self.buffer.len()
    }

    /// Whether there are whole messages.
    pub(super) fn has_whole(&self) -> bool {
        self.scanned > 0
    }

    /// Whether nothing more will come.
    pub(super) fn is_ending(&self) -> bool {
        self.ending.is_some()
    }

    /// Why nothing more comes, as soon as all that came before was taken.
    pub(super) fn take_ending(&mut self) -> Option<Failure> {
        if self.scanned > 0 { None } else { self.ending.take() }
    }

    pub(super) fn is_behind(&self) -> bool {
        self.sent_micros.saturating_sub(self.commit_micros) > BEHIND_MICROS
    }

    /// Whether the server wants us to leave.
    pub(super) fn is_unwelcome(&self) -> bool {
        self.demands.1 >= DEMANDS_MAX
    }

    /// Reads what the socket has, and waits if it has nothing.
    ///
    /// # Cancel safety
    /// Cancel safe: what was read is kept.
    pub(super) async fn read(&mut self, socket: &mut dyn Socket) -> Result<(), Failure> {
        if socket.read_buf(&mut self.buffer).await? == 0 {
            let gone = io::Error::new(io::ErrorKind::UnexpectedEof, "the server closed the connection");
            self.ending.get_or_insert(Failure::Io(gone));
            return Ok(());
        }
        self.scan()
    }

    /// Takes the whole messages out of the buffer.
    pub(super) fn cut(&mut self) -> Bytes {
        let piece = self.buffer.split_to(std::mem::take(&mut self.scanned)).freeze();
        if piece.len() > LARGE_PIECE {
            // What comes next must not keep the memory of a large message.
            let mut rest = BytesMut::with_capacity(self.buffer.len() + PIECE);
            rest.extend_from_slice(&self.buffer);
            self.buffer = rest;
        }
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
                    match frame[HEAD] {
                        b'B' if frame.len() >= HEAD + 17 => {
                            self.commit_micros = number(frame, HEAD + 9).cast_signed();
                        }
                        // The commit of a transaction whose changes were told before.
                        b'c' if frame.len() >= HEAD + 30 => {
                            self.commit_micros = number(frame, HEAD + 22).cast_signed();
                        }
                        _ => {}
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
                _ => return self.receive_end(length),
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
    fn receive_end(&mut self, length: usize) -> Result<(), Failure> {
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
}

/// The length of the message that begins here, as soon as that is known.
pub(in crate::replication) fn frame_length(bytes: &[u8]) -> Option<usize> {
    let head: &[u8; 4] = bytes.get(1..)?.first_chunk()?;
    Some(u32::from_be_bytes(*head) as usize + 1)
}

/// Eight bytes of a frame as a number; zero where they are missing.
pub(in crate::replication) fn number(frame: &[u8], at: usize) -> u64 {
    frame.get(at..).and_then(<[u8]>::first_chunk).map_or(0, |bytes| u64::from_be_bytes(*bytes))
}
