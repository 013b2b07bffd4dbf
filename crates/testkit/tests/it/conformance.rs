//! The references in memory keep every law.

use watchkeeper_testkit::laws::{
    CheckpointBench, Law, LawOf, LeaseBench, RecordsBench, SinkBench, SourceBench, TransactionalBench, in_world,
};

mod leases {
    use super::*;

    fn run(law: &LawOf<LeaseBench>) -> Law {
        in_world(law, |world| Box::new(LeaseBench::in_memory(world)))
    }

    watchkeeper_testkit::lease_laws!(run);
}

mod checkpoints {
    use super::*;

    fn run(law: &LawOf<CheckpointBench>) -> Law {
        in_world(law, |world| Box::new(CheckpointBench::in_memory(world)))
    }

    watchkeeper_testkit::checkpoint_laws!(run);
}

mod records {
    use super::*;

    fn run(law: &LawOf<RecordsBench>) -> Law {
        in_world(law, |world| Box::new(RecordsBench::in_memory(world)))
    }

    watchkeeper_testkit::records_laws!(run);
}

mod source {
    use super::*;

    fn run(law: &LawOf<dyn SourceBench>) -> Law {
        in_world(law, <dyn SourceBench>::in_memory)
    }

    watchkeeper_testkit::source_laws!(run);
}

/// One module per grade.
macro_rules! sinks {
    ($($module:ident: $grade:ident,)+) => {
        $(mod $module {
            use super::*;

            fn run(law: &LawOf<dyn SinkBench>) -> Law {
                in_world(law, |world| <dyn SinkBench>::in_memory(world, watchkeeper_core::Grade::$grade))
            }

            watchkeeper_testkit::sink_laws!(run);
        })+
    };
}

sinks! {
    plain_sink: Plain,
    idempotent_sink: Idempotent,
    versioned_sink: Versioned,
    fenced_sink: Fenced,
}

mod transactional_sink {
    use super::*;

    fn run(law: &LawOf<dyn TransactionalBench>) -> Law {
        in_world(law, <dyn TransactionalBench>::in_memory)
    }

    watchkeeper_testkit::transactional_laws!(run);
}

/// The laws hold in real time as well, on a runtime that the backend brings.
mod real_time {
    use std::future::Future;
    use std::sync::Arc;
    use std::time::Duration;

    use watchkeeper_core::memory::{Leases, RecordStore};
    use watchkeeper_core::{BootClock, Cx, Entropy};

    use super::*;

    const SHORT: Duration = Duration::from_millis(60);

    fn block_on(law: impl Future<Output = Law>) -> Law {
        let runtime = tokio::runtime::Builder::new_current_thread().enable_time().build();
        runtime.expect("a runtime without I/O needs nothing").block_on(law)
    }

    fn leases(law: &LawOf<LeaseBench>) -> Law {
        let store = Leases::new(Arc::new(BootClock));
        let (cx, entropy) = (Cx::new(Arc::new(BootClock)), Arc::new(Entropy::from_system()));
        let bench = LeaseBench { cx, a: Arc::new(store.clone()), b: Arc::new(store), entropy, ttl: SHORT };
        block_on(law.holds_on(&bench))
    }

    watchkeeper_testkit::lease_laws!(leases);

    mod records {
        use super::*;

        fn run(law: &LawOf<RecordsBench>) -> Law {
            let notes = RecordStore::new(Arc::new(BootClock));
            let (cx, entropy) = (Cx::new(Arc::new(BootClock)), Arc::new(Entropy::from_system()));
            let (a, b) = (Arc::new(notes.clone()), Arc::new(notes));
            block_on(law.holds_on(&RecordsBench { cx, a, b, entropy, while_aging: SHORT * 8 }))
        }

        watchkeeper_testkit::records_laws!(run);
    }
}
