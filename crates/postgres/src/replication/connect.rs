//! From settings to a connection: hosts, TLS and proof of who we are.

use std::io;

use bytes::BytesMut;
use fallible_iterator::FallibleIterator;
use postgres_protocol::authentication::md5_hash;
use postgres_protocol::authentication::sasl::{self, ScramSha256};
use postgres_protocol::message::backend::Message;
use postgres_protocol::message::frontend;
use rustls_pki_types::ServerName;
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::{TcpSocket, TcpStream, ToSocketAddrs, UnixStream, lookup_host};
use tokio_postgres::config::{ChannelBinding, Host, SslMode, SslNegotiation};
use tokio_rustls::TlsConnector;
use watchkeeper_core::{Cx, Error, ErrorKind, Result};

use super::binding;
use super::failure::to_error;
use super::socket::{Line, Socket};
use super::wire::{Failure, Refusal, ServerMessage, Wire};
use crate::config::Config;
use crate::error::{UNREACHABLE, unchanged, without_number};

/// What is said of a server that takes no encrypted connections.
pub(super) const NO_TLS: &str = "the server does not speak TLS, which sslmode asks for";

/// The port of a server that names none.
const PORT: u16 = 5_432;

/// How much may wait in the socket.
const RECEIVE_BUFFER: u32 = 1 << 20;

/// What the values of columns look like depends on these, so they are the same for every reader, and so does how long the server
/// has patience with one that waits for its target: what an administrator has set for a role or a database is meant for others.
/// Policies may hide rows from this user: a snapshot is to fail then, and not to leave them out.
const FIXED: [(&str, &str); 14] = [
    ("client_encoding", "UTF8"),
    ("DateStyle", "ISO"),
    ("IntervalStyle", "postgres"),
    ("TimeZone", "UTC"),
    ("bytea_output", "hex"),
    ("lc_monetary", "C"),
    ("extra_float_digits", "3"),
    ("standard_conforming_strings", "on"),
    ("statement_timeout", "0"),
    ("lock_timeout", "0"),
    ("idle_session_timeout", "0"),
    ("idle_in_transaction_session_timeout", "0"),
    ("default_transaction_isolation", "read committed"),
    ("row_security", "off"),
];

/// What a connection is for.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum ConnectionUse {
    /// It can read the log. The server has room for few of this kind.
    Replication,
    /// It can only ask.
    Questions,
}

/// A server, and how it is reached, and what our connections call themselves there.
#[derive(Debug, Clone)]
pub(super) struct Endpoint(pub(super) Config, String);

/// What connections call themselves that nobody has named.
const APPLICATION: &str = "watchkeeper";

/// The longest name of a session that the server keeps whole.
const SESSION_MAX: usize = 63;

impl Endpoint {
    /// For readers of a stream, which are known by its name to those who take it over; any without.
    pub(super) fn new(config: Config, stream: Option<&str>) -> Self {
        let application = config.postgres().get_application_name().unwrap_or(APPLICATION);
        let session = stream.map_or_else(|| application.to_owned(), |stream| session(application, stream));
        Self(config, session)
    }

    /// Connects to the first host that answers and can be written to: of several, the others are standbys.
    pub(super) async fn connect(&self, cx: &Cx) -> Result<Wire> {
        self.connect_for(cx, ConnectionUse::Replication).await
    }

    /// The same, for someone who only asks and takes no room from those who read the log.
    pub(super) async fn connect_to_ask(&self, cx: &Cx) -> Result<Wire> {
        self.connect_for(cx, ConnectionUse::Questions).await
    }

    async fn connect_for(&self, cx: &Cx, purpose: ConnectionUse) -> Result<Wire> {
        let driver = self.0.postgres();
        let count = driver.get_hosts().len().max(driver.get_hostaddrs().len());
        let mut last = None;
        for at in 0..count {
            let cx = cx.within(driver.get_connect_timeout().copied().unwrap_or(self.0.timeout));
            let connected = cx.run(async {
                let mut wire = self.connect_with_password(at, purpose).await?;
                if count > 1 && is_standby(&mut wire).await.map_err(|failure| self.refused(failure))? {
                    return Err(Error::unavailable(format!("{}: the server is a standby", self.0.place())));
                }
                Ok(wire)
            });
            match connected.await {
                Ok(wire) => return Ok(wire),
                // Nothing is changed by connecting.
                Err(error) => last = Some(unchanged(error)),
            }
        }
        Err(last.unwrap_or_else(|| {
            Error::config("the URL names no host").remedy("write \"postgres://user@host/database\"")
        }))
    }

    /// Connects to one host; once more if access is denied and the password has changed.
    async fn connect_with_password(&self, at: usize, purpose: ConnectionUse) -> Result<Wire> {
        let used = self.0.credentials().password();
        match self.connect_to(at, purpose).await.map_err(|failure| self.refused(failure)) {
            Err(error)
                if error.kind() == ErrorKind::Denied
                    && self.0.credentials().renew(used.as_deref(), &self.0.place()) =>
            {
                self.connect_to(at, purpose).await.map_err(|failure| self.refused(failure))
            }
            answer => answer,
        }
    }

    /// Whether a session of this name is one that reads for the same stream, or does not say for which.
    pub(super) fn is_ours(&self, session: &str) -> bool {
        session == self.1 || session == self.0.postgres().get_application_name().unwrap_or(APPLICATION)
    }

    fn refused(&self, failure: Failure) -> Error {
        to_error(&self.0.place(), failure)
    }

    async fn connect_to(&self, at: usize, purpose: ConnectionUse) -> Result<Wire, Failure> {
        let driver = self.0.postgres();
        let ports = driver.get_ports();
        let port = ports.get(at).or(ports.first()).copied().unwrap_or(PORT);
        let address = driver.get_hostaddrs().get(at);
        let (socket, bound) = match (driver.get_hosts().get(at), address) {
            (Some(Host::Unix(folder)), _) => {
                let path = folder.join(format!(".s.PGSQL.{port}"));
                let stream = UnixStream::connect(path).await.map_err(unreachable)?;
                (Box::new(Line::Watched(stream)) as Box<dyn Socket>, None)
            }
            (Some(Host::Tcp(host)), None) => self.secured(dial((host.as_str(), port)).await?, host).await?,
            (Some(Host::Tcp(host)), Some(address)) => self.secured(dial((*address, port)).await?, host).await?,
            (None, Some(address)) => self.secured(dial((*address, port)).await?, &address.to_string()).await?,
            (None, None) => return Err(io::Error::other("the URL names no host").into()),
        };
        let mut wire = Wire::new(socket);
        self.introduce(&mut wire, bound, purpose).await?;
        Ok(wire)
    }

    /// TLS as the settings ask for it, and what a password's proof is bound to over it.
    async fn secured(&self, mut stream: TcpStream, host: &str) -> Result<(Box<dyn Socket>, Option<Vec<u8>>), Failure> {
        stream.set_nodelay(true)?;
        let mode = self.0.postgres().get_ssl_mode();
        let (false, Some(tls)) = (mode == SslMode::Disable, self.0.tls()) else {
            return Ok((Box::new(Line::Watched(stream)), None));
        };
        if self.0.postgres().get_ssl_negotiation() == SslNegotiation::Postgres {
            let mut request = BytesMut::new();
            frontend::ssl_request(&mut request);
            stream.write_all(&request).await?;
            if stream.read_u8().await? != b'S' {
                if mode == SslMode::Prefer {
                    return Ok((Box::new(Line::Watched(stream)), None));
                }
                return Err(unsupported(NO_TLS).into());
            }
        }
        let name = ServerName::try_from(host.to_owned()).map_err(io::Error::other)?;
        let stream = TlsConnector::from(tls).connect(name, Line::Watched(stream)).await?;
        let certificate = stream.get_ref().1.peer_certificates().and_then(|chain| chain.first());
        let bound = certificate.and_then(|certificate| binding::end_point(certificate));
        Ok((Box::new(stream), bound))
    }

    /// Says who we are, and proves it.
    async fn introduce(&self, wire: &mut Wire, bound: Option<Vec<u8>>, purpose: ConnectionUse) -> Result<(), Failure> {
        let mut parameters =
            vec![("user", self.0.user()), ("database", self.0.database()), ("application_name", self.1.as_str())];
        parameters.extend(FIXED);
        parameters.extend((purpose == ConnectionUse::Replication).then_some(("replication", "database")));
        if let Some(options) = self.0.postgres().get_options() {
            parameters.push(("options", options));
        }
        let mut message = BytesMut::new();
        frontend::startup_message(parameters, &mut message)?;
        wire.send(&message).await?;
        let mut scram = None;
        loop {
            let ServerMessage::Message(heard) = wire.read_message().await? else { continue };
            let mut answer = BytesMut::new();
            match heard {
                Message::AuthenticationCleartextPassword => frontend::password_message(&self.password()?, &mut answer)?,
                Message::AuthenticationMd5Password(body) => {
                    let hash = md5_hash(self.0.user().as_bytes(), &self.password()?, body.salt());
                    frontend::password_message(hash.as_bytes(), &mut answer)?;
                }
                Message::AuthenticationSasl(body) => {
                    let offered: Vec<String> = body.mechanisms().map(|name| Ok(name.to_owned())).collect()?;
                    let (mechanism, binding) = self.mechanism(&offered, bound.clone())?;
                    let proof = ScramSha256::new(&self.password()?, binding);
                    frontend::sasl_initial_response(mechanism, proof.message(), &mut answer)?;
                    scram = Some(proof);
                }
                Message::AuthenticationSaslContinue(body) => {
                    let proof = begun(&mut scram)?;
                    proof.update(body.data())?;
                    frontend::sasl_response(proof.message(), &mut answer)?;
                }
                Message::AuthenticationSaslFinal(body) => begun(&mut scram)?.finish(body.data())?,
                Message::ErrorResponse(body) => return Err(Failure::Refused(Refusal::read(&body))),
                Message::ReadyForQuery(_) => return Ok(()),
                Message::ParameterStatus(body) if body.name()? == "server_version" => wire.major = major(body.value()?),
                Message::AuthenticationGss | Message::AuthenticationSspi | Message::AuthenticationKerberosV5 => {
                    return Err(unsupported("the server asks for Kerberos, which is not supported").into());
                }
                _ => {}
            }
            if !answer.is_empty() {
                wire.send(&answer).await?;
            }
        }
    }

    fn password(&self) -> io::Result<Vec<u8>> {
        let missing = || io::Error::new(io::ErrorKind::PermissionDenied, "the server asks for a password; none is set");
        self.0.credentials().password().ok_or_else(missing)
    }

    /// SCRAM bound to the server's certificate where both sides can, so that nobody between them can pass the proof on.
    fn mechanism(
        &self,
        offered: &[String],
        bound: Option<Vec<u8>>,
    ) -> Result<(&'static str, sasl::ChannelBinding), Failure> {
        let wanted = self.0.postgres().get_channel_binding();
        let offers = |name: &str| offered.iter().any(|offered| offered == name);
        match bound {
            Some(bound) if wanted != ChannelBinding::Disable && offers(sasl::SCRAM_SHA_256_PLUS) => {
                return Ok((sasl::SCRAM_SHA_256_PLUS, sasl::ChannelBinding::tls_server_end_point(bound)));
            }
            _ if wanted == ChannelBinding::Require => {
                return Err(unsupported("channel_binding=require, but the server does not offer it").into());
            }
            // The server would offer it if it could: saying so lets it find out that the offer was cut out on the way.
            Some(_) if wanted != ChannelBinding::Disable && offers(sasl::SCRAM_SHA_256) => {
                return Ok((sasl::SCRAM_SHA_256, sasl::ChannelBinding::unrequested()));
            }
            _ => {}
        }
        if offers(sasl::SCRAM_SHA_256) {
            return Ok((sasl::SCRAM_SHA_256, sasl::ChannelBinding::unsupported()));
        }
        Err(unsupported("the server offers no way to prove a password that is supported").into())
    }
}

/// What readers of a stream call themselves: readable, in signs that the server keeps, and another name for every stream.
fn session(application: &str, stream: &str) -> String {
    let whole = format!("{application} {stream}");
    let safe = |sign: char| if sign == ' ' || sign.is_ascii_graphic() { sign } else { '_' };
    let readable: String = whole.chars().map(safe).take(SESSION_MAX - 9).collect();
    format!("{readable}#{:08x}", xxhash_rust::xxh3::xxh3_64(whole.as_bytes()) >> 32)
}

/// The same error, saying that there was no connection yet.
fn unreachable(error: io::Error) -> io::Error {
    io::Error::new(error.kind(), format!("{UNREACHABLE} ({})", without_number(&error.to_string())))
}

/// Connects to the first address that answers.
///
/// A reader that is behind reads now and then: what arrives in between has to find room, or the server waits.
async fn dial(host: impl ToSocketAddrs) -> io::Result<TcpStream> {
    let mut last = io::Error::new(io::ErrorKind::NotFound, "the name of the host has no address");
    for address in lookup_host(host).await.map_err(unreachable)? {
        let socket = if address.is_ipv4() { TcpSocket::new_v4() } else { TcpSocket::new_v6() }?;
        // The system may allow less, which is slower and nothing worse.
        let _ = socket.set_recv_buffer_size(RECEIVE_BUFFER);
        match socket.connect(address).await {
            Ok(stream) => return Ok(stream),
            Err(error) => last = error,
        }
    }
    Err(unreachable(last))
}

/// The number with which a version begins.
fn major(version: &str) -> u32 {
    version.split(|sign: char| !sign.is_ascii_digit()).next().and_then(|number| number.parse().ok()).unwrap_or_default()
}

fn unsupported(what: &str) -> io::Error {
    io::Error::new(io::ErrorKind::Unsupported, what)
}

fn begun(scram: &mut Option<ScramSha256>) -> io::Result<&mut ScramSha256> {
    scram.as_mut().ok_or_else(|| io::Error::other("the server goes on with a proof that was not begun"))
}

async fn is_standby(wire: &mut Wire) -> Result<bool, Failure> {
    let rows = wire.query("SELECT pg_is_in_recovery()").await?;
    Ok(rows.first().and_then(|row| row.first()).and_then(Option::as_deref) == Some("t"))
}
