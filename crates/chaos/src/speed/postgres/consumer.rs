//! The consumers that are this program, each in a process of its own.

use std::sync::Arc;

use watchkeeper_core::{Error, Result, Source};
use watchkeeper_engine::instance::Stores;
use watchkeeper_postgres::replication::Settings;
use watchkeeper_postgres::{ChangeLog, Checkpoints, Client, Config, Leases, RecordStore, Replication};

use super::history::{EVENTS, PUBLICATION};
use super::{pgoutput, poll, recvlogical, slot};
use crate::cluster::cx;
use crate::speed::consumer::Consumer;
use crate::speed::live::{AT, LIVE, written_at};
use crate::speed::meter::{Measurement, Meter};
use crate::speed::ours;
use crate::speed::task::BenchTask;

pub(in crate::speed) async fn consume(bench_task: &BenchTask, name: &str, meter: &Arc<Meter>) -> Result<Measurement> {
    match bench_task.by {
        Consumer::RecvLogical => recvlogical::consume(bench_task),
        Consumer::Poll => poll::consume(bench_task, meter).await,
        Consumer::Pgoutput => {
            let (bench_task, meter) = (bench_task.clone(), Arc::clone(meter));
            let reading = tokio::task::spawn_blocking(move || pgoutput::consume(&bench_task, &meter));
            let broken = |error| Error::unavailable("the loop has ended").caused_by(error);
            reading.await.map_err(|error| Error::internal("the loop broke").caused_by(error))?.map_err(broken)
        }
        _ => watchkeeper(bench_task, name, meter).await,
    }
}

async fn watchkeeper(bench_task: &BenchTask, name: &str, meter: &Arc<Meter>) -> Result<Measurement> {
    let cx = cx();
    let client = Client::open(&cx, Config::new(&bench_task.url)?).await?;
    let stores = Stores {
        leases: Arc::new(Leases::open(&cx, client.clone()).await?),
        checkpoints: Arc::new(Checkpoints::open(&cx, client.clone()).await?),
        records: Arc::new(RecordStore::open(&cx, client.clone()).await?),
    };
    let source: Arc<dyn Source> = match bench_task.by {
        Consumer::ChangeLog => Arc::new(ChangeLog::open(&cx, client, &bench_task.group).await?),
        _ => {
            let (table, publication) = if bench_task.live { (LIVE, LIVE) } else { (EVENTS, PUBLICATION) };
            let settings = Settings::new(slot(&bench_task.group), publication);
            let settings = Settings { tables: vec![table.to_owned()], ..settings };
            Arc::new(Replication::new(Config::new(&bench_task.url)?, settings))
        }
    };
    let live = bench_task.live;
    let sink = ours::counting(meter, move |meter, change| {
        if live {
            meter.stopwatch.note(written_at(change, &["after", AT]));
        }
    })?;
    Ok(ours::run(bench_task, name, stores, source, sink, meter).await?.took())
}
