//! A feed keeps the laws of sinks, with a caller who writes down what it acknowledges.

use std::sync::{Arc, Mutex};

use async_trait::async_trait;
use bytes::Bytes;
use watchkeeper::core::{BootClock, Entropy};
use watchkeeper::pull::{self, Changes, Feed};
use watchkeeper::{Cx, Grade, Result, Sink};
use watchkeeper_testkit::laws::{Effect, Law, LawOf, SinkBench};

struct Bench {
    cx: Cx,
    entropy: Entropy,
    feed: Arc<Feed>,
    effects: Arc<Mutex<Vec<Effect>>>,
}

#[async_trait]
impl SinkBench for Bench {
    fn cx(&self) -> &Cx {
        &self.cx
    }

    fn entropy(&self) -> &Entropy {
        &self.entropy
    }

    fn sink(&self) -> Arc<dyn Sink> {
        Arc::clone(&self.feed) as _
    }

    async fn delivered(&self) -> Result<Vec<Effect>> {
        Ok(self.effects.lock().expect("no law panics").clone())
    }
}

async fn take_down(mut changes: Changes, effects: Arc<Mutex<Vec<Effect>>>) {
    while let Some(next) = changes.next().await {
        let Ok(change) = next else { continue };
        let (id, key) = (Some(change.id().to_string()), change.key().map(Bytes::copy_from_slice));
        effects.lock().expect("no law panics").push(Effect { id, key, version: change.version() });
        change.ack();
    }
}

fn run(law: &LawOf<dyn SinkBench>, grade: Grade) -> Law {
    let runtime = tokio::runtime::Builder::new_current_thread().enable_time().build().expect("a runtime");
    runtime.block_on(async {
        let (feed, changes) = pull::feed(pull::Settings { grade, in_hand: 2, ..pull::Settings::default() })?;
        let effects = Arc::default();
        tokio::spawn(take_down(changes, Arc::clone(&effects)));
        let (cx, entropy) = (Cx::new(Arc::new(BootClock)), Entropy::from_system());
        law.holds_on(&Bench { cx, entropy, feed: Arc::new(feed), effects }).await
    })
}

mod plain {
    use super::*;

    fn run(law: &LawOf<dyn SinkBench>) -> Law {
        super::run(law, Grade::Plain)
    }

    watchkeeper_testkit::sink_laws!(run);
}

mod fenced {
    use super::*;

    fn run(law: &LawOf<dyn SinkBench>) -> Law {
        super::run(law, Grade::Fenced)
    }

    watchkeeper_testkit::sink_laws!(run);
}
