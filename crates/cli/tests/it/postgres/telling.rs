//! What a user is told before a run: rights that are missing, poolers in between, checkpoints that lie elsewhere.

use watchkeeper::postgres::tokio_postgres;
use watchkeeper_testkit::servers::postgres::{Pooler, Server, ServerSettings, Version};

use super::{database, delivered, from_orders, order, shared, sql};
use crate::workspace::{Answer, Workspace, until};

/// A database with the table that is read, and its URL.
fn orders(name: &str) -> String {
    let url = database(name);
    sql(&url, "CREATE TABLE orders (id bigint PRIMARY KEY, item text)");
    url
}

/// The same database, reached as a role that is made for it.
fn role(url: &str, name: &str, rights: &str) -> String {
    sql(url, &format!("CREATE ROLE {name} LOGIN {rights}"));
    url.replace("postgres://postgres@", &format!("postgres://{name}@"))
}

/// A stream of the table `orders` of this source, into the store's own database.
fn reading(store: &str, source: &str, start: &str, lines: &str) -> Workspace {
    Workspace::with(&format!(
        "[group]\nname = \"shop\"\nstore = \"{store}\"\nlease = \"2s\"\n\n[[stream]]\nname = \"orders\"\n{start}\n\n\
         [stream.source]\nurl = \"{source}\"\ntables = [\"orders\"]\n{lines}\n[[stream.sink]]\nurl = \"{store}\"\n\
         table = \"events\"\n"
    ))
}

/// Read through a slot of the database's own: the names of slots are shared by all databases of a server.
fn replication(url: &str) -> String {
    let name = url.rsplit('/').next().expect("a URL names its database");
    format!("mode = \"replication\"\npublication = \"told\"\nslot = \"{name}\"\n")
}

const PUBLISH: &str = "CREATE PUBLICATION told FOR TABLE orders";
const SNAPSHOT: &str = "start = \"snapshot\"";

/// Asserts that a check finds nothing wrong.
#[track_caller]
fn assert_well(answer: &Answer) {
    assert_eq!(answer.code, Some(0), "{answer:?}");
    assert!(answer.out.contains("all is well"), "{answer:?}");
}

#[test]
fn a_role_that_may_not_publish() {
    let url = orders("unpublished");
    let workspace = reading(&url, &role(&url, "bosun", "REPLICATION"), "", &replication(&url));
    let checked = workspace.run(&["check"]);
    let create = "CREATE PUBLICATION \"told\" FOR TABLE \"public\".\"orders\"";
    checked
        .assert_found(1, &["bosun may not make publication told", "GRANT CREATE ON DATABASE \"unpublished\"", create]);
    checked.assert_found(1, &["bosun may not publish public.orders, which belongs to another role", create]);
    let mut only = workspace.start("only");
    only.says(&["permission denied for database unpublished", "WK-DENIED", create]);
    only.ends_in_order();
    sql(&url, PUBLISH);
    assert_well(&workspace.run(&["check"]));
}

#[test]
fn a_role_that_may_not_read_what_exists() {
    let url = orders("unread");
    sql(&url, PUBLISH);
    let source = role(&url, "cook", "REPLICATION");
    let workspace = reading(&url, &source, SNAPSHOT, &replication(&url));
    let denied = ["cook may not read public.orders", "WK-DENIED", "GRANT SELECT ON \"public\".\"orders\" TO \"cook\""];
    workspace.run(&["check"]).assert_found(1, &denied);
    let repaired = reading(&url, &source, "on_history_lost = \"snapshot\"", &replication(&url));
    repaired.run(&["check"]).assert_found(1, &denied);
    let mut refused = repaired.start("only");
    let line = refused.says(&["WARN", "cook may not read public.orders", "WK-CONFIG", "GRANT SELECT"]);
    assert!(!line.contains("WK-DENIED"), "one kind is enough: {line}");
    refused.ends_in_order();
    assert_well(&reading(&url, &source, "start = \"now\"", &replication(&url)).run(&["check"]));
    // Each column that is published is as good as the table.
    sql(&url, "GRANT SELECT (id, item) ON orders TO cook");
    assert_well(&workspace.run(&["check"]));
    sql(&url, "ALTER TABLE orders ENABLE ROW LEVEL SECURITY; CREATE POLICY none ON orders USING (id < 0)");
    workspace.run(&["check"]).assert_found(1, &["policies hide rows of public.orders from cook", "BYPASSRLS"]);
    order(&url, 1..3);
    let mut only = workspace.start("only");
    only.says(&["row-level security", "WK-DENIED", "BYPASSRLS"]);
    only.ends_in_order();
    assert_eq!(delivered(&url), Vec::<u64>::new(), "nothing is better than a part of it");
}

/// Whether the slot of this database is being read. While it is made it is active, too.
fn is_read(url: &str) -> bool {
    let read = "SELECT 1 FROM pg_replication_slots s JOIN pg_stat_replication r ON r.pid = s.active_pid
        WHERE s.database = current_database() AND r.state IN ('catchup', 'streaming')";
    sql(url, read).len() == 1
}

/// Runs a stream that tells of an order which exists, if that is wanted, and of one that comes, after a check without errors.
fn assert_enough(workspace: &Workspace, url: &str, existing: bool) {
    assert_well(&workspace.run(&["check"]));
    order(url, 1..2);
    let mut only = workspace.start("only");
    until("the slot is in use", || is_read(url));
    order(url, 2..3);
    let wanted = if existing { vec![1, 2] } else { vec![2] };
    until("they arrive", || delivered(url).len() >= wanted.len());
    only.ends_in_order();
    assert_eq!(delivered(url), wanted);
    // With a slot that is there.
    assert_well(&workspace.run(&["check"]));
    let source = std::fs::read_to_string(workspace.path("watchkeeper.toml")).expect("the desk has a configuration");
    let source = source.split("[stream.source]\nurl = \"").nth(1).and_then(|rest| rest.split('"').next());
    let reported = workspace.run(&["postgres", "slots", "--url", source.expect("it names its source")]);
    assert_eq!(reported.code, Some(0), "{reported:?}");
}

/// The rights that the guide names for replication are enough, each time without the others.
fn the_documented_rights_are_enough(server: &Server) {
    let orders = |name: &str, owner: &str| {
        sql(&server.url("postgres"), &format!("CREATE DATABASE {name} STRATEGY wal_log"));
        let url = server.url(name);
        sql(&url, "CREATE TABLE orders (id bigint PRIMARY KEY, item text)");
        (role(&url, owner, "REPLICATION"), url)
    };
    let (source, url) = orders("told_published", "mate_published");
    sql(&url, PUBLISH);
    assert_enough(&reading(&url, &source, "start = \"now\"", &replication(&url)), &url, false);
    let (source, url) = orders("told_copied", "mate_copied");
    sql(&url, &format!("{PUBLISH}; GRANT SELECT ON orders TO mate_copied"));
    assert_enough(&reading(&url, &source, SNAPSHOT, &replication(&url)), &url, true);
    let (source, url) = orders("told_owned", "mate_owned");
    sql(&url, "GRANT CREATE ON DATABASE told_owned TO mate_owned; ALTER TABLE orders OWNER TO mate_owned");
    assert_enough(&reading(&url, &source, SNAPSHOT, &replication(&url)), &url, true);
}

#[test]
fn the_documented_rights_are_enough_on_15() {
    the_documented_rights_are_enough(shared());
}

#[test]
fn the_documented_rights_are_enough_on_18() {
    the_documented_rights_are_enough(&Server::start(Version::V18));
}

#[test]
fn a_server_without_room_for_a_slot() {
    let mut settings = ServerSettings::new(Version::V15);
    settings.config.push("max_replication_slots = 1".to_owned());
    let server = Server::with(&settings);
    let url = server.url("postgres");
    sql(&url, "CREATE TABLE orders (id bigint PRIMARY KEY); SELECT pg_create_physical_replication_slot('taken')");
    let workspace = from_orders(&url, &replication(&url));
    workspace.run(&["check"]).assert_found(1, &["all 1 slots of the server are taken", "raise max_replication_slots"]);
    sql(&url, "SELECT pg_drop_replication_slot('taken')");
    assert_well(&workspace.run(&["check"]));
}

#[test]
fn a_role_that_may_not_keep_its_place_in_the_log() {
    let url = orders("unkept");
    let workspace = reading(&url, &role(&url, "purser", ""), "", "");
    let install = |more: &[&str]| {
        let made = workspace.run(&[&["postgres", "install", "--url", &url, "--table", "orders"], more].concat());
        assert_eq!(made.code, Some(0), "{made:?}");
    };
    install(&[]);
    sql(
        &url,
        "GRANT USAGE ON SCHEMA watchkeeper TO purser; GRANT SELECT ON ALL TABLES IN SCHEMA watchkeeper TO purser",
    );
    let checked = workspace.run(&["check"]);
    checked.assert_found(1, &["purser may not INSERT in \"watchkeeper\".log_consumers", "GRANT INSERT ON"]);
    checked.assert_found(1, &["purser may not UPDATE in \"watchkeeper\".log_meta", "GRANT UPDATE ON"]);
    install(&["--role", "purser"]);
    assert_well(&workspace.run(&["check"]));
}

#[test]
fn a_role_that_may_not_install() {
    let url = orders("uninstalled");
    let own = role(&url, "stowaway", "");
    let refused = Workspace::empty().run(&["postgres", "install", "--url", &own, "--table", "orders"]);
    refused.assert_refused(1, &["permission denied", "WK-DENIED", "GRANT CREATE ON DATABASE", "owns the tables"]);
    assert!(!refused.err.contains("postgres setup"), "{refused:?}");
}

#[test]
fn a_role_that_may_not_make_the_table_of_a_sink() {
    let url = orders("untabled");
    let own = role(&url, "smith", "");
    let made = Workspace::empty().run(&["postgres", "setup", "--url", &url, "--role", "smith"]);
    assert_eq!(made.code, Some(0), "{made:?}");
    let workspace = |table: &str| {
        Workspace::with(&format!(
            "[group]\nname = \"shop\"\nstore = \"{own}\"\n\n[[stream]]\nname = \"orders\"\nsource = \"sqlite:app.db\"\n\n\
             [[stream.sink]]\nurl = \"{own}\"\ntable = \"{table}\"\n"
        ))
    };
    let here = workspace("events");
    here.run(&["check"]).assert_found(1, &["smith may not make it in the schema public", "GRANT CREATE ON SCHEMA"]);
    workspace("yard.events").run(&["check"]).assert_found(1, &["neither is the schema yard", "CREATE SCHEMA \"yard\""]);
    sql(&url, "GRANT CREATE ON SCHEMA public TO smith");
    assert_well(&here.run(&["check"]));
    sql(&url, "REVOKE USAGE ON SEQUENCE watchkeeper.revisions FROM smith");
    here.run(&["check"]).assert_found(1, &["smith may not take numbers of", "GRANT USAGE ON SEQUENCE"]);
}

#[test]
fn a_pooler_is_recognised() {
    let url = orders("pooled");
    let pooler = Pooler::start(shared(), 4);
    let through = pooler.url("pooled");
    let workspace = reading(&url, &through, "", &replication(&url));
    let parts = ["this is PgBouncer", "does not pass on what replication asks for", "name the server itself"];
    workspace.run(&["check"]).assert_found(2, &parts);
    let mut only = workspace.start("only");
    only.says(&parts);
    only.ends_in_order();
    let made = Workspace::empty().run(&["postgres", "install", "--url", &url, "--table", "orders"]);
    assert_eq!(made.code, Some(0), "{made:?}");
    let warned = |store: &str, lines: &str| {
        let file = format!(
            "[group]\nname = \"shop\"\n\n[group.store]\nurl = \"{store}\"\n{lines}\n\n[[stream]]\nname = \"orders\"\n\
             source = \"{url}\"\n\n[[stream.sink]]\ntype = \"stdout\"\n"
        );
        let checked = Workspace::with(&file).run(&["check"]);
        assert_well(&checked);
        checked
            .out
            .lines()
            .any(|line| line.contains("is a pooler in transaction mode") && line.contains("pooled = true"))
    };
    assert!(warned(&through, ""));
    assert!(!warned(&through, "pooled = true"));
    assert!(!warned(&url, ""));
}

#[test]
fn a_checkpoint_that_lies_in_another_store() {
    let (store, first, second) = (database("home_store"), database("home_first"), database("home_second"));
    let workspace = Workspace::with("");
    let into = |sink: &str| {
        workspace.write(
            "watchkeeper.toml",
            &format!(
                "[group]\nname = \"shop\"\nstore = \"{store}\"\nlease = \"2s\"\n\n[[stream]]\nname = \"orders\"\n\
                 source = \"sqlite:app.db\"\nstart = \"oldest\"\n\n[[stream.sink]]\n{sink}\n"
            ),
        );
    };
    let events = |url: &str| format!("url = \"{url}\"\ntable = \"events\"");
    into(&events(&first));
    assert_well(&workspace.run(&["check"]));
    let mut only = workspace.start("only");
    workspace.order(1..2);
    until("it arrives", || delivered(&first) == [1]);
    only.ends_in_order();
    assert_well(&workspace.run(&["check"]));
    // Another database; then a target that leaves the checkpoint to the group's store.
    for sink in [events(&second), "type = \"stdout\"".to_owned()] {
        into(&sink);
        let parts =
            ["has no checkpoint in this store, but began in another one", "WK-CONFIG", "checkpoint show orders"];
        workspace.run(&["check"]).assert_found(2, &parts);
        let mut only = workspace.start("only");
        only.says(&parts);
        only.ends_in_order();
    }
    into(&events(&first));
    assert_well(&workspace.run(&["check"]));
}

#[test]
fn a_deferrable_key_beside_whole_old_rows() {
    let url = database("deferred");
    sql(&url, "CREATE TABLE orders (id bigint PRIMARY KEY DEFERRABLE); ALTER TABLE orders REPLICA IDENTITY FULL");
    let workspace = from_orders(&url, &replication(&url));
    let warned = || {
        let checked = workspace.run(&["check"]);
        assert_well(&checked);
        checked
            .out
            .lines()
            .any(|line| line.contains("warning: source") && line.contains("public.orders has a DEFERRABLE"))
    };
    assert!(warned(), "before it is published");
    sql(&url, PUBLISH);
    assert!(warned(), "and after");
    sql(&url, "ALTER TABLE orders DROP CONSTRAINT orders_pkey, ADD PRIMARY KEY (id)");
    assert!(!warned());
}

#[test]
fn words_of_libpq_that_cannot_be_followed() {
    let url = orders("words");
    let workspace = from_orders(&format!("{url}?gssencmode=disable&sslcompression=0"), &replication(&url));
    assert_well(&workspace.run(&["check"]));
    let workspace = from_orders(&format!("{url}?sslcrl=revoked.pem"), &replication(&url));
    // It is the group's store, without which there is no report.
    let reported = workspace.run(&["check"]);
    let parts = ["watchkeeper.toml:3", "parameter sslcrl", "leave it out"];
    let is_reported = reported.err.lines().any(|line| parts.iter().all(|part| line.contains(part)));
    assert!(reported.code == Some(2) && is_reported, "{reported:?}");
}

#[test]
fn a_slot_that_waits_for_an_open_transaction() {
    // Of its own: every slot that is made on it would have to wait.
    let server = Server::start(Version::V15);
    let url = server.url("postgres");
    sql(&url, "CREATE TABLE orders (id bigint PRIMARY KEY)");
    let workspace = from_orders(&url, &replication(&url));
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().expect("a runtime can be made");
    // Its connection is kept until the end; nobody needs to drive it.
    let (client, pid) = runtime.block_on(async {
        let (client, connection) =
            tokio_postgres::connect(&url, tokio_postgres::NoTls).await.expect("the server is there");
        tokio::spawn(connection);
        client.batch_execute("BEGIN; INSERT INTO orders VALUES (1)").await.expect("nothing is in the way");
        let pid = client.query_one("SELECT pg_backend_pid()", &[]).await.expect("it answers");
        (client, pid.get::<_, i32>(0))
    });
    let mut only = workspace.start("only");
    let process = format!("the open transaction of process {pid} (postgres)");
    only.says(&["is not made yet: the server waits for", &process, &format!("pg_terminate_backend({pid})")]);
    sql(&url, &format!("SELECT pg_terminate_backend({pid})"));
    until("the slot is made", || is_read(&url));
    only.ends_in_order();
    drop(client);
}
