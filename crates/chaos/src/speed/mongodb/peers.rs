//! Others' programs that read the same changes. `cargo xtask bench mongodb` installs what they need.

use std::fs;
use std::path::Path;
use std::process::Command;

use watchkeeper_testkit::servers::{DEBEZIUM, NODE_DRIVER, PYMONGO, program};

use super::history::{EVENTS, timestamp};
use crate::fleet::Trouble;
use crate::speed::errand::Errand;
use crate::speed::who::By;

/// What installs them, named when one is missing.
const INSTALL: &str = "cargo xtask bench mongodb, or leave them out with --no-peers";

const NODE: &str = include_str!("../../../peers/node.js");
const PYTHON: &str = include_str!("../../../peers/python.py");
const JAVA: &str = include_str!("../../../peers/Debezium.java");

/// The most memory that Debezium's virtual machine takes for objects.
const HEAP: &str = "-Xmx2g";

/// Looks whether all of them are installed, before anything is measured.
///
/// # Panics
/// When one is missing, with the command that installs it.
pub(super) fn look() {
    for (folder, name) in [(NODE_DRIVER, "node_modules"), (PYMONGO, "packages"), (DEBEZIUM, "libs")] {
        program(folder, name, INSTALL);
    }
}

/// The command that runs a peer, whose script is written into the errand's folder.
pub(super) fn command(errand: &Errand) -> Result<Command, Trouble> {
    let (begin, folder) = (timestamp(errand.mark), &errand.folder);
    let words = [errand.url.clone(), EVENTS.to_owned(), begin.time.to_string(), begin.increment.to_string()];
    let changes = errand.changes.to_string();
    match errand.by {
        By::Node => {
            let modules = program(NODE_DRIVER, "node_modules", INSTALL);
            let mut node = Command::new("node");
            node.arg(script(folder, "node.js", NODE)?).args(words).arg(changes).env("NODE_PATH", modules);
            Ok(node)
        }
        By::Python => {
            let packages = program(PYMONGO, "packages", INSTALL);
            let mut python = Command::new("python3");
            python.arg(script(folder, "python.py", PYTHON)?).args(words).arg(changes).env("PYTHONPATH", packages);
            Ok(python)
        }
        _ => {
            let libraries = program(DEBEZIUM, "libs", INSTALL);
            let mut java = Command::new("java");
            java.args([HEAP, "-cp"]).arg(libraries.join("*")).arg(script(folder, "Debezium.java", JAVA)?);
            java.arg(&errand.url).arg(format!("{}.{EVENTS}", errand.database()));
            java.args([errand.mark.to_string(), changes]);
            Ok(java)
        }
    }
}

fn script(folder: &Path, name: &str, text: &str) -> Result<std::path::PathBuf, Trouble> {
    let path = folder.join(name);
    fs::write(&path, text).map_err(|error| format!("{}: {error}", path.display()))?;
    Ok(path)
}
