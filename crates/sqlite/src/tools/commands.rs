//! The tools as commands: `watchkeeper sqlite install`, `alter` and `uninstall`.

use std::path::Path;

use async_trait::async_trait;
use serde_json::json;
use watchkeeper_core::{Argument, Cx, Options, Report, Result, Takes, Tool};

use super::{Unread, alter_note, exists, key_findings, plain};
use crate::client::Client;
use crate::config::Config;

const ARGUMENTS: &[Argument] = &[
    Argument { name: "db", takes: Takes::Required, help: "The application's database file" },
    Argument { name: "table", takes: Takes::Many, help: "A table to log; may be repeated" },
];

const UNINSTALL_ARGUMENTS: &[Argument] = &[
    Argument { name: "db", takes: Takes::Required, help: "The application's database file" },
    Argument { name: "table", takes: Takes::Many, help: "A table to log no longer; may be repeated" },
    Argument { name: "yes", takes: Takes::Nothing, help: "Discard changes that streams have not read yet" },
];

const ALTER_EXAMPLE: &str = "ALTER TABLE orders DROP COLUMN note";

const ALTER_ARGUMENTS: &[Argument] = &[
    Argument { name: "db", takes: Takes::Required, help: "The application's database file" },
    Argument { name: "sql", takes: Takes::Required, help: "The ALTER TABLE statement" },
];

async fn open(cx: &Cx, arguments: &mut Options) -> Result<(Client, Vec<String>)> {
    let file = arguments.required("db", "app.db")?;
    let tables = arguments.texts("table")?.ok_or_else(|| arguments.missing("table", "orders"))?;
    Ok((Client::open(cx, Config::existing(file)).await?, tables))
}

/// How the database journals its transactions, as long as nobody has switched it.
async fn journal_mode(cx: &Cx, arguments: &Options) -> Option<String> {
    let file = arguments.peek_text("db")?;
    let client = Client::open(cx, Config::existing(file).for_reading()).await.ok()?;
    let observation = |transaction: &rusqlite::Transaction<'_>| {
        Ok(transaction.query_row("PRAGMA journal_mode", [], |row| row.get::<_, String>(0))?)
    };
    client.read(cx, observation).await.ok()
}

/// How to go back to another journal.
fn switch_back(file: &Path) -> String {
    format!("when nothing else uses the file: sqlite3 {} \"PRAGMA journal_mode=DELETE\"", file.display())
}

fn names(tables: &[String]) -> Vec<&str> {
    tables.iter().map(String::as_str).collect()
}

/// Begins to log the changes of tables.
#[derive(Debug, Clone, Copy)]
pub struct Install;

#[async_trait]
impl Tool for Install {
    fn name(&self) -> &'static str {
        "install"
    }

    fn about(&self) -> &'static str {
        "Log the changes of tables, by triggers in their own database"
    }

    fn arguments(&self) -> &'static [Argument] {
        ARGUMENTS
    }

    async fn run(&self, cx: &Cx, arguments: &mut Options) -> Result<Report> {
        let before = journal_mode(cx, arguments).await;
        let (client, tables) = open(cx, arguments).await?;
        let inspected: Vec<String> = tables.iter().map(|table| plain(table)).collect();
        let before_install = inspected.clone();
        // Tables that cannot be looked at are refused by the installation itself.
        let observation =
            move |transaction: &rusqlite::Transaction<'_>| super::already_logged(transaction, &before_install);
        let logged = client.read(cx, observation).await.unwrap_or_default();
        super::install(cx, &client, &names(&tables)).await?;
        let line = |(at, table): (usize, &String)| match logged.get(at) {
            Some(true) => format!("{table}: changes are already logged"),
            _ => format!("{table}: changes are logged from now on"),
        };
        let mut lines: Vec<_> = tables.iter().enumerate().map(line).collect();
        let observation = move |transaction: &rusqlite::Transaction<'_>| {
            let each = inspected.iter().map(|table| key_findings(transaction, table));
            Ok(each.collect::<Result<Vec<_>, _>>()?.concat())
        };
        for finding in client.read(cx, observation).await? {
            lines.push(format!("warning: {}; {}", finding.what, finding.remedy.unwrap_or_default()));
        }
        let file = &client.config().path;
        if let Some(before) = before.filter(|mode| !mode.eq_ignore_ascii_case("wal")) {
            lines.push(format!(
                "note: {} was switched from journal_mode={before} to write-ahead logging (WAL), so that readers and the application \
                 do not wait for each other; `uninstall` leaves it so; to switch back then, {}",
                file.display(),
                switch_back(file)
            ));
        }
        let note = alter_note(file);
        lines.push(format!("note: {}; {}", note.what, note.remedy.unwrap_or_default()));
        Ok(Report { lines, data: json!({ "logged": tables }) })
    }
}

/// Alters logged tables.
#[derive(Debug, Clone, Copy)]
pub struct Alter;

#[async_trait]
impl Tool for Alter {
    fn name(&self) -> &'static str {
        "alter"
    }

    fn about(&self) -> &'static str {
        "Run ALTER TABLE on a logged table where its triggers stand in the way, as DROP COLUMN; nothing is lost for readers"
    }

    fn arguments(&self) -> &'static [Argument] {
        ALTER_ARGUMENTS
    }

    async fn run(&self, cx: &Cx, arguments: &mut Options) -> Result<Report> {
        let (file, sql) = (arguments.required("db", "app.db")?, arguments.required("sql", ALTER_EXAMPLE)?);
        let client = Client::open(cx, Config::existing(file)).await?;
        let altered = super::alter(cx, &client, &sql).await?;
        let mut lines: Vec<_> =
            altered.iter().map(|table| format!("{table}: altered, and logged as it is now")).collect();
        if lines.is_empty() {
            lines.push("done; no logged table has other columns than before".to_owned());
        }
        Ok(Report { lines, data: json!({ "altered": altered }) })
    }
}

/// Stops logging the changes of tables.
#[derive(Debug, Clone, Copy)]
pub struct Uninstall;

#[async_trait]
impl Tool for Uninstall {
    fn name(&self) -> &'static str {
        "uninstall"
    }

    fn about(&self) -> &'static str {
        "Stop logging tables; with the last one the log itself is removed"
    }

    fn arguments(&self) -> &'static [Argument] {
        UNINSTALL_ARGUMENTS
    }

    async fn run(&self, cx: &Cx, arguments: &mut Options) -> Result<Report> {
        let unread = if arguments.flag("yes")?.unwrap_or(false) { Unread::Discard } else { Unread::Keep };
        let (client, tables) = open(cx, arguments).await?;
        super::uninstall(cx, &client, &names(&tables), unread).await?;
        let mut lines: Vec<_> = tables.iter().map(|table| format!("{table}: changes are no longer logged")).collect();
        let observation = |transaction: &rusqlite::Transaction<'_>| exists(transaction, "watchkeeper_changes");
        if !client.read(cx, observation).await? {
            let file = &client.config().path;
            lines.push(format!(
                "note: the log is removed; {} stays in write-ahead logging (WAL); to switch back, {}",
                file.display(),
                switch_back(file)
            ));
        }
        Ok(Report { lines, data: json!({ "no_longer_logged": tables }) })
    }
}
