//! Stall detection: cursors that hang, and those that only take their time.
//!
//! Servers write something every ten seconds, and the token of an open cursor moves with it. A token that does not move for longer
//! means that the cursor hangs, that the set has lost its majority, or that the server still searches the oplog for an event:
//! a `getMore` is not bounded by any time while entries of other collections lie before it. Any server tells how far the majority
//! is, and the cursor's own server how its search gets on. Only a cursor that neither reaches what a majority had a while ago nor
//! searches is given up.

use std::sync::{Mutex, PoisonError};
use std::time::Duration;

use mongodb::bson::{Timestamp, doc};
use mongodb::options::{ReadPreference, SelectionCriteria};
use watchkeeper_core::{Cx, Error, Moment, Result, Stage};

use super::Feed;
use super::read::Reader;
use crate::client::number;
use crate::position::Token;

/// After so long, beyond what the server may hold back an answer, the servers are asked how far they are.
const STILL: Duration = Duration::from_secs(30);

/// So long, beyond that, a cursor has to get where the servers were when they were asked.
const GRACE: Duration = Duration::from_secs(10);

/// After so long without an answer, beyond what the server may hold it back, it is asked whether it searches the oplog.
const OVERDUE: Duration = Duration::from_secs(5);

/// The longest that the servers are waited for.
const ANSWER: Duration = Duration::from_secs(5);

/// A `getMore` that only waits yields this often at most.
const YIELDS_WAITING: u64 = 10;

/// Servers yield after so many entries of the oplog, or sooner.
const ENTRIES_PER_YIELD: u64 = 1_000;

/// How long a cursor has not moved.
#[derive(Debug)]
pub(super) struct StallDetector {
    /// The token after what was received last.
    end: Token,
    /// When that had moved.
    heard: Moment,
    /// Only what was waited for counts: a process that was stopped, or a sink that is slow, is no fault of the cursor.
    waited: Duration,
    /// When the last answer of any kind came.
    answered: Moment,
    /// What was waited for since then, or since the last look at the server's search.
    unanswered: Duration,
    /// How often the search of the server had yielded when it was looked at last.
    yields: Option<u64>,
    /// The search of the server, while it gets on.
    search: Option<Search>,
    /// What a majority had when it was asked.
    expected: Option<Timestamp>,
}

impl StallDetector {
    pub(super) fn new(now: Moment) -> Self {
        Self {
            end: Token::default(),
            heard: now,
            waited: Duration::ZERO,
            answered: now,
            unanswered: Duration::ZERO,
            yields: None,
            search: None,
            expected: None,
        }
    }

    /// What the server is busy with, if it searches the oplog.
    pub(super) fn stage(&self) -> Option<Stage> {
        self.search.as_ref().map(Search::stage)
    }

    /// Forgets the search of a cursor that is no longer read.
    pub(super) fn forget_search(&mut self) {
        (self.yields, self.search) = (None, None);
    }

    /// Notes the token after an answer.
    pub(super) fn note_token(&mut self, end: &Token, now: Moment) {
        (self.answered, self.unanswered) = (now, Duration::ZERO);
        self.forget_search();
        if self.end.data != end.data {
            self.end.clone_from(end);
            (self.heard, self.waited, self.expected) = (now, Duration::ZERO, None);
        }
    }

    /// Notes that nothing came for the last `time`.
    pub(super) fn wait(&mut self, now: Moment, time: Duration) {
        self.waited += time.min(now.since(self.heard));
        self.unanswered += time.min(now.since(self.answered));
    }
}

/// How far a server is with searching the oplog for the next change.
#[derive(Debug, Clone, PartialEq, Eq)]
struct Search {
    /// At least so many entries were searched.
    entries: u64,
    /// How far the position lies behind the newest operation, if the primary tells that.
    behind_s: Option<u64>,
}

impl Search {
    fn stage(&self) -> Stage {
        let behind =
            self.behind_s.map_or_else(String::new, |behind| format!(", {behind}s behind the newest operation"));
        let what = format!("scanning the oplog for the next change{behind}");
        Stage { what, done: self.entries, of: None, unit: "entries" }
    }
}

/// How often in a row cursors at one position were given up before they had answered. Shared by all openings of a stream.
#[derive(Debug, Default)]
pub(super) struct Unanswered(Mutex<(Vec<u8>, u32)>);

/// The most that the time for a first answer is multiplied by: some three quarters of an hour.
const PATIENCE_MAX: u32 = 64;

impl Unanswered {
    /// By how much the time for a first answer at this position is multiplied.
    fn patience(&self, at: &Token) -> u32 {
        let given_up = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        if given_up.0 == at.data { 2_u32.saturating_pow(given_up.1).min(PATIENCE_MAX) } else { 1 }
    }

    fn note(&self, at: &Token) {
        let mut given_up = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        if given_up.0 != at.data {
            *given_up = (at.data.clone(), 0);
        }
        given_up.1 = given_up.1.saturating_add(1);
    }
}

impl Reader {
    /// Gives up a cursor that hangs.
    ///
    /// # Errors
    /// `Unavailable`: it has to be opened again.
    pub(super) async fn check_alive(&mut self, cx: &Cx) -> Result<()> {
        // So long an answer may be held back when nothing happens.
        let held_back = self.feed.view.max_await_time;
        if self.stall.unanswered >= held_back + OVERDUE && self.is_searching(cx).await {
            return Ok(());
        }
        let patience = if self.opened.has_answered { 1 } else { self.feed.unanswered.patience(&self.at) };
        let still = &self.stall;
        match still.expected {
            None if still.waited < STILL * patience + held_back => Ok(()),
            Some(_) if still.waited < GRACE * patience + held_back => Ok(()),
            Some(_) if !self.opened.has_answered => Err(self.give_up_unanswered(patience)),
            Some(expected) => {
                let cause = format!(
                    "{}: the cursor stands still, while the servers have written up to {}",
                    self.feed.client.place(),
                    expected.time
                );
                Err(Error::unavailable(cause).remedy("it is opened again; look at the server's load and the network"))
            }
            None => {
                let majority = self.feed.majority_time(cx).await?;
                let expected = majority.filter(|time| still.end.timestamp().is_none_or(|end| end < *time));
                (self.stall.expected, self.stall.waited) = (expected, Duration::ZERO);
                Ok(())
            }
        }
    }

    /// Gives up a cursor that has never answered. It may hang, or search for longer than was waited for on a server that does not
    /// say so: the next one at this position is given twice the time.
    fn give_up_unanswered(&self, patience: u32) -> Error {
        let waited = (STILL + GRACE) * patience;
        self.feed.unanswered.note(&self.at);
        let cause = format!(
            "{}: the cursor stands still: no answer within {}s since it was opened",
            self.feed.client.place(),
            waited.as_secs()
        );
        Error::unavailable(cause).remedy(
            "it is opened again and given twice the time; look at the server's load and the network, and let this user run \
             $currentOp, which tells whether the server still searches the oplog",
        )
    }

    /// Whether the server has got on with searching the oplog since the last look. A search is reported, since nothing else shows
    /// that the stream is not stuck: its position moves only when the search ends.
    async fn is_searching(&mut self, cx: &Cx) -> bool {
        self.stall.unanswered = Duration::ZERO;
        let Some(yields) = self.feed.yields_of(cx, self.opened.id).await else { return false };
        let before = self.stall.yields.replace(yields).unwrap_or(YIELDS_WAITING);
        if yields <= before {
            return false;
        }
        (self.stall.waited, self.stall.expected) = (Duration::ZERO, None);
        self.report_search(cx, yields * ENTRIES_PER_YIELD).await;
        true
    }

    async fn report_search(&mut self, cx: &Cx, entries: u64) {
        // How many entries are left nobody knows: only a search as long as the server's own could count them.
        let newest = self.feed.operation_time(&cx.within(ANSWER)).await.ok().flatten();
        let behind_s = newest.zip(self.at.timestamp());
        let behind_s = behind_s.map(|(newest, at)| u64::from(newest.time.saturating_sub(at.time)));
        tracing::info!(
            place = self.feed.client.place(),
            watched = self.scope,
            behind_s,
            entries,
            "scanning the oplog for the next change; the position moves when the server is through"
        );
        self.stall.search = Some(Search { entries, behind_s });
    }
}

impl Feed {
    /// How often the `getMore` that the server executes for this cursor has yielded; `None` when it executes none, or does not say.
    async fn yields_of(&self, cx: &Cx, cursor: i64) -> Option<u64> {
        let cx = cx.within(ANSWER);
        let database = self.client.driver(&cx).await.ok()?.database("admin");
        // Everybody may look at their own operations.
        let stages = vec![
            doc! { "$currentOp": { "allUsers": false, "localOps": true } },
            doc! { "$match": { "command.getMore": cursor } },
            doc! { "$project": { "numYields": 1 } },
        ];
        let mut call = database.run_command(doc! { "aggregate": 1, "pipeline": stages, "cursor": {} });
        if let Some(preference) = &self.view.read_preference {
            call = call.selection_criteria(preference.clone());
        }
        let answer = cx.run(async { call.await.map_err(|native| self.failure(native)) }).await.ok()?;
        let operations = answer.get_document("cursor").and_then(|cursor| cursor.get_array("firstBatch")).ok()?;
        number(operations.first()?.as_document()?.get("numYields"))
    }

    /// The newest time of which any server knows that a majority has it.
    async fn majority_time(&self, cx: &Cx) -> Result<Option<Timestamp>> {
        let cx = cx.within(ANSWER);
        let database = self.client.driver(&cx).await?.database("admin");
        // A set without a majority has no primary to ask.
        let anyone = SelectionCriteria::ReadPreference(ReadPreference::Nearest { options: None });
        let call = async {
            let answer = database.run_command(doc! { "hello": 1 }).selection_criteria(anyone).await;
            answer.map_err(|native| self.command_failure(native))
        };
        let answer = cx.run(call).await.map_err(|error| {
            let cause = format!("the cursor stands still, and no server says how far it is ({})", error.message());
            Error::unavailable(cause).remedy("it is opened again; look at the servers and the network").caused_by(error)
        })?;
        let written = answer.get_document("lastWrite").and_then(|last| last.get_document("majorityOpTime"));
        Ok(written.and_then(|time| time.get_timestamp("ts")).ok())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_position_at_which_cursors_never_answer_is_given_more_and_more_time() {
        let at = |data: u8| {
            let mut token = Token::default();
            token.data.push(data);
            token
        };
        let unanswered = Unanswered::default();
        assert_eq!(unanswered.patience(&at(1)), 1);
        let mut given = Vec::new();
        for _ in 0..8 {
            unanswered.note(&at(1));
            given.push(unanswered.patience(&at(1)));
        }
        assert_eq!(given, [2, 4, 8, 16, 32, 64, 64, 64]);
        assert_eq!(unanswered.patience(&at(2)), 1, "another position begins anew");
        unanswered.note(&at(2));
        assert_eq!((unanswered.patience(&at(1)), unanswered.patience(&at(2))), (1, 2));
    }
}
