//! The laws, on a real replica set.

use std::sync::Arc;
use std::time::Duration;

use watchkeeper_core::Entropy;
use watchkeeper_mongodb::{Checkpoints, Leases, RecordStore};
use watchkeeper_testkit::laws::{CheckpointBench, Law, LawOf, LeaseBench, RecordsBench};

use crate::support::{Base, Editor, block_on, cx};

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
            let damager = Arc::new(Editor(base.client().await));
            law.holds_on(&CheckpointBench { cx, a, b, damager, entropy }).await
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
            let a = Arc::new(RecordStore::open(&cx, base.client().await).await?);
            let b = Arc::new(RecordStore::open(&cx, base.client().await).await?);
            law.holds_on(&RecordsBench { cx, a, b, entropy, while_aging: SHORT }).await
        })
    }

    watchkeeper_testkit::records_laws!(run);
}

mod transactional_sink {
    use async_trait::async_trait;
    use watchkeeper_core::{Result, Sink, Version};
    use watchkeeper_mongodb::mongodb::bson::{Bson, Document};
    use watchkeeper_mongodb::{Client, Events, Transactional};
    use watchkeeper_testkit::laws::{Effect, TransactionalBench};

    use super::*;
    use crate::support::in_order;

    struct Collection {
        checkpoints: CheckpointBench,
        sink: Transactional,
        reader: Client,
    }

    fn effect(event: &Document) -> Effect {
        let version = event.get_document("version").expect("an event has a version");
        let part = |name: &str| version.get_i64(name).expect("a part of a version is a number").cast_unsigned();
        let key = match event.get("key") {
            Some(Bson::Binary(key)) => Some(key.bytes.clone().into()),
            _ => None,
        };
        let id = event.get_str("change").ok().map(str::to_owned);
        Effect { id, key, version: Version { time: part("time"), ordinal: part("ordinal") } }
    }

    #[async_trait]
    impl TransactionalBench for Collection {
        fn sink(&self) -> Arc<dyn Sink> {
            Arc::new(self.sink.clone())
        }

        fn checkpoints(&self) -> &CheckpointBench {
            &self.checkpoints
        }

        async fn delivered(&self) -> Result<Vec<Effect>> {
            Ok(in_order(&self.reader, "events").await.iter().map(effect).collect())
        }
    }

    fn run(law: &LawOf<dyn TransactionalBench>) -> Law {
        let base = Base::new();
        block_on(async {
            let (cx, entropy) = (cx(), Arc::new(Entropy::from_system()));
            let sink = Transactional::open(&cx, base.client().await, Events::into("events")?).await?;
            sink.check(&cx).await?;
            let a = Arc::new(Checkpoints::open(&cx, base.client().await).await?);
            let b = Arc::new(Checkpoints::open(&cx, base.client().await).await?);
            let damager = Arc::new(Editor(base.client().await));
            let checkpoints = CheckpointBench { cx, a, b, damager, entropy };
            law.holds_on(&Collection { checkpoints, sink, reader: base.client().await }).await
        })
    }

    watchkeeper_testkit::transactional_laws!(run);
}

mod versioned_sink {
    use async_trait::async_trait;
    use watchkeeper_core::{Cx, Result, Sink, Version};
    use watchkeeper_mongodb::mongodb::bson::Bson;
    use watchkeeper_mongodb::{Client, Mirror, Versioned};
    use watchkeeper_testkit::laws::{Effect, SinkBench, View};

    use super::*;
    use crate::support::in_order;

    struct Copy {
        cx: Cx,
        entropy: Entropy,
        sink: Versioned,
        reader: Client,
    }

    #[async_trait]
    impl SinkBench for Copy {
        fn cx(&self) -> &Cx {
            &self.cx
        }

        fn entropy(&self) -> &Entropy {
            &self.entropy
        }

        fn sink(&self) -> Arc<dyn Sink> {
            Arc::new(self.sink.clone())
        }

        fn view(&self) -> View {
            View::Newest
        }

        async fn delivered(&self) -> Result<Vec<Effect>> {
            let mut effects = Vec::new();
            for copy in in_order(&self.reader, "copy").await {
                let mark = copy.get_document("_watchkeeper").expect("every copy has its version");
                let part = |name: &str| mark.get_i64(name).expect("a part of a version is a number").cast_unsigned();
                let Some(Bson::Binary(key)) = copy.get("_id") else { panic!("a copy without its key: {copy}") };
                if !mark.contains_key("deleted") {
                    let (key, version) = (Some(key.bytes.clone().into()), Version { time: part("time"), ordinal: 0 });
                    effects.push(Effect { id: None, key, version });
                }
            }
            Ok(effects)
        }
    }

    fn run(law: &LawOf<dyn SinkBench>) -> Law {
        let base = Base::new();
        block_on(async {
            let sink = Versioned::new(base.client().await, Mirror::into("copy")?);
            let (cx, entropy) = (cx(), Entropy::from_system());
            law.holds_on(&Copy { cx, entropy, sink, reader: base.client().await }).await
        })
    }

    watchkeeper_testkit::sink_laws!(run);
}
