//! The least that one can do with the write-ahead log: a loop over a socket that takes every change apart into its columns.

use std::io::{self, BufReader, Read, Write};
use std::net::{Ipv4Addr, TcpStream};

use watchkeeper_postgres::tokio_postgres::Config;

use super::history::PUBLICATION;
use super::slot;
use crate::speed::meter::{Measurement, Meter, Start};
use crate::speed::task::BenchTask;

/// How much is asked of the socket at once.
const READ: usize = 256 * 1024;

/// The version of the protocol.
const PROTOCOL: u32 = 196_608;

/// How often it is told how far the log was read, in messages.
const REPORT_EVERY: u64 = 10_000;

/// Before the plugin's own message: a letter, two places and a time.
const HEADER: usize = 25;

fn broken(what: &str) -> io::Error {
    io::Error::new(io::ErrorKind::InvalidData, what)
}

struct Connection {
    reader: BufReader<TcpStream>,
    writer: TcpStream,
    message: Vec<u8>,
}

impl Connection {
    /// Connects for replication to a server that asks for no password.
    fn open(url: &str) -> io::Result<Self> {
        let config: Config = url.parse().map_err(io::Error::other)?;
        let port = config.get_ports().first().copied().ok_or_else(|| broken("the URL names no port"))?;
        let writer = TcpStream::connect((Ipv4Addr::LOCALHOST, port))?;
        writer.set_nodelay(true)?;
        let reader = BufReader::with_capacity(READ, writer.try_clone()?);
        let mut connection = Self { reader, writer, message: Vec::new() };
        let (user, database) = (config.get_user().unwrap_or_default(), config.get_dbname().unwrap_or_default());
        let parameters = format!("user\0{user}\0database\0{database}\0replication\0database\0\0");
        connection.send(None, &[&PROTOCOL.to_be_bytes(), parameters.as_bytes()].concat())?;
        while connection.next()? != b'Z' {}
        Ok(connection)
    }

    fn send(&mut self, tag: Option<u8>, body: &[u8]) -> io::Result<()> {
        let length = u32::try_from(body.len() + 4).map_err(io::Error::other)?;
        let tag: Vec<u8> = tag.into_iter().collect();
        self.writer.write_all(&[&tag, &length.to_be_bytes()[..], body].concat())
    }

    /// Reads the next message; the answer is its kind.
    fn next(&mut self) -> io::Result<u8> {
        let mut head = [0; 5];
        self.reader.read_exact(&mut head)?;
        let [kind, length @ ..] = head;
        let length = u32::from_be_bytes(length).checked_sub(4).ok_or_else(|| broken("a message without a length"))?;
        self.message.resize(length as usize, 0);
        self.reader.read_exact(&mut self.message)?;
        if kind == b'E' {
            return Err(broken(&String::from_utf8_lossy(&self.message)));
        }
        Ok(kind)
    }

    /// Tells that everything was read up to a place.
    fn confirm(&mut self, place: u64) -> io::Result<()> {
        let place = place.to_be_bytes();
        self.send(Some(b'd'), &[&b"r"[..], &place, &place, &place, &[0; 9]].concat())
    }
}

pub(super) fn consume(bench_task: &BenchTask, meter: &Meter) -> io::Result<Measurement> {
    let mut connection = Connection::open(&bench_task.url)?;
    let slot = slot(&bench_task.group);
    let command = format!(
        "START_REPLICATION SLOT \"{slot}\" LOGICAL 0/0 (proto_version '1', publication_names '{PUBLICATION}')\0"
    );
    let start = Start::now();
    connection.send(Some(b'Q'), command.as_bytes())?;
    let (mut read, mut messages) = (0, 0_u64);
    loop {
        if connection.next()? != b'd' {
            continue;
        }
        let message = connection.message.as_slice();
        let mut is_asked = message.first() == Some(&b'k') && message.last() == Some(&1);
        if let (Some(b'w'), Some(change)) = (message.first(), message.get(HEADER..)) {
            messages += 1;
            is_asked |= messages.is_multiple_of(REPORT_EVERY);
            match change.first() {
                Some(b'I' | b'U' | b'D') => {
                    std::hint::black_box(columns(change).ok_or_else(|| broken("a change that ends early"))?);
                    if meter.add(1) {
                        return Ok(start.took());
                    }
                }
                Some(b'C') => read = end_of(change).ok_or_else(|| broken("a commit that ends early"))?,
                _ => {}
            }
        }
        if is_asked {
            connection.confirm(read)?;
        }
    }
}

/// Where a transaction ends, by its commit.
fn end_of(commit: &[u8]) -> Option<u64> {
    commit.get(10..18)?.first_chunk().map(|place| u64::from_be_bytes(*place))
}

/// Takes a change apart; how many columns have a value.
fn columns(change: &[u8]) -> Option<usize> {
    // Its letter and the number of the table.
    let mut rest = change.get(5..)?;
    let mut seen = 0;
    while let Some((b'N' | b'O' | b'K', image)) = rest.split_first() {
        let (count, mut values) = image.split_first_chunk()?;
        for _ in 0..u16::from_be_bytes(*count) {
            let (kind, after) = values.split_first()?;
            values = after;
            if matches!(kind, b't' | b'b') {
                let (length, after) = values.split_first_chunk()?;
                let (value, after) = after.split_at_checked(u32::from_be_bytes(*length) as usize)?;
                std::hint::black_box(value);
                values = after;
                seen += 1;
            }
        }
        rest = values;
    }
    Some(seen)
}

#[cfg(test)]
mod tests {
    use super::columns;

    #[test]
    fn columns_are_counted_over_all_images() {
        let key = [&b"K\0\x01t\0\0\0\x02ab"[..], b"N\0\x03t\0\0\0\x01cnu"].concat();
        let change = [&b"U\0\0\0\x07"[..], &key].concat();
        assert_eq!(columns(&change), Some(2));
        assert_eq!(columns(&change[..change.len() - 4]), None, "it ends early");
    }
}
