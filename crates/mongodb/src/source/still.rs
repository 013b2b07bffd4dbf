//! A cursor that stands still.
//!
//! Servers write something every ten seconds, and the token of an open cursor moves with it. A token that does not move for longer
//! means that the cursor hangs, or that the set has lost its majority. Which of them it is, any server tells: how far the
//! majority is. Only a cursor that does not reach what a majority had a while ago is given up.

use std::time::Duration;

use mongodb::bson::{Timestamp, doc};
use mongodb::options::{ReadPreference, SelectionCriteria};
use watchkeeper_core::{Cx, Error, Moment, Result};

use super::Feed;
use super::read::Reader;
use crate::position::Token;

/// After so long the servers are asked how far they are.
const STILL: Duration = Duration::from_secs(30);

/// So long a cursor has to get where the servers were when they were asked.
const GRACE: Duration = Duration::from_secs(10);

/// The longest that the servers are waited for.
const ANSWER: Duration = Duration::from_secs(5);

/// For how long a cursor has not moved.
#[derive(Debug)]
pub(super) struct Stillness {
    /// The token after what was received last.
    end: Token,
    /// When that had moved.
    heard: Moment,
    /// Only what was waited for counts: a process that was stopped, or a sink that is slow, is no fault of the cursor.
    waited: Duration,
    /// What a majority had when it was asked.
    expected: Option<Timestamp>,
}

impl Stillness {
    pub(super) fn new(now: Moment) -> Self {
        Self { end: Token::default(), heard: now, waited: Duration::ZERO, expected: None }
    }

    /// Notes the token after an answer.
    pub(super) fn hear(&mut self, end: &Token, now: Moment) {
        if self.end.data != end.data {
            self.end.clone_from(end);
            (self.heard, self.waited, self.expected) = (now, Duration::ZERO, None);
        }
    }

    /// Notes that nothing came for the last `time`.
    pub(super) fn wait(&mut self, now: Moment, time: Duration) {
        self.waited += time.min(now.since(self.heard));
    }
}

impl Reader {
    /// Gives up a cursor that hangs.
    ///
    /// # Errors
    /// `Unavailable`: it has to be opened again.
    pub(super) async fn look_alive(&mut self, cx: &Cx) -> Result<()> {
        let still = &self.stillness;
        match still.expected {
            None if still.waited < STILL => Ok(()),
            Some(_) if still.waited < GRACE => Ok(()),
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
                (self.stillness.expected, self.stillness.waited) = (expected, Duration::ZERO);
                Ok(())
            }
        }
    }
}

impl Feed {
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
