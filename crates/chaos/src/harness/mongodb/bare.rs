//! The least that a durable write costs: one document of a given size, kept by a majority.

use async_trait::async_trait;
use watchkeeper_core::{Cx, Result};
use watchkeeper_mongodb::mongodb::bson::{Binary, Document, doc, spec::BinarySubtype};
use watchkeeper_mongodb::{CallPurpose, Client};

use super::super::Bare;

const COLLECTION: &str = "bare";

pub(super) struct OneDocument {
    client: Client,
    cx: Cx,
    body: Binary,
    written: i64,
}

/// What stands around the bytes in the document.
const AROUND: usize = 60;

impl OneDocument {
    /// As large as the largest document of `like`.
    pub(super) async fn like(like: &str, client: Client, cx: Cx) -> Result<Self> {
        let database = client.database(&cx).await?;
        let sizes = [doc! { "$group": { "_id": null, "largest": { "$max": { "$bsonSize": "$$ROOT" } } } }];
        let said = |native| client.error(native, CallPurpose::Reading);
        let mut found = database.collection::<Document>(like).aggregate(sizes).await.map_err(said)?;
        let mut largest = 0;
        if found.advance().await.map_err(said)? {
            largest = found.current().get_i32("largest").unwrap_or(0);
        }
        let bytes = vec![7; usize::try_from(largest).unwrap_or(0).saturating_sub(AROUND)];
        drop(found);
        Ok(Self { client, cx, body: Binary { subtype: BinarySubtype::Generic, bytes }, written: 0 })
    }
}

#[async_trait]
impl Bare for OneDocument {
    async fn write(&mut self) -> Result<()> {
        self.written += 1;
        let database = self.client.database(&self.cx).await?;
        let update = doc! {
            "q": { "_id": "one" },
            "u": { "$set": { "written": self.written, "body": self.body.clone() } },
            "upsert": true,
        };
        let command =
            doc! { "update": COLLECTION, "updates": [update], "writeConcern": { "w": "majority", "wtimeout": 10_000 } };
        database.run_command(command).await.map(drop).map_err(|native| self.client.error(native, CallPurpose::Writing))
    }
}
