//! The laws, in real time on files of their own.

use std::sync::Arc;
use std::time::Duration;

use watchkeeper_core::Entropy;
use watchkeeper_sqlite::{Checkpoints, Leases, Notes};
use watchkeeper_testkit::laws::{CheckpointBench, Law, LawOf, LeaseBench, RecordsBench};

use crate::support::{Folder, block_on, cx};

const SHORT: Duration = Duration::from_millis(250);

mod leases {
    use super::*;

    fn run(law: &LawOf<LeaseBench>) -> Law {
        let folder = Folder::new();
        block_on(async {
            let (cx, entropy) = (cx(), Arc::new(Entropy::from_system()));
            let a = Arc::new(Leases::open(&cx, folder.client("leases.db").await).await?);
            let b = Arc::new(Leases::open(&cx, folder.client("leases.db").await).await?);
            law.holds_on(&LeaseBench { cx, a, b, entropy, ttl: SHORT }).await
        })
    }

    watchkeeper_testkit::lease_laws!(run);
}

mod checkpoints {
    use super::*;

    fn run(law: &LawOf<CheckpointBench>) -> Law {
        let folder = Folder::new();
        block_on(async {
            let (cx, entropy) = (cx(), Arc::new(Entropy::from_system()));
            let a = Arc::new(Checkpoints::open(&cx, folder.client("state.db").await).await?);
            let b = Arc::new(Checkpoints::open(&cx, folder.client("state.db").await).await?);
            law.holds_on(&CheckpointBench { cx, a, b, entropy }).await
        })
    }

    watchkeeper_testkit::checkpoint_laws!(run);
}

mod records {
    use super::*;

    fn run(law: &LawOf<RecordsBench>) -> Law {
        let folder = Folder::new();
        block_on(async {
            let (cx, entropy) = (cx(), Arc::new(Entropy::from_system()));
            let a = Arc::new(Notes::open(&cx, folder.client("leases.db").await).await?);
            let b = Arc::new(Notes::open(&cx, folder.client("leases.db").await).await?);
            law.holds_on(&RecordsBench { cx, a, b, entropy, while_aging: SHORT * 2 }).await
        })
    }

    watchkeeper_testkit::records_laws!(run);
}
