//! Watches a holder until its death is proved, or nothing can be.

use std::io::{self, ErrorKind};
use std::net::SocketAddr;
use std::time::Duration;

use tokio::io::AsyncReadExt;
use tokio::net::{TcpStream, ToSocketAddrs};
use tokio::time::{sleep, timeout};
use watchkeeper_core::{Address, TenureId, Verdict};

use crate::protocol::ask;

/// How often a closed connection is replaced by one that is answered, before there is something wrong.
const RECONNECTS_MAX: usize = 10;

/// How often a connection that was closed before an answer is tried again. A dying process closes its sockets
/// one after the other: for a moment its connections may be closed while its listener still takes new ones. All tries
/// together take a second, since on a busy machine that moment can be long, and nothing else could be proved meanwhile.
const TRIES: u32 = 10;

/// Before the second try; doubled each time.
const TRY_AGAIN: Duration = Duration::from_millis(1);

/// What asking came to.
enum PeerAnswer {
    /// The tenure answered here: the very address, if the name has several.
    Answered(TcpStream, SocketAddr),
    /// The connection was refused.
    Refused,
    /// The connection was taken and closed without an answer.
    Closed,
    /// Silence, another answer, or no way there.
    Unclear,
}

pub(crate) async fn watch(address: Address, tenure: TenureId, answer_within: Duration) -> Verdict {
    let PeerAnswer::Answered(mut socket, mut there) = reach(&*address.0, tenure, answer_within).await else {
        return Verdict::Unproven;
    };
    tracing::debug!(%address, %tenure, "the holder has answered; its death would be seen");
    for _ in 0..RECONNECTS_MAX {
        if !is_cut(&mut socket).await {
            return Verdict::Unproven;
        }
        drop(socket);
        match again(there, tenure, answer_within).await {
            PeerAnswer::Refused => return Verdict::Dead,
            PeerAnswer::Answered(next, address) => (socket, there) = (next, address),
            PeerAnswer::Closed | PeerAnswer::Unclear => return Verdict::Unproven,
        }
    }
    Verdict::Unproven
}

/// Waits for the end of a connection; false if the holder said something first, as it does before it closes in
/// order, or if the network has failed.
async fn is_cut(socket: &mut TcpStream) -> bool {
    let mut word = [0; 1];
    match socket.read(&mut word).await {
        Ok(count) => count == 0,
        Err(error) => error.kind() == ErrorKind::ConnectionReset,
    }
}

async fn again(there: SocketAddr, tenure: TenureId, answer_within: Duration) -> PeerAnswer {
    for attempt in 0..TRIES {
        match reach(there, tenure, answer_within).await {
            PeerAnswer::Closed => sleep(TRY_AGAIN * 2_u32.pow(attempt)).await,
            other => return other,
        }
    }
    PeerAnswer::Closed
}

async fn reach(there: impl ToSocketAddrs, tenure: TenureId, answer_within: Duration) -> PeerAnswer {
    let asked = timeout(answer_within, connect_and_ask(there, tenure)).await;
    asked.unwrap_or(PeerAnswer::Unclear)
}

async fn connect_and_ask(there: impl ToSocketAddrs, tenure: TenureId) -> PeerAnswer {
    let mut socket = match TcpStream::connect(there).await {
        Ok(socket) => socket,
        Err(error) => return refused(&error),
    };
    // Asked for now: a connection that the other side has reset since does not know any more whose it was.
    let Ok(address) = socket.peer_addr() else { return PeerAnswer::Closed };
    match ask(&mut socket, tenure).await {
        Ok(true) => PeerAnswer::Answered(socket, address),
        Err(error) if is_closing(&error) => PeerAnswer::Closed,
        Ok(false) | Err(_) => PeerAnswer::Unclear,
    }
}

/// What a connection that was not made means. A dying process may have taken it and closed it at once, before this side came
/// to look: then it ends as one that was taken, not as one that was refused.
fn refused(error: &io::Error) -> PeerAnswer {
    match error.kind() {
        ErrorKind::ConnectionRefused => PeerAnswer::Refused,
        _ if is_closing(error) => PeerAnswer::Closed,
        _ => PeerAnswer::Unclear,
    }
}

fn is_closing(error: &io::Error) -> bool {
    let kinds = [ErrorKind::UnexpectedEof, ErrorKind::ConnectionReset, ErrorKind::BrokenPipe, ErrorKind::NotConnected];
    kinds.contains(&error.kind())
}

#[cfg(test)]
mod tests {
    use std::net::{Ipv4Addr, TcpListener};

    use super::*;

    /// The three ways in which the kernel of a dead process answers.
    #[tokio::test]
    async fn a_connection_that_was_taken_and_closed_is_tried_again() {
        let listener = TcpListener::bind((Ipv4Addr::LOCALHOST, 0)).unwrap();
        let there = listener.local_addr().unwrap();
        let tenure = TenureId(uuid::Uuid::nil());
        let asking = connect_and_ask(there, tenure);
        let dying = async move { drop(listener) };
        let (asked, ()) = tokio::join!(biased; asking, dying);
        assert!(matches!(asked, PeerAnswer::Closed), "it was taken, and closed with its listener");
        assert!(matches!(connect_and_ask(there, tenure).await, PeerAnswer::Refused), "nobody listens any more");
        let reset = io::Error::from(ErrorKind::ConnectionReset);
        assert!(matches!(refused(&reset), PeerAnswer::Closed), "it was closed before this side came to look");
        let unreachable = io::Error::from(ErrorKind::NetworkUnreachable);
        assert!(matches!(refused(&unreachable), PeerAnswer::Unclear), "that proves nothing");
    }
}
