//! Filters of sinks whose source is PostgreSQL.

use super::{database, delivered, order, sql};
use crate::desk::{Desk, until};

/// A stream with two tables, of which a sink gets what its filter names.
fn filtered(url: &str, source: &str, names: &str) -> Desk {
    Desk::with(&format!(
        "[group]\nname = \"shop\"\nstore = \"{url}\"\nlease = \"2s\"\n\n[[stream]]\nname = \"orders\"\n\n\
         [stream.source]\nurl = \"{url}\"\n{source}\n[[stream.sink]]\nurl = \"{url}\"\ntable = \"events\"\n\
         filter = {{ namespaces = [{names}] }}\n"
    ))
}

fn shop(name: &str) -> String {
    let url = database(name);
    sql(&url, "CREATE TABLE orders (id bigint PRIMARY KEY); CREATE TABLE items (id bigint PRIMARY KEY)");
    let made = Desk::new().run(&["postgres", "install", "--url", &url, "--table", "orders", "--table", "items"]);
    assert_eq!(made.code, Some(0), "{made:?}");
    url
}

const BOTH: &str = "tables = [\"orders\", \"items\"]\n";

/// Waits until orders arrive although the schema of their table is not named, and nothing else does.
fn arrive(desk: &Desk, url: &str) {
    let mut only = desk.start("only");
    // Where a stream begins with what comes, it may be opened a moment later.
    let mut next = 1;
    until("orders arrive", || {
        sql(url, &format!("INSERT INTO items VALUES ({next})"));
        order(url, next..next + 1);
        next += 1;
        !delivered(url).is_empty()
    });
    only.ends_in_order();
    assert_eq!(sql(url, "SELECT DISTINCT namespace FROM events"), ["public.orders"]);
}

#[test]
fn a_table_is_named_without_its_schema() {
    let url = shop("filtered");
    let desk = filtered(&url, BOTH, "\"orders\"");
    let checked = desk.run(&["check"]);
    assert_eq!(checked.code, Some(0), "{checked:?}");
    assert!(!checked.out.contains("filter"), "{checked:?}");
    arrive(&desk, &url);
}

#[test]
fn a_table_of_the_write_ahead_log_is_named_without_its_schema() {
    let url = shop("filtered_wal");
    let source = format!("{BOTH}mode = \"replication\"\nslot = \"filtered_wal\"\n");
    arrive(&filtered(&url, &source, "\"orders\""), &url);
}

#[test]
fn a_name_that_nothing_has_is_found() {
    let url = shop("misfiltered");
    for mode in ["", "mode = \"replication\"\npublication = \"told\"\nslot = \"misfiltered\"\n"] {
        let desk = filtered(&url, &format!("tables = [\"orders\"]\n{mode}"), "\"items\"");
        let parts = ["a filter names public.items", "everything would be passed over", "WK-CONFIG", "`namespaces`"];
        desk.run(&["check"]).assert_found(2, &parts);
        desk.run(&["run"]).assert_refused(2, &parts);
        // One that may be yet to come is told of.
        sql(&url, "DROP PUBLICATION IF EXISTS told; CREATE PUBLICATION told FOR TABLE orders, items");
        let desk = filtered(&url, mode, "\"sales.orders\", \"items\", \"sales.*\"");
        let checked = desk.run(&["check"]);
        assert_eq!(checked.code, Some(0), "{checked:?}");
        let told: Vec<_> = checked.out.lines().filter(|line| line.contains("its filter names")).collect();
        assert_eq!(told.len(), 1, "{checked:?}");
        assert!(told[0].contains("names sales.orders") && told[0].contains("public.items, public.orders"), "{told:?}");
    }
    let refused = filtered(&url, "", "\"order\"").run(&["run"]);
    refused.assert_refused(2, &["the table order is not logged", "public.items, public.orders"]);
}
