//! What a file describes, opened: the group's stores and the streams on them. All commands work on this.

use watchkeeper::{InstanceSettings, LeaseKey, Result, Seams, Stores, StreamSpec};

use crate::args::Common;

/// An opened configuration.
#[derive(Debug)]
pub(crate) struct Site {
    /// Time, tasks, peers, randomness.
    pub(crate) seams: Seams,
    /// Leases, checkpoints and records of the group.
    pub(crate) stores: Stores,
    /// How this instance behaves; also the group's name and the length of leases.
    pub(crate) settings: InstanceSettings,
    /// Its streams. Those whose own parts could not be opened are not here.
    pub(crate) streams: Vec<StreamSpec>,
}

impl Site {
    /// Opens what the file that `common` names describes.
    pub(crate) async fn open(_common: &Common) -> Result<Self> {
        Err(watchkeeper::Error::internal("not opened yet"))
    }

    /// The stream of this name.
    ///
    /// # Errors
    /// `Config` with the names that there are.
    pub(crate) fn stream(&self, name: &str) -> Result<&StreamSpec> {
        self.streams.iter().find(|stream| stream.settings.name == name).ok_or_else(|| {
            let known: Vec<_> = self.streams.iter().map(|stream| stream.settings.name.as_str()).collect();
            watchkeeper::Error::config(format!("there is no stream {name:?} in this file"))
                .remedy(format!("known are: {}", known.join(", ")))
        })
    }

    /// What a stream's lease and checkpoint are kept under.
    pub(crate) fn key(&self, stream: &StreamSpec) -> LeaseKey {
        stream.key(&self.settings.group)
    }
}
