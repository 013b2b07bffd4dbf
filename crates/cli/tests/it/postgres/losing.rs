//! Checkpoints in PostgreSQL that are removed or damaged.

use super::{database, delivered, sql};
use crate::losing::Case;
use crate::workspace::Workspace;

/// A stream that begins with what happens from now on, with its checkpoint in the database of its sink, or of the group's store.
fn workspace(url: &str, sink: &str) -> Workspace {
    Workspace::with(&format!(
        "[group]\nname = \"shop\"\nstore = \"{url}\"\nlease = \"2s\"\n\n[[stream]]\nname = \"orders\"\nsource = \"sqlite:app.db\"\n\
         start = \"now\"\ncheckpoint = {{ every = \"50ms\" }}\n\n[[stream.sink]]\n{sink}\n"
    ))
}

#[test]
fn a_checkpoint_in_postgres_that_is_missing_or_damaged_halts_its_stream() {
    let stripped = "UPDATE watchkeeper.checkpoints SET checkpoint = (checkpoint::jsonb - 'position')::json";
    for (number, (statement, reported)) in [
        ("DELETE FROM watchkeeper.checkpoints", "is missing"),
        ("UPDATE watchkeeper.checkpoints SET checkpoint = NULL", "is missing"),
        ("UPDATE watchkeeper.checkpoints SET checkpoint = '7'", "cannot be read"),
        (stripped, "has no position"),
    ]
    .into_iter()
    .enumerate()
    {
        let url = database(&format!("losing_{number}"));
        let workspace = workspace(&url, "type = \"file\"\nfolder = \".\"");
        let case = Case { workspace: &workspace, damage: &|| drop(sql(&url, statement)), reported };
        case.halts_until_a_person_decides(|ids| workspace.order(ids), || workspace.delivered());
    }
}

#[test]
fn a_checkpoint_in_postgres_that_is_removed_under_a_running_stream_is_reported_as_that() {
    let url = database("losing_file");
    let files = workspace(&url, "type = \"file\"\nfolder = \".\"");
    let damage = || drop(sql(&url, "DELETE FROM watchkeeper.checkpoints"));
    let case = Case { workspace: &files, damage: &damage, reported: "was removed" };
    case.halts_a_running_stream(|ids| files.order(ids), || files.delivered());
    // Changes and checkpoint in one transaction.
    let url = database("losing_table");
    let table = workspace(&url, &format!("url = \"{url}\"\ntable = \"events\""));
    let damage = || drop(sql(&url, "DELETE FROM watchkeeper.checkpoints"));
    let case = Case { workspace: &table, damage: &damage, reported: "was removed" };
    case.halts_a_running_stream(|ids| table.order(ids), || delivered(&url));
}
