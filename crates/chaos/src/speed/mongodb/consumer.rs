//! The consumers that are this program, each in a process of its own.

use std::sync::Arc;

use watchkeeper_core::format::{Format, Native};
use watchkeeper_core::{Change, Error, Result, Sink};
use watchkeeper_engine::instance::Stores;
use watchkeeper_file::FileSink;
use watchkeeper_mongodb::mongodb::bson::{Document, RawDocumentBuf, doc};
use watchkeeper_mongodb::mongodb::options::CursorType;
use watchkeeper_mongodb::{CallPurpose, Checkpoints, Client, Config, Feed, Leases, RecordStore, View};

use super::history::{EVENTS, timestamp};
use crate::cluster::cx;
use crate::speed::consumer::Consumer;
use crate::speed::live::{AT, LIVE, written_at};
use crate::speed::meter::{Measurement, Meter, Start};
use crate::speed::ours;
use crate::speed::task::BenchTask;

fn collection(bench_task: &BenchTask) -> &'static str {
    if bench_task.live { LIVE } else { EVENTS }
}

pub(in crate::speed) async fn consume(bench_task: &BenchTask, name: &str, meter: &Arc<Meter>) -> Result<Measurement> {
    let client = Client::open(&cx(), Config::new(bench_task.url.as_str())?).await?;
    let start = match bench_task.by {
        Consumer::ChangeStream => change_stream(&client, bench_task, meter).await?,
        by if by.is_ours() => watchkeeper(client, bench_task, name, meter).await?,
        _ => raw_batches(&client, bench_task, meter).await?,
    };
    Ok(start.took())
}

async fn raw_batches(client: &Client, bench_task: &BenchTask, meter: &Meter) -> Result<Start> {
    use futures_util::StreamExt;
    let said = |native| client.error(native, CallPurpose::Reading);
    let database = client.database(&cx()).await?;
    let spec = if bench_task.live {
        doc! {}
    } else {
        doc! { "startAtOperationTime": timestamp(bench_task.mark) }
    };
    let pipeline = [doc! { "$changeStream": spec }];
    let command = doc! { "aggregate": collection(bench_task), "pipeline": pipeline, "cursor": {} };
    let start = Start::now();
    let cursor = database.run_cursor_command(command).cursor_type(CursorType::TailableAwait);
    let mut cursor = cursor.batch().await.map_err(said)?;
    while let Some(batch) = cursor.next().await {
        let batch = batch.map_err(said)?;
        for event in batch.doc_slices().map_err(said)? {
            let event = event.map_err(|error| Error::corrupt("an event").caused_by(error))?;
            // What every consumer needs of an event.
            let event = event.as_document().ok_or_else(|| Error::corrupt("an event"))?;
            let read = (event.get_document("_id").is_ok(), event.get_str("operationType").is_ok());
            if bench_task.live {
                meter.stopwatch.note(event.get_document("fullDocument").and_then(|document| document.get_i64(AT)).ok());
            }
            if bench_task.by == Consumer::BusyLoop {
                ours::work();
            }
            if read == (true, true) && meter.add(1) {
                return Ok(start);
            }
        }
    }
    Err(Error::unavailable("the cursor has ended"))
}

async fn change_stream(client: &Client, bench_task: &BenchTask, meter: &Meter) -> Result<Start> {
    use futures_util::TryStreamExt;
    let said = |native| client.error(native, CallPurpose::Reading);
    let events = client.database(&cx()).await?.collection::<Document>(EVENTS);
    let start = Start::now();
    let stream = events.watch().start_at_operation_time(timestamp(bench_task.mark)).await.map_err(said)?;
    let mut stream = stream.with_type::<RawDocumentBuf>();
    while let Some(event) = stream.try_next().await.map_err(said)? {
        if event.get_str("operationType").is_ok() && meter.add(1) {
            return Ok(start);
        }
    }
    Err(Error::unavailable("the stream has ended"))
}

async fn watchkeeper(client: Client, bench_task: &BenchTask, name: &str, meter: &Arc<Meter>) -> Result<Start> {
    let cx = cx();
    let stores = Stores {
        leases: Arc::new(Leases::open(&cx, client.clone()).await?),
        checkpoints: Arc::new(Checkpoints::open(&cx, client.clone()).await?),
        records: Arc::new(RecordStore::open(&cx, client.clone()).await?),
    };
    let source = Arc::new(Feed::new(client, View::collection(collection(bench_task))));
    let sink: Arc<dyn Sink> = match bench_task.by {
        Consumer::Lines => Arc::new(lines(bench_task, meter)?),
        _ => {
            let (live, busy) = (bench_task.live, bench_task.by == Consumer::BusyWatchkeeper);
            ours::counting(meter, move |meter, change| {
                if live {
                    meter.stopwatch.note(written_at(change, &["fullDocument", AT]));
                }
                if busy {
                    ours::work();
                }
            })?
        }
    };
    ours::run(bench_task, name, stores, source, sink, meter).await
}

/// Lines as users write them, counted when they are made.
fn lines(bench_task: &BenchTask, meter: &Arc<Meter>) -> Result<FileSink> {
    let settings = watchkeeper_file::Settings::new(&bench_task.folder, "events");
    FileSink::new(settings, Arc::new(Counted(Arc::clone(meter))))
}

#[derive(Debug)]
struct Counted(Arc<Meter>);

impl Format for Counted {
    fn name(&self) -> &'static str {
        Native.name()
    }

    fn write(&self, change: &Change, out: &mut Vec<u8>) -> Result<()> {
        Native.write(change, out)?;
        self.0.add(1);
        Ok(())
    }
}
