//! The laws of sinks, in real time.

use std::io::Write;
use std::sync::{Arc, Mutex};

use async_trait::async_trait;
use bytes::Bytes;
use watchkeeper_core::{Cx, Entropy, Result, Sink, Version};
use watchkeeper_file::{FileSink, Settings, StdoutSink};
use watchkeeper_testkit::laws::{Effect, Law, LawOf, SinkBench};

use crate::support::{Folder, block_on, cx, format};

/// What a sink wrote, read back. The format is `cloudevents`, whose lines tell the key.
struct Bench {
    cx: Cx,
    entropy: Entropy,
    sink: Arc<dyn Sink>,
    read: Box<dyn Fn() -> Vec<serde_json::Value> + Send + Sync>,
}

impl Bench {
    fn judge(
        law: &LawOf<dyn SinkBench>,
        sink: Arc<dyn Sink>,
        read: impl Fn() -> Vec<serde_json::Value> + Send + Sync + 'static,
    ) -> Law {
        let bench = Self { cx: cx(), entropy: Entropy::from_system(), sink, read: Box::new(read) };
        block_on(law.holds_on(&bench as &dyn SinkBench))
    }
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
        Arc::clone(&self.sink)
    }

    async fn delivered(&self) -> Result<Vec<Effect>> {
        Ok((self.read)().iter().map(effect).collect())
    }
}

fn effect(line: &serde_json::Value) -> Effect {
    let key = line["subject"].as_str().map(|subject| {
        let digits = subject.strip_prefix("0x").expect("the keys of laws are not readable");
        let number = u64::from_str_radix(digits, 16).expect("the keys of laws are numbers");
        Bytes::copy_from_slice(&number.to_be_bytes())
    });
    let n = line["data"]["n"].as_u64().expect("the bodies of laws have an n");
    let id = line["id"].as_str().map(str::to_owned);
    Effect { id, key, version: Version { time: n, ordinal: 0 } }
}

fn judge_files(law: &LawOf<dyn SinkBench>, change: fn(&mut Settings)) -> Law {
    let folder = Folder::new();
    let mut settings = folder.settings();
    change(&mut settings);
    let sink = FileSink::new(settings, format("cloudevents")).expect("the settings are good");
    Bench::judge(law, Arc::new(sink), move || folder.lines())
}

mod one_file {
    use super::*;

    fn run(law: &LawOf<dyn SinkBench>) -> Law {
        judge_files(law, |_| {})
    }

    watchkeeper_testkit::sink_laws!(run);
}

mod a_file_per_line {
    use super::*;

    fn run(law: &LawOf<dyn SinkBench>) -> Law {
        judge_files(law, |settings| settings.rotate_bytes = Some(1))
    }

    watchkeeper_testkit::sink_laws!(run);
}

mod never_synced {
    use super::*;

    fn run(law: &LawOf<dyn SinkBench>) -> Law {
        judge_files(law, |settings| settings.fsync = watchkeeper_file::Fsync::Never)
    }

    watchkeeper_testkit::sink_laws!(run);
}

/// Standard output, as far as a test can see it.
#[derive(Clone, Default)]
struct Seen(Arc<Mutex<Vec<u8>>>);

impl Write for Seen {
    fn write(&mut self, bytes: &[u8]) -> std::io::Result<usize> {
        self.0.lock().expect("no test panics while it writes").extend_from_slice(bytes);
        Ok(bytes.len())
    }

    fn flush(&mut self) -> std::io::Result<()> {
        Ok(())
    }
}

mod standard_output {
    use super::*;

    fn run(law: &LawOf<dyn SinkBench>) -> Law {
        let seen = Seen::default();
        let sink = StdoutSink::into_writer(format("cloudevents"), seen.clone());
        Bench::judge(law, Arc::new(sink), move || {
            let bytes = seen.0.lock().expect("no test panics while it writes").clone();
            let text = String::from_utf8(bytes).expect("lines are text");
            text.lines().map(|line| serde_json::from_str(line).expect("a line is JSON")).collect()
        })
    }

    watchkeeper_testkit::sink_laws!(run);
}
