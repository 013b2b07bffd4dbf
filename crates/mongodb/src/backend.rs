//! MongoDB as a configuration file names it.

use std::sync::Arc;

use async_trait::async_trait;
use mongodb::bson::{Document, doc};
use watchkeeper_core::{Backend, Cx, Finding, Offer, Options, Purpose, Result, Severity, Source, Target};

use crate::{Checkpoints, Client, Config, Events, Feed, Leases, Mirror, Notes, Transactional, Versioned, View};

/// The backend `mongodb`: servers named `mongodb://HOSTS/DATABASE` or `mongodb+srv://NAME/DATABASE`.
#[derive(Debug, Clone, Copy, Default)]
pub struct MongoDb;

/// The wire version of MongoDB 5.0, the oldest that Watchkeeper is made for.
const WIRE_VERSION_MIN: i32 = 13;

/// What a server's greeting tells about it as a store.
fn findings(hello: &Document) -> Vec<Finding> {
    let mut found = Vec::new();
    if hello.get_i32("maxWireVersion").is_ok_and(|version| version < WIRE_VERSION_MIN) {
        let what = "the servers are older than MongoDB 5.0".to_owned();
        found.push(Finding { severity: Severity::Error, what, remedy: Some("use 5.0 or newer".to_owned()) });
    }
    let set = hello.get_str("setName").unwrap_or("(sharded)");
    match hello.get_array("hosts").map(Vec::len) {
        Ok(members) if members < 3 => {
            let what = format!("the replica set {set} has {members} of the three members that survive a failure");
            let remedy = Some("add members, or accept that nobody takes over while it is down".to_owned());
            found.push(Finding { severity: Severity::Warning, what, remedy });
        }
        _ => {}
    }
    found
}

/// How a sink writes.
#[derive(Debug, Clone, Copy)]
enum Mode {
    Events,
    Mirror,
    Versioned,
}

#[async_trait]
impl Backend for MongoDb {
    fn name(&self) -> &'static str {
        "mongodb"
    }

    fn schemes(&self) -> &'static [&'static str] {
        &["mongodb", "mongodb+srv"]
    }

    async fn store(&self, cx: &Cx, options: &mut Options) -> Result<Offer> {
        let client = Client::open(cx, Config::from_options(options)?).await?;
        Ok(Offer {
            leases: Some(Arc::new(Leases::open(cx, client.clone()).await?)),
            checkpoints: Some(Arc::new(Checkpoints::open(cx, client.clone()).await?)),
            records: Some(Arc::new(Notes::open(cx, client).await?)),
        })
    }

    async fn source(&self, cx: &Cx, _purpose: &Purpose, options: &mut Options) -> Result<Arc<dyn Source>> {
        let (config, view) = (Config::from_options(options)?, View::from_options(options)?);
        Ok(Arc::new(Feed::new(Client::open(cx, config).await?, view)))
    }

    async fn check_store(&self, cx: &Cx, options: &mut Options) -> Result<Vec<Finding>> {
        let client = Client::open(cx, Config::from_options(options)?).await?;
        Ok(findings(&client.read(cx, doc! { "hello": 1 }).await?))
    }

    async fn sink(&self, cx: &Cx, _purpose: &Purpose, options: &mut Options) -> Result<Target> {
        let config = Config::from_options(options)?;
        let collection = options.required("collection", "\"events\"")?;
        let modes = [("events", Mode::Events), ("mirror", Mode::Mirror), ("versioned", Mode::Versioned)];
        let mode = options.choice("mode", &modes)?.unwrap_or(Mode::Events);
        let client = Client::open(cx, config).await?;
        let sink = match mode {
            Mode::Events => Transactional::open(cx, client, Events::into(&collection)?).await?,
            Mode::Mirror => Transactional::open(cx, client, Mirror::into(&collection)?).await?,
            Mode::Versioned => {
                let sink = Arc::new(Versioned::new(client, Mirror::into(&collection)?));
                return Ok(Target { sink, checkpoints: None });
            }
        };
        let checkpoints = Arc::new(sink.checkpoints().clone());
        Ok(Target { sink: Arc::new(sink), checkpoints: Some(checkpoints) })
    }
}
