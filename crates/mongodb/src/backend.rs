//! MongoDB as a configuration file names it.

use std::sync::Arc;

use async_trait::async_trait;
use watchkeeper_core::{Backend, Cx, Offer, Options, Result};

use crate::{Checkpoints, Client, Config, Leases, Notes};

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
}
