//! One connection pool, and commands whose outcome is told exactly.
//!
//! Everything is sent as a command of our own making: with the majority as its concern, a time-out at the server that
//! ends before the one here, and no retry by the driver. So what an answer means is decided here alone.
//!
//! A separate client connects with its first call, so its connections live on the runtime of the keeper's thread.

use std::sync::Arc;
use std::time::Duration;

use futures_util::TryStreamExt;
use mongodb::bson::raw::CStr;
use mongodb::bson::{Bson, Document, RawArrayBuf, RawDocumentBuf, doc};
use mongodb::{ClientSession, Database};
use watchkeeper_core::{Cx, Error, ErrorKind, Result};

use crate::config::Config;
use crate::error::{CallPurpose, Class, translate, translate_code};

mod abilities;
mod change_hints;
mod driver;
mod schema;

pub(crate) use change_hints::{ChangeHints, Topic, publish};
pub(crate) use schema::{DUPLICATE, STORED_IN, create, ensure, is_code, is_there, number_bson};

use abilities::Abilities;
use change_hints::Tail;
use driver::Driver;

/// A client of one database.
#[derive(Clone)]
pub struct Client {
    config: Arc<Config>,
    place: Arc<str>,
    driver: Arc<Driver>,
    tail: Arc<Tail>,
    abilities: Arc<Abilities>,
}

impl std::fmt::Debug for Client {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Client").field("place", &self.place).finish_non_exhaustive()
    }
}

/// How long it may take to leave in order.
const LEAVE_WITHIN: Duration = Duration::from_secs(2);

/// What was answered to a write.
#[derive(Debug)]
pub(crate) struct Reply(pub(crate) Document);

impl Client {
    /// Connects, and looks whether this is something that transactions and change streams work on.
    ///
    /// # Errors
    /// `Config` for a single server without a replica set.
    pub async fn open(cx: &Cx, config: Config) -> Result<Self> {
        let client = Self::lazy(config);
        client.greet(cx).await?;
        Ok(client)
    }

    /// Looks whether a server answers, and is something that transactions and change streams work on.
    pub(crate) async fn greet(&self, cx: &Cx) -> Result<()> {
        let hello = self.read(cx, doc! { "hello": 1 }).await?;
        let sharded = hello.get_str("msg").is_ok_and(|reported| reported == "isdbgrid");
        if !sharded && !hello.contains_key("setName") {
            let cause = format!("{}: this server is no member of a replica set", self.place);
            return Err(Error::config(cause)
                .remedy("make it a replica set of one: start it with --replSet and run rs.initiate()"));
        }
        Ok(())
    }

    /// A client that has not been asked to do anything yet.
    pub(crate) fn lazy(config: Config) -> Self {
        let place = config.place().into();
        Self {
            config: Arc::new(config),
            place,
            driver: Arc::default(),
            tail: Arc::default(),
            abilities: Arc::default(),
        }
    }

    /// The same database on connections of its own, which are made by the first call, on the caller's runtime.
    #[must_use]
    pub fn separate(&self) -> Self {
        Self { driver: Arc::default(), tail: Arc::default(), ..self.clone() }
    }

    /// The settings.
    pub fn config(&self) -> &Config {
        &self.config
    }

    /// Servers and database, as errors name them.
    pub fn place(&self) -> &str {
        &self.place
    }

    /// The driver's client.
    pub async fn driver(&self, cx: &Cx) -> Result<mongodb::Client> {
        cx.run(async { self.driver.get(&self.config).await.map_err(|native| self.error(native, CallPurpose::Reading)) })
            .await
    }

    /// The database.
    pub async fn database(&self, cx: &Cx) -> Result<Database> {
        Ok(self.driver(cx).await?.database(self.config.database()))
    }

    /// Ends what the servers keep for this client, as cursors that were dropped, and its connections. Whoever else has a clone
    /// of it cannot use it any more.
    pub(crate) async fn leave(&self, cx: &Cx) {
        let Some(driver) = self.driver.made() else { return };
        let ended = async {
            driver.shutdown().await;
            Ok(())
        };
        // What is not ended in time the servers end by themselves, after a while.
        let _: Result<()> = cx.within(LEAVE_WITHIN).run(ended).await;
    }

    /// What a driver's error means, when the call was about `doing`.
    pub fn error(&self, native: mongodb::error::Error, doing: CallPurpose) -> Error {
        if Class::of(&native) == Class::Denied {
            self.driver.note_denied();
        }
        translate(native, doing, &self.place)
    }

    /// The context of one call: never without an end.
    pub(crate) fn bounded(&self, cx: &Cx) -> Cx {
        cx.within(self.config.timeout)
    }

    /// Sends a command that changes nothing, with majority reads where it can have them.
    pub(crate) async fn read(&self, cx: &Cx, mut command: Document) -> Result<Document> {
        let cx = self.bounded(cx);
        let database = self.database(&cx).await.map_err(unchanged)?;
        limit_time(&mut command, &cx);
        let call =
            async { database.run_command(command).await.map_err(|native| self.error(native, CallPurpose::Reading)) };
        cx.run(call).await.map_err(unchanged)
    }

    /// Sends a command of the database `admin` that changes nothing.
    pub(crate) async fn admin(&self, cx: &Cx, command: Document) -> Result<Document> {
        self.ask(cx, "admin", command).await
    }

    /// Sends a command of another database that changes nothing.
    pub(crate) async fn ask(&self, cx: &Cx, database: &str, mut command: Document) -> Result<Document> {
        let cx = self.bounded(cx);
        let database = self.driver(&cx).await.map_err(unchanged)?.database(database);
        limit_time(&mut command, &cx);
        let call =
            async { database.run_command(command).await.map_err(|native| self.error(native, CallPurpose::Reading)) };
        cx.run(call).await.map_err(unchanged)
    }

    /// All documents that a `find` or `aggregate` gives, by a majority read.
    pub(crate) async fn rows(&self, cx: &Cx, mut command: Document) -> Result<Vec<Document>> {
        let cx = self.bounded(cx);
        let database = self.database(&cx).await.map_err(unchanged)?;
        limit_time(&mut command, &cx);
        command.insert("readConcern", doc! { "level": "majority" });
        let call = async {
            let cursor = database.run_cursor_command(command).await;
            let read = async { cursor?.try_collect().await };
            read.await.map_err(|native| self.error(native, CallPurpose::Reading))
        };
        cx.run(call).await.map_err(unchanged)
    }

    /// Sends a write and waits for the majority. Errors of single statements are for the caller to look at; one about
    /// the majority is told as `Unknown`.
    pub(crate) async fn write(&self, cx: &Cx, command: Document) -> Result<Reply> {
        self.send(cx, command, None).await
    }

    /// As [`write`](Self::write), with statements that are in the form in which they are sent already.
    pub(crate) async fn write_each(&self, cx: &Cx, command: Document, statements: Statements) -> Result<Reply> {
        self.send(cx, command, Some(statements)).await
    }

    async fn send(&self, cx: &Cx, mut command: Document, statements: Option<Statements>) -> Result<Reply> {
        let cx = self.bounded(cx);
        let database = self.database(&cx).await.map_err(unchanged)?;
        let left_ms = limit_time(&mut command, &cx);
        command.insert("writeConcern", doc! { "w": "majority", "wtimeout": left_ms });
        let sent = match statements {
            Some(statements) => database.run_raw_command(raw_command(&command, statements)?),
            None => database.run_command(command),
        };
        let call = async { sent.await.map_err(|native| self.error(native, CallPurpose::Writing)) };
        let reply = Reply(cx.run(call).await?);
        reply.majority(&self.place)?;
        Ok(reply)
    }

    /// Sends a statement of a transaction. Nothing is changed until that is committed.
    pub(crate) async fn state(&self, session: &mut ClientSession, command: Document) -> Result<Reply> {
        let database = session.client().database(self.config.database());
        let answer = database.run_command(command).session(session).await;
        let reply = Reply(answer.map_err(|native| self.error(native, CallPurpose::Reading))?);
        match reply.first_error() {
            None => Ok(reply),
            Some((_, code, said)) => {
                let kind = Class::of_code(code).kind(CallPurpose::Reading);
                Err(translate_code(code, &said, Some(kind), &self.place))
            }
        }
    }
}

/// The statements of a command: the name of their list, and each as it is sent.
pub(crate) type Statements = (&'static CStr, Vec<RawDocumentBuf>);

/// A command with these statements in it.
pub(crate) fn raw_command(command: &Document, (name, statements): Statements) -> Result<RawDocumentBuf> {
    let unfit = |native| Error::internal("a command is no document").caused_by(native);
    let mut raw = RawDocumentBuf::try_from(command).map_err(unfit)?;
    raw.append(name, RawArrayBuf::from_iter(statements));
    Ok(raw)
}

/// What is not known after a read, or before anything was sent, is at least unchanged.
fn unchanged(error: Error) -> Error {
    match error.kind() {
        ErrorKind::Unknown => Error::unavailable(error.message().to_owned()).caused_by(error),
        _ => error,
    }
}

/// Lets the server give up a little before we do, so that its answer can still be heard. The milliseconds it has.
fn limit_time(command: &mut Document, cx: &Cx) -> i64 {
    let left = cx.remaining().unwrap_or(Duration::from_secs(10));
    let left_ms = i64::try_from((left.mul_f64(0.9)).as_millis()).unwrap_or(i64::MAX).clamp(1, 600_000);
    command.insert("maxTimeMS", left_ms);
    left_ms
}

impl Reply {
    /// How many documents were matched, inserted or deleted.
    pub(crate) fn count(&self) -> u64 {
        number(self.0.get("n")).unwrap_or(0)
    }

    /// The document of a `findAndModify`.
    pub(crate) fn value(&self) -> Option<&Document> {
        self.0.get_document("value").ok()
    }

    /// The numbers of the statements that made new documents.
    pub(crate) fn upserted(&self) -> impl Iterator<Item = usize> {
        let upserted = self.0.get_array("upserted").into_iter().flatten().filter_map(Bson::as_document);
        upserted.filter_map(|one| number(one.get("index")).and_then(|index| usize::try_from(index).ok()))
    }

    /// Errors of statements, by the number of the statement.
    pub(crate) fn errors(&self) -> impl Iterator<Item = (usize, i32, String)> {
        let errors = self.0.get_array("writeErrors").into_iter().flatten().filter_map(Bson::as_document);
        errors.map(|error| {
            let index = number(error.get("index")).and_then(|index| usize::try_from(index).ok()).unwrap_or(0);
            (index, error.get_i32("code").unwrap_or(0), error.get_str("errmsg").unwrap_or_default().to_owned())
        })
    }

    /// The first of them.
    pub(crate) fn first_error(&self) -> Option<(usize, i32, String)> {
        self.errors().next()
    }

    /// The same, if no statement failed.
    pub(crate) fn whole(self, client: &Client) -> Result<Self> {
        match self.first_error() {
            None => Ok(self),
            Some((_, code, said)) => Err(translate_code(code, &said, None, client.place())),
        }
    }

    fn majority(&self, place: &str) -> Result<()> {
        let Ok(error) = self.0.get_document("writeConcernError") else { return Ok(()) };
        let (code, said) = (error.get_i32("code").unwrap_or(64), error.get_str("errmsg").unwrap_or_default());
        // It was written here; what a majority keeps of it, nobody can say yet.
        Err(translate_code(code, said, Some(ErrorKind::Unknown), place))
    }
}

/// A number of whatever type.
pub(crate) fn number(value: Option<&Bson>) -> Option<u64> {
    match value? {
        Bson::Int32(number) => u64::try_from(*number).ok(),
        Bson::Int64(number) => u64::try_from(*number).ok(),
        Bson::Double(number) if *number >= 0.0 => Some(*number as u64),
        _ => None,
    }
}
