//! The tools as commands: `watchkeeper postgres install`, `uninstall` and `prune`.

use std::sync::Arc;

use async_trait::async_trait;
use serde_json::json;
use watchkeeper_core::{Argument, Cx, Options, Report, Result, Takes, Tool};

use super::install::{Level, Triggers};
use super::{Unread, Wake};
use crate::client::Client;
use crate::config::Config;

const URL: Argument = Argument { name: "url", takes: Takes::Required, help: "The application's database" };
const SCHEMA: Argument = Argument { name: "schema", takes: Takes::One, help: "The schema of the log (watchkeeper)" };

const INSTALL: &[Argument] = &[
    URL,
    SCHEMA,
    Argument { name: "table", takes: Takes::Many, help: "A table to log; may be repeated" },
    Argument { name: "role", takes: Takes::One, help: "A role that is granted what it needs to read the log" },
    Argument {
        name: "silent",
        takes: Takes::Nothing,
        help: "Do not NOTIFY readers: they look for changes from time to time",
    },
    Argument {
        name: "notify",
        takes: Takes::Nothing,
        help: "NOTIFY readers also where the server allows PREPARE TRANSACTION, which then fails for logged changes",
    },
    Argument {
        name: "each-row",
        takes: Takes::Nothing,
        help: "Log row by row, for tables that are about to be attached as partitions; writers pay more for it",
    },
];

const UNINSTALL: &[Argument] = &[
    URL,
    SCHEMA,
    Argument { name: "table", takes: Takes::Many, help: "A table to log no longer; may be repeated" },
    Argument { name: "yes", takes: Takes::Nothing, help: "Discard changes that streams have not read yet" },
];

const PRUNE: &[Argument] =
    &[URL, SCHEMA, Argument { name: "yes", takes: Takes::Nothing, help: "Drop also what streams have not read yet" }];

/// The commands of the change log.
pub fn tools() -> Vec<Arc<dyn Tool>> {
    vec![Arc::new(Install), Arc::new(Uninstall), Arc::new(Prune)]
}

async fn open(cx: &Cx, arguments: &mut Options) -> Result<Client> {
    Client::open(cx, Config::from_options(arguments)?).await
}

fn tables(arguments: &mut Options) -> Result<Vec<String>> {
    arguments.texts("table")?.ok_or_else(|| arguments.missing("table", "orders"))
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
        INSTALL
    }

    async fn run(&self, cx: &Cx, arguments: &mut Options) -> Result<Report> {
        let (silent, notify) = (arguments.flag("silent")?.unwrap_or(false), arguments.flag("notify")?.unwrap_or(false));
        let level = if arguments.flag("each-row")?.unwrap_or(false) { Level::Row } else { Level::Best };
        let (tables, role) = (tables(arguments)?, arguments.text("role")?);
        let client = open(cx, arguments).await?;
        let would_break = !silent && !notify && super::install::can_prepare(cx, &client).await?;
        let wake = if silent || would_break { Wake::Silent } else { Wake::Notify };
        let triggers = Triggers { wake, level };
        let logged = super::install::install_for(cx, &client, &names(&tables), triggers, role.as_deref()).await?;
        let mut lines: Vec<_> = logged.iter().map(|table| format!("{table}: changes are logged from now on")).collect();
        if would_break {
            lines.push(
                "readers look for changes from time to time: a NOTIFY would make PREPARE TRANSACTION fail, which this server allows; \
                 install with --notify if nobody uses it"
                    .to_owned(),
            );
        }
        if let Some(role) = role {
            lines.push(format!("{role}: may read the log"));
        }
        Ok(Report { lines, data: json!({ "logged": logged }) })
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
        UNINSTALL
    }

    async fn run(&self, cx: &Cx, arguments: &mut Options) -> Result<Report> {
        let unread = if arguments.flag("yes")?.unwrap_or(false) { Unread::Discard } else { Unread::Keep };
        let tables = tables(arguments)?;
        let client = open(cx, arguments).await?;
        super::uninstall(cx, &client, &names(&tables), unread).await?;
        let lines = tables.iter().map(|table| format!("{table}: changes are no longer logged")).collect();
        Ok(Report { lines, data: json!({ "no_longer_logged": tables }) })
    }
}

/// Drops what is in the log.
#[derive(Debug, Clone, Copy)]
pub struct Prune;

#[async_trait]
impl Tool for Prune {
    fn name(&self) -> &'static str {
        "prune"
    }

    fn about(&self) -> &'static str {
        "Drop what every stream has read from the log, without waiting for the time that it is kept"
    }

    fn arguments(&self) -> &'static [Argument] {
        PRUNE
    }

    async fn run(&self, cx: &Cx, arguments: &mut Options) -> Result<Report> {
        let unread = if arguments.flag("yes")?.unwrap_or(false) { Unread::Discard } else { Unread::Keep };
        let client = open(cx, arguments).await?;
        let removed = super::prune(cx, &client, unread).await?;
        Ok(Report { lines: vec![format!("{removed} changes were removed")], data: json!({ "removed": removed }) })
    }
}
