//! MongoDB as a configuration file names it.

use std::sync::Arc;

use async_trait::async_trait;
use watchkeeper_core::{Backend, Cx, Offer, Options, Purpose, Result, Source};

use crate::{Checkpoints, Client, Config, Feed, Leases, Notes, View};

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

    async fn source(&self, cx: &Cx, _purpose: &Purpose, options: &mut Options) -> Result<Arc<dyn Source>> {
        let (config, view) = (Config::from_options(options)?, View::from_options(options)?);
        Ok(Arc::new(Feed::new(Client::open(cx, config).await?, view)))
    }
}
