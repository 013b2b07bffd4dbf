//! The configuration file of the shipped program.

use std::fmt::Write;
use std::time::Duration;

use crate::harness::Config;
use crate::instance::{GROUP, STREAM};

/// The text of the file. All times are in proportion to the lease, as in the instances of this program.
pub(crate) fn text(config: &Config, lease: Duration) -> String {
    let Config { store, source, folder, sinks } = config;
    let (lease, thrice, folder) = (lease.as_millis(), lease.as_millis() * 3, folder.display());
    let mut text = format!(
        "[group]
name = \"{GROUP}\"
store = \"{store}\"
lease = \"{lease}ms\"
heartbeat_every = \"{lease}ms\"
unhealthy_after = \"{thrice}ms\"
bar = \"{lease}ms\"

[[stream]]
name = \"{STREAM}\"
start = \"oldest\"
concurrency = 4
checkpoint = {{ every = \"20ms\" }}

[stream.source]
{source}

[[stream.sink]]
type = \"file\"
folder = \"{folder}\"
prefix = \"{STREAM}\"
"
    );
    for sink in sinks {
        // Writing to a string does not fail.
        let _ = write!(text, "\n[[stream.sink]]\n{sink}\n");
    }
    text
}
