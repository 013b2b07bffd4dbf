//! Sockets that can be read without being watched.
//!
//! A socket that the runtime watches wakes a thread for everything that arrives, whether anyone reads or not. The server sends
//! message by message, so that a reader that is behind would be woken for each. It rests instead: it is no longer watched,
//! and reads what is there now and then, until there is nothing.

use std::io::{self, Read, Write};
use std::pin::Pin;
use std::task::{Context, Poll};

use tokio::io::{AsyncRead, AsyncWrite, ReadBuf};
use tokio::net::{TcpStream, UnixStream};
use tokio_rustls::client::TlsStream;

/// What bytes come from and go to: TCP, a Unix socket, or TLS over one of them.
pub(super) trait Socket: AsyncRead + AsyncWrite + Send + Unpin {
    /// Is not watched until a read or a write has to wait.
    fn rest(&mut self) -> io::Result<()>;
}

impl<T: Watch> Socket for Line<T> {
    fn rest(&mut self) -> io::Result<()> {
        if let Self::Watched(_) = self
            && let Self::Watched(stream) = std::mem::replace(self, Self::Gone)
        {
            *self = Self::Resting(stream.rest()?);
        }
        Ok(())
    }
}

impl<T: Watch> Socket for TlsStream<Line<T>> {
    fn rest(&mut self) -> io::Result<()> {
        self.get_mut().0.rest()
    }
}

/// A stream of the runtime, and the same without it.
pub(super) trait Watch: AsyncRead + AsyncWrite + Send + Unpin + Sized {
    type Resting: Read + Write + Send + Unpin;

    fn rest(self) -> io::Result<Self::Resting>;

    fn watch(resting: Self::Resting) -> io::Result<Self>;
}

impl Watch for TcpStream {
    type Resting = std::net::TcpStream;

    fn rest(self) -> io::Result<Self::Resting> {
        self.into_std()
    }

    fn watch(resting: Self::Resting) -> io::Result<Self> {
        Self::from_std(resting)
    }
}

impl Watch for UnixStream {
    type Resting = std::os::unix::net::UnixStream;

    fn rest(self) -> io::Result<Self::Resting> {
        self.into_std()
    }

    fn watch(resting: Self::Resting) -> io::Result<Self> {
        Self::from_std(resting)
    }
}

/// A socket, watched or not.
pub(super) enum Line<T: Watch> {
    Watched(T),
    Resting(T::Resting),
    /// It could not be moved from one to the other.
    Gone,
}

impl<T: Watch> Line<T> {
    /// The stream, if it can tell when it is ready.
    fn watched(&mut self) -> io::Result<Pin<&mut T>> {
        if let Self::Resting(_) = self
            && let Self::Resting(resting) = std::mem::replace(self, Self::Gone)
        {
            *self = Self::Watched(T::watch(resting)?);
        }
        match self {
            Self::Watched(stream) => Ok(Pin::new(stream)),
            _ => Err(io::ErrorKind::NotConnected.into()),
        }
    }

    /// Tries at once what does not need to be watched; `None` when it has to be.
    fn try_resting<R>(&mut self, act: impl FnOnce(&mut T::Resting) -> io::Result<R>) -> Option<io::Result<R>> {
        let Self::Resting(resting) = self else { return None };
        match act(resting) {
            Err(error) if error.kind() == io::ErrorKind::WouldBlock => None,
            acted => Some(acted),
        }
    }
}

impl<T: Watch> AsyncRead for Line<T> {
    fn poll_read(mut self: Pin<&mut Self>, cx: &mut Context<'_>, buffer: &mut ReadBuf<'_>) -> Poll<io::Result<()>> {
        if let Some(read) = self.try_resting(|resting| resting.read(buffer.initialize_unfilled())) {
            return Poll::Ready(read.map(|count| buffer.advance(count)));
        }
        self.watched()?.poll_read(cx, buffer)
    }
}

impl<T: Watch> AsyncWrite for Line<T> {
    fn poll_write(mut self: Pin<&mut Self>, cx: &mut Context<'_>, bytes: &[u8]) -> Poll<io::Result<usize>> {
        match self.try_resting(|resting| resting.write(bytes)) {
            Some(written) => Poll::Ready(written),
            None => self.watched()?.poll_write(cx, bytes),
        }
    }

    fn poll_flush(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        match self.try_resting(Write::flush) {
            Some(flushed) => Poll::Ready(flushed),
            None => self.watched()?.poll_flush(cx),
        }
    }

    fn poll_shutdown(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        self.watched()?.poll_shutdown(cx)
    }
}

#[cfg(test)]
mod tests {
    use tokio::io::{AsyncReadExt, AsyncWriteExt};
    use tokio::net::UnixStream;

    use super::{Line, Socket};

    #[tokio::test]
    async fn a_resting_line_takes_what_is_there_and_is_watched_when_it_has_to_wait() {
        let (ours, mut theirs) = UnixStream::pair().unwrap();
        let (mut line, mut buffer) = (Line::Watched(ours), [0; 8]);
        line.rest().unwrap();
        theirs.write_all(b"one").await.unwrap();
        assert_eq!(line.read(&mut buffer).await.unwrap(), 3);
        line.write_all(b"back").await.unwrap();
        assert_eq!(theirs.read(&mut buffer).await.unwrap(), 4);
        assert!(matches!(line, Line::Resting(_)), "it is watched although it need not wait");
        let (read, written) = tokio::join!(line.read(&mut buffer), theirs.write_all(b"later"));
        assert_eq!((read.unwrap(), written.unwrap()), (5, ()));
        assert!(matches!(line, Line::Watched(_)), "nobody would have told it");
        line.rest().unwrap();
        drop(theirs);
        assert_eq!(line.read(&mut buffer).await.unwrap(), 0, "the end is seen, too");
    }
}
