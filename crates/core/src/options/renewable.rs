//! Settings whose text may change while the program runs, such as a password in a file.

use std::fmt;
use std::sync::Arc;

use crate::error::Result;

/// How the text of a setting is read again.
#[derive(Clone)]
pub struct Reread(Arc<dyn Fn() -> Result<String> + Send + Sync>);

impl Reread {
    /// `read` answers what the setting says now.
    pub fn new(read: impl Fn() -> Result<String> + Send + Sync + 'static) -> Self {
        Self(Arc::new(read))
    }
}

impl PartialEq for Reread {
    fn eq(&self, other: &Self) -> bool {
        Arc::ptr_eq(&self.0, &other.0)
    }
}

impl Eq for Reread {}

impl fmt::Debug for Reread {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("Reread")
    }
}

/// A text, and how it is read again. A backend that is denied access asks for it once more before it gives up: it may name a file
/// whose content was replaced.
#[derive(Clone, PartialEq, Eq)]
pub struct Renewable {
    text: String,
    reread: Option<Reread>,
}

/// The text never appears: it may hold a password.
impl fmt::Debug for Renewable {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Renewable").field("changes", &self.reread.is_some()).finish_non_exhaustive()
    }
}

impl Renewable {
    pub(super) fn new(text: String, reread: Option<Reread>) -> Self {
        Self { text, reread }
    }

    /// The text as it was when it was taken.
    pub fn text(&self) -> &str {
        &self.text
    }

    /// The text as it is now; `None` for one that never changes.
    ///
    /// # Errors
    /// `Config` when it cannot be read just now.
    pub fn read_again(&self) -> Result<Option<String>> {
        self.reread.as_ref().map(|reread| (reread.0)()).transpose()
    }
}

/// A text that never changes.
impl From<String> for Renewable {
    fn from(text: String) -> Self {
        Self::new(text, None)
    }
}
