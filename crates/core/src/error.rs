//! Few kinds of error, each saying what to do.
//!
//! Answers that are expected (held by another, fenced, rejected) are values of the contracts. An
//! [`Error`] means "could not find out" or "cannot go on".

mod corrupt;

use std::fmt;

use self::corrupt::CorruptData;
pub use self::corrupt::{chain_text, is_corrupt};

/// `Result` with this crate's [`Error`].
pub type Result<T, E = Error> = std::result::Result<T, E>;

/// What went wrong, as far as it matters for what to do next.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
#[non_exhaustive]
pub enum ErrorKind {
    /// A setting is wrong. Trying again is useless until a person changes it.
    Config,
    /// Credentials or privileges are missing. Another instance may have them.
    Denied,
    /// Nothing was changed. Try again later.
    Unavailable,
    /// It may have happened. Repeat it unchanged.
    Unknown,
    /// A newer grant exists. Stop, and write nothing more.
    Fenced,
    /// The history at this position is gone or belongs to another log. Apply the gap policy.
    PositionLost,
    /// Stored bytes do not mean what they should. A person has to look.
    Corrupt,
    /// A target will never take a change. A person has to change the target, or skip the change.
    Rejected,
    /// A bug, here or in a backend.
    Internal,
}

impl ErrorKind {
    /// All kinds, in the order in which people meet them.
    pub const ALL: &'static [Self] = &[
        Self::Config,
        Self::Denied,
        Self::Unavailable,
        Self::Unknown,
        Self::Fenced,
        Self::PositionLost,
        Self::Rejected,
        Self::Corrupt,
        Self::Internal,
    ];

    /// Whether an error of this kind says that nothing could be asked: what would be answered is not known.
    pub fn is_away(self) -> bool {
        matches!(self, Self::Unavailable | Self::Unknown | Self::Denied)
    }

    /// The stable code that people search for.
    pub fn code(self) -> &'static str {
        match self {
            Self::Config => "WK-CONFIG",
            Self::Denied => "WK-DENIED",
            Self::Unavailable => "WK-UNAVAILABLE",
            Self::Unknown => "WK-UNKNOWN",
            Self::Fenced => "WK-FENCED",
            Self::PositionLost => "WK-POSITION-LOST",
            Self::Corrupt => "WK-CORRUPT",
            Self::Rejected => "WK-REJECTED",
            Self::Internal => "WK-INTERNAL",
        }
    }
}

/// Whose call failed. The engine notes it where it calls a contract; what a failure means depends on it.
#[derive(Debug, Clone, PartialEq, Eq, Hash)]
#[non_exhaustive]
pub enum Component {
    /// The stream's source.
    Source,
    /// The sink of this name.
    Sink(Box<str>),
    /// The checkpoint store.
    Checkpoints,
    /// The lease store.
    Leases,
    /// The group's records.
    Records,
}

impl fmt::Display for Component {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Source => f.write_str("source"),
            Self::Sink(name) => write!(f, "sink {name:?}"),
            Self::Checkpoints => f.write_str("checkpoint store"),
            Self::Leases => f.write_str("lease store"),
            Self::Records => f.write_str("records"),
        }
    }
}

/// An error with its kind, a cause in one line and, where there is one, a remedy.
///
/// `{:?}` shows the same line with what lies below it, since that is what a program shows whose `main` returns the error; `{:#?}` shows
/// the fields.
pub struct Error {
    kind: ErrorKind,
    /// Boxed, since most errors have none and all are moved around.
    component: Option<Box<Component>>,
    is_late: bool,
    class: Option<&'static str>,
    place: Option<Box<str>>,
    message: String,
    remedy: Option<Box<str>>,
    source: Option<Box<dyn std::error::Error + Send + Sync>>,
}

/// `text` with the name of a stream where someone who did not know it wrote STREAM.
pub(crate) fn named(text: &str, stream: &str) -> String {
    text.replace(" STREAM", &format!(" {stream}"))
}

/// The longest message of an error, in bytes. Errors are kept in records and checkpoints of limited size, and a server may put whole
/// rows into its own.
const MESSAGE_BYTES_MAX: usize = 4 << 10;

/// `message`, without its end if it is too long.
fn bounded(mut message: String) -> String {
    let length = message.len();
    if length > MESSAGE_BYTES_MAX {
        let end = (0..=MESSAGE_BYTES_MAX).rev().find(|at| message.is_char_boundary(*at)).unwrap_or(0);
        message.truncate(end);
        message.push_str(&format!("… ({length} bytes)"));
    }
    message
}

impl Error {
    /// An error of `kind` whose cause is `message`; of a very long one only the beginning is kept.
    pub fn new(kind: ErrorKind, message: impl Into<String>) -> Self {
        Self {
            kind,
            component: None,
            is_late: false,
            class: None,
            place: None,
            message: bounded(message.into()),
            remedy: None,
            source: (kind == ErrorKind::Corrupt).then(|| CorruptData::boxed(None)),
        }
    }

    /// [`ErrorKind::Config`].
    pub fn config(message: impl Into<String>) -> Self {
        Self::new(ErrorKind::Config, message)
    }

    /// [`ErrorKind::Unavailable`].
    pub fn unavailable(message: impl Into<String>) -> Self {
        Self::new(ErrorKind::Unavailable, message)
    }

    /// [`ErrorKind::Unknown`].
    pub fn unknown(message: impl Into<String>) -> Self {
        Self::new(ErrorKind::Unknown, message)
    }

    /// [`ErrorKind::Fenced`].
    pub fn fenced(message: impl Into<String>) -> Self {
        Self::new(ErrorKind::Fenced, message)
    }

    /// [`ErrorKind::PositionLost`].
    pub fn position_lost(message: impl Into<String>) -> Self {
        Self::new(ErrorKind::PositionLost, message)
    }

    /// [`ErrorKind::Corrupt`].
    pub fn corrupt(message: impl Into<String>) -> Self {
        Self::new(ErrorKind::Corrupt, message)
    }

    /// [`ErrorKind::Rejected`].
    pub fn rejected(message: impl Into<String>) -> Self {
        Self::new(ErrorKind::Rejected, message)
    }

    /// [`ErrorKind::Internal`].
    pub fn internal(message: impl Into<String>) -> Self {
        Self::new(ErrorKind::Internal, message)
    }

    /// The same error with what a person should do about it.
    #[must_use]
    pub fn remedy(mut self, remedy: impl Into<String>) -> Self {
        self.remedy = Some(remedy.into().into_boxed_str());
        self
    }

    /// The same error whose remedy names `stream` where a backend, which does not know it, wrote STREAM.
    #[must_use]
    pub fn name_stream(mut self, stream: &str) -> Self {
        self.remedy = self.remedy.map(|remedy| named(&remedy, stream).into_boxed_str());
        self
    }

    /// The same error with the class that its backend sorts it into, finer than the kind: by it errors are counted.
    #[must_use]
    pub fn classed(mut self, class: &'static str) -> Self {
        self.class = Some(class);
        self
    }

    /// The class that its backend sorts it into; where there is none, its kind's code.
    pub fn class(&self) -> &'static str {
        self.class.unwrap_or_else(|| self.kind.code())
    }

    /// The same error, of something that took longer than it was allowed to: less of it at once may end in time.
    #[must_use]
    pub fn late(mut self) -> Self {
        self.is_late = true;
        self
    }

    /// Whether it is the error of something that took longer than it was allowed to.
    pub fn is_late(&self) -> bool {
        self.is_late
    }

    /// The same error with whose call failed. The first one stays: it was noted nearest to the call.
    #[must_use]
    pub fn raised_by(mut self, component: &Component) -> Self {
        self.component.get_or_insert_with(|| Box::new(component.clone()));
        self
    }

    /// Whose call failed, if that was noted.
    pub fn component(&self) -> Option<&Component> {
        self.component.as_deref()
    }

    /// Who failed and why, without place, code and remedy.
    pub fn attributed_message(&self) -> String {
        match &self.component {
            Some(component) => format!("{component}: {}", self.message),
            None => self.message.clone(),
        }
    }

    /// The same error with the native error below it.
    #[must_use]
    pub fn caused_by(mut self, source: impl Into<Box<dyn std::error::Error + Send + Sync>>) -> Self {
        let source = source.into();
        self.source = Some(match self.kind {
            ErrorKind::Corrupt => CorruptData::boxed(Some(source)),
            _ => source,
        });
        self
    }

    /// The same error with the place where the cause was written, such as a file and line. The first one stays:
    /// who is nearer to the cause knows it better.
    #[must_use]
    pub fn at(mut self, place: impl fmt::Display) -> Self {
        self.place.get_or_insert_with(|| place.to_string().into_boxed_str());
        self
    }

    /// Where the cause was written, if that is known.
    pub fn place(&self) -> Option<&str> {
        self.place.as_deref()
    }

    /// What to do.
    pub fn kind(&self) -> ErrorKind {
        self.kind
    }

    /// What a person should do about it, if that is known.
    pub fn advice(&self) -> Option<&str> {
        self.remedy.as_deref()
    }

    /// The cause, without place, code and remedy.
    pub fn message(&self) -> &str {
        &self.message
    }
}

impl fmt::Display for Error {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        if let Some(place) = &self.place {
            write!(f, "{place}: ")?;
        }
        if let Some(component) = &self.component {
            write!(f, "{component}: ")?;
        }
        write!(f, "{} [{}]", self.message, self.kind.code())?;
        if let Some(remedy) = &self.remedy {
            write!(f, "; {remedy}")?;
        }
        Ok(())
    }
}

impl fmt::Debug for Error {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        if !f.alternate() {
            return f.write_str(&chain_text(self));
        }
        f.debug_struct("Error")
            .field("kind", &self.kind)
            .field("component", &self.component)
            .field("is_late", &self.is_late)
            .field("class", &self.class)
            .field("place", &self.place)
            .field("message", &self.message)
            .field("remedy", &self.remedy)
            .field("source", &self.source)
            .finish()
    }
}

impl std::error::Error for Error {
    fn source(&self) -> Option<&(dyn std::error::Error + 'static)> {
        self.source.as_deref().map(|source| source as _)
    }
}
