//! SQLite as a configuration file names it.

use std::path::PathBuf;
use std::sync::Arc;

use async_trait::async_trait;
use watchkeeper_core::{Backend, Cx, Offer, Options, Purpose, Result, Source, Target, Tool};

use crate::tools::{Install, Uninstall};
use crate::{ChangeLog, Checkpoints, Client, Config, Events, Leases, Mirror, Notes, Retention, Transactional};

/// The backend `sqlite`: files named `sqlite:PATH`.
#[derive(Debug, Clone, Copy, Default)]
pub struct Sqlite;

/// The file that a URL names: `sqlite:state.db`, or `sqlite:///var/lib/state.db`.
pub(crate) fn path(options: &mut Options) -> Result<PathBuf> {
    let url = options.required("url", "\"sqlite:state.db\"")?;
    let path = url.strip_prefix("sqlite:").map(|rest| rest.strip_prefix("//").unwrap_or(rest));
    match path {
        Some(path) if !path.is_empty() => Ok(PathBuf::from(path)),
        _ => Err(options.wrong("url", format!("{url:?} names no file")).remedy("write \"sqlite:state.db\"")),
    }
}

fn config(mut config: Config, options: &mut Options) -> Result<Config> {
    config.busy = options.duration("busy")?.unwrap_or(config.busy);
    config.tick = options.duration("tick")?.unwrap_or(config.tick);
    config.evict = options.flag("evict")?.unwrap_or(config.evict);
    Ok(config)
}

#[async_trait]
impl Backend for Sqlite {
    fn name(&self) -> &'static str {
        "sqlite"
    }

    fn schemes(&self) -> &'static [&'static str] {
        &["sqlite"]
    }

    async fn store(&self, cx: &Cx, options: &mut Options) -> Result<Offer> {
        let config = config(Config::new(path(options)?), options)?;
        let client = Client::open(cx, config).await?;
        Ok(Offer {
            leases: Some(Arc::new(Leases::open(cx, client.separate(cx).await?).await?)),
            checkpoints: Some(Arc::new(Checkpoints::open(cx, client.clone()).await?)),
            records: Some(Arc::new(Notes::open(cx, client).await?)),
        })
    }

    async fn source(&self, cx: &Cx, purpose: &Purpose, options: &mut Options) -> Result<Arc<dyn Source>> {
        let config = config(Config::existing(path(options)?), options)?;
        let usual = Retention::default();
        let retention = Retention {
            rewind: options.duration("rewind")?.unwrap_or(usual.rewind),
            abandoned: options.duration("abandoned")?.unwrap_or(usual.abandoned),
        };
        let client = Client::open(cx, config).await?;
        let consumer = format!("{}/{}", purpose.group, purpose.stream);
        Ok(Arc::new(ChangeLog::open(cx, client, &consumer).await?.keep(retention)))
    }

    async fn sink(&self, cx: &Cx, _purpose: &Purpose, options: &mut Options) -> Result<Target> {
        let config = config(Config::new(path(options)?), options)?;
        let table = options.required("table", "\"events\"")?;
        let mirror = options.choice("mode", &[("events", false), ("mirror", true)])?.unwrap_or(false);
        let client = Client::open(cx, config).await?;
        let sink = match mirror {
            true => Transactional::open(cx, client, Mirror::into(&table)?).await?,
            false => Transactional::open(cx, client, Events::into(&table)?).await?,
        };
        let checkpoints = Arc::new(sink.checkpoints().clone());
        Ok(Target { sink: Arc::new(sink), checkpoints: Some(checkpoints) })
    }

    fn tools(&self) -> Vec<Arc<dyn Tool>> {
        vec![Arc::new(Install), Arc::new(Uninstall)]
    }
}
