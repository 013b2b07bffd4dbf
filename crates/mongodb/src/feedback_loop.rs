//! Whether a sink writes into what its own stream watches.
//!
//! Such a stream would be fed by its own sink for ever. Whoever has a sink made says what the stream reads ([`Purpose`]).
//!
//! Source and sinks of a stream are created one by one, so what a source watches is remembered by group and stream
//! until the sinks are created.

use watchkeeper_core::{Cx, Error, Purpose, Result};

use crate::sink::Name;
use crate::source::mentions;
use crate::{Client, Config, Feed, Scope, View};

/// What the source of a stream watches.
#[derive(Debug, Clone)]
pub(crate) struct Watched {
    /// The URLs that lead there.
    places: Vec<Config>,
    scope: Scope,
    /// Whether its pipeline chooses by namespace what is told: then the target may well be left out.
    is_chosen: bool,
}

impl Watched {
    pub(crate) fn new(places: Vec<Config>, view: &View) -> Self {
        let conditions = view.pipeline.iter().filter_map(|stage| stage.get("$match"));
        let is_chosen = conditions.into_iter().any(|condition| mentions(condition, "ns"));
        Self { places, scope: view.scope.clone(), is_chosen }
    }

    /// Whether changes of more than one collection may come, unless a filter chooses one.
    pub(crate) fn has_several(&self) -> bool {
        !matches!(&self.scope, Scope::Collections(names) if names.len() == 1)
    }

    /// The namespaces of the changes, where they are known beforehand.
    fn namespaces(&self) -> Vec<String> {
        let (Scope::Collections(names), Some(place)) = (&self.scope, self.places.first()) else { return Vec::new() };
        names.iter().map(|name| format!("{}.{name}", place.database())).collect()
    }

    /// Whether it would be told of a write into this collection of this database, if that is on the same servers.
    fn reaches(&self, database: &str, target: &Name) -> bool {
        let same_database = self.places.iter().any(|place| place.database() == database);
        match &self.scope {
            Scope::Cluster => !self.is_chosen,
            Scope::Database => same_database && !self.is_chosen,
            Scope::Collections(names) => {
                let is_watched = |name: &String| {
                    target.name_for(&format!("{database}.{name}")).is_ok_and(|target| names.contains(&target))
                };
                same_database && names.iter().any(is_watched)
            }
        }
    }

    /// Whether the URLs that lead there name a server that this one names too.
    fn names_host_of(&self, config: &Config) -> bool {
        let own = config.hosts();
        self.places.iter().any(|place| place.hosts().iter().any(|host| own.contains(host)))
    }

    /// Whether the client's servers are those that are watched. What cannot be found out is taken for another cluster.
    async fn is_on(&self, cx: &Cx, client: &Client) -> bool {
        if self.names_host_of(client.config()) {
            return true;
        }
        let Some(own) = cluster(cx, client).await else { return false };
        for place in &self.places {
            if let Some(watched) = cluster(cx, &Client::lazy(place.clone())).await {
                return watched == own;
            }
        }
        false
    }
}

/// The identity of the client's cluster, if it can be found out.
async fn cluster(cx: &Cx, client: &Client) -> Option<String> {
    Feed::new(client.clone(), View::of(Scope::Cluster)).cluster(cx).await.ok().flatten()
}

/// Refuses a target in which collections of several databases would meet, names that a sink may not write to, and a target of which the
/// stream's own source would tell, as far as that is known without asking the servers.
///
/// # Errors
/// `Config`.
pub(crate) fn refuse_named(purpose: &Purpose, watched: Option<&Watched>, config: &Config, target: &Name) -> Result<()> {
    let Some(watched) = watched else { return Ok(()) };
    if watched.scope == Scope::Cluster && target.mixes_databases() {
        let cause = format!("{:?} mixes collections of one name from several databases", target.as_str());
        return Err(Error::config(cause).remedy("name the database too, as in \"{database}.{collection}\""));
    }
    for namespace in watched.namespaces() {
        target.name_for(&namespace)?;
    }
    let is_fed = watched.reaches(config.database(), target) && watched.names_host_of(config);
    if is_fed { Err(fed(purpose, config, target)) } else { Ok(()) }
}

/// Refuses what [`refuse_named`] does, and a target of which the stream's own source would tell, whatever names lead there.
///
/// # Errors
/// `Config`.
pub(crate) async fn refuse(
    cx: &Cx,
    purpose: &Purpose,
    watched: Option<&Watched>,
    client: &Client,
    target: &Name,
) -> Result<()> {
    refuse_named(purpose, watched, client.config(), target)?;
    let Some(watched) = watched else { return Ok(()) };
    if !watched.reaches(client.config().database(), target) || !watched.is_on(cx, client).await {
        return Ok(());
    }
    Err(fed(purpose, client.config(), target))
}

/// The error of a stream that its own sink would feed.
fn fed(purpose: &Purpose, config: &Config, target: &Name) -> Error {
    let cause = format!(
        "the stream {:?} watches {}.{}, which this sink writes to: it would be fed by itself for ever",
        purpose.stream,
        config.database(),
        target.as_str()
    );
    Error::config(cause).remedy(
        "write into another database or cluster, name the collections to watch, or leave the target out by a $match on ns in the pipeline",
    )
}
