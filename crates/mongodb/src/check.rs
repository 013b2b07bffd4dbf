//! Looks at servers and users that change nothing.

use std::time::Duration;

use mongodb::bson::{Bson, Document, doc};
use watchkeeper_core::{Cx, Error, ErrorKind, Finding, Grade, Result, Severity};

use crate::Client;
use crate::sink::without_transactions;

/// The wire version of MongoDB 5.0, the oldest that Watchkeeper is made for.
const WIRE_VERSION_MIN: i32 = 13;

/// After which silence members elect a new primary, unless the set says otherwise.
const ELECTION_USUAL: Duration = Duration::from_secs(10);

/// What an election takes beside noticing that the primary is gone.
const ELECTION_ITSELF: Duration = Duration::from_secs(2);

pub(crate) fn finding(severity: Severity, what: impl Into<String>, remedy: impl Into<String>) -> Finding {
    Finding { severity, what: what.into(), remedy: Some(remedy.into()) }
}

/// What a user without the privilege to know, or a server that has no such thing, does not tell.
fn permitted(answer: Result<Document>) -> Result<Option<Document>> {
    match answer {
        Ok(answer) => Ok(Some(answer)),
        Err(error) if matches!(error.kind(), ErrorKind::Unavailable | ErrorKind::Unknown) => Err(error),
        Err(_) => Ok(None),
    }
}

/// Whether these servers can tell what is safe: their storage engine, and the majority of them.
pub(crate) async fn servers(cx: &Cx, client: &Client) -> Result<Vec<Finding>> {
    let hello = client.admin(cx, doc! { "hello": 1 }).await?;
    let mut found = Vec::from_iter(of_arbiters(&hello));
    if let Some(status) = permitted(client.admin(cx, doc! { "serverStatus": 1 }).await)? {
        found.extend(of_engine(&status));
    }
    if let Some(status) = permitted(client.admin(cx, doc! { "replSetGetStatus": 1 }).await)? {
        found.extend(of_majority(&status));
    }
    Ok(found)
}

/// A storage engine that cannot read what a majority has.
fn of_engine(status: &Document) -> Option<Finding> {
    let engine = status.get_document("storageEngine").ok()?;
    let committed = engine.get_bool("supportsCommittedReads").unwrap_or(true);
    let name = engine.get_str("name").unwrap_or("this one");
    let what = format!("the storage engine {name} does not tell what a majority of the servers has");
    (!committed).then(|| finding(Severity::Error, what, "use the storage engine wiredTiger"))
}

fn count(hello: &Document, field: &str) -> usize {
    hello.get_array(field).map_or(0, Vec::len)
}

/// Arbiters vote, but keep nothing: without one more member there may be a primary that nothing can be written to.
fn of_arbiters(hello: &Document) -> Option<Finding> {
    let (bearing, arbiters) = (count(hello, "hosts") + count(hello, "passives"), count(hello, "arbiters"));
    let majority = (bearing + arbiters) / 2 + 1;
    if arbiters == 0 || bearing > majority {
        return None;
    }
    let what = format!(
        "{arbiters} of {} members are arbiters: when one of the others is down, no majority confirms a write",
        bearing + arbiters
    );
    Some(finding(Severity::Warning, what, "make the arbiter a member that keeps data"))
}

/// Members that are down just now.
fn of_majority(status: &Document) -> Option<Finding> {
    let members: Vec<&Document> = status.get_array("members").ok()?.iter().filter_map(Bson::as_document).collect();
    let is_up = |member: &&&Document| member.get_f64("health").is_ok_and(|health| health > 0.0);
    let (all, up) = (members.len(), members.iter().filter(is_up).count());
    if up == all {
        return None;
    }
    let severity = if up > all / 2 { Severity::Warning } else { Severity::Error };
    Some(finding(severity, format!("only {up} of {all} members of the replica set are up"), "start the others"))
}

/// What its greeting tells of a set as a store.
pub(crate) async fn as_store(cx: &Cx, client: &Client) -> Result<Vec<Finding>> {
    let hello = client.admin(cx, doc! { "hello": 1 }).await?;
    let mut found = Vec::new();
    if hello.get_i32("maxWireVersion").is_ok_and(|version| version < WIRE_VERSION_MIN) {
        found.push(finding(Severity::Error, "the servers are older than MongoDB 5.0", "use 5.0 or newer"));
    }
    let set = hello.get_str("setName").unwrap_or("(sharded)");
    let members = count(&hello, "hosts");
    if hello.contains_key("hosts") && members < 3 {
        let what = format!("the replica set {set} has {members} of the three members that survive a failure");
        let remedy = "add members, or accept that nobody takes over while it is down";
        found.push(finding(Severity::Warning, what, remedy));
    }
    Ok(found)
}

/// What a store has to do without on servers that only speak MongoDB's protocol.
pub(crate) async fn doing_without(cx: &Cx, client: &Client) -> Result<Option<Finding>> {
    if known(client.has_clock(cx).await)?.unwrap_or(true) {
        return Ok(None);
    }
    let what = "these servers do not compare times ($$NOW in updates), so leases are judged by observation: \
                whoever has just started takes over only after it has watched a silent lease for its whole length";
    Ok(Some(finding(Severity::Warning, what, "use a replica set of MongoDB 5.0 or newer, or keep leases short")))
}

/// What a sink of this grade needs and does not find.
pub(crate) async fn lacking(cx: &Cx, client: &Client, grade: Grade) -> Result<Option<Finding>> {
    if grade == Grade::Transactional && !known(client.has_transactions(cx).await)?.unwrap_or(true) {
        let error = without_transactions(client);
        return Ok(Some(finding(Severity::Error, error.message(), error.advice().unwrap_or_default())));
    }
    if grade == Grade::Versioned && !known(client.has_clock(cx).await)?.unwrap_or(true) {
        let what = format!("{}: these servers have no updates by pipelines, which compare versions", client.place());
        return Ok(Some(finding(Severity::Error, what, "use a replica set of MongoDB 5.0 or newer")));
    }
    Ok(None)
}

/// What a user who may not even ask does not find out. Missing privileges are named elsewhere.
fn known(answer: Result<bool>) -> Result<Option<bool>> {
    match answer {
        Err(error) if error.kind() == ErrorKind::Denied => Ok(None),
        answer => answer.map(Some),
    }
}

/// What a holder leaves unused of a lease when its store falls silent: the time since the last renewal, and a margin.
const UNUSED: Duration = Duration::from_secs(3);

/// Whether leases of this length outlast an election, so that the watch stays where it is.
pub(crate) async fn election(cx: &Cx, client: &Client, lease: Duration) -> Result<Option<Finding>> {
    let hello = client.admin(cx, doc! { "hello": 1 }).await?;
    if count(&hello, "hosts") + count(&hello, "passives") < 2 {
        return Ok(None);
    }
    let config = permitted(client.admin(cx, doc! { "replSetGetConfig": 1 }).await)?;
    let settings = config.as_ref().and_then(|config| config.get_document("config").ok()?.get_document("settings").ok());
    let notice = settings.and_then(|settings| crate::client::number(settings.get("electionTimeoutMillis")));
    let longest = notice.map_or(ELECTION_USUAL, Duration::from_millis) + ELECTION_ITSELF;
    if lease >= longest + UNUSED {
        return Ok(None);
    }
    let what = format!("leases of {lease:?} do not outlast an election of the replica set, which may take {longest:?}");
    let remedy = format!(
        "lengthen the lease to {}s, or accept that the watch may change hands then",
        (longest + UNUSED).as_secs()
    );
    Ok(Some(finding(Severity::Warning, what, remedy)))
}

/// What a user may do. Where there are no users, everyone may do everything.
#[derive(Debug)]
pub(crate) struct Privileges(Vec<Document>);

impl Privileges {
    /// Those of the client's own user; `None` where nobody has to log in.
    ///
    /// # Errors
    /// `Denied` when one has to, and the URL names nobody.
    pub(crate) async fn of(cx: &Cx, client: &Client) -> Result<Option<Self>> {
        let status = client.admin(cx, doc! { "connectionStatus": 1, "showPrivileges": true }).await?;
        let Ok(info) = status.get_document("authInfo") else { return Ok(None) };
        if info.get_array("authenticatedUsers").map_or(true, Vec::is_empty) {
            return let_in(cx, client).await.map(|()| None);
        }
        let own = info.get_array("authenticatedUserPrivileges").into_iter().flatten();
        Ok(Some(Self(own.filter_map(Bson::as_document).cloned().collect())))
    }

    /// One finding for each of these actions that is missing in some of these places: a database, and a collection of it.
    /// An empty name stands for all.
    pub(crate) fn missing(&self, places: &[(&str, &str)], actions: &[&str], remedy: &str) -> Vec<Finding> {
        let lacking = |action: &&str| {
            let is_missing = |place: &&(&str, &str)| !self.0.iter().any(|own| grants(own, place.0, place.1, action));
            let named: Vec<String> = places.iter().filter(is_missing).map(|place| named(place.0, place.1)).collect();
            let what = format!("this user lacks the privilege {action} on {}", named.join(", "));
            (!named.is_empty()).then(|| finding(Severity::Error, what, remedy))
        };
        actions.iter().filter_map(lacking).collect()
    }
}

/// Asks for something that every server tells whom it lets in without a name.
async fn let_in(cx: &Cx, client: &Client) -> Result<()> {
    let list = doc! { "listCollections": 1, "nameOnly": true };
    match client.read(cx, list).await {
        Err(error) if error.kind() == ErrorKind::Denied => {
            let cause = format!("{}: the server lets nobody in without a user, and the URL names none", client.place());
            Err(Error::new(ErrorKind::Denied, cause)
                .remedy("name one in the URL: mongodb://USER:PASSWORD@…?authSource=admin")
                .caused_by(error))
        }
        // Whatever else there is to say of it is said by who needs it.
        _ => Ok(()),
    }
}

fn named(database: &str, collection: &str) -> String {
    match (database, collection) {
        ("", _) => "all databases".to_owned(),
        (database, "") => format!("the database {database}"),
        (database, collection) => format!("{database}.{collection}"),
    }
}

/// Whether a privilege grants an action there.
fn grants(privilege: &Document, database: &str, collection: &str, action: &str) -> bool {
    let Ok(resource) = privilege.get_document("resource") else { return false };
    let covers = |field: &str, wanted: &str| resource.get_str(field).is_ok_and(|own| own.is_empty() || own == wanted);
    let everywhere = resource.get_bool("anyResource").unwrap_or(false);
    let actions = privilege.get_array("actions").map(|actions| actions.iter().any(|own| own.as_str() == Some(action)));
    (everywhere || (covers("db", database) && covers("collection", collection))) && actions.unwrap_or(false)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_storage_engine_without_majority_reads_is_an_error() {
        let status = doc! { "storageEngine": { "name": "mmapv1", "supportsCommittedReads": false } };
        let found = of_engine(&status).expect("it is found");
        assert!(found.severity == Severity::Error && found.what.contains("mmapv1"), "{found:?}");
        assert_eq!(
            of_engine(&doc! { "storageEngine": { "name": "wiredTiger", "supportsCommittedReads": true } }),
            None
        );
    }

    #[test]
    fn an_arbiter_is_no_member_that_keeps_data() {
        let found = of_arbiters(&doc! { "hosts": ["a", "b"], "arbiters": ["c"] }).expect("it is found");
        assert!(found.what.contains("1 of 3 members are arbiters"), "{found:?}");
        assert_eq!(of_arbiters(&doc! { "hosts": ["a", "b", "c"] }), None);
        assert_eq!(of_arbiters(&doc! { "hosts": ["a", "b", "c", "d"], "arbiters": ["e"] }), None);
    }

    #[test]
    fn members_that_are_down_are_counted() {
        let status = |health: [f64; 3]| doc! { "members": health.map(|health| doc! { "health": health }).to_vec() };
        assert_eq!(of_majority(&status([1.0, 1.0, 1.0])), None);
        let one = of_majority(&status([1.0, 1.0, 0.0])).expect("it is found");
        assert!(one.severity == Severity::Warning && one.what.contains("only 2 of 3"), "{one:?}");
        assert_eq!(of_majority(&status([1.0, 0.0, 0.0])).map(|found| found.severity), Some(Severity::Error));
    }
}
