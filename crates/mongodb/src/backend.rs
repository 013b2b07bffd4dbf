//! MongoDB as a configuration file names it.

use std::sync::Arc;

use async_trait::async_trait;
use watchkeeper_core::{Backend, Cx, Offer, Options, Purpose, Result, Target};

use crate::{Checkpoints, Client, Config, Events, Leases, Mirror, Notes, Transactional};

/// The backend `mongodb`: servers named `mongodb://HOSTS/DATABASE` or `mongodb+srv://NAME/DATABASE`.
#[derive(Debug, Clone, Copy, Default)]
pub struct MongoDb;

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

    async fn sink(&self, cx: &Cx, _purpose: &Purpose, options: &mut Options) -> Result<Target> {
        let config = Config::from_options(options)?;
        let collection = options.required("collection", "\"events\"")?;
        let mirror = options.choice("mode", &[("events", false), ("mirror", true)])?.unwrap_or(false);
        let client = Client::open(cx, config).await?;
        let sink = match mirror {
            true => Transactional::open(cx, client, Mirror::into(&collection)?).await?,
            false => Transactional::open(cx, client, Events::into(&collection)?).await?,
        };
        let checkpoints = Arc::new(sink.checkpoints().clone());
        Ok(Target { sink: Arc::new(sink), checkpoints: Some(checkpoints) })
    }
}
