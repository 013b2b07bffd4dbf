//! Where a stream would begin, looked at before anything runs.

use mongodb::bson::Timestamp;
use watchkeeper_core::source::BEGIN_SNAPSHOT_ANEW;
use watchkeeper_core::{Cx, ErrorKind, Finding, Pedigree, Position, Result, StartAt};

use super::open::Start;
use super::snapshot::{Snapshot, is_unfinished};
use super::{Feed, operation, timestamp};
use crate::position::Token;

impl Feed {
    /// Looks whether a stream could begin at `start`: with everything that is looked at before a stream is opened, and by
    /// opening it there for two answers of the server.
    pub(super) async fn vetted(&self, cx: &Cx, start: &StartAt, pedigree: Option<&Pedigree>) -> Result<Vec<Finding>> {
        let answer = match start {
            StartAt::After(position) => self.preflight_position(cx, position, pedigree).await,
            StartAt::Time(time) => self.preflight_time(cx, time.0 / 1_000, timestamp(*time)).await,
            StartAt::Operation(time) => self.preflight_time(cx, time.seconds.into(), operation(*time)).await,
            StartAt::Snapshot => self.countable(cx).await.map(drop),
            StartAt::Now | StartAt::Oldest => Ok(()),
            unknown => Err(unknown.unknown_to("a change stream")),
        };
        Finding::of_start(answer.map_err(|error| match start {
            StartAt::After(position)
                if error.kind() == ErrorKind::PositionLost && is_unfinished(&self.view, position) =>
            {
                error.remedy(BEGIN_SNAPSHOT_ANEW)
            }
            _ => error,
        }))
    }

    async fn preflight_position(&self, cx: &Cx, position: &Position, pedigree: Option<&Pedigree>) -> Result<()> {
        let (token, progress) = Token::decode_with_progress(position)?;
        match pedigree {
            Some(pedigree) => self.recognise(cx, &token, pedigree).await?,
            None => self.not_of_the_future(cx, &token).await?,
        }
        if progress.is_some() {
            Snapshot::new(self, cx, progress).await?;
        }
        let apart = self.apart();
        let inspected = apart.prove(cx, position).await;
        apart.client.leave(cx).await;
        inspected
    }

    async fn preflight_time(&self, cx: &Cx, seconds: u64, time: Timestamp) -> Result<()> {
        self.not_yet_to_come(cx, seconds).await?;
        let apart = self.apart();
        let inspected = apart.open_at(cx, Start::At(time)).await.map(drop);
        apart.client.leave(cx).await;
        inspected
    }

    /// The same on connections of its own, which are left in order: whoever asked may be gone before a dropped cursor is ended.
    fn apart(&self) -> Self {
        Self { client: self.client.separate(), ..self.clone() }
    }
}
