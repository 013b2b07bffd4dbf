//! The consumers that are this program, each in a process of its own.

use std::sync::Arc;

use watchkeeper_core::{Error, Result, Source};
use watchkeeper_engine::instance::Stores;
use watchkeeper_postgres::replication::Settings;
use watchkeeper_postgres::{ChangeLog, Checkpoints, Client, Config, Leases, Notes, Replication};

use super::history::{EVENTS, PUBLICATION};
use super::{pgoutput, poll, recvlogical, slot};
use crate::fleet::cx;
use crate::speed::errand::Errand;
use crate::speed::live::{AT, LIVE, written_at};
use crate::speed::meter::{Meter, Took};
use crate::speed::ours;
use crate::speed::who::By;

pub(in crate::speed) async fn consume(errand: &Errand, name: &str, meter: &Arc<Meter>) -> Result<Took> {
    match errand.by {
        By::RecvLogical => recvlogical::consume(errand),
        By::Poll => poll::consume(errand, meter).await,
        By::Pgoutput => {
            let (errand, meter) = (errand.clone(), Arc::clone(meter));
            let reading = tokio::task::spawn_blocking(move || pgoutput::consume(&errand, &meter));
            let broken = |error| Error::unavailable("the loop has ended").caused_by(error);
            reading.await.map_err(|error| Error::internal("the loop broke").caused_by(error))?.map_err(broken)
        }
        _ => watchkeeper(errand, name, meter).await,
    }
}

async fn watchkeeper(errand: &Errand, name: &str, meter: &Arc<Meter>) -> Result<Took> {
    let cx = cx();
    let client = Client::open(&cx, Config::new(&errand.url)?).await?;
    let stores = Stores {
        leases: Arc::new(Leases::open(&cx, client.clone()).await?),
        checkpoints: Arc::new(Checkpoints::open(&cx, client.clone()).await?),
        records: Arc::new(Notes::open(&cx, client.clone()).await?),
    };
    let source: Arc<dyn Source> = match errand.by {
        By::ChangeLog => Arc::new(ChangeLog::open(&cx, client, &errand.group).await?),
        _ => {
            let (table, publication) = if errand.live { (LIVE, LIVE) } else { (EVENTS, PUBLICATION) };
            let settings = Settings::new(slot(&errand.group), publication);
            let settings = Settings { tables: vec![table.to_owned()], ..settings };
            Arc::new(Replication::new(Config::new(&errand.url)?, settings))
        }
    };
    let live = errand.live;
    let sink = ours::counting(meter, move |meter, change| {
        if live {
            meter.stopwatch.note(written_at(change, &["after", AT]));
        }
    })?;
    Ok(ours::run(errand, name, stores, source, sink, meter).await?.took())
}
