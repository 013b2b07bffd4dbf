//! What has arrived, in the order in which the servers committed it.
//!
//! The documents of the target are in the order of their epochs, however they came, and would hide a stale write. The
//! oplog does not: so they are read as a change stream, through the bare driver.

use std::time::{Duration, Instant};

use async_trait::async_trait;
use watchkeeper_core::{Cx, Error, Result};
use watchkeeper_drill::Arrival;
use watchkeeper_mongodb::mongodb::Collection;
use watchkeeper_mongodb::mongodb::bson::{Document, Timestamp};
use watchkeeper_mongodb::mongodb::change_stream::ChangeStream;
use watchkeeper_mongodb::mongodb::change_stream::event::{ChangeStreamEvent, ResumeToken};
use watchkeeper_mongodb::{CallPurpose, Client};

use super::super::Target;

/// How long the server waits for news.
const AWAIT: Duration = Duration::from_millis(20);

/// How long one call collects, when the news do not end.
const COLLECT: Duration = Duration::from_millis(5);

type Stream = ChangeStream<ChangeStreamEvent<Document>>;

/// What a change of the target says of an order.
type Parse = fn(&ChangeStreamEvent<Document>) -> Result<Option<Arrival>>;

pub(super) struct Arrivals {
    begin: Timestamp,
    client: Client,
    cx: Cx,
    collection: &'static str,
    parse: Parse,
    stream: Option<Stream>,
    /// Where to go on, when the stream has failed.
    after: Option<ResumeToken>,
}

impl Arrivals {
    pub(super) fn since(begin: Timestamp, client: Client, cx: Cx, collection: &'static str, parse: Parse) -> Self {
        Self { begin, client, cx, collection, parse, stream: None, after: None }
    }

    // By `&mut`, since a stream cannot be shared between threads.
    async fn open(&mut self) -> Result<Stream> {
        let collection: Collection<Document> = self.client.database(&self.cx).await?.collection(self.collection);
        let watch = collection.watch().max_await_time(AWAIT);
        let watch = match &self.after {
            None => watch.start_at_operation_time(self.begin),
            Some(token) => watch.resume_after(token.clone()),
        };
        watch.await.map_err(|native| self.client.error(native, CallPurpose::Reading))
    }
}

#[async_trait]
impl Target for Arrivals {
    async fn take_arrivals(&mut self) -> Result<Vec<Arrival>> {
        let mut stream = match self.stream.take() {
            Some(stream) => stream,
            None => self.open().await?,
        };
        let (mut news, since) = (Vec::new(), Instant::now());
        loop {
            match stream.next_if_any().await {
                Ok(Some(event)) => {
                    self.after = Some(event.id.clone());
                    news.extend((self.parse)(&event)?);
                }
                Ok(None) => break,
                // It is opened again behind what is told now.
                Err(_) if !news.is_empty() => return Ok(news),
                Err(native) => return Err(self.client.error(native, CallPurpose::Reading)),
            }
            if since.elapsed() > COLLECT {
                break;
            }
        }
        self.stream = Some(stream);
        Ok(news)
    }

    // The driver would first try to end the cursor at the server that is gone, for as long as it may look for it.
    fn release_held(&mut self) {
        self.stream = None;
    }
}

/// An order in a collection of events.
pub(super) fn arrival(event: &ChangeStreamEvent<Document>) -> Result<Option<Arrival>> {
    event.full_document.as_ref().map(read).transpose()
}

fn read(document: &Document) -> Result<Arrival> {
    let read = || {
        let epoch = document.get_document("_id").ok()?.get_i64("epoch").ok()?;
        let event = document.get_document("event").ok()?;
        let key = event.get_document("documentKey").ok()?.get_str("_id").ok()?.to_owned();
        let number = event.get_document("fullDocument").ok()?.get_i64("number").ok()?;
        Some(Arrival { key, number: number.cast_unsigned(), epoch: epoch.cast_unsigned() })
    };
    read().ok_or_else(|| Error::corrupt(format!("an order that arrived cannot be read: {document}")))
}
