//! What is wrong with one stream leaves the others alone.

use super::{database, sql};
use crate::desk::{Desk, until};

fn stream(url: &str, table: &str) -> String {
    format!(
        "[[stream]]\nname = \"{table}\"\nstart = \"oldest\"\nsource = {{ url = \"{url}\", tables = [\"{table}\"] }}\n\n\
         [[stream.sink]]\nurl = \"{url}\"\ntable = \"events_{table}\"\n\n"
    )
}

fn arrived(url: &str, table: &str) -> usize {
    sql(url, &format!("SELECT 1 FROM events_{table}")).len()
}

/// A table that another one has taken the name of.
#[test]
fn a_table_that_is_not_logged_any_more_stops_its_own_stream_only() {
    let url = database("apart");
    sql(&url, "CREATE TABLE good (id int PRIMARY KEY); CREATE TABLE swapped (id int PRIMARY KEY)");
    let desk = Desk::with(&format!(
        "[group]\nname = \"shop\"\nstore = \"{url}\"\nlease = \"2s\"\n\n{}{}",
        stream(&url, "good"),
        stream(&url, "swapped")
    ));
    let made = desk.run(&["postgres", "install", "--url", &url, "--table", "good", "--table", "swapped"]);
    assert_eq!(made.code, Some(0), "{made:?}");
    let mut first = desk.start("first");
    sql(&url, "INSERT INTO good VALUES (1); INSERT INTO swapped VALUES (1)");
    let is_there = || sql(&url, "SELECT 1 FROM pg_class WHERE relname IN ('events_good', 'events_swapped')").len() == 2;
    until("both arrive", || is_there() && arrived(&url, "good") == 1 && arrived(&url, "swapped") == 1);
    first.ends_in_order();

    sql(&url, "ALTER TABLE swapped RENAME TO former; CREATE TABLE swapped (id int PRIMARY KEY)");
    let why = "public.swapped is not logged any more: it has another name, and another table has its name";
    desk.run(&["check"]).assert_found(1, &[why, "--table public.swapped"]);
    let _second = desk.start("second");
    sql(&url, "INSERT INTO good VALUES (2)");
    until("the other stream goes on", || arrived(&url, "good") == 2);
    until("its own stream halts", || desk.run(&["checkpoint", "show", "swapped"]).out.contains(why));
    for command in
        [&["status"][..], &["checkpoint", "show", "good"], &["pause", "good"], &["checkpoint", "history", "swapped"]]
    {
        let answer = desk.run(command);
        assert_eq!(answer.code, Some(0), "{answer:?}");
    }
}
