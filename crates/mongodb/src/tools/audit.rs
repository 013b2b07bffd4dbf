//! `watchkeeper mongodb audit-query`: asks an audit log.

use async_trait::async_trait;
use mongodb::bson::{Bson, DateTime, Document};
use watchkeeper_core::{Argument, Cx, Error, Options, Report, Result, Takes, Tool};

use super::URL;
use crate::client::Client;
use crate::config::Config;
use crate::sink::{Audit, AuditQuery};

const ARGUMENTS: &[Argument] = &[
    URL,
    Argument { name: "collection", takes: Takes::One, help: "Only changes of this collection" },
    Argument { name: "operation", takes: Takes::One, help: "Only such changes, for example update" },
    Argument { name: "since", takes: Takes::One, help: "Not older than this, for example 2026-01-31T12:00:00Z" },
    Argument { name: "until", takes: Takes::One, help: "Not newer than this" },
    Argument { name: "limit", takes: Takes::One, help: "At most so many, newest first [default: 20]" },
    Argument { name: "audit-log", takes: Takes::One, help: "The collection with the records [default: audit_log]" },
];

/// Asks an audit log.
#[derive(Debug, Clone, Copy)]
pub(crate) struct QueryAudit;

#[async_trait]
impl Tool for QueryAudit {
    fn name(&self) -> &'static str {
        "audit-query"
    }

    fn about(&self) -> &'static str {
        "Ask an audit log who was changed when, newest first"
    }

    fn arguments(&self) -> &'static [Argument] {
        ARGUMENTS
    }

    async fn run(&self, cx: &Cx, arguments: &mut Options) -> Result<Report> {
        let config = Config::from_options(arguments)?;
        let query = query(arguments)?;
        let log = arguments.text("audit-log")?.unwrap_or_else(|| Audit::USUAL.to_owned());
        let records = query.ask(cx, &Client::open(cx, config).await?, &log).await?;
        let mut lines: Vec<String> = records.iter().map(line).collect();
        if lines.is_empty() {
            lines.push(format!("No record in {log} fits."));
        }
        let data = serde_json::to_value(&records);
        Ok(Report { lines, data: data.map_err(|error| Error::internal("a record has no JSON").caused_by(error))? })
    }
}

fn query(arguments: &mut Options) -> Result<AuditQuery> {
    let usual = AuditQuery::default();
    let limit = match arguments.count("limit")? {
        None => usual.limit,
        Some(limit) => u32::try_from(limit).ok().filter(|limit| *limit > 0).ok_or_else(|| {
            arguments.wrong("limit", format!("{limit} is not between 1 and {}", u32::MAX)).remedy("write 20, say")
        })?,
    };
    Ok(AuditQuery {
        collection: arguments.text("collection")?,
        operation: arguments.text("operation")?,
        since: time(arguments, "since")?,
        until: time(arguments, "until")?,
        limit,
    })
}

fn time(arguments: &mut Options, name: &str) -> Result<Option<DateTime>> {
    let Some(text) = arguments.text(name)? else { return Ok(None) };
    // A day alone begins at midnight.
    let moment = if text.contains([':', ' ']) { text.clone() } else { format!("{text}T00:00:00Z") };
    let parsed = humantime::parse_rfc3339_weak(&moment).map(DateTime::from_system_time);
    parsed.map(Some).map_err(|_| {
        arguments.wrong(name, format!("{text:?} is no time")).remedy("write 2026-01-31 or 2026-01-31T12:00:00Z")
    })
}

fn line(record: &Document) -> String {
    let text = |field: &str| record.get_str(field).unwrap_or("-").to_owned();
    let time = record.get_datetime("timestamp").ok().and_then(|time| time.try_to_rfc3339_string().ok());
    let id =
        record.get("documentId").filter(|id| **id != Bson::Null).map_or_else(|| "-".to_owned(), ToString::to_string);
    let (time, operation, collection) = (time.unwrap_or_default(), text("operationType"), text("sourceCollection"));
    format!("{time}  {operation:<8} {collection}  {id}")
}
