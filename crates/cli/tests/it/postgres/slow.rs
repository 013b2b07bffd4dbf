//! A target that is slower than the lease is long.

use watchkeeper_testkit::servers::postgres::{Server, Version};

use super::sql;
use crate::workspace::{Workspace, until};

#[test]
fn what_takes_longer_than_the_lease_at_once_arrives_in_smaller_pieces() {
    // A server of its own: a new slot waits for every transaction of its server, and those here take their time.
    let server = Server::start(Version::V15);
    let url = server.url("postgres");
    sql(
        &url,
        "CREATE TABLE orders (id bigint PRIMARY KEY); CREATE TABLE copy (LIKE orders INCLUDING ALL);
        CREATE FUNCTION slowly() RETURNS trigger LANGUAGE plpgsql AS
            $$ BEGIN PERFORM pg_sleep(0.01); RETURN NEW; END $$;
        CREATE TRIGGER slowly BEFORE INSERT ON copy FOR EACH ROW EXECUTE FUNCTION slowly()",
    );
    let workspace = Workspace::with(&format!(
        "[group]\nname = \"shop\"\nstore = \"{url}\"\nlease = \"2s\"\n\n[[stream]]\nname = \"orders\"\nstart = \"oldest\"\n\
         source = {{ url = \"{url}\", tables = [\"orders\"] }}\n\n[[stream.sink]]\nurl = \"{url}\"\nmode = \"rows\"\ntable = \"copy\"\n"
    ));
    let made = workspace.run(&["postgres", "install", "--url", &url, "--table", "orders"]);
    assert_eq!(made.code, Some(0), "{made:?}");
    // Three seconds in one transaction, and there are less than two for it.
    sql(&url, "INSERT INTO orders SELECT generate_series(1, 300)");
    let mut only = workspace.start("only");
    let line = only.says(&["a transaction takes too long; the next ones are smaller"]);
    assert!(line.contains("changes=300 next=150") && line.contains("`lease`"), "{line}");
    until("all arrive", || sql(&url, "SELECT count(*)::text FROM copy") == ["300"]);
    only.ends_in_order();
    let epoch = "SELECT epoch::text FROM watchkeeper.checkpoints";
    assert_eq!(sql(&url, epoch), ["1"], "one tenure did it: what was given up had left nothing");
}
