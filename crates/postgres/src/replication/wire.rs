//! A connection that speaks the replication protocol.
//!
//! The usual client library knows neither the startup parameter `replication` nor the answer `CopyBothResponse`, so this one
//! is our own, on the same message codec. Such a connection takes plain SQL too, as simple queries, so that everything
//! that has to be looked at before reading is asked over the very connection that will read.

use std::fmt;
use std::io;

use bytes::{Buf, BytesMut};
use fallible_iterator::FallibleIterator;
use postgres_protocol::message::backend::{DataRowBody, ErrorResponseBody, Message};
use postgres_protocol::message::frontend;
use tokio::io::{AsyncReadExt, AsyncWriteExt};

use super::socket::Socket;

/// The answer to `START_REPLICATION`: both sides send from here on.
const COPY_BOTH: u8 = b'W';

/// How much is asked of the socket at once outside of streaming.
const READ: usize = 16 * 1024;

/// An error that the server answered with.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct Refusal {
    /// The SQLSTATE.
    pub(super) code: String,
    pub(super) message: String,
}

impl Refusal {
    pub(super) fn read(body: &ErrorResponseBody) -> Self {
        let (mut code, mut message) = (String::new(), String::new());
        let mut fields = body.fields();
        while let Ok(Some(field)) = fields.next() {
            let text = || String::from_utf8_lossy(field.value_bytes()).replace('\n', " ");
            match field.type_() {
                b'C' => code = text(),
                b'M' => message = text(),
                _ => {}
            }
        }
        Self { code, message }
    }
}

impl fmt::Display for Refusal {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{} (SQLSTATE {})", self.message, self.code)
    }
}

impl std::error::Error for Refusal {}

/// Why a call on a connection failed.
#[derive(Debug)]
pub(super) enum Failure {
    /// The connection is gone, or what it says makes no sense.
    Io(io::Error),
    /// The server says no.
    Refused(Refusal),
}

impl Failure {
    /// The SQLSTATE, if the server told one.
    pub(super) fn code(&self) -> Option<&str> {
        match self {
            Self::Io(_) => None,
            Self::Refused(refusal) => Some(&refusal.code),
        }
    }
}

impl From<io::Error> for Failure {
    fn from(error: io::Error) -> Self {
        Self::Io(error)
    }
}

/// A row of text, as simple queries give it.
pub(super) type TextRow = Vec<Option<String>>;

/// One message of the server.
pub(super) enum ServerMessage {
    Message(Message),
    CopyBoth,
}

/// A connection that is not streaming.
pub(super) struct Wire {
    pub(super) socket: Box<dyn Socket>,
    pub(super) buffer: BytesMut,
    /// The first number of the server's version, which it tells in the beginning.
    pub(super) major: u32,
}

impl fmt::Debug for Wire {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Wire").finish_non_exhaustive()
    }
}

impl Wire {
    pub(super) fn new(socket: Box<dyn Socket>) -> Self {
        Self { socket, buffer: BytesMut::with_capacity(READ), major: 0 }
    }

    pub(super) async fn send(&mut self, bytes: &[u8]) -> io::Result<()> {
        self.socket.write_all(bytes).await?;
        self.socket.flush().await
    }

    /// The next message.
    pub(super) async fn read_message(&mut self) -> io::Result<ServerMessage> {
        loop {
            if let Some(heard) = next_message(&mut self.buffer)? {
                return Ok(heard);
            }
            self.buffer.reserve(READ);
            if self.socket.read_buf(&mut self.buffer).await? == 0 {
                return Err(io::Error::new(io::ErrorKind::UnexpectedEof, "the server closed the connection"));
            }
        }
    }

    /// Sends a command or a query, and gives its rows as they came, with the types of their columns.
    ///
    /// # Cancel safety
    /// Not cancel safe: a connection whose answer was not awaited must not be used again.
    pub(super) async fn rows(&mut self, sql: &str) -> Result<(Vec<DataRowBody>, Vec<(String, u32)>), Failure> {
        let mut message = BytesMut::new();
        frontend::query(sql, &mut message)?;
        self.send(&message).await?;
        let (mut rows, mut columns, mut refused) = (Vec::new(), Vec::new(), None);
        loop {
            match self.read_message().await? {
                ServerMessage::Message(Message::RowDescription(body)) => {
                    columns = body.fields().map(|field| Ok((field.name().to_owned(), field.type_oid()))).collect()?;
                }
                ServerMessage::Message(Message::DataRow(row)) => rows.push(row),
                ServerMessage::Message(Message::ErrorResponse(body)) => refused = Some(Refusal::read(&body)),
                ServerMessage::Message(Message::ReadyForQuery(_)) => break,
                _ => {}
            }
        }
        match refused {
            Some(refusal) => Err(Failure::Refused(refusal)),
            None => Ok((rows, columns)),
        }
    }

    /// Sends a command or a query, and gives its rows as text.
    ///
    /// # Cancel safety
    /// As [`rows`](Self::rows).
    pub(super) async fn query(&mut self, sql: &str) -> Result<Vec<TextRow>, Failure> {
        let (rows, _) = self.rows(sql).await?;
        let text = |row: &DataRowBody| {
            let bytes = row.buffer();
            let fields = row.ranges().map(|range| Ok(range.map(|range| text_of(&bytes[range]))));
            Ok(fields.collect::<TextRow>()?)
        };
        rows.iter().map(text).collect()
    }

    /// Sends `START_REPLICATION` and waits until the server streams.
    pub(super) async fn start(&mut self, command: &str) -> Result<(), Failure> {
        let mut message = BytesMut::new();
        frontend::query(command, &mut message)?;
        self.send(&message).await?;
        let mut refused = None;
        loop {
            match self.read_message().await? {
                ServerMessage::CopyBoth => return Ok(()),
                ServerMessage::Message(Message::ErrorResponse(body)) => refused = Some(Refusal::read(&body)),
                // After an error the connection is ready for the next command.
                ServerMessage::Message(Message::ReadyForQuery(_)) => {
                    let none = || Failure::Io(io::Error::other("the server did not begin to stream"));
                    return Err(refused.map_or_else(none, Failure::Refused));
                }
                ServerMessage::Message(_) => {}
            }
        }
    }
}

fn text_of(bytes: &[u8]) -> String {
    String::from_utf8_lossy(bytes).into_owned()
}

/// The next whole message in `buffer`. The codec does not know `CopyBothResponse`, so its tag is looked at first.
fn next_message(buffer: &mut BytesMut) -> io::Result<Option<ServerMessage>> {
    if buffer.first() != Some(&COPY_BOTH) {
        return Ok(Message::parse(buffer)?.map(ServerMessage::Message));
    }
    let Some(length) = buffer.get(1..5) else { return Ok(None) };
    let length = u32::from_be_bytes([length[0], length[1], length[2], length[3]]) as usize;
    if buffer.len() <= length {
        return Ok(None);
    }
    buffer.advance(length + 1);
    Ok(Some(ServerMessage::CopyBoth))
}
