//! The write-ahead log as a source: logical replication by the server's own plugin `pgoutput`.
//!
//! A *slot* on the server holds the log back for this stream, a *publication* says which tables it tells of. The position is
//! the place of a transaction's commit and how many of its changes were read; the slot is moved only by what was committed.

mod batch;
mod binding;
mod body;
mod catalog;
mod connect;
mod decode;
mod failure;
mod keys;
mod lag;
mod lineage;
mod open;
mod orphans;
mod pgoutput;
mod position;
mod preflight;
mod proof;
mod publication;
mod publication_definition;
mod publication_diff;
mod publication_fingerprint;
mod publication_watcher;
mod reader;
mod relation;
mod rights;
mod settings;
mod slot;
mod snapshot;
mod socket;
mod spool;
mod standby_snapshot_logger;
mod task;
mod value;
mod version_origin;
mod waiting;
mod wire;

use std::cmp::Ordering;
use std::sync::{Arc, Mutex, PoisonError, Weak};
use std::time::Duration;

use async_trait::async_trait;
use watchkeeper_core::source::BEGIN_SNAPSHOT_ANEW;
use watchkeeper_core::{
    ChangeStream, Cx, Error, ErrorKind, Finding, Moment, Payload, Pedigree, Position, Result, Severity, Source, StartAt,
};

pub use body::RowPayload;
pub use lag::Slots;
pub use position::Lsn;
pub(crate) use preflight::refuse_operation;
pub use settings::{Keyless, Settings};

use crate::config::Config;
use connect::Endpoint;
use lineage::SourceLineage;
use position::ReplicationPosition;
use publication_definition::PublicationDefinition;
use settings::Choice;
use slot::ServerState;
use wire::{Failure, Wire};

/// The changes of published tables, read through a replication slot.
#[derive(Debug, Clone)]
pub struct Replication(Arc<Inner>);

#[derive(Debug)]
struct Inner {
    endpoint: Endpoint,
    settings: Settings,
    /// A connection over which everything is known before reading begins: opening follows identifying and verifying, and need not
    /// ask again. The log itself is read over another one.
    prepared: Mutex<Option<PreparedConnection>>,
    /// Lives as long as the reader of the slot in this process.
    tenancy: Mutex<Weak<()>>,
    /// The place that was verified last, and what the publication was then beside what was stored with it.
    remembered: Mutex<Option<(ReplicationPosition, Option<PublicationDefinition>)>>,
}

/// A connection that waits to be used, and what was learned over it.
#[derive(Debug)]
struct PreparedConnection {
    wire: Wire,
    lineage: SourceLineage,
    outlook: ServerState,
    asked: Moment,
    /// The place for which all of it was found to be good.
    verified: Option<ReplicationPosition>,
    /// Whether something was asked over it about tables. What the server's process once looked up in the catalog of now it keeps, and
    /// decodes the log of then with it.
    is_spoilt: bool,
}

/// What was learned so long ago is asked again. Verifying, identifying and opening follow each other at once.
const FRESH_FOR: Duration = Duration::from_secs(1);

impl Replication {
    /// The log of the server and the database in `config`. Nothing is asked of it yet.
    pub fn new(config: Config, settings: Settings) -> Self {
        let (prepared, tenancy, remembered) = (Mutex::default(), Mutex::default(), Mutex::default());
        let endpoint = Endpoint::new(config, settings.stream.as_deref());
        Self(Arc::new(Inner { endpoint, settings, prepared, tenancy, remembered }))
    }

    /// How it is read.
    pub fn settings(&self) -> &Settings {
        &self.0.settings
    }

    fn place(&self) -> String {
        self.0.endpoint.0.place()
    }

    fn database(&self) -> &str {
        self.0.endpoint.0.database()
    }

    fn choice(&self) -> Choice {
        Choice::of(&self.0.settings, self.0.endpoint.0.schema())
    }

    fn to_error(&self, failure: Failure) -> Error {
        failure::to_error(&self.place(), failure)
    }

    async fn connect(&self, cx: &Cx) -> Result<Wire> {
        self.0.endpoint.connect(cx).await
    }

    fn take_prepared(&self) -> Option<PreparedConnection> {
        self.0.prepared.lock().unwrap_or_else(PoisonError::into_inner).take()
    }

    fn put_prepared(&self, prepared: PreparedConnection) {
        *self.0.prepared.lock().unwrap_or_else(PoisonError::into_inner) = Some(prepared);
    }

    /// A connection, and what is known over it now.
    async fn inspect(&self, cx: &Cx) -> Result<PreparedConnection> {
        self.inspect_again(cx, None).await
    }

    /// The same, where the publication is presumed to be what is remembered of it.
    async fn inspect_again(&self, cx: &Cx, remembered: Option<&PublicationDefinition>) -> Result<PreparedConnection> {
        let (asked, verified) = (cx.now(), None);
        if let Some(PreparedConnection { mut wire, is_spoilt, .. }) = self.take_prepared()
            && let Ok(Ok((lineage, outlook))) = cx.run(async { Ok(self.ask(&mut wire, remembered).await) }).await
        {
            let is_spoilt = is_spoilt || !outlook.presumes;
            return Ok(PreparedConnection { wire, lineage, outlook, asked, verified, is_spoilt });
        }
        let mut wire = self.connect(cx).await?;
        let (lineage, outlook) =
            cx.run(async { self.ask(&mut wire, remembered).await.map_err(|failure| self.to_error(failure)) }).await?;
        let is_spoilt = !outlook.presumes;
        Ok(PreparedConnection { wire, lineage, outlook, asked, verified, is_spoilt })
    }

    /// What was learned a moment ago, which is good enough for someone who is waited for.
    fn take_fresh(&self, cx: &Cx) -> Option<PreparedConnection> {
        self.take_prepared().filter(|prepared| cx.now().since(prepared.asked) < FRESH_FOR)
    }

    /// The same, if it is known to be good for `place`.
    fn take_verified(&self, cx: &Cx, place: &ReplicationPosition) -> Option<PreparedConnection> {
        self.take_fresh(cx).filter(|prepared| prepared.verified.as_ref() == Some(place))
    }

    async fn ask(
        &self,
        wire: &mut Wire,
        remembered: Option<&PublicationDefinition>,
    ) -> Result<(SourceLineage, ServerState), Failure> {
        let (lineage, choice) = (SourceLineage::ask(wire).await?, self.choice());
        let outlook = ServerState::take(wire, &self.0.settings, &choice, remembered).await?;
        Ok((SourceLineage { publication: outlook.publication.clone(), ..lineage }, outlook))
    }

    async fn catalogued(&self, cx: &Cx, relation: u32) -> Result<catalog::CatalogTable> {
        let mut wire = self.connect(cx).await?;
        cx.run(async { catalog::table(&mut wire, relation).await.map_err(|failure| self.to_error(failure)) }).await
    }
}

fn will_be_made(what: &str) -> Finding {
    Finding { severity: Severity::Note, what: format!("{what} is not there yet and will be made"), remedy: None }
}

#[async_trait]
impl Source for Replication {
    async fn resolve_names(&self, _cx: &Cx, names: Vec<String>) -> Result<Vec<String>> {
        let names = Settings { tables: names, ..self.0.settings.clone() }.qualified();
        let choice = self.choice();
        match names.iter().find(|name| !choice.has(name)) {
            Some(name) => Err(Error::config(format!("the stream does not watch {name}"))
                .remedy("correct the name, or add the table to `tables` of the source")),
            None => Ok(names),
        }
    }

    async fn check(&self, cx: &Cx) -> Result<Vec<Finding>> {
        let PreparedConnection { mut wire, outlook, .. } = self.inspect(cx).await?;
        let place = self.place();
        outlook.require_logical(&place)?;
        let settings = &self.0.settings;
        let mut findings = Vec::new();
        if outlook.has_publication() {
            let published = publication::tables(&mut wire, settings);
            let published = cx.run(async { published.await.map_err(|failure| self.to_error(failure)) }).await?;
            findings.extend(publication::findings(settings, &published));
            let choice = self.choice();
            let children = publication::children(&mut wire, &published, |table| choice.has(table));
            findings.extend(cx.run(async { children.await.map_err(|failure| self.to_error(failure)) }).await?);
            let omissions = publication::omissions(&mut wire, settings);
            findings.extend(cx.run(async { omissions.await.map_err(|failure| self.to_error(failure)) }).await?);
        } else if settings.tables.is_empty() {
            return Err(publication::missing(settings));
        } else {
            findings.push(will_be_made(&format!("publication {}", settings.publication)));
            let named = publication::named(&mut wire, settings);
            let named = cx.run(async { named.await.map_err(|failure| self.to_error(failure)) }).await?;
            findings.extend(publication::obstacles(settings, &named));
            let choice = self.choice();
            let children = publication::children(&mut wire, &named, |table| choice.has(table));
            findings.extend(cx.run(async { children.await.map_err(|failure| self.to_error(failure)) }).await?);
            let rights = rights::to_publish(&mut wire, settings, self.0.endpoint.0.user());
            findings.extend(cx.run(async { rights.await.map_err(|failure| self.to_error(failure)) }).await?);
        }
        let proof = proof::findings(&mut wire, self.0.endpoint.0.user());
        findings.extend(cx.run(async { proof.await.map_err(|failure| self.to_error(failure)) }).await?);
        if !outlook.has_slot() {
            findings.push(will_be_made(&format!("slot {}", settings.slot)));
            let room = rights::to_hold(&mut wire, settings);
            findings.extend(cx.run(async { room.await.map_err(|failure| self.to_error(failure)) }).await?);
            return Ok(findings);
        }
        let (slots, rate) = lag::standings(cx, &mut wire, &place, Some(&settings.slot)).await?;
        findings.extend(slots.iter().flat_map(|slot| slot.findings(rate)));
        if slots.iter().all(|slot| !slot.is_lost()) {
            outlook.slot(settings, self.database())?;
        }
        Ok(findings)
    }

    async fn identity(&self, cx: &Cx) -> Result<Pedigree> {
        let prepared = match self.take_fresh(cx) {
            Some(prepared) => prepared,
            None => self.inspect(cx).await?,
        };
        let pedigree = prepared.lineage.to_pedigree();
        self.put_prepared(prepared);
        Ok(pedigree)
    }

    async fn verify(&self, cx: &Cx, position: &Position, pedigree: &Pedigree) -> Result<()> {
        let place = ReplicationPosition::read(position)?;
        self.remember(None);
        let before = SourceLineage::from_pedigree(pedigree).and_then(|stored| stored.publication);
        // A takeover is waited for: what the publication is made of is looked at right after it.
        let mut prepared = self.inspect_again(cx, before.as_ref()).await?;
        let PreparedConnection { wire, lineage, outlook, .. } = &mut prepared;
        let recognised =
            cx.run(async { lineage.recognise(wire, &place, pedigree).await.map_err(|failure| self.to_error(failure)) });
        recognised.await??;
        outlook.require(&self.0.settings, self.database(), &place)?;
        let diff = self.compared(before, outlook.publication.as_ref())?;
        diff.warn();
        self.remember(Some((place.clone(), diff.scope)));
        prepared.verified = Some(place);
        self.put_prepared(prepared);
        Ok(())
    }

    async fn preflight(&self, cx: &Cx, start: &StartAt, pedigree: Option<&Pedigree>) -> Result<Vec<Finding>> {
        let left = match self.vetted(cx, start, pedigree).await {
            Ok(left) => left,
            Err(error) if error.kind() == ErrorKind::PositionLost && preflight::is_in_snapshot(start) => {
                return Finding::of_start(Err(error.remedy(BEGIN_SNAPSHOT_ANEW)));
            }
            Err(error) => return Finding::of_start(Err(crate::error::unchanged(error))),
        };
        Ok(left.into_iter().map(|what| Finding { severity: Severity::Warning, what, remedy: None }).collect())
    }

    fn compare(&self, a: &Position, b: &Position) -> Option<Ordering> {
        position::compare(a, b)
    }

    fn has_unfinished_snapshot(&self, position: &Position) -> bool {
        position::has_unfinished_snapshot(position)
    }

    fn payload(&self) -> Arc<dyn Payload> {
        Arc::new(RowPayload)
    }

    async fn open(&self, cx: &Cx, start: StartAt) -> Result<Box<dyn ChangeStream>> {
        refuse_operation(&start)?;
        let start = position::resolve_start(start);
        // Where this process reads the slot already, a second reader must not take it from the first.
        let is_second = self.0.tenancy.lock().unwrap_or_else(PoisonError::into_inner).strong_count() > 0;
        let opened = if is_second { self.open_aside(cx, start).await } else { self.open_own(cx, start).await };
        Ok(Box::new(opened.map_err(crate::error::unchanged)?))
    }

    async fn peek(&self, cx: &Cx, start: StartAt) -> Result<Box<dyn ChangeStream>> {
        refuse_operation(&start)?;
        let start = position::resolve_start(start);
        Ok(Box::new(self.open_aside(cx, start).await.map_err(crate::error::unchanged)?))
    }
}
