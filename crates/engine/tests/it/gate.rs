//! Streams that can be connected only while a gate is open.

use std::sync::{Arc, Mutex};

use async_trait::async_trait;
use watchkeeper_core::{Cx, Error, ErrorKind, Result};
use watchkeeper_engine::connect::{Connect, StreamEntry};
use watchkeeper_engine::settings::StreamSettings;
use watchkeeper_engine::stream::StreamSpec;

/// Whether a stream can be connected. Clones are the same.
#[derive(Debug, Clone, Default)]
pub(crate) struct Gate(Arc<Mutex<State>>);

#[derive(Debug, Default)]
struct State {
    /// How it refuses, while it is shut.
    refusal: Option<(ErrorKind, String)>,
    knocks: u32,
}

impl Gate {
    /// The stream behind it.
    pub(crate) fn before(&self, spec: StreamSpec) -> StreamEntry {
        StreamEntry::Unconnected(Arc::new(Behind { spec, gate: self.clone() }))
    }

    /// One that refuses with an error of this kind.
    pub(crate) fn shut(kind: ErrorKind) -> Self {
        Self::shut_with(kind, "the gate is shut")
    }

    /// One that refuses with this message.
    pub(crate) fn shut_with(kind: ErrorKind, message: &str) -> Self {
        Self(Arc::new(Mutex::new(State { refusal: Some((kind, message.to_owned())), knocks: 0 })))
    }

    pub(crate) fn open(&self) {
        self.0.lock().unwrap().refusal = None;
    }

    /// How often somebody tried.
    pub(crate) fn knocks(&self) -> u32 {
        self.0.lock().unwrap().knocks
    }
}

/// A stream behind a gate.
#[derive(Debug)]
struct Behind {
    spec: StreamSpec,
    gate: Gate,
}

#[async_trait]
impl Connect for Behind {
    fn settings(&self) -> &StreamSettings {
        &self.spec.settings
    }

    async fn connect(&self, _cx: &Cx) -> Result<StreamSpec> {
        let mut gate = self.gate.0.lock().unwrap();
        gate.knocks += 1;
        match &gate.refusal {
            Some((kind, message)) => Err(Error::new(*kind, message)),
            None => Ok(self.spec.clone()),
        }
    }
}
