//! Streams of one file that would get into each other's way.

use watchkeeper::Error;
use watchkeeper::core::Collector;

use super::{Stream, Target};

/// Refuses two streams of one name, two that read through one slot of one server (each would take it from the other, and what
/// one acknowledges the other never gets), and two targets that write the same files (each would take the other for a stale writer).
pub(super) fn refuse(streams: &[&Stream], collector: &Collector) {
    for (at, stream) in streams.iter().enumerate() {
        let earlier = &streams[..at];
        let wrong = [same_name(stream, earlier), same_slot(stream, earlier)];
        let wrong = wrong.into_iter().flatten().chain(same_files(stream, earlier));
        wrong.for_each(|error| collector.push(error));
    }
}

fn same_name(stream: &Stream, earlier: &[&Stream]) -> Option<Error> {
    let name = &stream.settings.name;
    let first = earlier.iter().find(|earlier| earlier.settings.name == *name)?;
    let cause = format!("two streams are named {name:?}; the other one is at {}", first.origin);
    Some(Error::config(cause).remedy("name them apart").at(&stream.origin))
}

fn same_slot(stream: &Stream, earlier: &[&Stream]) -> Option<Error> {
    let slot = Slot::of(stream)?;
    let first = earlier.iter().find(|earlier| Slot::of(earlier).as_ref() == Some(&slot))?;
    let (name, other, slot) = (&stream.settings.name, &first.settings.name, slot.name);
    let cause = format!("the streams {other:?} and {name:?} name one slot, {slot:?}, of one server");
    let remedy = "give each a slot of its own: leave `slot` out, and it gets one that is named after the stream";
    Some(Error::config(cause).remedy(remedy).at(stream.source.options.origin_of("slot")))
}

/// The targets of a stream that write what a target before them writes, of this stream or of another.
fn same_files(stream: &Stream, earlier: &[&Stream]) -> Vec<Error> {
    let own = |at: usize| stream.sinks[..at].iter().map(|target| (&stream.settings.name, target));
    let others = earlier.iter().flat_map(|stream| stream.sinks.iter().map(|target| (&stream.settings.name, target)));
    let conflict = |(at, target): (usize, &Target)| {
        let exclusive = target.exclusive.as_ref()?;
        let mut before = others.clone().chain(own(at));
        let (name, other) = before.find(|(_, other)| other.exclusive.as_ref() == Some(exclusive))?;
        let cause = format!("the sink {:?} of stream {name:?} writes {exclusive} too", other.name);
        let remedy = "give one of them another `prefix` or another `folder`";
        Some(Error::config(cause).remedy(remedy).at(target.system.options.origin()))
    };
    stream.sinks.iter().enumerate().filter_map(conflict).collect()
}

/// A slot, by its name and by where it is. A server has one of each name, whatever databases it has.
#[derive(Debug, PartialEq, Eq)]
struct Slot<'a> {
    system: &'static str,
    servers: Vec<String>,
    name: &'a str,
}

impl<'a> Slot<'a> {
    /// The one that the source of a stream names.
    fn of(stream: &'a Stream) -> Option<Self> {
        let (system, options) = (stream.source.backend.name(), &stream.source.options);
        let (name, url) = (options.peek_text("slot")?, options.peek_text("url")?);
        Some(Self { system, servers: servers(url), name })
    }
}

/// What of a URL says where servers are, in an order of its own. One server may be written in many ways, of which some are known here; of the
/// others it is found out when the second stream is to read.
fn servers(url: &str) -> Vec<String> {
    let rest = url.split_once("://").map_or(url, |(_, rest)| rest);
    let (rest, query) = rest.split_once('?').unwrap_or((rest, ""));
    let authority = rest.split_once('/').map_or(rest, |(authority, _)| authority);
    let hosts = authority.rsplit_once('@').map_or(authority, |(_, hosts)| hosts);
    let places = query.split('&').filter(|pair| {
        let name = pair.split('=').next().unwrap_or_default();
        ["host", "hostaddr", "port", "service"].contains(&name)
    });
    let mut servers: Vec<_> = hosts.split(',').map(server).chain(places.map(str::to_owned)).collect();
    servers.sort();
    servers
}

/// The port that goes without saying, and the names that every machine has for itself.
fn server(host: &str) -> String {
    let host = host.to_ascii_lowercase();
    let host = host.strip_suffix(":5432").unwrap_or(&host);
    let own = ["localhost", "127.0.0.1", "[::1]"];
    match own.iter().find_map(|name| host.strip_prefix(name)) {
        Some(port) if port.is_empty() || port.starts_with(':') => format!("localhost{port}"),
        _ => host.to_owned(),
    }
}
