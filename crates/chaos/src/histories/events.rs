//! Events: the state that they lead to, and whether every change is there in order.

use std::collections::BTreeMap;

use serde::Deserialize;
use serde_json::value::RawValue;
use watchkeeper_testkit::histories::{Plan, SchemaChange, Start, Statement, Step, Value};

use super::Trouble;
use super::literal::Dialect;

/// One event of a target, in the order of arrival.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct Event {
    pub(super) table: String,
    pub(super) operation: String,
    /// The key as JSON; none of an event that is about a whole table.
    pub(super) key: Option<String>,
    /// The row as JSON, if there is one after the event.
    pub(super) row: Option<String>,
    /// The `rev` that the event wrote.
    pub(super) rev: Option<u64>,
    /// The new name of what was renamed.
    pub(super) to: Option<String>,
}

/// Rows as JSON, by table.
pub(super) type Rows = BTreeMap<String, Vec<String>>;

/// An event of a table of rows.
#[derive(Debug, Deserialize)]
struct Body {
    #[serde(default)]
    before: Option<Box<RawValue>>,
    #[serde(default)]
    after: Option<Box<RawValue>>,
}

/// An event of a collection.
#[derive(Debug, Deserialize)]
#[serde(rename_all = "camelCase")]
struct Document {
    operation_type: String,
    /// An invalidation names none.
    #[serde(default)]
    ns: Namespace,
    /// The new name, of a rename.
    #[serde(default)]
    to: Namespace,
    #[serde(default)]
    document_key: Option<BTreeMap<String, Box<RawValue>>>,
    #[serde(default)]
    full_document: Option<Box<RawValue>>,
    #[serde(default)]
    update_description: Option<Update>,
}

#[derive(Debug, Default, Deserialize)]
struct Namespace {
    #[serde(default)]
    coll: String,
}

#[derive(Debug, Deserialize)]
#[serde(rename_all = "camelCase")]
struct Update {
    updated_fields: BTreeMap<String, Box<RawValue>>,
}

fn unreadable(error: serde_json::Error) -> Trouble {
    format!("an event cannot be read: {error}")
}

/// The number of a raw field, whatever form it has.
fn number(raw: &RawValue) -> Option<u64> {
    let digits: String = raw.get().chars().filter(char::is_ascii_digit).collect();
    digits.parse().ok()
}

fn fields(row: &RawValue) -> Result<BTreeMap<String, Box<RawValue>>, Trouble> {
    serde_json::from_str(row.get()).map_err(unreadable)
}

fn is_null(raw: &RawValue) -> bool {
    raw.get() == "null"
}

impl Event {
    /// From the parts of an event of a table of rows.
    pub(super) fn of_row(table: &str, operation: &str, body: &str) -> Result<Self, Trouble> {
        let body: Option<Body> = if body.is_empty() { None } else { serde_json::from_str(body).map_err(unreadable)? };
        let (before, after) = body.map_or((None, None), |body| (body.before, body.after));
        let after = after.filter(|row| !is_null(row));
        let shown = after.as_ref().or(before.as_ref().filter(|row| !is_null(row)));
        let shown = shown.map(|row| fields(row)).transpose()?.unwrap_or_default();
        let is_about_a_row = matches!(operation, "insert" | "update" | "delete" | "read");
        Ok(Self {
            table: table.rsplit('.').next().unwrap_or(table).to_owned(),
            operation: operation.to_owned(),
            key: shown.get("id").filter(|_| is_about_a_row).map(|key| key.get().to_owned()),
            rev: after.as_ref().and_then(|_| number(shown.get("rev")?)),
            row: after.map(|row| row.get().to_owned()),
            to: None,
        })
    }

    /// From an event of a collection, as JSON.
    pub(super) fn of_document(text: &str) -> Result<Self, Trouble> {
        let event: Document = serde_json::from_str(text).map_err(unreadable)?;
        let row = event.full_document.filter(|row| !is_null(row));
        let rev = match (&event.update_description, &row) {
            (Some(update), _) => update.updated_fields.get("rev").and_then(|rev| number(rev)),
            (None, Some(row)) => fields(row)?.get("rev").and_then(|rev| number(rev)),
            (None, None) => None,
        };
        Ok(Self {
            table: event.ns.coll,
            operation: event.operation_type,
            key: event.document_key.and_then(|key| Some(key.get("_id")?.get().to_owned())),
            row: row.map(|row| row.get().to_owned()),
            rev,
            to: (!event.to.coll.is_empty()).then_some(event.to.coll),
        })
    }
}

/// The rows that are left when all events have happened.
pub(super) fn replay(events: &[Event]) -> Rows {
    let mut state: BTreeMap<(&str, &str), &str> = BTreeMap::new();
    for Event { table, operation, key, row, to, .. } in events {
        match (operation.as_str(), key, row) {
            ("truncate" | "drop", _, _) => state.retain(|(of, _), _| of != table),
            // Only collections without documents are renamed to names that the stream reads.
            ("rename", _, _) => state.retain(|(of, _), _| of != table && Some(*of) != to.as_deref()),
            ("delete", Some(key), _) => {
                state.remove(&(table.as_str(), key.as_str()));
            }
            // An update without a document tells that it was deleted since; its delete follows.
            (_, Some(key), Some(row)) => {
                state.insert((table, key), row);
            }
            _ => {}
        }
    }
    let mut rows = Rows::new();
    for ((table, _), row) in state {
        rows.entry(table.to_owned()).or_default().push(row.to_owned());
    }
    rows
}

/// Every committed `rev`, by table and key in its order.
fn committed(plan: &Plan) -> BTreeMap<(String, String), Vec<u64>> {
    let mut revs: BTreeMap<(String, String), Vec<u64>> = BTreeMap::new();
    let key = |key: &Value| Dialect::Postgres.literal(key);
    for step in &plan.steps {
        let Step::Transaction { statements, commit: true } = step else { continue };
        for statement in statements {
            let (table, written, rev) = match statement {
                Statement::Insert { table, key: written, rev, .. }
                | Statement::Update { table, key: written, rev, .. }
                | Statement::Replace { table, key: written, rev, .. }
                | Statement::MoveKey { table, to: written, rev, .. } => (table, written, rev),
                Statement::Delete { .. } | Statement::Truncate { .. } => continue,
            };
            revs.entry((table.clone(), key(written))).or_default().push(*rev);
        }
    }
    revs
}

/// The first change that is missing, or out of order, among the events of each key.
///
/// After a crash a run of events may be repeated where the sink is not transactional. With a snapshot not every change is reported; where
/// nothing may be repeated, a key still never goes back to an older change.
pub(super) fn out_of_order(plan: &Plan, events: &[Event]) -> Option<String> {
    // Rows that a schema change wrote again bear a `rev` of no statement.
    let again = |step: &Step| match step {
        Step::Schema(SchemaChange::RenameColumn { rev, .. }) => Some(*rev),
        _ => None,
    };
    let again: Vec<u64> = plan.steps.iter().filter_map(again).collect();
    let mut keys: BTreeMap<u64, (&(String, String), usize)> = BTreeMap::new();
    let committed = committed(plan);
    for (key, revs) in &committed {
        revs.iter().enumerate().for_each(|(at, rev)| {
            keys.insert(*rev, (key, at));
        });
    }
    if plan.start == Start::Snapshot {
        return step_back(plan, &keys, events.iter().filter_map(|event| event.rev).filter(|rev| !again.contains(rev)));
    }
    let mut reached: BTreeMap<&(String, String), usize> = BTreeMap::new();
    for rev in events.iter().filter_map(|event| event.rev).filter(|rev| !again.contains(rev)) {
        let Some((key, at)) = keys.get(&rev) else {
            return Some(format!("rev {rev} arrived, but was never committed"));
        };
        let next = reached.entry(key).or_default();
        let is_repeated = *at < *next && !plan.sink.is_transactional();
        if *at != *next && !is_repeated {
            return Some(format!("rev {rev} of {} {} arrived as change {at}, expected was {next}", key.0, key.1));
        }
        *next = at + 1;
    }
    let missing = committed.iter().find(|(key, revs)| reached.get(key).copied().unwrap_or(0) < revs.len());
    missing.map(|((table, key), revs)| {
        let reached = reached.get(&(table.clone(), key.clone())).copied().unwrap_or(0);
        format!("rev {} of {table} {key} never arrived, or only before older ones", revs[reached.min(revs.len() - 1)])
    })
}

/// The first change that was never committed, or that comes after a newer one of its key although the sink is transactional.
fn step_back(
    plan: &Plan,
    keys: &BTreeMap<u64, (&(String, String), usize)>,
    revs: impl Iterator<Item = u64>,
) -> Option<String> {
    let mut newest: BTreeMap<&(String, String), u64> = BTreeMap::new();
    for rev in revs {
        let Some((key, _)) = keys.get(&rev) else {
            return Some(format!("rev {rev} arrived, but was never committed"));
        };
        let newest = newest.entry(key).or_insert(rev);
        if rev < *newest && plan.sink.is_transactional() {
            return Some(format!("rev {rev} of {} {} arrived after rev {newest}", key.0, key.1));
        }
        *newest = rev;
    }
    None
}

#[cfg(test)]
mod tests {
    use watchkeeper_testkit::histories::{Sink, Source};
    use watchkeeper_testkit::servers::postgres::Version;

    use super::*;

    /// A plan that inserts one row, updates it twice and rolls a third update back.
    fn plan(sink: Sink) -> Plan {
        let (table, key) = ("t0".to_owned(), Value::Integer(1));
        let update = |rev| Statement::Update { table: table.clone(), key: key.clone(), rev, fields: Vec::new() };
        let insert = Statement::Insert { table: table.clone(), key: key.clone(), rev: 1, fields: Vec::new() };
        let steps = vec![
            Step::Transaction { statements: vec![insert, update(2)], commit: true },
            Step::Transaction { statements: vec![update(3)], commit: false },
            Step::Transaction { statements: vec![update(4)], commit: true },
        ];
        let (source, start) = (Source::Sqlite, Start::Oldest);
        Plan {
            seed: 0,
            source,
            sink,
            postgres: Version::V15,
            start,
            concurrency: 1,
            batch_rows: 1,
            keeps_missing: true,
            tables: Vec::new(),
            steps,
            halt: None,
        }
    }

    fn events(revs: &[u64]) -> Vec<Event> {
        let event = |rev: &u64| {
            let body = format!(r#"{{"before":null,"after":{{"id":1,"rev":{rev}}}}}"#);
            Event::of_row("t0", "update", &body).expect("it is an event")
        };
        revs.iter().map(event).collect()
    }

    #[test]
    fn a_missing_an_early_and_a_strange_change_are_found() {
        let judged = |revs: &[u64]| out_of_order(&plan(Sink::File), &events(revs));
        assert_eq!(judged(&[1, 2, 4]), None);
        assert!(judged(&[1, 4]).is_some_and(|found| found.contains("arrived as change 2, expected was 1")));
        assert!(judged(&[1, 2]).is_some_and(|found| found.contains("rev 4 of t0 (1) never arrived")));
        assert!(judged(&[1, 2, 3, 4]).is_some_and(|found| found.contains("never committed")));
    }

    #[test]
    fn only_transactional_sinks_forbid_repeated_runs() {
        let repeated = events(&[1, 2, 1, 2, 4]);
        assert_eq!(out_of_order(&plan(Sink::File), &repeated), None);
        assert!(out_of_order(&plan(Sink::SqliteEvents), &repeated).is_some());
        // A run that is broken off leaves the newest change before an older one.
        assert!(out_of_order(&plan(Sink::File), &events(&[1, 2, 4, 1])).is_some());
    }

    #[test]
    fn after_a_snapshot_no_key_goes_back_where_nothing_may_be_repeated() {
        let judged = |sink, revs: &[u64]| out_of_order(&Plan { start: Start::Snapshot, ..plan(sink) }, &events(revs));
        assert_eq!(judged(Sink::SqliteEvents, &[2, 4]), None);
        assert!(
            judged(Sink::SqliteEvents, &[4, 2])
                .is_some_and(|found| found.contains("rev 2 of t0 (1) arrived after rev 4"))
        );
        assert_eq!(judged(Sink::File, &[4, 2, 4]), None);
        assert!(judged(Sink::File, &[3]).is_some_and(|found| found.contains("never committed")));
    }

    #[test]
    fn a_rename_leaves_nothing_under_either_name() {
        let inserted = r#"{"operationType":"insert","ns":{"db":"d","coll":"c"},"documentKey":{"_id":7},"fullDocument":{"_id":7,"rev":1}}"#;
        let renamed = |from: &str, to: &str| {
            format!(r#"{{"operationType":"rename","ns":{{"db":"d","coll":"{from}"}},"to":{{"db":"d","coll":"{to}"}}}}"#)
        };
        let left = |rename: &str| {
            let events = [inserted, rename].map(|text| Event::of_document(text).expect("it is an event"));
            replay(&events).remove("c").unwrap_or_default().len()
        };
        assert_eq!((left(&renamed("c", "away")), left(&renamed("staged", "c")), left(&renamed("a", "b"))), (0, 0, 1));
    }

    #[test]
    fn replaying_leaves_the_newest_rows() {
        let mut all = events(&[1, 2]);
        let rows = |events: &[Event]| replay(events).remove("t0").unwrap_or_default();
        assert_eq!(rows(&all), [r#"{"id":1,"rev":2}"#]);
        all.push(Event::of_row("public.t0", "delete", r#"{"before":{"id":1}}"#).expect("it is an event"));
        assert_eq!(rows(&all), Vec::<String>::new());
        let update = r#"{"operationType":"update","ns":{"db":"d","coll":"c"},"documentKey":{"_id":7},"fullDocument":null,"updateDescription":{"updatedFields":{"rev":{"$numberLong":"5"}}}}"#;
        let update = Event::of_document(update).expect("it is an event");
        assert_eq!((update.key.as_deref(), update.rev, update.row), (Some("7"), Some(5), None));
    }
}
