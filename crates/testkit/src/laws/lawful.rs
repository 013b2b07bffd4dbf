use std::fmt;
use std::future::Future;
use std::panic::Location;
use std::pin::Pin;
use std::time::Duration;

use watchkeeper_core::{Cx, Error, ErrorKind, Result};

use crate::world::{Stuck, World};

/// Whether a law holds.
pub type Law = Result<(), Broken>;

/// How a law was broken, and where that was noticed.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Broken {
    what: String,
    at: &'static Location<'static>,
}

impl Broken {
    /// A law was broken: `what` says how.
    #[track_caller]
    pub fn new(what: impl Into<String>) -> Self {
        Self { what: what.into(), at: Location::caller() }
    }
}

impl fmt::Display for Broken {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{} ({}:{})", self.what, self.at.file(), self.at.line())
    }
}

impl std::error::Error for Broken {}

impl From<Error> for Broken {
    #[track_caller]
    fn from(error: Error) -> Self {
        Self::new(format!("a call failed: {error}"))
    }
}

impl From<Stuck> for Broken {
    #[track_caller]
    fn from(stuck: Stuck) -> Self {
        Self::new(stuck.to_string())
    }
}

/// Ends a law as broken unless the condition holds.
macro_rules! ensure {
    ($condition:expr, $($message:tt)+) => {
        if !$condition {
            return Err($crate::laws::Broken::new(format!($($message)+)));
        }
    };
}
pub(crate) use ensure;

/// What a law answers later.
pub type Judgement<'a> = Pin<Box<dyn Future<Output = Law> + Send + 'a>>;

/// One law about whatever a bench of type `B` holds.
pub struct LawOf<B: ?Sized> {
    /// The function's name.
    pub name: &'static str,
    judge: for<'a> fn(&'a B) -> Judgement<'a>,
}

impl<B: ?Sized> LawOf<B> {
    /// A law with this name.
    pub const fn new(name: &'static str, judge: for<'a> fn(&'a B) -> Judgement<'a>) -> Self {
        Self { name, judge }
    }

    /// Judges `bench`, which should be fresh.
    pub fn holds_on<'a>(&self, bench: &'a B) -> Judgement<'a> {
        (self.judge)(bench)
    }
}

impl<B: ?Sized> fmt::Debug for LawOf<B> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.name)
    }
}

/// Judges what `make` puts into a new world, in virtual time. A law that comes to no end is broken.
pub fn in_world<B: ?Sized>(law: &LawOf<B>, make: impl FnOnce(&World) -> Box<B>) -> Law {
    let world = World::new(1).limited_to_polls(1_000_000);
    let bench = make(&world);
    let verdict = world.block_on(law.holds_on(&bench));
    world.end();
    verdict?
}

/// How often a law tries before it gives up.
pub(crate) const TRIES: usize = 40;

/// Makes a call again, unchanged, while nobody can say how it went.
pub(crate) async fn insist<T, F>(cx: &Cx, mut call: impl FnMut() -> F) -> Result<T>
where
    F: Future<Output = Result<T>>,
{
    for _ in 1..TRIES {
        match call().await {
            Err(error) if matches!(error.kind(), ErrorKind::Unavailable | ErrorKind::Unknown) => {
                cx.sleep(Duration::from_millis(25)).await;
            }
            answer => return answer,
        }
    }
    call().await
}
