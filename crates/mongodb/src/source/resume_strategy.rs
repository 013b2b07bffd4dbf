//! The ways round what a server refuses.
//!
//! A stream is opened as its settings say. Where the server refuses to go on, another way may lead on from the same position:
//! by the time of the token, by `startAfter`, with events split, or with events reduced to what there is. A refusal may come with the
//! opening or only with a later answer. Each way goes further than the one before, so that the search ends.

use mongodb::bson::{Document, doc};
use mongodb::error::Error as Native;
use watchkeeper_core::{Cx, Error, Result};

use super::Feed;
use super::check::mentions;
use super::event::Event;
use super::open::Start;
use super::reduce::reduced;
use super::view::{Before, Large, Shown};
use crate::error::{Class, code};
use crate::position::Token;

/// How events are asked for.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub(super) enum Shape {
    /// As the settings say.
    #[default]
    Whole,
    /// As the settings say, in fragments where they are too large.
    Split,
    /// With what there is.
    Reduced,
}

/// A way to open a stream after a token.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub(super) struct ResumeStrategy {
    pub(super) shape: Shape,
    /// By `startAfter`, as after an invalidate.
    pub(super) start_after: bool,
    /// At the time of the token, dropping what lies before it: its own event is not seen any more.
    pub(super) by_time: bool,
}

/// The code of servers that do not know a stage.
const STAGE_UNKNOWN: i32 = 40_324;

/// What servers say when the pipeline hides the event of a token.
const NOT_FOUND: &str = "was not found";

/// Whether a refusal while reading is no fault of the position, and is gone round.
pub(super) fn has_way_round(native: &Native) -> bool {
    let class = Class::of(native);
    class.is_about_one_event() || (class == Class::TokenUnseen && native.kind.to_string().contains(NOT_FOUND))
}

impl ResumeStrategy {
    /// The straight way after a token.
    pub(super) fn after(token: &Token) -> Self {
        let shape = if token.split { Shape::Split } else { Shape::Whole };
        Self { shape, start_after: token.start_after, by_time: false }
    }

    /// Whether it starts at the time of the token, and what lies up to the token has to be dropped.
    pub(super) fn goes_by_time(self, token: &Token) -> bool {
        self.by_time || (token.split && self.shape != Shape::Split)
    }

    /// Where a cursor starts on this way.
    pub(super) fn start(self, token: &Token) -> Start {
        match token.timestamp() {
            Some(time) if self.goes_by_time(token) => Start::At(time),
            _ => {
                let mut token = token.clone();
                token.start_after = self.start_after;
                Start::After(token)
            }
        }
    }
}

impl Feed {
    /// The same feed, with its events asked for in this shape.
    pub(super) fn shaped(&self, shape: Shape) -> Self {
        match shape {
            Shape::Whole => self.clone(),
            Shape::Split => {
                let split = doc! { "$changeStreamSplitLargeEvent": {} };
                let stages: Vec<Document> = self.stages.iter().cloned().chain([split]).collect();
                Self { stages: stages.into(), ..self.clone() }
            }
            Shape::Reduced => {
                let (view, stages) = reduced(&self.view);
                Self { view: view.into(), stages: stages.into(), aside: true, ..self.clone() }
            }
        }
    }

    /// The way that leads on from `token` after the server has refused `way`.
    ///
    /// # Errors
    /// What the refusal means, when there is none.
    pub(super) async fn next_strategy(
        &self,
        cx: &Cx,
        way: ResumeStrategy,
        token: &Token,
        native: Native,
    ) -> Result<ResumeStrategy> {
        let said = native.kind.to_string();
        match Class::of(&native) {
            Class::TokenRefused if said.contains("invalidate") && !way.start_after && !way.by_time => {
                Ok(ResumeStrategy { start_after: true, ..way })
            }
            // The event is hidden by the pipeline. Its time is known, and so is what comes before it.
            Class::TokenUnseen if said.contains(NOT_FOUND) => self.by_time(way, token, native),
            // The token is of an event that was split, by a server that was newer than this one.
            _ if way.shape == Shape::Split && code(&native) == Some(STAGE_UNKNOWN) => {
                self.by_time(ResumeStrategy { shape: Shape::Whole, ..way }, token, native)
            }
            Class::TooLarge if way.shape == Shape::Whole && self.splits_events(cx).await? => {
                Ok(ResumeStrategy { shape: Shape::Split, ..way })
            }
            // A server refuses an answer as a whole. What comes before the event can be had only like this, also where the stream
            // halts at the event itself.
            Class::TooLarge if way.shape != Shape::Reduced => Ok(ResumeStrategy { shape: Shape::Reduced, ..way }),
            // The answer also has the token behind its last event, which is as large until the server has looked further.
            Class::TooLarge => Err(self.waits_for_later()),
            Class::ImageMissing if way.shape != Shape::Reduced && self.requires_images() => {
                self.do_without_image(way, native)
            }
            _ => Err(self.failure(native)),
        }
    }

    fn by_time(&self, way: ResumeStrategy, token: &Token, native: Native) -> Result<ResumeStrategy> {
        if way.by_time || token.timestamp().is_none() {
            return Err(self.failure(native));
        }
        Ok(ResumeStrategy { by_time: true, ..way })
    }

    /// Whether the stream halts at an event of which something is left out.
    pub(super) fn halts_at(&self, event: &Event<'_>) -> bool {
        let is_refused = self.view.large_events == Large::Halt || event.lacks_key();
        event.is_cut && is_refused && !self.is_for_observers
    }

    /// What an event that is too large means where the stream halts at it.
    pub(super) fn too_large(&self, event: &Event<'_>, described: &str) -> Error {
        let place = self.client.place();
        if event.lacks_key() {
            let cause = format!("{place}: the _id of a document is too large to be told by an event: {described}");
            return Error::corrupt(cause)
                .remedy(
                    "skip the change with `watchkeeper skip STREAM`, and give the document a smaller _id at the source",
                )
                .classed(Class::TooLarge.name());
        }
        let cause = format!("{place}: an event is larger than 16 MiB, and this server cannot split it: {described}");
        // A person has to look, and no other instance can do better: as with what is damaged, the stream halts.
        Error::corrupt(cause)
            .remedy(
                "write large_events = \"degrade\", or use a server of version 6.0.9 or 7.0, then resume the stream; or skip the \
                 change with `watchkeeper skip STREAM`",
            )
            .classed(Class::TooLarge.name())
    }

    fn waits_for_later(&self) -> Error {
        let cause = format!("{}: an event names a document whose _id is too large for one answer", self.client.place());
        Error::unavailable(cause)
            .remedy("it is asked for again, until a later operation has been written that the answer can end with")
            .classed(Class::TooLarge.name())
    }

    fn do_without_image(&self, way: ResumeStrategy, native: Native) -> Result<ResumeStrategy> {
        let images = ["fullDocument", "fullDocumentBeforeChange"];
        let mut conditions = self.view.pipeline.iter().filter_map(|stage| stage.get("$match"));
        if conditions.any(|condition| images.iter().any(|image| mentions(condition, image))) {
            let cause = format!(
                "{}: an image that is required is missing, and a $match decides by it whether the event is wanted",
                self.client.place()
            );
            let remedy =
                "write \"whenAvailable\" instead of \"required\", and let events without the image pass the $match";
            return Err(Error::config(cause).remedy(remedy).caused_by(native));
        }
        Ok(ResumeStrategy { shape: Shape::Reduced, ..way })
    }

    fn requires_images(&self) -> bool {
        self.view.full_document == Shown::Required || self.view.full_document_before_change == Before::Required
    }

    /// Whether the server can split events that are too large.
    async fn splits_events(&self, cx: &Cx) -> Result<bool> {
        let info = self.ask(cx, "admin", doc! { "buildInfo": 1 }).await?;
        Ok(splits(info.get_str("version").unwrap_or_default()))
    }
}

/// Whether servers of this version split events.
fn splits(version: &str) -> bool {
    let mut numbers = version.split(['.', '-']).map(|number| number.parse::<u32>().unwrap_or(0));
    let mut next = || numbers.next().unwrap_or(0);
    let version = (next(), next(), next());
    version >= (7, 0, 0) || (version.0 == 6 && version.1 == 0 && version.2 >= 9)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::{Client, Config, View};

    #[test]
    fn servers_split_events_from_6_0_9_on() {
        for version in ["6.0.9", "6.0.14", "7.0.0", "7.0.2-rc1", "8.1.0"] {
            assert!(splits(version), "{version}");
        }
        for version in ["", "5.0.20", "6.0.5", "6.0.8", "6.1.1", "6.3.2"] {
            assert!(!splits(version), "{version}");
        }
    }

    #[test]
    fn events_are_split_by_the_last_stage_and_from_their_own_tokens_on() {
        let config = Config::new("mongodb://localhost/shop").expect("a URL");
        let pipeline = vec![doc! { "$match": { "operationType": "insert" } }];
        let feed = Feed::new(Client::lazy(config), View { pipeline, ..View::collection("orders") });
        let stages = feed.shaped(Shape::Split).stages;
        assert_eq!(stages.len(), feed.stages.len() + 1);
        assert_eq!(stages.last(), Some(&doc! { "$changeStreamSplitLargeEvent": {} }));
        let mut token = Token::default();
        token.split = true;
        assert_eq!(ResumeStrategy::after(&token).shape, Shape::Split);
        assert_eq!(ResumeStrategy::after(&Token::default()).shape, Shape::Whole);
    }
}
