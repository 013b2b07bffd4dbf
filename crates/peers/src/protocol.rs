//! What is said: one question, one answer, and a farewell.
//!
//! Question and answer differ, so that neither an echo nor a connection that met itself counts as an answer.

use std::io;

use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::TcpStream;
use uuid::Uuid;
use watchkeeper_core::{HeldTenures, TenureId};

const QUESTION: [u8; 4] = *b"wk?1";
const ANSWER: [u8; 4] = *b"wk!1";

/// Said before a listener closes in order.
pub(crate) const CLOSING: u8 = b'.';

type Line = [u8; 20];

fn line(word: [u8; 4], tenure: TenureId) -> Line {
    let mut line = [0; 20];
    line[..4].copy_from_slice(&word);
    line[4..].copy_from_slice(tenure.0.as_bytes());
    line
}

/// Asks whether the process at the other end has `tenure`; false for any other answer.
pub(crate) async fn ask(socket: &mut TcpStream, tenure: TenureId) -> io::Result<bool> {
    socket.set_nodelay(true)?;
    socket.write_all(&line(QUESTION, tenure)).await?;
    let mut answer = [0; 20];
    socket.read_exact(&mut answer).await?;
    Ok(answer == line(ANSWER, tenure))
}

/// Hears a question and answers it, if the tenure that it asks for is on the roll; false if not.
pub(crate) async fn answer(socket: &mut TcpStream, held_tenures: &HeldTenures) -> io::Result<bool> {
    socket.set_nodelay(true)?;
    let mut question = [0; 20];
    socket.read_exact(&mut question).await?;
    let Some(tenure) = asked_for(&question).filter(|tenure| held_tenures.has(*tenure)) else { return Ok(false) };
    socket.write_all(&line(ANSWER, tenure)).await?;
    Ok(true)
}

fn asked_for(question: &Line) -> Option<TenureId> {
    let tenure = question.strip_prefix(&QUESTION)?;
    Uuid::from_slice(tenure).ok().map(TenureId)
}
