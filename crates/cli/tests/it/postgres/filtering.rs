//! Filters of sinks whose source is PostgreSQL.

use super::{database, delivered, order, sql};
use crate::workspace::{Workspace, until};

/// A stream with two tables, of which a sink gets what its filter names.
fn filtered(url: &str, source: &str, names: &str) -> Workspace {
    Workspace::with(&format!(
        "[group]\nname = \"shop\"\nstore = \"{url}\"\nlease = \"2s\"\n\n[[stream]]\nname = \"orders\"\n\n\
         [stream.source]\nurl = \"{url}\"\n{source}\n[[stream.sink]]\nurl = \"{url}\"\ntable = \"events\"\n\
         filter = {{ namespaces = [{names}] }}\n"
    ))
}

fn shop(name: &str) -> String {
    let url = database(name);
    sql(&url, "CREATE TABLE orders (id bigint PRIMARY KEY); CREATE TABLE items (id bigint PRIMARY KEY)");
    let made = Workspace::new().run(&["postgres", "install", "--url", &url, "--table", "orders", "--table", "items"]);
    assert_eq!(made.code, Some(0), "{made:?}");
    url
}

const BOTH: &str = "tables = [\"orders\", \"items\"]\n";

/// Waits until orders arrive although the schema of their table is not named, and nothing else does.
fn arrive(workspace: &Workspace, url: &str) {
    let mut only = workspace.start("only");
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
    let workspace = filtered(&url, BOTH, "\"orders\"");
    let checked = workspace.run(&["check"]);
    assert_eq!(checked.code, Some(0), "{checked:?}");
    assert!(!checked.out.contains("filter"), "{checked:?}");
    arrive(&workspace, &url);
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
        let workspace = filtered(&url, &format!("tables = [\"orders\"]\n{mode}"), "\"items\"");
        let parts = ["a filter names public.items", "everything would be passed over", "WK-CONFIG", "`namespaces`"];
        workspace.run(&["check"]).assert_found(2, &parts);
        workspace.run(&["run"]).assert_refused(2, &parts);
        // One that may be yet to come is told of.
        sql(&url, "DROP PUBLICATION IF EXISTS told; CREATE PUBLICATION told FOR TABLE orders, items");
        let workspace = filtered(&url, mode, "\"sales.orders\", \"items\", \"sales.*\"");
        let checked = workspace.run(&["check"]);
        assert_eq!(checked.code, Some(0), "{checked:?}");
        let reported: Vec<_> = checked.out.lines().filter(|line| line.contains("its filter names")).collect();
        assert_eq!(reported.len(), 1, "{checked:?}");
        assert!(
            reported[0].contains("names sales.orders") && reported[0].contains("public.items, public.orders"),
            "{reported:?}"
        );
    }
    let refused = filtered(&url, "", "\"order\"").run(&["run"]);
    refused.assert_refused(2, &["the table order is not logged", "public.items, public.orders"]);
}

/// A stream of the table `orders` into a mirror of this mode, with this filter.
fn mirrored(url: &str, sink: &str, filter: &str) -> Workspace {
    Workspace::with(&format!(
        "[group]\nname = \"shop\"\nstore = \"{url}\"\nlease = \"2s\"\n\n[[stream]]\nname = \"orders\"\nstart = \"oldest\"\n\n\
         [stream.source]\nurl = \"{url}\"\ntables = [\"orders\"]\n\n[[stream.sink]]\nurl = \"{url}\"\n\
         {sink}\nfilter = {{ {filter} }}\n"
    ))
}

/// All modes that keep rows as they are at the source.
const MIRRORS: [&str; 4] = ["mirror", "versioned", "rows", "versioned_rows"];

#[test]
fn a_truncate_passes_a_filter_by_operations_into_a_mirror() {
    for mode in MIRRORS {
        let url = shop(&format!("truncated_{mode}"));
        if mode.ends_with("rows") {
            sql(&url, "CREATE TABLE copy (id bigint PRIMARY KEY)");
        }
        let filter = r#"operations = ["insert", "update", "replace", "delete", "read"]"#;
        let workspace = mirrored(&url, &format!("table = \"copy\"\nmode = \"{mode}\""), filter);
        order(&url, 1..4);
        let mut only = workspace.start("only");
        let living = if mode.ends_with("rows") { "true" } else { "deleted IS NULL" };
        let copies = || {
            let there = sql(&url, "SELECT 1 FROM pg_class WHERE relname = 'copy' AND relkind = 'r'");
            if there.is_empty() { 0 } else { sql(&url, &format!("SELECT 1 FROM copy WHERE {living}")).len() }
        };
        until("they arrive", || copies() == 3);
        sql(&url, "TRUNCATE orders");
        until("the copy is cleared", || copies() == 0);
        only.ends_in_order();
    }
}

#[test]
fn filters_that_hide_changes_from_a_mirror_are_refused() {
    let url = shop("hiding");
    sql(&url, "CREATE TABLE copy (id bigint PRIMARY KEY)");
    for mode in MIRRORS {
        // A mirror makes its table by itself.
        let table = if mode.ends_with("rows") { "copy" } else { "documents" };
        let filter = "operations = [\"insert\", \"update\"]";
        let workspace = mirrored(&url, &format!("table = \"{table}\"\nmode = \"{mode}\""), filter);
        let parts = ["the filter of sink \"postgres\" hides replace, delete, read from a mirror", "WK-CONFIG"];
        workspace.run(&["check"]).assert_found(2, &parts);
        workspace.run(&["run"]).assert_refused(2, &parts);
    }
}
