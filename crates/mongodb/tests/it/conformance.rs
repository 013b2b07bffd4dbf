//! The laws, on a real replica set.

use std::sync::Arc;
use std::time::Duration;

use watchkeeper_core::Entropy;
use watchkeeper_mongodb::{Checkpoints, Leases, Notes};
use watchkeeper_testkit::laws::{CheckpointBench, Law, LawOf, LeaseBench, RecordsBench};

use crate::support::{Base, block_on, cx};

const SHORT: Duration = Duration::from_millis(400);

mod leases {
    use super::*;

    fn run(law: &LawOf<LeaseBench>) -> Law {
        let base = Base::new();
        block_on(async {
            let (cx, entropy) = (cx(), Arc::new(Entropy::from_system()));
            let a = Arc::new(Leases::open(&cx, base.client().await).await?);
            let b = Arc::new(Leases::open(&cx, base.client().await).await?);
            law.holds_on(&LeaseBench { cx, a, b, entropy, ttl: SHORT }).await
        })
    }

    watchkeeper_testkit::lease_laws!(run);
}

mod checkpoints {
    use super::*;

    fn run(law: &LawOf<CheckpointBench>) -> Law {
        let base = Base::new();
        block_on(async {
            let (cx, entropy) = (cx(), Arc::new(Entropy::from_system()));
            let a = Arc::new(Checkpoints::open(&cx, base.client().await).await?);
            let b = Arc::new(Checkpoints::open(&cx, base.client().await).await?);
            law.holds_on(&CheckpointBench { cx, a, b, entropy }).await
        })
    }

    watchkeeper_testkit::checkpoint_laws!(run);
}

mod records {
    use super::*;

    fn run(law: &LawOf<RecordsBench>) -> Law {
        let base = Base::new();
        block_on(async {
            let (cx, entropy) = (cx(), Arc::new(Entropy::from_system()));
            let a = Arc::new(Notes::open(&cx, base.client().await).await?);
            let b = Arc::new(Notes::open(&cx, base.client().await).await?);
            law.holds_on(&RecordsBench { cx, a, b, entropy, while_aging: SHORT }).await
        })
    }

    watchkeeper_testkit::records_laws!(run);
}
