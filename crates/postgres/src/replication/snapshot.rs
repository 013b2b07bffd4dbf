//! Everything that exists, before the changes since.
//!
//! A new slot comes with a snapshot of exactly the rows that its log begins after. The tables are read in the order of
//! their numbers, which they keep when they are renamed. Whoever has to begin anew in the middle takes a new snapshot for the tables that are left, and remembers for
//! which of them the log is older than their rows.
//!
//! Some rows of a table that is left may have been delivered, and be gone by the time of the new snapshot. So the log is read up
//! to that time first: all of the tables that were read, and of those that are left what removes rows. What was deleted is
//! then deleted in the target, and what was inserted again comes with the rows. Whoever is broken off while catching up
//! has a place in the log like any other, and catches up from there with a still newer snapshot.

use std::sync::Arc;

use postgres_protocol::message::backend::DataRowBody;
use tokio::sync::mpsc;
use tokio_postgres::types::Type;
use watchkeeper_core::{Cx, Error, Limits, Operation, Result, RowParts, SourceTime, Version};

use fallible_iterator::FallibleIterator;

use super::batch::{BatchInProgress, write_text};
use super::position::{Lsn, PositionContext, Progress, ReplicationPosition};
use super::relation::{NamedType, Relation, TypeNames};
use super::settings::{Keyless, literal, table_identifier};
use super::version_origin::Origin;
use super::wire::{Failure, Wire};
use super::{Replication, body};

/// Rows are fetched in portions of about so many bytes.
const PORTION: usize = 512 * 1024;

/// The first portion of a table, whose rows are of unknown size.
const FIRST_ROWS: usize = 100;

/// No portion has more rows.
const ROWS_MAX: usize = 5_000;

/// Since this version a publication can tell of generated columns.
const HAS_GENERATED: u32 = 18;

/// There is no table of this name any more.
const GONE: &str = "42P01";

/// The rows wait for a slow target, and for the log that comes before them; the server is not to end their transaction meanwhile.
/// Which of these it has depends on its version.
const PATIENT: &str = "SELECT pg_catalog.set_config(name, '0', false) FROM pg_catalog.pg_settings
    WHERE name IN ('idle_in_transaction_session_timeout', 'transaction_timeout')";

/// Rows of one table as they came.
struct TableChunk {
    id: u32,
    table: Arc<Relation>,
    rows: Vec<DataRowBody>,
    /// Whether the table has no more.
    is_last: bool,
}

/// A snapshot that is being read.
pub(super) struct Snapshot {
    portions: mpsc::Receiver<Result<TableChunk, Failure>>,
    current: Option<(TableChunk, usize)>,
    at: Lsn,
    time: SourceTime,
}

impl Snapshot {
    /// Begins to read the tables that are left after `progress`, as the snapshot `name` shows them, which was taken at `at`.
    pub(super) async fn begin(source: &Replication, cx: &Cx, name: &str, at: Lsn, progress: &Progress) -> Result<Self> {
        let mut wire = source.connect(cx).await?;
        let begun = cx.run(async {
            let to_error = |failure| source.to_error(failure);
            wire.query(PATIENT).await.map_err(to_error)?;
            wire.query("BEGIN ISOLATION LEVEL REPEATABLE READ READ ONLY").await.map_err(to_error)?;
            wire.query(&format!("SET TRANSACTION SNAPSHOT {}", literal(name))).await.map_err(to_error)?;
            let clock = "SELECT (extract(epoch FROM pg_catalog.now()) * 1000)::bigint";
            let now = wire.query(clock).await.map_err(to_error)?;
            let millis = now.first().and_then(|row| row.first()?.as_deref()?.parse().ok());
            Ok((tables(&mut wire, source).await.map_err(to_error)?, SourceTime(millis.unwrap_or_default())))
        });
        let (mut left, time) = begun.await?;
        left.retain(|table| !progress.has((table.id, &table.name)));
        let (sender, portions) = mpsc::channel(2);
        tokio::spawn(async move {
            if let Err(failure) = read(wire, left, &sender).await {
                let _ = sender.send(Err(failure)).await;
            }
        });
        Ok(Self { portions, current: None, at, time })
    }

    /// Where in the log it was taken.
    pub(super) fn taken(&self) -> Lsn {
        self.at
    }

    /// The next rows; none when all tables were read.
    ///
    /// # Cancel safety
    /// Cancel safe: a portion is kept as soon as it is received.
    pub(super) async fn next(
        &mut self,
        origin: &Origin,
        place: &mut ReplicationPosition,
        limits: Limits,
    ) -> Result<Option<BatchInProgress>, Failure> {
        loop {
            let Some((portion, from)) = &mut self.current else {
                match self.portions.recv().await {
                    Some(portion) => self.current = Some((portion?, 0)),
                    None => return Ok(None),
                }
                continue;
            };
            let mut filling = BatchInProgress::new(origin);
            while *from < portion.rows.len() && !filling.is_full(limits) {
                let PositionContext::Snapshot(progress) = &mut place.aside else { return Ok(None) };
                let number = progress.reading.filter(|(at, _)| *at == self.at).map_or(0, |(_, number)| number);
                progress.reading = Some((self.at, number + 1));
                push(&mut filling, portion, *from, place, self.at, self.time).map_err(std::io::Error::other)?;
                *from += 1;
            }
            let is_done = *from == portion.rows.len();
            if is_done {
                if let (true, PositionContext::Snapshot(progress)) = (portion.is_last, &mut place.aside) {
                    progress.finish(portion.id, self.at);
                }
                self.current = None;
            }
            if !filling.is_empty() {
                return Ok(Some(filling));
            }
        }
    }
}

fn push(
    filling: &mut BatchInProgress,
    portion: &TableChunk,
    row: usize,
    place: &ReplicationPosition,
    at: Lsn,
    time: SourceTime,
) -> Result<()> {
    let (table, row) = (&portion.table, &portion.rows[row]);
    let namespace = filling.namespace(&table.name);
    let bodies = filling.bodies();
    let start = bodies.len();
    body::begin_row(0, &table.described, bodies);
    let image = bodies.len() + 1;
    write_row(row, bodies)?;
    let mut key = Vec::new();
    table.write_key(super::pgoutput::Tuple::begin(&bodies[image..])?, None, &mut key)?;
    let mut position = Vec::new();
    place.write(&mut position);
    let parts = RowParts {
        operation: Operation::Read,
        namespace,
        half: 0,
        committable: true,
        key: Some(&key),
        position: &position,
        body: &[],
        time,
        version: Version { time: at.0, ordinal: 0 },
    };
    filling.push(parts, start);
    Ok(())
}

/// Writes a row as the log would hold its new image.
fn write_row(row: &DataRowBody, out: &mut Vec<u8>) -> Result<()> {
    let odd = |error| Error::corrupt("a row of the snapshot makes no sense").caused_by(error);
    let ranges: Vec<_> = row.ranges().collect().map_err(odd)?;
    out.push(b'N');
    out.extend_from_slice(&(ranges.len() as u16).to_be_bytes());
    for range in ranges {
        match range {
            Some(range) => write_text(&row.buffer()[range], out),
            None => out.push(b'n'),
        }
    }
    Ok(())
}

/// A table that is to be read.
struct PendingTable {
    id: u32,
    name: String,
    from: String,
    filter: Option<String>,
    columns: Vec<String>,
    key: Vec<String>,
}

/// What the publication tells of: tables with their columns and filters, in the order of their numbers.
async fn tables(wire: &mut Wire, source: &Replication) -> Result<Vec<PendingTable>, Failure> {
    let settings = source.settings();
    // Columns and filters are told since version 15, and stored generated columns since 18, if the publication says so.
    let generated = if wire.major < HAS_GENERATED { "a.attgenerated = ''" } else { "a.attgenerated IN ('', 's')" };
    let sql = format!(
        "SELECT t.schemaname || '.' || t.tablename, c.relkind = 'p', pg_catalog.to_jsonb(t) ->> 'rowfilter',
            (SELECT pg_catalog.jsonb_agg(a.attname ORDER BY a.attnum) FROM pg_catalog.pg_attribute a
                WHERE a.attrelid = c.oid AND a.attnum > 0 AND NOT a.attisdropped AND {generated}
                AND coalesce(pg_catalog.to_jsonb(t) -> 'attnames' ? a.attname::text, true)),
            (SELECT pg_catalog.jsonb_agg(a.attname) FROM pg_catalog.pg_index i
                JOIN pg_catalog.pg_attribute a ON a.attrelid = i.indrelid AND a.attnum = ANY ((i.indkey::int2[])[0:i.indnkeyatts - 1])
                WHERE i.indrelid = c.oid AND CASE c.relreplident WHEN 'i' THEN i.indisreplident ELSE i.indisprimary END), c.oid
        FROM pg_catalog.pg_publication_tables t
        JOIN pg_catalog.pg_namespace n ON n.nspname = t.schemaname
        JOIN pg_catalog.pg_class c ON c.relnamespace = n.oid AND c.relname = t.tablename
        WHERE t.pubname = {}",
        literal(&settings.publication)
    );
    let names = |text: Option<&str>| serde_json::from_str::<Option<Vec<String>>>(text.unwrap_or("null"));
    let (wanted, mut tables) = (source.choice(), Vec::new());
    for row in wire.query(&sql).await? {
        let text = |at: usize| row.get(at).and_then(Option::as_deref);
        let name = text(0).unwrap_or_default().to_owned();
        if !wanted.has(&name) {
            continue;
        }
        let quoted = table_identifier(&name).map_err(std::io::Error::other)?;
        // Rows of children are told as the children's; those of partitions may be told as the whole's.
        let from = if text(1) == Some("t") { quoted } else { format!("ONLY {quoted}") };
        let columns = names(text(3)).map_err(std::io::Error::other)?.unwrap_or_default();
        let key = names(text(4)).map_err(std::io::Error::other)?.unwrap_or_default();
        if key.is_empty() && settings.keyless == Keyless::Pass {
            tracing::warn!(table = %name, "a table has no key: its rows are passed over");
            continue;
        }
        let id = text(5).unwrap_or_default().parse().map_err(std::io::Error::other)?;
        tables.push(PendingTable { id, name, from, filter: text(2).map(str::to_owned), columns, key });
    }
    tables.sort_by_key(|table| table.id);
    Ok(tables)
}

/// Reads table after table.
async fn read(
    mut wire: Wire,
    tables: Vec<PendingTable>,
    sender: &mpsc::Sender<Result<TableChunk, Failure>>,
) -> Result<(), Failure> {
    for table in tables {
        let columns: Vec<_> = table.columns.iter().map(|name| super::settings::identifier(name)).collect();
        let filter = table.filter.as_ref().map(|filter| format!(" WHERE {filter}")).unwrap_or_default();
        let select = format!("SELECT {} FROM {}{filter}", columns.join(", "), table.from);
        let declared = wire.query(&format!("DECLARE watchkeeper_rows NO SCROLL CURSOR FOR {select}")).await;
        declared.map_err(|failure| if failure.code() == Some(GONE) { altered(&table) } else { failure })?;
        require_as_it_was(&mut wire, &table).await?;
        let (mut count, mut relation) = (FIRST_ROWS, None);
        loop {
            let (rows, columns) = wire.rows(&format!("FETCH {count} FROM watchkeeper_rows")).await?;
            let relation = match &relation {
                Some(relation) => Arc::clone(relation),
                None => Arc::clone(relation.insert(Arc::new(describe(&mut wire, &table, columns).await?))),
            };
            let is_last = rows.len() < count;
            let size: usize = rows.iter().map(|row| row.buffer().len()).sum();
            count = (count * PORTION / size.max(1)).clamp(1, ROWS_MAX);
            if sender.send(Ok(TableChunk { id: table.id, table: relation, rows, is_last })).await.is_err() {
                return Ok(());
            }
            if is_last {
                break;
            }
        }
        wire.query("CLOSE watchkeeper_rows").await?;
    }
    wire.query("COMMIT").await.map(drop)
}

/// Refuses a table that was rewritten, truncated, or made anew since the snapshot was taken. To the snapshot it is empty, and the log
/// does not tell of its rows either: they are read with a new snapshot. The table is locked by now and stays as it is.
async fn require_as_it_was(wire: &mut Wire, table: &PendingTable) -> Result<(), Failure> {
    let PendingTable { id, name, .. } = table;
    let quoted = literal(&table_identifier(name).map_err(std::io::Error::other)?);
    // What is selected is of the time of the snapshot, and what functions say is of now.
    let sql = format!(
        "SELECT coalesce(pg_catalog.to_regclass({quoted})::oid = {id} AND NOT EXISTS (
            SELECT FROM (SELECT {id}::oid UNION SELECT relid FROM pg_catalog.pg_partition_tree({id})) part (id)
            JOIN pg_catalog.pg_class c ON c.oid = part.id
            WHERE c.relkind = 'r' AND c.relfilenode IS DISTINCT FROM pg_catalog.pg_relation_filenode(c.oid)), false)"
    );
    let rows = wire.query(&sql).await?;
    if rows.first().and_then(|row| row.first()?.as_deref()) == Some("t") { Ok(()) } else { Err(altered(table)) }
}

fn altered(table: &PendingTable) -> Failure {
    let cause =
        "was renamed, rewritten or truncated since the snapshot was taken; another one is taken for what is left";
    std::io::Error::other(format!("table {} {cause}", table.name)).into()
}

async fn describe(wire: &mut Wire, table: &PendingTable, columns: Vec<(String, u32)>) -> Result<Relation, Failure> {
    let types = type_names(wire, &columns).await?;
    let columns = columns.into_iter().map(|(name, kind)| {
        let is_key = table.key.contains(&name);
        (name, kind, is_key)
    });
    let relation = Relation::new(table.name.clone(), columns.collect(), &types);
    Ok(relation.map_err(std::io::Error::other)?)
}

/// The names of the types that are not built in, so that rows have the keys that the log gives them. The types of a result are those below
/// domains.
async fn type_names(wire: &mut Wire, columns: &[(String, u32)]) -> Result<TypeNames, Failure> {
    let others = columns.iter().filter(|(_, kind)| Type::from_oid(*kind).is_none());
    let others: Vec<_> = others.map(|(_, kind)| kind.to_string()).collect();
    if others.is_empty() {
        return Ok(TypeNames::new());
    }
    let sql = format!("SELECT oid, typname FROM pg_catalog.pg_type WHERE oid IN ({})", others.join(", "));
    let named = |row: Vec<Option<String>>| match &row[..] {
        [Some(id), Some(name)] => {
            let id = id.parse().map_err(std::io::Error::other)?;
            Ok((id, NamedType::Other(name.clone())))
        }
        _ => Err(std::io::Error::other("a type without a name").into()),
    };
    wire.query(&sql).await?.into_iter().map(named).collect()
}
