//! Stores and sources by their address, for those who write no configuration file.

use std::sync::Arc;
use std::time::Duration;

use serde_json::Value;
use watchkeeper_core::{BootClock, Cx, Error, Options, Origin, Purpose, Result, Setting, Source, WrittenSetting};
use watchkeeper_engine::instance::Stores;

use crate::registry;

/// How long opening may take. A file that another process writes to may be waited for.
const WITHIN: Duration = Duration::from_secs(30);

/// The context of a call that opens something.
pub fn cx() -> Cx {
    Cx::new(Arc::new(BootClock)).within(WITHIN)
}

/// What a group shares, all in one place: `sqlite:state.db`, a file that is made where it is missing. Give it a
/// file of its own, since an application's long transactions would hold up the renewal of leases.
///
/// ```no_run
/// # async fn stores() -> watchkeeper::Result<()> {
/// use watchkeeper::open;
///
/// let on_this_machine = open::stores("sqlite:state.db").await?;
/// let on_several = open::stores("postgres://watchkeeper@db/coordination").await?;
/// # Ok(())
/// # }
/// ```
///
/// # Errors
/// `Config` for an address that no backend here understands or that is no store, and what the backend says.
pub async fn stores(address: &str) -> Result<Stores> {
    let backend = registry::of_url(address)?;
    let offer = backend.store(&cx(), &mut options(address)).await?;
    match (offer.leases, offer.checkpoints, offer.records) {
        (Some(leases), Some(checkpoints), Some(records)) => Ok(Stores { leases, checkpoints, records }),
        _ => Err(Error::config(format!("{} keeps not all that a group shares", backend.name()))
            .remedy("use another system, or open leases, checkpoints and records one by one")),
    }
}

/// A source: `sqlite:shop.db`, the log of an application's tables, made by `watchkeeper sqlite install`. It is read on
/// behalf of a stream of a group: what that one has not acknowledged is kept. [`source_at`] takes settings too.
///
/// ```no_run
/// # async fn source() -> watchkeeper::Result<()> {
/// use watchkeeper::{Stream, open};
///
/// let source = open::source("sqlite:shop.db", "shop", "orders").await?;
/// let orders = Stream::new("orders", source);
/// # Ok(())
/// # }
/// ```
///
/// # Errors
/// `Config` for an address that no backend here understands, and what the backend says.
pub async fn source(address: &str, group: &str, stream: &str) -> Result<Arc<dyn Source>> {
    source_at(address).open(group, stream).await
}

/// A source with settings, under the names that a configuration file gives them.
///
/// ```no_run
/// # async fn sources() -> watchkeeper::Result<()> {
/// use watchkeeper::open;
///
/// let orders = open::source_at("mongodb://db1,db2,db3/shop?replicaSet=rs0")
///     .set("collection", "orders")
///     .set("full_document", "updateLookup")
///     .open("shop", "orders")
///     .await?;
/// let items = open::source_at("postgres://app@db/shop")
///     .set("mode", "replication")
///     .set("tables", ["public.items", "public.prices"])
///     .open("shop", "items")
///     .await?;
/// # Ok(())
/// # }
/// ```
pub fn source_at(address: &str) -> SourceBuilder {
    SourceBuilder { address: address.to_owned(), settings: Vec::new() }
}

/// A source that is being described; see [`source_at`].
#[derive(Debug, Clone)]
#[must_use = "nothing is read before `open`"]
pub struct SourceBuilder {
    address: String,
    settings: Vec<(String, Value)>,
}

impl SourceBuilder {
    /// The same with a setting: text, a number, a flag, a list of texts, or any of them below other names (`json!`).
    pub fn set(mut self, name: &str, value: impl Into<Value>) -> Self {
        self.settings.push((name.to_owned(), value.into()));
        self
    }

    /// Opens it on behalf of a stream of a group: what that one has not acknowledged is kept.
    ///
    /// # Errors
    /// `Config` for an address that no backend here understands, for an unknown setting, and what the backend says.
    pub async fn open(self, group: &str, stream: &str) -> Result<Arc<dyn Source>> {
        let backend = registry::of_url(&self.address)?;
        let mut options = options(&self.address);
        for (name, value) in self.settings {
            let origin = Origin::new(format!("the setting {name:?}"));
            options.insert(name.as_str(), setting(value, &name, &origin));
        }
        let purpose = Purpose::new(group.to_owned(), stream.to_owned());
        let source = backend.source(&cx(), &purpose, &mut options).await?;
        options.finish()?;
        Ok(source)
    }
}

/// A value as a configuration file would write it.
fn setting(value: Value, path: &str, origin: &Origin) -> WrittenSetting {
    let value = match value {
        Value::Null => Setting::Text(String::new()),
        Value::Bool(flag) => Setting::Flag(flag),
        Value::Number(number) => match number.as_i64() {
            Some(whole) => Setting::Integer(whole),
            None => Setting::Float(number.as_f64().unwrap_or_default()),
        },
        Value::String(text) => Setting::Text(text),
        Value::Array(items) => Setting::List(items.into_iter().map(|item| setting(item, path, origin)).collect()),
        Value::Object(fields) => {
            let mut table = Options::new(path, origin.clone());
            for (name, value) in fields {
                let below = format!("{path}.{name}");
                table.insert(name, setting(value, &below, origin));
            }
            Setting::Table(table)
        }
    };
    WrittenSetting { setting: value, origin: origin.clone() }
}

fn options(address: &str) -> Options {
    let origin = Origin::new("this address");
    let mut options = Options::new("", origin.clone());
    options.insert("url", WrittenSetting::text(address, origin));
    options
}
