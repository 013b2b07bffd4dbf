//! Tests of the developer commands, and of rules that hold over the whole workspace.

mod commands;
mod dependencies;
mod growth;
mod lexer;
mod sources;
mod vocabulary;

use std::path::PathBuf;

/// The root of the workspace.
fn root() -> PathBuf {
    let mut root = PathBuf::from(env!("CARGO_MANIFEST_DIR"));
    root.pop();
    root
}
