//! Small named documents with a revision. The engine builds registry, control, journal and history on
//! them, once for all backends.

use std::time::Duration;

use async_trait::async_trait;
use bytes::Bytes;

use crate::cx::Cx;
use crate::error::Result;

/// The largest document, in bytes.
pub const RECORD_BYTES_MAX: usize = 64 * 1024;

/// Changes with every write of a document, also when it is deleted and written again.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub struct Revision(pub u64);

/// A document.
#[derive(Debug, Clone, PartialEq, Eq)]
#[non_exhaustive]
pub struct Record {
    /// Its name.
    pub name: String,
    /// What it says.
    pub bytes: Bytes,
    /// Which writing of it this is.
    pub revision: Revision,
    /// How long ago it was written, by the store's clock.
    pub age: Duration,
}

impl Record {
    /// A document that was written `age` ago, by the store's clock.
    pub fn new(name: impl Into<String>, bytes: Bytes, revision: Revision, age: Duration) -> Self {
        Self { name: name.into(), bytes, revision, age }
    }
}

/// The answer to a conditional write.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum PutOutcome {
    /// Written; this is its revision now.
    Done(Revision),
    /// The document is not as expected. Nothing was written.
    Conflict,
}

/// Keeps records.
#[async_trait]
pub trait Records: Send + Sync + std::fmt::Debug {
    /// The document, or `None`.
    async fn get(&self, cx: &Cx, name: &str) -> Result<Option<Record>>;

    /// All documents whose name begins with `prefix`, in the order of their names. Appended logs are
    /// not among them.
    async fn list(&self, cx: &Cx, prefix: &str) -> Result<Vec<Record>>;

    /// Writes a document if it is as expected: `None` means that it does not exist.
    ///
    /// # Behavior
    /// * R1: of many at once with one expectation exactly one is done.
    /// * R2: a revision is never used twice for one name, not even after a delete.
    /// * R3: more than [`RECORD_BYTES_MAX`] is refused with `Config`, and changes nothing.
    ///
    /// # Errors
    /// `Unknown` when it may have been written: get it and look.
    async fn put_if(&self, cx: &Cx, name: &str, expected: Option<Revision>, bytes: Bytes) -> Result<PutOutcome>;

    /// Deletes a document if it is as expected.
    ///
    /// # Behavior
    /// * R4: a document of another revision stays.
    async fn delete_if(&self, cx: &Cx, name: &str, expected: Revision) -> Result<PutOutcome>;

    /// Appends to a log and drops its oldest entries beyond the newest `keep`.
    ///
    /// # Behavior
    /// * R5: entries keep their order; the newest `keep` remain.
    async fn append(&self, cx: &Cx, log: &str, bytes: Bytes, keep: usize) -> Result<()>;

    /// The newest `limit` entries of a log, the oldest of them first.
    async fn tail(&self, cx: &Cx, log: &str, limit: usize) -> Result<Vec<Record>>;

    /// Waits for a hint that something may have changed. It may be false, and a store without a means
    /// for it never answers: callers poll as well.
    ///
    /// # Cancel safety
    /// Cancel safe.
    async fn changed(&self, cx: &Cx) -> Result<()>;
}
