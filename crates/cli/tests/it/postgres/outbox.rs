//! Outboxes that applications fill.

use super::{database, sql};
use crate::workspace::{Workspace, until};

/// A stream of the table `outbox`, into the table `events`.
fn stream(url: &str) -> Workspace {
    Workspace::with(&format!(
        "[group]\nname = \"shop\"\nstore = \"{url}\"\nlease = \"2s\"\n\n[[stream]]\nname = \"orders\"\nstart = \"oldest\"\n\n\
         [stream.source]\nurl = \"{url}\"\noutbox = \"outbox\"\n\
         columns = {{ key = \"about\", operation = \"event\", after = \"body\" }}\n\n\
         [[stream.sink]]\nurl = \"{url}\"\ntable = \"events\"\n"
    ))
}

/// What has arrived of the numbers in the bodies, in its order.
fn arrived(url: &str) -> Vec<String> {
    if sql(url, "SELECT 1 FROM pg_class WHERE relname = 'events'").is_empty() {
        return Vec::new();
    }
    sql(url, "SELECT event -> 'after' ->> 'n' FROM events ORDER BY number")
}

/// Rows before the one that cannot be understood arrive, the stream halts right there, and goes on once the word is corrected.
#[test]
fn an_unknown_word_in_an_outbox_halts_right_there_until_it_is_corrected() {
    let url = database("unknown_word");
    sql(
        &url,
        "CREATE TABLE outbox (id bigint PRIMARY KEY GENERATED ALWAYS AS IDENTITY, about text NOT NULL, event text NOT NULL, body jsonb,
            xid xid8 NOT NULL DEFAULT pg_current_xact_id());
         CREATE INDEX ON outbox (xid);
         INSERT INTO outbox (about, event, body) VALUES ('a', 'insert', '{\"n\": 1}'), ('b', 'Update', '{\"n\": 2}'),
            ('a', 'Placed', '{\"n\": 3}'), ('b', 'insert', '{\"n\": 4}')",
    );
    let workspace = stream(&url);
    let mut only = workspace.start("only");
    let cause = "change 3 is a \"Placed\", which is no operation";
    only.says(&["halted until a person resumes it", cause]);
    assert_eq!(arrived(&url), ["1", "2"], "all that comes before it, and nothing behind it");
    let shown = workspace.run(&["checkpoint", "show", "orders"]);
    assert!(shown.out.contains("halted") && shown.out.contains(cause), "{shown:?}");
    // A resume without a correction halts it at the same row.
    sql(&url, "INSERT INTO outbox (about, event, body) VALUES ('c', 'insert', '{\"n\": 5}')");
    workspace.run(&["resume", "orders", "--wait", "1s"]);
    only.says(&["halted until a person resumes it", cause]);
    assert_eq!(arrived(&url), ["1", "2"]);

    sql(&url, "UPDATE outbox SET event = 'insert' WHERE id = 3");
    let resumed = workspace.run(&["resume", "orders"]);
    assert_eq!(resumed.code, Some(0), "{resumed:?}");
    until("the rest arrives", || arrived(&url).len() == 5);
    only.ends_in_order();
    assert_eq!(arrived(&url), ["1", "2", "3", "4", "5"]);
}
