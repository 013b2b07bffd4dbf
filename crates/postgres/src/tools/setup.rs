//! `watchkeeper postgres setup`: the schema, its tables, and what a user needs to work with them.

use async_trait::async_trait;
use serde_json::json;
use watchkeeper_core::{Argument, Cx, Options, Report, Result, Takes, Tool};

use super::URL;
use crate::check::{GRANTS, ROLES};
use crate::client::{Client, quoted};
use crate::config::Config;

const ARGUMENTS: &[Argument] = &[
    URL,
    Argument { name: "schema", takes: Takes::One, help: "The schema of the tables; \"watchkeeper\" if it is not said" },
    Argument { name: "role", takes: Takes::One, help: "Grant this role what an instance needs, and nothing more" },
];

/// Makes the tables or brings them to the newest version. It can be run again at any time.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Setup;

#[async_trait]
impl Tool for Setup {
    fn name(&self) -> &'static str {
        "setup"
    }

    fn about(&self) -> &'static str {
        "Make Watchkeeper's tables, or bring them to the newest version, and grant a role what it needs"
    }

    fn arguments(&self) -> &'static [Argument] {
        ARGUMENTS
    }

    async fn run(&self, cx: &Cx, arguments: &mut Options) -> Result<Report> {
        let config = Config::from_options(arguments)?;
        let role = arguments.text("role")?;
        let client = Client::open(cx, config).await?;
        for tables in ROLES {
            client.ensure(cx, tables).await?;
        }
        let schema = client.schema().to_owned();
        let mut lines = vec![format!("{}: the tables in schema {schema} are there", client.place())];
        if let Some(role) = &role {
            grant(cx, &client, role).await?;
            lines.push(format!("{role}: may work with them"));
        }
        Ok(Report { lines, data: json!({ "schema": schema, "role": role }) })
    }
}

/// The least that an instance needs.
pub(crate) async fn grant(cx: &Cx, client: &Client, role: &str) -> Result<()> {
    let role = quoted(role);
    let work = client.begin(cx).await?;
    work.run(cx, &client.sql(&format!("GRANT USAGE ON SCHEMA {{schema}} TO {role}"))).await?;
    for (table, words) in GRANTS {
        work.run(cx, &client.sql(&format!("GRANT {words} ON {{schema}}.{table} TO {role}"))).await?;
    }
    work.run(cx, &client.sql(&format!("GRANT USAGE ON SEQUENCE {{schema}}.revisions TO {role}"))).await?;
    work.commit(cx).await
}
