//! Which changes each handler gets.

use std::collections::BTreeMap;
use std::fmt;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Arc, PoisonError, RwLock};

use watchkeeper_core::{Batch, Operation};

use super::handler::Handler;

/// Which namespaces are meant: one by its exact name, all (`*`), or those below a prefix (`shop.*`).
#[derive(Debug, Clone, PartialEq, Eq)]
#[non_exhaustive]
pub enum Pattern {
    /// Every namespace.
    All,
    /// Those that begin with this text, which ends with a dot.
    Below(String),
    /// The one of this name.
    Exact(String),
}

impl Pattern {
    /// Whether `namespace` is meant.
    pub fn matches(&self, namespace: &str) -> bool {
        match self {
            Self::All => true,
            Self::Below(prefix) => namespace.starts_with(prefix.as_str()),
            Self::Exact(name) => namespace == name,
        }
    }

    /// Whether it has a star where a star means nothing. It is then taken for a part of the name,
    /// which is possible but seldom meant.
    pub fn has_literal_star(&self) -> bool {
        match self {
            Self::All => false,
            Self::Below(text) | Self::Exact(text) => text.contains('*'),
        }
    }
}

impl From<&str> for Pattern {
    fn from(text: &str) -> Self {
        match text.strip_suffix('*') {
            Some("") => Self::All,
            Some(prefix) if prefix.ends_with('.') => Self::Below(prefix.to_owned()),
            _ => Self::Exact(text.to_owned()),
        }
    }
}

impl From<String> for Pattern {
    fn from(text: String) -> Self {
        Self::from(text.as_str())
    }
}

impl fmt::Display for Pattern {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::All => f.write_str("*"),
            Self::Below(prefix) => write!(f, "{prefix}*"),
            Self::Exact(name) => f.write_str(name),
        }
    }
}

/// A set of operations, as bits: asked once per change, so it is neither searched nor allocated.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Operations(u32);

const _: () = assert!((Operation::Other as u32) < u32::BITS, "an operation has no bit");

impl Operations {
    /// Whatever happened.
    pub const ANY: Self = Self(u32::MAX);

    /// Whether `operation` is among them.
    pub fn contains(self, operation: Operation) -> bool {
        self.0 & Self::from(operation).0 != 0
    }
}

impl From<Operation> for Operations {
    fn from(operation: Operation) -> Self {
        Self(1 << operation as u32)
    }
}

impl From<&[Operation]> for Operations {
    fn from(operations: &[Operation]) -> Self {
        Self(operations.iter().fold(0, |bits, operation| bits | Self::from(*operation).0))
    }
}

impl<const N: usize> From<[Operation; N]> for Operations {
    fn from(operations: [Operation; N]) -> Self {
        Self::from(operations.as_slice())
    }
}

/// The handlers of one kind of change, in the order of their registration.
pub type Matched = Arc<[Arc<dyn Handler>]>;

/// Answers are kept for so many namespaces; a source that makes up ever new ones must not fill the memory.
const NAMESPACES_KEPT_MAX: usize = 1024;

/// After this many delivered changes, routes with an exact name that none of them had are warned about.
const UNMATCHED_WARNING_AFTER: u64 = 1_000;

/// Handlers by namespace and operation.
///
/// A change goes to every handler whose route matches, in the order of registration; a handler that is
/// registered twice is called twice. A change that no route matches is passed over.
///
/// A route with an exact name that none of the first 1,000 changes had is warned about once, since the name may be misspelled.
/// Rows of a snapshot do not count: a snapshot reads one table after the other.
///
/// ```
/// # mod watchkeeper { pub use watchkeeper_core::*; pub use watchkeeper_engine::{delivery::*, stream::SinkSpec}; }
/// use watchkeeper::{Operation, Operations, Routes, handler};
///
/// let says = |what: &'static str| handler(move |change| async move { Ok(println!("{what}: {}", change.id())) });
/// let routes = Routes::new()
///     .on("orders", Operation::Insert, says("a new order"))
///     .on("shop.*", [Operation::Update, Operation::Delete], says("no longer as it was"))
///     .on("*", Operations::ANY, says("any change"));
/// assert_eq!(routes.lookup(&"shop.items".into(), Operation::Update).len(), 2);
/// ```
#[derive(Default)]
pub struct Routes {
    routes: Vec<Route>,
    /// Answers given before. Read once per run of alike changes and written once per kind, so lanes
    /// seldom meet here; ordered maps, since a simulation has to repeat itself.
    answers: RwLock<BTreeMap<Arc<str>, BTreeMap<Operation, Matched>>>,
    /// How many changes were delivered, up to [`UNMATCHED_WARNING_AFTER`].
    delivered: AtomicU64,
}

struct Route {
    namespace: Pattern,
    operations: Operations,
    handler: Arc<dyn Handler>,
    /// Whether any change had a name that this route matches, with any operation.
    is_matched: AtomicBool,
}

impl Routes {
    /// No routes.
    pub fn new() -> Self {
        Self::default()
    }

    /// The same routes, and then this one: `handler` gets the changes whose namespace and operation
    /// match. [`Operations::ANY`] matches all operations.
    #[must_use]
    pub fn on(
        self,
        namespace: impl Into<Pattern>,
        operations: impl Into<Operations>,
        handler: impl Handler + 'static,
    ) -> Self {
        self.on_shared(namespace, operations, Arc::new(handler))
    }

    /// As [`on`](Self::on), with a handler that others have as well.
    #[must_use]
    pub fn on_shared(
        mut self,
        namespace: impl Into<Pattern>,
        operations: impl Into<Operations>,
        handler: Arc<dyn Handler>,
    ) -> Self {
        self.routes.push(Route::new(namespace.into(), operations.into(), handler));
        Self { routes: self.routes, ..Self::default() }
    }

    /// Whether there are none.
    pub fn is_empty(&self) -> bool {
        self.routes.is_empty()
    }

    /// The namespaces of all routes, in the order of registration.
    pub fn patterns(&self) -> impl Iterator<Item = &Pattern> {
        self.routes.iter().map(|route| &route.namespace)
    }

    /// The names that routes are written with, without patterns.
    pub fn names(&self) -> Vec<String> {
        let exact = |pattern: &Pattern| match pattern {
            Pattern::Exact(name) => Some(name.clone()),
            Pattern::All | Pattern::Below(_) => None,
        };
        self.patterns().filter_map(exact).collect()
    }

    /// The same routes, with these names in the place of [`names`](Self::names), one for one.
    pub(super) fn renamed(&self, names: Vec<String>) -> Self {
        let mut names = names.into_iter();
        let rename = |route: &Route| {
            let namespace = match &route.namespace {
                Pattern::Exact(name) => Pattern::Exact(names.next().unwrap_or_else(|| name.clone())),
                pattern => pattern.clone(),
            };
            Route::new(namespace, route.operations, Arc::clone(&route.handler))
        };
        Self { routes: self.routes.iter().map(rename).collect(), ..Self::default() }
    }

    /// The handlers of changes with this namespace and operation. It allocates only for a pair that it
    /// has not seen before.
    pub fn lookup(&self, namespace: &Arc<str>, operation: Operation) -> Matched {
        let known = {
            let answers = self.answers.read().unwrap_or_else(PoisonError::into_inner);
            answers.get(&**namespace).and_then(|answers| answers.get(&operation)).map(Arc::clone)
        };
        known.unwrap_or_else(|| self.learn(namespace, operation))
    }

    fn learn(&self, namespace: &Arc<str>, operation: Operation) -> Matched {
        let named: Vec<_> = self.routes.iter().filter(|route| route.namespace.matches(namespace)).collect();
        let matching = named.iter().filter(|route| route.operations.contains(operation));
        let matched: Matched = matching.map(|route| Arc::clone(&route.handler)).collect();
        for route in &named {
            route.is_matched.store(true, Ordering::Relaxed);
        }
        if named.is_empty() {
            let routes = self.patterns().map(ToString::to_string).collect::<Vec<_>>().join(", ");
            tracing::warn!(%namespace, routes, "no route matches this namespace: its changes are passed over");
        }
        let mut answers = self.answers.write().unwrap_or_else(PoisonError::into_inner);
        if answers.len() >= NAMESPACES_KEPT_MAX && !answers.contains_key(&**namespace) {
            answers.clear();
        }
        answers.entry(Arc::clone(namespace)).or_default().insert(operation, Arc::clone(&matched));
        matched
    }

    /// Counts changes that were looked up and delivered. When there are enough of them, it warns of every route with an exact name
    /// that matched none. Afterwards a call costs one load.
    pub(super) fn count_delivered(&self, batch: &Batch, rows: &[u32]) {
        if self.delivered.load(Ordering::Relaxed) >= UNMATCHED_WARNING_AFTER {
            return;
        }
        let is_change = |row: &&u32| batch.rows()[**row as usize].operation != Operation::Read;
        let changes = rows.iter().filter(is_change).count() as u64;
        let before = self.delivered.fetch_add(changes, Ordering::Relaxed);
        // Lanes count in parallel: only the one that reaches the number warns.
        if before < UNMATCHED_WARNING_AFTER && before + changes >= UNMATCHED_WARNING_AFTER {
            self.warn_unmatched();
        }
    }

    fn warn_unmatched(&self) {
        let is_unmatched =
            |route: &&Route| matches!(route.namespace, Pattern::Exact(_)) && !route.is_matched.load(Ordering::Relaxed);
        for route in self.routes.iter().filter(is_unmatched) {
            tracing::warn!(
                route = %route.namespace,
                changes = UNMATCHED_WARNING_AFTER,
                "a route matched none of the changes so far: its handler was never called; check the route's name"
            );
        }
    }
}

impl Route {
    fn new(namespace: Pattern, operations: Operations, handler: Arc<dyn Handler>) -> Self {
        Self { namespace, operations, handler, is_matched: AtomicBool::new(false) }
    }
}

impl fmt::Debug for Routes {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let routes = self.routes.iter().map(|route| (&route.namespace, &route.operations));
        f.debug_list().entries(routes).finish()
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::delivery::handler;

    #[test]
    fn patterns_are_exact_all_or_below_a_prefix() {
        let cases = [
            ("shop.orders", "shop.orders", true),
            ("shop.orders", "shop.orders2", false),
            ("*", "anything", true),
            ("*", "", true),
            ("shop.*", "shop.orders", true),
            ("shop.*", "shop.orders.archive", true),
            ("shop.*", "shop", false),
            ("shop.*", "shopping.orders", false),
            ("shop*", "shopping", false),
            ("shop*", "shop*", true),
        ];
        for (pattern, namespace, expected) in cases {
            assert_eq!(Pattern::from(pattern).matches(namespace), expected, "{pattern} on {namespace}");
            assert_eq!(Pattern::from(pattern).to_string(), pattern);
        }
        let literal: Vec<_> =
            ["*", "a.*", "a*", "*.b", "*.*"].map(|text| Pattern::from(text).has_literal_star()).into();
        assert_eq!(literal, [false, false, true, true, true]);
    }

    #[test]
    fn operations_are_one_some_or_any() {
        let some = Operations::from([Operation::Insert, Operation::Other]);
        assert!(some.contains(Operation::Insert) && some.contains(Operation::Other));
        assert!(!some.contains(Operation::Delete));
        assert!(Operations::ANY.contains(Operation::Gap));
        assert!(!Operations::from([]).contains(Operation::Insert));
    }

    #[test]
    fn an_answer_is_computed_once_and_forgotten_when_a_route_is_added() {
        let ok = || handler(|_| async { Ok(()) });
        let routes = Routes::new().on("orders", Operation::Insert, ok());
        let orders: Arc<str> = "orders".into();
        let first = routes.lookup(&orders, Operation::Insert);
        assert!(Arc::ptr_eq(&first, &routes.lookup(&orders, Operation::Insert)));
        assert_eq!(routes.lookup(&orders, Operation::Delete).len(), 0);
        let routes = routes.on("*", Operations::ANY, ok());
        assert_eq!(routes.lookup(&orders, Operation::Insert).len(), 2);
    }

    #[test]
    fn ever_new_namespaces_do_not_fill_the_memory() {
        let routes = Routes::new().on("*", Operations::ANY, handler(|_| async { Ok(()) }));
        for number in 0..3 * NAMESPACES_KEPT_MAX {
            assert_eq!(routes.lookup(&number.to_string().into(), Operation::Insert).len(), 1);
        }
        assert!(routes.answers.read().expect("no test panics").len() <= NAMESPACES_KEPT_MAX);
    }
}
