//! The tables in a sink's filter, as the changes of a stream name them.

use watchkeeper_core::{Cx, Error, Options, Purpose, Result};

use super::published::Published;
use crate::backend::reads_replication;
use crate::client::Client;
use crate::replication::Settings;
use crate::{ChangeLog, Config};

/// The names, each as the source that has these settings tells it.
///
/// # Errors
/// `Config` for a name of which such a source never tells.
pub(crate) async fn resolved(
    cx: &Cx,
    purpose: &Purpose,
    options: &mut Options,
    names: Vec<String>,
) -> Result<Vec<String>> {
    let config = Config::from_options(options)?;
    if !reads_replication(options)? {
        let client = Client::open(cx, config).await?;
        let log = ChangeLog::from_options(cx, client, &purpose.stream, options).await?;
        return log.namespaces(cx, names).await;
    }
    let settings = Settings::from_options(purpose, options)?;
    // As `tables` are: the server need not be there.
    let names = Settings { tables: names, ..settings.clone() }.qualified();
    match names.iter().find(|name| !settings.gives_out(name, config.schema())) {
        Some(name) => Err(unwatched(name)),
        None => Ok(names),
    }
}

/// The error of a name in a filter that is not among the tables of the stream.
pub(crate) fn unwatched(name: &str) -> Error {
    let cause = format!("a filter names {name}, of which the stream never tells: everything would be passed over");
    Error::config(cause).remedy("correct `namespaces` of the filter, or add the table to `tables` of the source")
}

/// The names under which changes are told now, where that is known.
pub(crate) async fn watched(cx: &Cx, purpose: &Purpose, options: &mut Options) -> Result<Option<Vec<String>>> {
    let config = Config::from_options(options)?;
    let is_replicated = reads_replication(options)?;
    let client = Client::open(cx, config).await?;
    if is_replicated {
        return Published::from_options(&client, purpose, options)?.tables(cx, &client).await.map(Some);
    }
    ChangeLog::from_options(cx, client, &purpose.stream, options).await?.logged_tables(cx).await
}
