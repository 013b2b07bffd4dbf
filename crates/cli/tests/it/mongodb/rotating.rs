//! Passwords that are replaced while the program runs.

use std::os::unix::fs::PermissionsExt as _;

use watchkeeper::mongodb::mongodb::Client;
use watchkeeper::mongodb::mongodb::bson::{Document, doc};
use watchkeeper_testkit::servers::mongodb::{ReplicaSet, ReplicaSetSettings};

use crate::workspace::{Workspace, until};

/// Runs a command of the database `admin` as this user.
fn admin(set: &ReplicaSet, user: &str, command: &Document) {
    let runtime = tokio::runtime::Builder::new_multi_thread().enable_all().build().expect("a runtime can be made");
    let url = format!("mongodb://{user}{}/?directConnection=true&authSource=admin", set.hosts()[0]);
    runtime.block_on(async {
        let client = Client::with_uri_str(url).await.expect("the server is there");
        client.database("admin").run_command(command.clone()).await.expect("the command is good");
    });
}

fn insert(set: &ReplicaSet, item: &str) {
    let runtime = tokio::runtime::Builder::new_multi_thread().enable_all().build().expect("a runtime can be made");
    let url = format!("mongodb://boss:boss@{}/?directConnection=true&authSource=admin", set.hosts()[0]);
    runtime.block_on(async {
        let client = Client::with_uri_str(url).await.expect("the server is there");
        let orders = client.database("shop").collection::<Document>("orders");
        orders.insert_one(doc! { "item": item }).await.expect("orders are taken");
    });
}

#[test]
fn a_new_password_in_a_file_is_read_when_access_is_denied() {
    let workspace = Workspace::new();
    workspace.write("key", "c2VjcmV0IG9mIHRoZSBzZXQ=");
    let key = workspace.path("key");
    std::fs::set_permissions(&key, std::fs::Permissions::from_mode(0o600)).expect("it is ours");
    let arguments = vec!["--auth".to_owned(), "--keyFile".to_owned(), key.display().to_string()];
    let set = ReplicaSet::with(&ReplicaSetSettings { nodes: 1, arguments, ..ReplicaSetSettings::default() });
    admin(&set, "", &doc! { "createUser": "boss", "pwd": "boss", "roles": ["root"] });
    admin(&set, "boss:boss@", &doc! { "createUser": "keeper", "pwd": "first-password", "roles": ["root"] });
    insert(&set, "none");
    let url = set.url("shop").replace("mongodb://", "mongodb://keeper:${file:password}@");
    let url = format!("{url}&authSource=admin&heartbeatFrequencyMS=500");
    workspace.write("password", "first-password\n");
    workspace.write(
        "watchkeeper.toml",
        &format!(
            "[group]\nname = \"shop\"\nstore = \"{url}\"\nlease = \"10s\"\n\n[[stream]]\nname = \"orders\"\n\
             checkpoint = {{ every = \"50ms\" }}\nsource = {{ url = \"{url}\", collection = \"orders\" }}\n\n\
             [[stream.sink]]\ntype = \"file\"\nfolder = \".\"\n"
        ),
    );
    let delivered = || {
        let text = std::fs::read_to_string(workspace.path("orders-000001.ndjson")).unwrap_or_default();
        ["rope", "tar"].map(|item| text.contains(item))
    };
    let mut only = workspace.start("only");
    let opened = || {
        let shown = workspace.run(&["checkpoint", "show", "orders", "--json"]);
        let shown: serde_json::Value = serde_json::from_str(&shown.out).unwrap_or_default();
        // The first checkpoint has no position: only with one it is known where the stream begins.
        shown["checkpoint"]["position"].is_string()
    };
    until("the stream is open", opened);
    insert(&set, "rope");
    until("it arrives", || delivered() == [true, false]);

    workspace.write("password", "second-password\n");
    admin(&set, "boss:boss@", &doc! { "updateUser": "keeper", "pwd": "second-password" });
    // Connections that are there stay authenticated; those after a restart are not.
    set.kill(0);
    set.restart(0);
    set.primary();
    insert(&set, "tar");
    until("it goes on with the new password", || delivered() == [true, true]);
    only.ends_in_order();
    assert!(only.seen.iter().all(|line| !line.contains("first-password") && !line.contains("second-password")));
}
