//! The laws, on real servers of both versions.

use std::sync::Arc;
use std::time::Duration;

use watchkeeper_core::Entropy;
use watchkeeper_postgres::{Checkpoints, Leases, Notes};
use watchkeeper_testkit::laws::{CheckpointBench, Law, LawOf, LeaseBench, RecordsBench};
use watchkeeper_testkit::servers::postgres::Version;

use crate::support::{Base, block_on, cx};

const SHORT: Duration = Duration::from_millis(400);

/// Runs all laws of the stores on one version.
macro_rules! stores {
    ($module:ident, $version:expr) => {
        mod $module {
            use super::*;

            mod leases {
                use super::*;

                fn run(law: &LawOf<LeaseBench>) -> Law {
                    block_on(super::super::lease_law(law, $version))
                }

                watchkeeper_testkit::lease_laws!(run);
            }

            mod checkpoints {
                use super::*;

                fn run(law: &LawOf<CheckpointBench>) -> Law {
                    block_on(super::super::checkpoint_law(law, $version))
                }

                watchkeeper_testkit::checkpoint_laws!(run);
            }

            mod records {
                use super::*;

                fn run(law: &LawOf<RecordsBench>) -> Law {
                    block_on(super::super::records_law(law, $version))
                }

                watchkeeper_testkit::records_laws!(run);
            }
        }
    };
}

stores!(on_15, Version::V15);
stores!(on_18, Version::V18);

async fn lease_law(law: &LawOf<LeaseBench>, version: Version) -> Law {
    let base = Base::new(version).await;
    let (cx, entropy) = (cx(), Arc::new(Entropy::from_system()));
    let a = Arc::new(Leases::open(&cx, base.client().await).await?);
    let b = Arc::new(Leases::open(&cx, base.client().await).await?);
    law.holds_on(&LeaseBench { cx, a, b, entropy, ttl: SHORT }).await
}

async fn checkpoint_law(law: &LawOf<CheckpointBench>, version: Version) -> Law {
    let base = Base::new(version).await;
    let (cx, entropy) = (cx(), Arc::new(Entropy::from_system()));
    let a = Arc::new(Checkpoints::open(&cx, base.client().await).await?);
    let b = Arc::new(Checkpoints::open(&cx, base.client().await).await?);
    law.holds_on(&CheckpointBench { cx, a, b, entropy }).await
}

async fn records_law(law: &LawOf<RecordsBench>, version: Version) -> Law {
    let base = Base::new(version).await;
    let (cx, entropy) = (cx(), Arc::new(Entropy::from_system()));
    let a = Arc::new(Notes::open(&cx, base.client().await).await?);
    let b = Arc::new(Notes::open(&cx, base.client().await).await?);
    law.holds_on(&RecordsBench { cx, a, b, entropy, while_aging: SHORT }).await
}
