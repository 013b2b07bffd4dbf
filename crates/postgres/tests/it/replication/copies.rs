//! Copies of tables, as targets of every grade keep them.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;

use watchkeeper_core::{
    Batch, Change, Entropy, OpenedSink, Operation, Sink, SinkContext, SinkWriter, StoreIdentity, Transacted, ValueRef,
};
use watchkeeper_postgres::{Client, Mirror, Versioned};
use watchkeeper_testkit::servers::postgres::Version;

use super::bench::{Base, cx};
use crate::sink::{SinkFixture, grant, shown};
use crate::support;

/// A row by its namespace and its key.
type Key = (String, Vec<u8>);

/// A version as a change has it.
type At = (u64, u64);

pub(crate) enum Copy {
    /// Takes what comes.
    Plain(BTreeMap<Key, String>),
    /// Lets nothing older win over what is newer, be it a row that is gone.
    Newest { rows: BTreeMap<Key, (At, Option<String>)>, cleared: BTreeMap<String, At> },
    /// The same as a sink of this crate.
    Versioned { client: Client, writer: Arc<dyn SinkWriter>, table: String },
    /// With the checkpoint in one transaction.
    Transactional { fixture: Box<SinkFixture>, seq: u64, table: String },
}

impl Copy {
    pub(crate) fn plain() -> Self {
        Self::Plain(BTreeMap::new())
    }

    pub(crate) fn newest() -> Self {
        Self::Newest { rows: BTreeMap::new(), cleared: BTreeMap::new() }
    }

    pub(crate) async fn versioned() -> Self {
        let place = support::Base::schema(Version::V18);
        let (client, table) = (place.client().await, place.table("copy"));
        let sink = Versioned::new(client.clone(), Mirror::into(&table).expect("a name"));
        let context = SinkContext {
            grant: grant(1),
            stream: "orders".to_owned(),
            sink: "copy".to_owned(),
            partition: 0,
            lanes: 1,
            store: StoreIdentity(Entropy::from_system().uuid()),
        };
        let OpenedSink::Plain(writer) = sink.open(&cx(), &context).await.expect("it opens") else { panic!("plain") };
        Self::Versioned { client, writer, table }
    }

    pub(crate) async fn transactional() -> Self {
        let place = support::Base::schema(Version::V18);
        let table = place.table("copy");
        let fixture = SinkFixture::new(place.client().await, Mirror::into(&table).expect("a name")).await;
        Self::Transactional { fixture: Box::new(fixture), seq: 0, table }
    }

    pub(crate) async fn deliver(&mut self, batch: &Arc<Batch>) {
        let rows: Vec<u32> = (0..).take(batch.len()).collect();
        match self {
            Self::Plain(copy) => changes(batch).for_each(|change| take(copy, &change)),
            Self::Newest { rows, cleared } => changes(batch).for_each(|change| take_newer(rows, cleared, &change)),
            Self::Versioned { writer, .. } => {
                let written = writer.write(&cx(), 0, batch, &rows).await.expect("the server answers");
                assert!(written.rejected.is_empty());
            }
            Self::Transactional { fixture, seq, .. } => {
                *seq += 1;
                let answer = fixture.deliver(*seq, batch).await.expect("the server answers");
                assert!(matches!(answer, Transacted::Committed), "{answer:?}");
            }
        }
    }

    /// Delivers the first `count` changes of a batch to a copy in memory.
    pub(crate) fn deliver_first(&mut self, batch: &Arc<Batch>, count: usize) {
        let first = changes(batch).take(count);
        match self {
            Self::Plain(copy) => first.for_each(|change| take(copy, &change)),
            Self::Newest { rows, cleared } => first.for_each(|change| take_newer(rows, cleared, &change)),
            Self::Versioned { .. } | Self::Transactional { .. } => panic!("a sink takes whole batches"),
        }
    }

    /// The rows as `table id:v`.
    async fn rows(&self) -> BTreeSet<String> {
        let sql = |table: &str, which: &str| {
            let row = "substr(namespace, 8) || ' ' || (document ->> 'id') || ':' || (document ->> 'v')";
            format!("SELECT {row} FROM {table} {which}")
        };
        match self {
            Self::Plain(copy) => copy.values().cloned().collect(),
            Self::Newest { rows, .. } => rows.values().filter_map(|(_, row)| row.clone()).collect(),
            Self::Versioned { client, table, .. } => {
                shown(client, &sql(table, "WHERE deleted IS NULL")).await.into_iter().collect()
            }
            Self::Transactional { fixture, table, .. } => fixture.shown(&sql(table, "")).await.into_iter().collect(),
        }
    }

    pub(crate) async fn assert_like(&self, base: &Base<'_>, tables: &[&str], which: &str) {
        let mut theirs = BTreeSet::new();
        for table in tables {
            let rows = base.sql.query(&format!("SELECT '{table} ' || id || ':' || v FROM {table}"), &[]).await;
            theirs.extend(rows.expect("a table can be read").iter().map(|row| row.get::<_, String>(0)));
        }
        let ours = self.rows().await;
        let (stale, missing): (Vec<_>, Vec<_>) =
            (ours.difference(&theirs).collect(), theirs.difference(&ours).collect());
        assert!(stale.is_empty() && missing.is_empty(), "{which}: the copy has {stale:?} and lacks {missing:?}");
    }
}

pub(crate) fn changes(batch: &Arc<Batch>) -> impl Iterator<Item = Change> {
    (0..).take(batch.len()).map(|row| Change::new(Arc::clone(batch), row))
}

/// The value of a change's new row.
pub(crate) fn value(change: &Change) -> Option<String> {
    match change.get(&["after", "v"]).expect("a body can be read") {
        Some(ValueRef::Str(text)) => Some(text.into_owned()),
        _ => None,
    }
}

fn row(change: &Change) -> Option<String> {
    let Ok(Some(ValueRef::Int32(id))) = change.get(&["after", "id"]) else { return None };
    let table = change.namespace().trim_start_matches("public.");
    Some(format!("{table} {id}:{}", value(change)?))
}

fn take(copy: &mut BTreeMap<Key, String>, change: &Change) {
    let Some(key) = change.key() else {
        assert_eq!(change.operation(), Operation::Truncate);
        return copy.retain(|(namespace, _), _| namespace != change.namespace());
    };
    let key = (change.namespace().to_owned(), key.to_owned());
    match row(change) {
        Some(row) => drop(copy.insert(key, row)),
        None => drop(copy.remove(&key)),
    }
}

fn take_newer(rows: &mut BTreeMap<Key, (At, Option<String>)>, cleared: &mut BTreeMap<String, At>, change: &Change) {
    let (namespace, at) = (change.namespace().to_owned(), (change.version().time, change.version().ordinal));
    let clear = cleared.entry(namespace.clone()).or_default();
    let Some(key) = change.key() else {
        *clear = at.max(*clear);
        return rows.retain(|(other, _), (written, _)| *other != namespace || *written > at);
    };
    let known = rows.entry((namespace, key.to_owned())).or_default();
    if at > known.0 && at > *clear {
        *known = (at, row(change));
    }
}
