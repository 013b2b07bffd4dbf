//! Applications whose own subscriber panics, as one does that writes to a pipe which nobody reads any more.

use tracing::{Event, Level, Metadata, Subscriber, span};
use watchkeeper_core::ErrorKind;
use watchkeeper_testkit::faults::Fault;

use crate::support::*;

/// Panics at every error that is logged.
struct Broken;

impl Subscriber for Broken {
    fn enabled(&self, metadata: &Metadata<'_>) -> bool {
        *metadata.level() == Level::ERROR
    }

    fn new_span(&self, _: &span::Attributes<'_>) -> span::Id {
        span::Id::from_u64(1)
    }

    fn record(&self, _: &span::Id, _: &span::Record<'_>) {}

    fn record_follows_from(&self, _: &span::Id, _: &span::Id) {}

    fn event(&self, _: &Event<'_>) {
        panic!("nobody reads the log");
    }

    fn enter(&self, _: &span::Id) {}

    fn exit(&self, _: &span::Id) {}
}

#[test]
fn an_instance_ends_in_order_although_every_error_that_it_logs_panics() {
    tracing::subscriber::with_default(Broken, || {
        let harness = Harness::new();
        let plan = harness.instance("a");
        plan.faults.source.always("open", Fault::Reject(ErrorKind::Config));
        let a = plan.start();
        harness.append_many(3);
        harness.run_for(30 * SECOND);
        assert!(a.faults.source.calls("open") > 1, "it is tried again");
        a.stop(&harness);
    });
}
