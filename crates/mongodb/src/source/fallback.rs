//! One cluster by several URLs: when one leads nowhere, the others are tried.

use std::cmp::Ordering;
use std::sync::atomic::{AtomicBool, AtomicU32, Ordering::SeqCst};
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use async_trait::async_trait;
use futures_util::future::BoxFuture;
use watchkeeper_core::source::Severity;
use watchkeeper_core::{
    Batch, ChangeStream, Cx, Error, ErrorKind, Finding, Limits, Payload, Pedigree, Position, Result, Source, Stage,
    StartAt, Window,
};

use super::Feed;
use super::resume_strategy::has_way_round;
use crate::check::finding;
use crate::client::Client;
use crate::position::Token;
use crate::{Config, View};

/// After so many rounds over all URLs without a change this instance gives up.
const ROUNDS_MAX: u32 = 5;

/// How often the first URL is asked whether it answers again, while another is read.
const COME_BACK: Duration = Duration::from_secs(30);

/// The shortest time that one URL is given, so that a dead one leaves the others some.
const TRY_MIN: Duration = Duration::from_millis(500);

/// How long the first answer of a cursor is waited for, when a position is looked at.
const PROVE: Duration = Duration::from_secs(2);

/// What is tried with one URL after the other.
type Attempt<'a, T> = dyn Fn(Cx, Feed) -> BoxFuture<'a, Result<T>> + Send + Sync + 'a;

/// The same change stream by several URLs, of which the first that works is read.
///
/// A URL works when its servers answer, are those that the position belongs to, and read on from it: servers often accept a
/// position that they cannot go on from, so one `getMore` is waited for. The URLs are tried in order, all of them in a
/// *round*; the engine waits between rounds. After five rounds without a change this instance gives the stream up, with the cause
/// of every URL, so that another instance may try. While another than the first is read, the first is asked now
/// and then, and gone back to.
#[derive(Debug, Clone)]
pub struct FallbackEndpoints {
    feeds: Arc<[Feed]>,
    /// The one that was chosen last, and has not failed since.
    chosen: Arc<Mutex<Option<usize>>>,
    /// Rounds since the last change.
    rounds: Arc<AtomicU32>,
    come_back: Duration,
}

impl FallbackEndpoints {
    /// What `view` shows of the cluster at these places. Nothing is asked of the servers yet.
    ///
    /// # Errors
    /// `Config` when there is none.
    pub fn new(places: Vec<Config>, view: &View) -> Result<Self> {
        let count = places.len();
        let feed = |place: Config| Feed::new(Client::lazy(place.one_of(count)), view.clone());
        let feeds: Arc<[Feed]> = places.into_iter().map(feed).collect();
        if feeds.is_empty() {
            return Err(Error::config("no URL is named").remedy("name at least one"));
        }
        Ok(Self { feeds, chosen: Arc::default(), rounds: Arc::default(), come_back: COME_BACK })
    }

    /// Asks the first URL so often whether it answers again, while another is read.
    #[must_use]
    pub fn come_back_after(mut self, time: Duration) -> Self {
        self.come_back = time.max(TRY_MIN);
        self
    }

    /// Where it is read, if one was chosen.
    pub fn place(&self) -> Option<&str> {
        self.chosen().map(|at| self.feeds[at].client.place())
    }

    fn chosen(&self) -> Option<usize> {
        *self.chosen.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn choose(&self, at: Option<usize>) {
        let before = std::mem::replace(&mut *self.chosen.lock().unwrap_or_else(PoisonError::into_inner), at);
        if let Some(at) = at.filter(|at| before != Some(*at)) {
            let (place, url) = (self.feeds[at].client.place(), at + 1);
            tracing::info!(place, url, urls = self.feeds.len(), "this URL is read");
        }
    }

    /// Asks the one that was chosen, which has to be verified again when it fails; without one, makes a round.
    async fn stay<T>(&self, cx: &Cx, attempt: &Attempt<'_, T>) -> Result<T> {
        let Some(at) = self.chosen() else { return self.round(cx, attempt).await };
        let answer = attempt(cx.clone(), self.feeds[at].clone()).await;
        if answer.is_err() {
            self.choose(None);
        }
        answer
    }

    /// One round: the first that works, tried in order from the first. Each gets its part of the time that is left.
    async fn round<T>(&self, cx: &Cx, attempt: &Attempt<'_, T>) -> Result<T> {
        let mut causes = Vec::new();
        for (at, feed) in self.feeds.iter().enumerate() {
            let cx = self.share(cx, at);
            let tried = async {
                feed.client.greet(&cx).await?;
                attempt(cx.clone(), feed.clone()).await
            };
            match tried.await {
                Ok(answer) => {
                    self.choose(Some(at));
                    return Ok(answer);
                }
                Err(error) => causes.push(error),
            }
        }
        Err(self.fruitless(&causes))
    }

    /// The part of the time that is left for the URL at this place.
    fn share(&self, cx: &Cx, at: usize) -> Cx {
        share(cx, self.feeds[at].client.config().timeout, self.feeds.len() - at)
    }

    /// What keeps each URL from being used.
    fn all_failures(&self, causes: &[Error]) -> String {
        let reported = self.feeds.iter().zip(causes).map(|(feed, cause)| describe_failure(feed.client.place(), cause));
        reported.collect::<Vec<_>>().join("; ")
    }

    /// What a look at URLs means of which none answers.
    fn none_answers(&self, causes: &[Error]) -> Error {
        let kind = causes.first().map_or(ErrorKind::Internal, Error::kind);
        let remedy = causes.first().and_then(Error::advice).unwrap_or("look at the servers and the network from here");
        Error::new(kind, format!("none of {} URLs answers: {}", causes.len(), self.all_failures(causes))).remedy(remedy)
    }

    /// What a round without an answer means.
    fn fruitless(&self, causes: &[Error]) -> Error {
        let rounds = self.rounds.fetch_add(1, SeqCst) + 1;
        let reported = self.all_failures(causes);
        let waits = |error: &Error| matches!(error.kind(), ErrorKind::Unavailable | ErrorKind::Unknown);
        let remedy = causes.first().and_then(Error::advice).unwrap_or("look at what the cause names").to_owned();
        // As long as one may come back, what another says of a position is not the last word.
        if !causes.iter().any(waits) {
            let kind = causes.first().map_or(ErrorKind::Internal, Error::kind);
            return Error::new(kind, format!("none of {} URLs can be used: {reported}", causes.len())).remedy(remedy);
        }
        if rounds < ROUNDS_MAX {
            return Error::unavailable(format!("none of {} URLs can be used: {reported}", causes.len())).remedy(remedy);
        }
        // When this instance is let in again, it has all rounds before it.
        self.rounds.store(0, SeqCst);
        let cause = format!("none of {} URLs could be used in {rounds} rounds: {reported}", causes.len());
        Error::config(cause).remedy("look at the servers and the network from here; another instance may do better")
    }
}

/// The part of the time that is left for one of so many URLs that are still to be tried, so that a dead one leaves the others some.
pub(crate) fn share(cx: &Cx, timeout: Duration, urls: usize) -> Cx {
    let urls = u32::try_from(urls).unwrap_or(u32::MAX).max(1);
    let share = cx.remaining().unwrap_or(timeout * urls) / urls;
    cx.within(share.max(TRY_MIN))
}

/// The cause of one URL, with its servers and database before it, which not every cause names.
fn describe_failure(place: &str, cause: &Error) -> String {
    let message = cause.message();
    if message.starts_with(place) { message.to_owned() } else { format!("{place}: {message}") }
}

impl Feed {
    /// Makes sure that its servers go on from a position: by the first answer of a cursor, since many refusals come only with it.
    /// A server that searches the oplog for longer than a moment has found the position.
    pub(super) async fn prove(&self, cx: &Cx, position: &Position) -> Result<()> {
        let token = Token::decode(position)?;
        let mut opened = self.impatient().open_after(cx, token).await?;
        let next = cx.within(PROVE).run(async { Ok(opened.batches.recv().await) }).await;
        match next {
            Ok(None) => Err(Error::unavailable("the server ended the cursor")),
            // The server reads on, and what needs a way round is found when the stream is read.
            Ok(Some(Err(native))) if has_way_round(&native) => Ok(()),
            Ok(Some(batch)) => batch.map(drop).map_err(|native| self.failure(native)),
            Err(late) if late.is_late() && cx.check().is_ok() => Ok(()),
            Err(error) => Err(error),
        }
    }
}

#[async_trait]
impl Source for FallbackEndpoints {
    async fn resolve_names(&self, cx: &Cx, names: Vec<String>) -> Result<Vec<String>> {
        match self.feeds.first() {
            // All of them show the same collections of the same databases.
            Some(feed) => feed.resolve_names(cx, names).await,
            None => Ok(names),
        }
    }

    async fn check(&self, cx: &Cx) -> Result<Vec<Finding>> {
        let (mut inspected, mut away) = (None, Vec::new());
        let mut strange = Vec::new();
        for (at, feed) in self.feeds.iter().enumerate() {
            if let Err(error) = feed.client.greet(&self.share(cx, at)).await {
                away.push((at, error));
                continue;
            }
            let cluster = feed.cluster(cx).await?;
            match &inspected {
                None => inspected = Some((cluster, feed.check(cx).await?)),
                Some((first, _)) => strange.extend(of_another(feed, first.as_deref(), cluster.as_deref())),
            }
        }
        let Some((_, mut found)) = inspected else {
            return Err(self.none_answers(&away.into_iter().map(|(_, error)| error).collect::<Vec<_>>()));
        };
        found.extend(strange);
        found.extend(away.into_iter().map(|(at, error)| self.is_away(at, &error)));
        Ok(found)
    }

    async fn identity(&self, cx: &Cx) -> Result<Pedigree> {
        if self.chosen().is_some() {
            return self.stay(cx, &|cx, feed| Box::pin(async move { feed.identity(&cx).await })).await;
        }
        // No position tells which cluster it is: one without the collections is none to begin with.
        let attempt = |cx: Cx, feed: Feed| -> BoxFuture<'_, Result<Pedigree>> {
            Box::pin(async move {
                feed.named_rightly(&cx).await?;
                feed.identity(&cx).await
            })
        };
        self.round(cx, &attempt).await
    }

    async fn verify(&self, cx: &Cx, position: &Position, pedigree: &Pedigree) -> Result<()> {
        let attempt = |cx: Cx, feed: Feed| -> BoxFuture<'_, Result<()>> {
            Box::pin(async move {
                feed.verify(&cx, position, pedigree).await?;
                feed.prove(&cx, position).await
            })
        };
        self.round(cx, &attempt).await
    }

    async fn preflight(&self, cx: &Cx, start: &StartAt, pedigree: Option<&Pedigree>) -> Result<Vec<Finding>> {
        let mut away = None;
        for (at, feed) in self.feeds.iter().enumerate() {
            match feed.client.greet(&self.share(cx, at)).await {
                Ok(()) => return feed.preflight(cx, start, pedigree).await,
                Err(error) => away = away.or(Some(error)),
            }
        }
        // There is at least one.
        away.map_or(Ok(Vec::new()), Err)
    }

    fn compare(&self, a: &Position, b: &Position) -> Option<Ordering> {
        self.feeds[0].compare(a, b)
    }

    fn stage(&self, position: &Position) -> Option<Stage> {
        self.feeds[0].stage(position)
    }

    fn require_all_changes(&self) -> Result<()> {
        self.feeds[0].require_all_changes()
    }

    fn has_unfinished_snapshot(&self, position: &Position) -> bool {
        self.feeds[0].has_unfinished_snapshot(position)
    }

    fn payload(&self) -> Arc<dyn Payload> {
        self.feeds[0].payload()
    }

    async fn open(&self, cx: &Cx, start: StartAt) -> Result<Box<dyn ChangeStream>> {
        let attempt = |cx: Cx, feed: Feed| -> BoxFuture<'_, Result<Box<dyn ChangeStream>>> {
            let start = start.clone();
            Box::pin(async move { feed.open(&cx, start).await })
        };
        let stream = self.stay(cx, &attempt).await?;
        let returning = self.chosen().filter(|at| *at > 0).map(|_| self.probe_failback(cx));
        Ok(Box::new(FallbackStream { stream, endpoints: self.clone(), returning }))
    }

    async fn peek(&self, cx: &Cx, start: StartAt) -> Result<Box<dyn ChangeStream>> {
        let feeds = self.feeds.iter().map(Feed::for_observers).collect();
        Self { feeds, ..self.clone() }.open(cx, start).await
    }
}

/// A URL that leads to another cluster than the one before it: positions of one are none of the other.
fn of_another(feed: &Feed, first: Option<&str>, cluster: Option<&str>) -> Option<Finding> {
    if first? == cluster? {
        return None;
    }
    let what = format!("a fallback: {} belongs to another cluster, and can never be gone on with", feed.client.place());
    Some(finding(Severity::Error, what, "name only URLs of the cluster that is watched"))
}

impl FallbackEndpoints {
    /// That a URL does not answer just now, while another does.
    fn is_away(&self, at: usize, error: &Error) -> Finding {
        let which = if at == 0 { "the first URL" } else { "a fallback" };
        let what = format!("{which}: {}", describe_failure(self.feeds[at].client.place(), error));
        finding(Severity::Warning, what, error.advice().unwrap_or("look at the cause"))
    }

    /// Asks the first URL until it answers, beside the reading of another.
    fn probe_failback(&self, cx: &Cx) -> FailbackProbe {
        let (answers, every) = (Arc::new(AtomicBool::new(false)), self.come_back);
        let (reported, first, cx) =
            (Arc::clone(&answers), self.feeds[0].client.separate(), Cx::new(Arc::clone(cx.clock())));
        let task = tokio::spawn(async move {
            loop {
                cx.sleep(every).await;
                if first.greet(&cx.within(every)).await.is_ok() {
                    reported.store(true, SeqCst);
                    return;
                }
            }
        });
        FailbackProbe { answers, task }
    }
}

/// Someone who asks whether the first URL answers again. Ends with the stream.
struct FailbackProbe {
    answers: Arc<AtomicBool>,
    task: tokio::task::JoinHandle<()>,
}

impl Drop for FailbackProbe {
    fn drop(&mut self) {
        self.task.abort();
    }
}

/// A stream that tells when it delivered something, and when it is time to go back.
struct FallbackStream {
    stream: Box<dyn ChangeStream>,
    endpoints: FallbackEndpoints,
    returning: Option<FailbackProbe>,
}

#[async_trait]
impl ChangeStream for FallbackStream {
    fn position(&self) -> Option<Position> {
        self.stream.position()
    }

    fn stage(&self) -> Option<Stage> {
        self.stream.stage()
    }

    async fn next_batch(&mut self, cx: &Cx, limits: Limits) -> Result<Batch> {
        if self.returning.as_ref().is_some_and(|returning| returning.answers.load(SeqCst)) {
            self.endpoints.choose(None);
            return Err(
                Error::unavailable("the first URL answers again, and is gone back to").remedy("nothing is to be done")
            );
        }
        let batch = self.stream.next_batch(cx, limits).await;
        match &batch {
            Ok(batch) if batch.is_empty() => {}
            Ok(_) => self.endpoints.rounds.store(0, SeqCst),
            Err(_) => self.endpoints.choose(None),
        }
        batch
    }

    async fn acknowledge(&mut self, cx: &Cx, position: &Position) -> Result<()> {
        self.stream.acknowledge(cx, position).await
    }

    fn holds_back(&self) -> bool {
        self.stream.holds_back()
    }

    async fn window(&mut self, cx: &Cx) -> Result<Window> {
        self.stream.window(cx).await
    }

    async fn close(self: Box<Self>, cx: &Cx) -> Result<()> {
        self.stream.close(cx).await
    }
}
