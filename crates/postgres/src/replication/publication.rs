//! The publication: which tables the log tells of, and whether their rows can be told apart.

use watchkeeper_core::{Error, Finding, Result, Severity};

use super::relation::keyless;
use super::settings::{Keyless, Settings, dotted_schema, identifier, literal, table_identifier};
use super::wire::{Failure, Wire};

/// A published table.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct Published {
    /// Schema and table, with a point between.
    pub(super) name: String,
    has_key: bool,
    is_full: bool,
    /// Whether keys may be shifted or swapped within a statement.
    is_deferrable: bool,
    /// The whole to which it belongs as a part.
    whole: Option<String>,
    /// A part of it that tells its rows apart by other columns.
    unlike: Option<String>,
    is_partitioned: bool,
    has_dotted_schema: bool,
}

/// The names of the columns by which rows of the table `c` are told apart, in their order.
fn identity(c: &str) -> String {
    format!(
        "(SELECT pg_catalog.array_agg(a.attname ORDER BY a.attname) FROM pg_catalog.pg_index i
            JOIN pg_catalog.pg_attribute a ON a.attrelid = i.indrelid AND a.attnum = ANY ((i.indkey::int2[])[0:i.indnkeyatts - 1])
            WHERE i.indrelid = {c}.oid AND CASE {c}.relreplident WHEN 'i' THEN i.indisreplident WHEN 'n' THEN false ELSE i.indisprimary END)"
    )
}

/// The tables that the publication tells of.
pub(super) async fn tables(wire: &mut Wire, settings: &Settings) -> Result<Vec<Published>, Failure> {
    let publication = literal(&settings.publication);
    let to_error =
        format!("SELECT schemaname, tablename FROM pg_catalog.pg_publication_tables WHERE pubname = {publication}");
    inspect(wire, &to_error).await
}

/// The tables that the settings name and that are there: what a publication would tell of.
pub(super) async fn named(wire: &mut Wire, settings: &Settings) -> Result<Vec<Published>, Failure> {
    let names: Vec<_> = settings.qualified().iter().map(|name| literal(name)).collect();
    let named = format!(
        "SELECT n.nspname, c.relname FROM pg_catalog.pg_class c JOIN pg_catalog.pg_namespace n ON n.oid = c.relnamespace
        WHERE c.relkind IN ('r', 'p') AND n.nspname || '.' || c.relname IN ({})",
        names.join(", ")
    );
    inspect(wire, &named).await
}

/// The tables whose schemas and names a query gives.
async fn inspect(wire: &mut Wire, which: &str) -> Result<Vec<Published>, Failure> {
    // An update or delete of a table without an identity is refused by the server as soon as it is published.
    let sql = format!(
        "SELECT t.schemaname || '.' || t.tablename, c.relreplident,
            EXISTS (SELECT FROM pg_catalog.pg_index i WHERE i.indrelid = c.oid AND i.indisprimary),
            EXISTS (SELECT FROM pg_catalog.pg_index i WHERE i.indrelid = c.oid AND i.indisreplident),
            (SELECT rn.nspname || '.' || r.relname FROM pg_catalog.pg_class r
                JOIN pg_catalog.pg_namespace rn ON rn.oid = r.relnamespace
                WHERE c.relispartition AND r.oid = pg_catalog.pg_partition_root(c.oid)),
            EXISTS (SELECT FROM pg_catalog.pg_index i WHERE i.indrelid = c.oid AND i.indisprimary AND NOT i.indimmediate),
            (SELECT min(part.relid::regclass::text) FROM pg_catalog.pg_partition_tree(c.oid) part
                JOIN pg_catalog.pg_class p ON p.oid = part.relid
                WHERE c.relkind = 'p' AND p.relkind = 'r' AND {} IS DISTINCT FROM {}), c.relkind = 'p',
            pg_catalog.strpos(t.schemaname, '.') > 0
        FROM ({which}) t (schemaname, tablename)
        JOIN pg_catalog.pg_namespace n ON n.nspname = t.schemaname
        JOIN pg_catalog.pg_class c ON c.relnamespace = n.oid AND c.relname = t.tablename
        ORDER BY 1",
        identity("p"),
        identity("c")
    );
    let rows = wire.query(&sql).await?;
    let published = rows.into_iter().map(|row| {
        let text = |at: usize| row.get(at).and_then(Option::as_deref).unwrap_or_default();
        let has_key = match text(1) {
            "d" | "f" => text(2) == "t",
            "i" => text(3) == "t",
            _ => false,
        };
        let (whole, unlike) = (row.get(4).cloned().flatten(), row.get(6).cloned().flatten());
        let (is_full, is_deferrable, is_partitioned) = (text(1) == "f", text(5) == "t", text(7) == "t");
        let (name, has_dotted_schema) = (text(0).to_owned(), text(8) == "t");
        Published { name, has_key, is_full, is_deferrable, whole, unlike, is_partitioned, has_dotted_schema }
    });
    Ok(published.collect())
}

/// Makes the publication, for the tables that the settings name.
pub(super) async fn create(wire: &mut Wire, settings: &Settings, to_error: impl Fn(Failure) -> Error) -> Result<()> {
    if settings.tables.is_empty() {
        return Err(missing(settings));
    }
    settings.refuse_dotted_schemas()?;
    match wire.query(&statement(settings)?).await {
        Ok(_) => Ok(()),
        // Another instance was quicker.
        Err(failure) if failure.code() == Some("42710") => Ok(()),
        Err(failure) if failure.code() == Some("42501") => {
            let others = by_an_administrator(settings);
            Err(to_error(failure).remedy(format!("let this user create in the database and own the tables, {others}")))
        }
        Err(failure) => Err(to_error(failure)),
    }
}

/// What makes the publication.
fn statement(settings: &Settings) -> Result<String> {
    let tables: Vec<_> = settings.qualified().iter().map(|table| table_identifier(table)).collect::<Result<_>>()?;
    // A table in parts is told under its own name, whichever of them a row is in.
    Ok(format!(
        "CREATE PUBLICATION {} FOR TABLE {} WITH (publish_via_partition_root = true)",
        identifier(&settings.publication),
        tables.join(", ")
    ))
}

/// The other way to a publication that a stream's own user may not make.
pub(super) fn by_an_administrator(settings: &Settings) -> String {
    format!("or let an administrator make it: {}", statement(settings).unwrap_or_default())
}

/// The error of a publication that is not there.
pub(super) fn missing(settings: &Settings) -> Error {
    let name = &settings.publication;
    Error::config(format!("there is no publication {name}")).remedy(format!(
        "CREATE PUBLICATION {} FOR TABLE …, or name the tables: tables = [\"orders\"]",
        identifier(name)
    ))
}

/// Refuses tables that are wanted and not published, and those whose rows cannot be told apart.
pub(super) fn require(settings: &Settings, published: &[Published]) -> Result<()> {
    settings.refuse_dotted_schemas()?;
    let wanted = settings.qualified();
    if let Some(absent) = wanted.iter().find(|wanted| !published.iter().any(|table| table.name == **wanted)) {
        let name = identifier(&settings.publication);
        let absence = Error::config(format!("publication {} does not tell of table {absent}", settings.publication));
        let is_reported_in_parts = published.iter().any(|table| table.whole.as_ref() == Some(absent));
        return Err(absence.remedy(match is_reported_in_parts {
            true => format!(
                "it tells of its parts instead: ALTER PUBLICATION {name} SET (publish_via_partition_root = true)"
            ),
            false => format!("ALTER PUBLICATION {name} ADD TABLE {absent}, or correct the name of the table"),
        }));
    }
    let is_wanted = |table: &&Published| wanted.is_empty() || wanted.contains(&table.name);
    if let Some(table) = published.iter().filter(is_wanted).find(|table| table.has_dotted_schema) {
        return Err(dotted_schema(&table.name));
    }
    let unlike = published.iter().filter(is_wanted).find_map(|table| Some((table, table.unlike.as_ref()?)));
    if let Some((table, part)) = unlike {
        let cause = format!("partition {part} tells its rows apart by other columns than {}", table.name);
        return Err(Error::config(format!("{cause}: a copy would keep rows that were deleted")).remedy(format!(
            "ALTER TABLE {part} REPLICA IDENTITY …, as {} has it: new partitions do not inherit it",
            table.name
        )));
    }
    match published.iter().filter(is_wanted).find(|table| !table.has_key) {
        Some(table) if settings.keyless == Keyless::Refuse => Err(keyless(&table.name)),
        _ => Ok(()),
    }
}

/// What would keep a publication of the named tables from being made, or from being of use.
pub(super) fn obstacles(settings: &Settings, named: &[Published]) -> Vec<Finding> {
    let wanted = settings.qualified();
    let is_there = |name: &str| named.iter().any(|table| table.name == name);
    let absent = wanted
        .iter()
        .filter(|name| !is_there(name))
        .map(|name| Error::config(format!("there is no table {name}")).remedy("correct its name in `tables`"));
    let keyless = named.iter().filter(|table| !table.has_key).map(|table| keyless(&table.name));
    let mut findings: Vec<_> = absent.chain(keyless).map(|error| finding(&error)).collect();
    findings.extend(deferrable(named));
    findings.extend(partitioned(settings, named));
    findings
}

/// A partitioned table is published under its own name only with publish_via_partition_root, and then the server does not publish what
/// happens to a partition as a whole.
fn partitioned(settings: &Settings, tables: &[Published]) -> impl Iterator<Item = Finding> {
    let (wanted, publication) = (settings.qualified(), identifier(&settings.publication));
    let is_wanted = move |table: &&Published| wanted.is_empty() || wanted.contains(&table.name);
    let partitioned = tables.iter().filter(|table| table.is_partitioned).filter(is_wanted);
    partitioned.map(move |table| Finding {
        severity: Severity::Warning,
        what: format!(
            "{} is published as a whole (publish_via_partition_root): the log does not report a TRUNCATE of one partition, so its rows \
             stay at the targets",
            table.name
        ),
        remedy: Some(format!(
            "DELETE the rows of a partition instead, or publish each partition under its own name: ALTER PUBLICATION {publication} SET \
             (publish_via_partition_root = false), and name the partitions in `tables` if tables are named there"
        )),
    })
}

/// The log does not tell which of two rows of one key went, where a statement shifts or swaps keys.
fn deferrable(tables: &[Published]) -> impl Iterator<Item = Finding> {
    let shifting = tables.iter().filter(|table| table.is_full && table.is_deferrable);
    shifting.map(|table| Finding {
        severity: Severity::Warning,
        what: format!(
            "table {} has a DEFERRABLE primary key and REPLICA IDENTITY FULL: a copy may lose a row when a statement shifts or \
             swaps keys",
            table.name
        ),
        remedy: Some(
            "make the primary key NOT DEFERRABLE, or read a change log (mode = \"log\"), which tells such changes right"
                .to_owned(),
        ),
    })
}

fn passed_over(table: &Published) -> Finding {
    let what = format!("table {} has no key: its rows are passed over, as keyless = \"pass\" says", table.name);
    Finding { severity: Severity::Warning, what, remedy: None }
}

fn finding(error: &Error) -> Finding {
    let (what, remedy) = (error.message().to_owned(), error.advice().map(str::to_owned));
    Finding { severity: Severity::Error, what, remedy }
}

/// What is worth knowing about the tables.
pub(super) fn findings(settings: &Settings, published: &[Published]) -> Vec<Finding> {
    let mut findings = Vec::new();
    findings.extend(require(settings, published).err().iter().map(finding));
    if settings.keyless == Keyless::Pass {
        findings.extend(published.iter().filter(|table| !table.has_key).map(passed_over));
    }
    for table in published.iter().filter(|table| table.is_full) {
        let what =
            format!("table {} tells whole old rows (REPLICA IDENTITY FULL), which makes the log larger", table.name);
        findings.push(Finding { severity: Severity::Note, what, remedy: None });
    }
    findings.extend(deferrable(published));
    findings.extend(partitioned(settings, published));
    if published.is_empty() {
        let what = format!("publication {} tells of no table", settings.publication);
        let remedy = Some(format!("ALTER PUBLICATION {} ADD TABLE …", identifier(&settings.publication)));
        findings.push(Finding { severity: Severity::Warning, what, remedy });
    }
    findings
}

/// Tables that inherit from one that is given out and are not given out themselves. Whoever reads that one finds their rows in it, and
/// the log tells them as the others' own.
pub(super) async fn children(
    wire: &mut Wire,
    tables: &[Published],
    is_given_out: impl Fn(&str) -> bool,
) -> Result<Vec<Finding>, Failure> {
    let names: Vec<_> =
        tables.iter().map(|table| table.name.as_str()).filter(|name| is_given_out(name)).map(literal).collect();
    if names.is_empty() {
        return Ok(Vec::new());
    }
    let sql = format!(
        "SELECT pn.nspname || '.' || p.relname, cn.nspname || '.' || c.relname FROM pg_catalog.pg_inherits i
        JOIN pg_catalog.pg_class p ON p.oid = i.inhparent JOIN pg_catalog.pg_namespace pn ON pn.oid = p.relnamespace
        JOIN pg_catalog.pg_class c ON c.oid = i.inhrelid JOIN pg_catalog.pg_namespace cn ON cn.oid = c.relnamespace
        WHERE c.relkind IN ('r', 'p') AND NOT c.relispartition AND pn.nspname || '.' || p.relname IN ({}) ORDER BY 1, 2",
        names.join(", ")
    );
    let mut findings = Vec::new();
    for row in wire.query(&sql).await? {
        let text = |at: usize| row.get(at).and_then(Option::as_deref).unwrap_or_default();
        let (parent, child) = (text(0), text(1));
        if is_given_out(child) && tables.iter().any(|table| table.name == child) {
            continue;
        }
        findings.push(Finding {
            severity: Severity::Warning,
            what: format!("{child} inherits from {parent}, and its rows are not told with those of {parent}"),
            remedy: Some(format!(
                "publish {child} too, and name it in `tables` if those are named, unless that is meant"
            )),
        });
    }
    Ok(findings)
}

/// What the publication leaves out of what happens to its tables.
pub(super) async fn omissions(wire: &mut Wire, settings: &Settings) -> Result<Option<Finding>, Failure> {
    let name = literal(&settings.publication);
    let sql = format!(
        "SELECT pg_catalog.concat_ws(', ', CASE WHEN NOT pubinsert THEN 'inserts' END, CASE WHEN NOT pubupdate THEN 'updates' END,
            CASE WHEN NOT pubdelete THEN 'deletes' END, CASE WHEN NOT pubtruncate THEN 'truncates' END)
        FROM pg_catalog.pg_publication WHERE pubname = {name}"
    );
    let rows = wire.query(&sql).await?;
    let left_out = rows.first().and_then(|row| row.first()).and_then(Option::as_deref).unwrap_or_default();
    Ok((!left_out.is_empty()).then(|| Finding {
        severity: Severity::Warning,
        what: format!("publication {} does not tell of {left_out}: they never arrive", settings.publication),
        remedy: Some(format!(
            "ALTER PUBLICATION {} SET (publish = 'insert, update, delete, truncate'), unless that is meant",
            identifier(&settings.publication)
        )),
    }))
}
