//! Recognises an undecodable change in errors that wrap an [`Error`] and hide its type.

use std::error::Error as StdError;
use std::fmt;

use super::{Error, ErrorKind};

/// A chain of sources is followed so far: an error that names itself as its source has no end.
const CHAIN_LENGTH_MAX: usize = 64;

/// The source of every [`Error`] of the kind [`ErrorKind::Corrupt`]; the native error, if there is one, is its own source.
///
/// `anyhow::Error`, as a boxed error, hides the type of the error in it and shows only what lies below that one. So the kind has to be
/// visible from below.
#[derive(Debug)]
pub(super) struct CorruptData {
    cause: Option<Box<dyn StdError + Send + Sync>>,
}

impl CorruptData {
    pub(super) fn boxed(cause: Option<Box<dyn StdError + Send + Sync>>) -> Box<dyn StdError + Send + Sync> {
        Box::new(Self { cause })
    }
}

impl fmt::Display for CorruptData {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("the data cannot be decoded")
    }
}

impl StdError for CorruptData {
    fn source(&self) -> Option<&(dyn StdError + 'static)> {
        self.cause.as_deref().map(|cause| cause as _)
    }
}

/// `error`, and what lies below it.
fn chain<'a>(error: &'a (dyn StdError + 'static)) -> impl Iterator<Item = &'a (dyn StdError + 'static)> {
    std::iter::successors(Some(error), |&error| error.source()).take(CHAIN_LENGTH_MAX)
}

/// Whether `error` is an [`Error`] of the kind [`ErrorKind::Corrupt`], or wraps one: as a source, or in a way that hides its type, as
/// `anyhow::Error` does. Where several lie in each other, the outermost one decides.
pub fn is_corrupt(error: &(dyn StdError + 'static)) -> bool {
    let says_so = |link: &(dyn StdError + 'static)| match link.downcast_ref::<Error>() {
        Some(error) => Some(error.kind() == ErrorKind::Corrupt),
        None => link.is::<CorruptData>().then_some(true),
    };
    chain(error).find_map(says_so).unwrap_or(false)
}

/// The text of `error` and of what lies below it, in one line, without what was already said.
pub fn chain_text(error: &(dyn StdError + 'static)) -> String {
    let mut text = error.to_string();
    for link in chain(error).skip(1).filter(|link| !link.is::<CorruptData>()) {
        let said = link.to_string();
        if !text.contains(&said) {
            text = format!("{text}: {said}");
        }
    }
    text
}

impl Error {
    /// The native error directly below, if it is one of type `T`.
    pub fn native<T: StdError + 'static>(&self) -> Option<&T> {
        let source = self.source.as_deref()?;
        let native = match source.downcast_ref::<CorruptData>() {
            Some(CorruptData { cause }) => cause.as_deref()?,
            None => source,
        };
        native.downcast_ref()
    }
}
