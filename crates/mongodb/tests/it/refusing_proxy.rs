//! A server that speaks MongoDB's protocol and refuses what not everyone has, as Cosmos DB does, or what a test wants
//! refused: a proxy before a real one.

use std::io::{Read, Result, Write};
use std::net::{Ipv4Addr, Shutdown, TcpListener, TcpStream};
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};

use watchkeeper_mongodb::mongodb::bson::{Document, RawDocument, RawDocumentBuf, rawdoc};
use watchkeeper_testkit::servers::mongodb::ReplicaSet;

/// Kinds of messages: everything but the first greeting is the first of them.
const OP_MSG: i32 = 2013;

/// How often what was refused.
#[derive(Debug, Default)]
pub(crate) struct Refused {
    pub(crate) pipelines: AtomicUsize,
    pub(crate) times: AtomicUsize,
    pub(crate) capped: AtomicUsize,
    pub(crate) tails: AtomicUsize,
    pub(crate) transactions: AtomicUsize,
    /// So many openings of change streams after a position are still to be refused.
    pub(crate) resumptions_left: AtomicUsize,
}

/// The proxy. It ends with the test program.
#[derive(Debug)]
pub(crate) struct Proxy {
    port: u16,
    pub(crate) refused: Arc<Refused>,
}

impl Proxy {
    pub(crate) fn start(set: &ReplicaSet) -> Self {
        let listener = TcpListener::bind((Ipv4Addr::LOCALHOST, 0)).expect("there is a free port");
        let port = listener.local_addr().expect("it has an address").port();
        let refused = Arc::new(Refused::default());
        let (server, counts) = (set.hosts()[0].clone(), Arc::clone(&refused));
        std::thread::spawn(move || {
            for client in listener.incoming().map_while(Result::ok) {
                let Ok(server) = TcpStream::connect(&server) else { return };
                serve(client, server, Arc::clone(&counts));
            }
        });
        Self { port, refused }
    }

    /// A URL of this database, by which the driver does not look for other members.
    pub(crate) fn url(&self, database: &str) -> String {
        format!("mongodb://127.0.0.1:{}/{database}?directConnection=true&heartbeatFrequencyMS=500", self.port)
    }
}

/// Passes on what is said between a client and the server, in a thread each.
fn serve(client: TcpStream, server: TcpStream, refused: Arc<Refused>) {
    let (Ok(mut answers), Ok(mut to_client)) = (server.try_clone(), client.try_clone()) else { return };
    std::thread::spawn(move || {
        let _ = std::io::copy(&mut answers, &mut to_client);
        let _ = to_client.shutdown(Shutdown::Both);
    });
    std::thread::spawn(move || {
        let (mut client, mut server) = (client, server);
        while pass(&mut client, &mut server, &refused).is_ok() {}
        let _ = server.shutdown(Shutdown::Both);
    });
}

/// Passes on one message, or refuses it. A client says one thing at a time on a connection, so answers never mix.
fn pass(client: &mut TcpStream, server: &mut TcpStream, refused: &Refused) -> Result<()> {
    let mut header = [0; 16];
    client.read_exact(&mut header)?;
    let number = |at: usize| i32::from_le_bytes([header[at], header[at + 1], header[at + 2], header[at + 3]]);
    let mut rest = vec![0; usize::try_from(number(0)).unwrap_or(16).saturating_sub(16)];
    client.read_exact(&mut rest)?;
    match (number(12) == OP_MSG).then(|| refusal(&rest, refused)).flatten() {
        None => {
            server.write_all(&header)?;
            server.write_all(&rest)
        }
        Some((code, said)) => client.write_all(&error(number(4), code, said)),
    }
}

/// An answer to the message of this number.
fn error(to: i32, code: i32, said: &str) -> Vec<u8> {
    let body = rawdoc! { "ok": 0.0, "errmsg": said, "code": code };
    let length = i32::try_from(16 + 4 + 1 + body.as_bytes().len()).expect("an error is short");
    let mut message: Vec<u8> = [length, 1, to, OP_MSG, 0].iter().flat_map(|number| number.to_le_bytes()).collect();
    message.push(0);
    message.extend_from_slice(body.as_bytes());
    message
}

/// Why a message is not passed on, in words like those of Cosmos DB.
fn refusal(message: &[u8], refused: &Refused) -> Option<(i32, &'static str)> {
    let (body, statements) = sections(message)?;
    let name = body.iter().next()?.ok()?.0.as_str().to_owned();
    let is = |field: &str| body.get_bool(field).unwrap_or(false);
    let by_pipeline = match &*name {
        "update" => statements.iter().any(|statement| statement.get_array("u").is_ok()),
        "findAndModify" => body.get_array("update").is_ok(),
        _ => false,
    };
    let resumes = &*name == "aggregate" && message.windows(11).any(|bytes| bytes == b"resumeAfter");
    let one_less = |left: usize| left.checked_sub(1);
    if resumes && refused.resumptions_left.fetch_update(Ordering::SeqCst, Ordering::SeqCst, one_less).is_ok() {
        return Some((134, "a passing error"));
    }
    let (count, code, said) = match &*name {
        _ if is("startTransaction") => (&refused.transactions, 115, "Transactions are not supported"),
        _ if by_pipeline => (&refused.pipelines, 9, "Updates by an aggregation pipeline are not supported"),
        _ if message.windows(5).any(|bytes| bytes == b"$$NOW") => {
            (&refused.times, 17276, "Use of undefined variable: NOW")
        }
        "create" if is("capped") => (&refused.capped, 115, "Capped collections are not supported"),
        "find" if is("tailable") => (&refused.tails, 115, "Tailable cursors are not supported"),
        _ => return None,
    };
    count.fetch_add(1, Ordering::SeqCst);
    Some((code, said))
}

/// The command, and the statements that it carries inside of it or behind it.
fn sections(message: &[u8]) -> Option<(RawDocumentBuf, Vec<Document>)> {
    let (mut body, mut statements) = (None, Vec::new());
    // The flags stand before the sections.
    let mut rest = message.get(4..)?;
    while let Some((kind, bytes)) = rest.split_first() {
        let length = usize::try_from(i32::from_le_bytes(bytes.get(..4)?.try_into().ok()?)).ok()?;
        let (section, after) = bytes.split_at_checked(length)?;
        match kind {
            0 => body = Some(RawDocument::from_bytes(section).ok()?.to_owned()),
            _ => statements.extend(listed(section)?),
        }
        rest = after;
    }
    let body = body?;
    if let Ok(inside) = body.get_array("updates") {
        let inside = inside.into_iter().flatten().filter_map(|statement| statement.as_document()?.try_into().ok());
        statements.extend(inside);
    }
    Some((body, statements))
}

/// The documents of a section that lists them behind its length and its name.
fn listed(section: &[u8]) -> Option<Vec<Document>> {
    let name = section.get(4..)?.iter().position(|byte| *byte == 0)?;
    let mut rest = section.get(4 + name + 1..)?;
    let mut documents = Vec::new();
    while !rest.is_empty() {
        let length = usize::try_from(i32::from_le_bytes(rest.get(..4)?.try_into().ok()?)).ok()?;
        let (document, after) = rest.split_at_checked(length)?;
        documents.push(RawDocument::from_bytes(document).ok()?.try_into().ok()?);
        rest = after;
    }
    Some(documents)
}
