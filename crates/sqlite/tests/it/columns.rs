//! Columns that are generated, and columns that an application drops.

use watchkeeper_core::source::Severity;
use watchkeeper_core::{
    Backend, ErrorKind, Operation, Options, Origin, Purpose, Report, Result, Source, StartAt, WrittenSetting,
};
use watchkeeper_sqlite::{ChangeLog, Sqlite, tools};

use crate::log::{LIMITS, logged, with_table};
use crate::support::{Folder, assert_error, block_on, cx, execute};

#[test]
fn generated_columns_are_logged() {
    let folder = Folder::new();
    block_on(async {
        let sql = "CREATE TABLE orders(id INTEGER PRIMARY KEY, a INTEGER, twice INTEGER AS (a * 2) VIRTUAL,
            thrice INTEGER AS (a * 3) STORED UNIQUE)";
        let client = with_table(&folder, sql, "orders").await;
        let sql = "INSERT INTO orders(id, a) VALUES (1, 1), (2, 5); UPDATE orders SET a = 2 WHERE id = 1;
            INSERT OR REPLACE INTO orders(id, a) VALUES (3, 5); DELETE FROM orders WHERE id = 1";
        execute(&client, sql).await.unwrap();
        let reported: Vec<_> =
            logged(&client).await.into_iter().map(|(operation, _, body)| (operation, body)).collect();
        let row = |id: i64, a: i64| format!(r#"{{"id":{id},"a":{a},"twice":{},"thrice":{}}}"#, a * 2, a * 3);
        let body = |before: Option<String>, after: Option<String>| {
            let or_null = |row: Option<String>| row.unwrap_or_else(|| "null".to_owned());
            format!(r#"{{"before":{},"after":{}}}"#, or_null(before), or_null(after))
        };
        let changed = r#","changed":["a","twice","thrice"]}"#;
        let update = body(Some(row(1, 1)), Some(row(1, 2)));
        let expected = [
            (Operation::Insert, body(None, Some(row(1, 1)))),
            (Operation::Insert, body(None, Some(row(2, 5)))),
            (Operation::Update, format!("{}{changed}", &update[..update.len() - 1])),
            (Operation::Delete, body(Some(row(2, 5)), None)),
            (Operation::Insert, body(None, Some(row(3, 5)))),
            (Operation::Delete, body(Some(row(1, 2)), None)),
        ];
        assert_eq!(reported, expected);
    });
}

fn options(settings: &[(&str, &str)]) -> Options {
    let origin = Origin::new("command line");
    let mut options = Options::new("arguments", origin.clone());
    for (name, value) in settings {
        options.insert(*name, WrittenSetting::text(*value, origin.clone()));
    }
    options
}

async fn run(tool: &str, settings: &[(&str, &str)]) -> Result<Report> {
    let mut options = options(settings);
    let tools = Sqlite.tools();
    tools.iter().find(|known| known.name() == tool).expect("there is such a tool").run(&cx(), &mut options).await
}

/// SQLite refuses to drop a column that a trigger names. The command does it between two sets of triggers, in one transaction: nothing
/// is lost for a reader.
#[test]
fn a_column_of_a_logged_table_is_dropped_by_a_command() {
    let folder = Folder::new();
    block_on(async {
        let client = with_table(&folder, "CREATE TABLE orders(id INTEGER PRIMARY KEY, a, note)", "orders").await;
        execute(&client, "INSERT INTO orders VALUES (1, 1, 'x')").await.unwrap();
        let log = ChangeLog::open(&cx(), client.clone(), "it").await.unwrap();
        let mut stream = log.open(&cx(), StartAt::Now).await.unwrap();
        let drop_note = "ALTER TABLE orders DROP COLUMN note";
        execute(&client, drop_note).await.expect_err("a trigger names it");
        let mut options = options(&[("url", &format!("sqlite:{}", folder.file("app.db").display()))]);
        let found = Sqlite.check_source(&cx(), &Purpose::new("shop", "orders"), &mut options).await.unwrap();
        let reported = found.iter().find(|finding| finding.what.contains("DROP COLUMN")).expect("check says so");
        assert_eq!(reported.severity, Severity::Note);
        assert!(
            reported.remedy.as_deref().unwrap_or_default().contains("watchkeeper sqlite alter --db"),
            "{reported:?}"
        );

        let file = folder.file("app.db");
        let file = file.to_str().unwrap();
        let report = run("alter", &[("db", file), ("sql", drop_note)]).await.unwrap();
        assert_eq!(report.lines, ["orders: altered, and logged as it is now"]);
        execute(&client, "INSERT INTO orders VALUES (2, 2)").await.unwrap();
        let batch = stream.next_batch(&cx(), LIMITS).await.unwrap();
        assert_eq!(batch.len(), 1, "nothing is lost");
        assert_eq!(logged(&client).await[1].2, r#"{"before":null,"after":{"id":2,"a":2}}"#);
        assert_eq!(log.check(&cx()).await.unwrap(), []);

        // What cannot be done, or would not be followed, changes nothing.
        let wrong = run("alter", &[("db", file), ("sql", "ALTER TABLE orders DROP COLUMN missing")]).await;
        assert_error(wrong, ErrorKind::Config, "no such column");
        let keyless = "ALTER TABLE orders RENAME TO former; CREATE TABLE orders(id, a)";
        assert_error(run("alter", &[("db", file), ("sql", keyless)]).await, ErrorKind::Config, "orders");
        execute(&client, "INSERT INTO orders VALUES (3, 3)").await.unwrap();
        assert_eq!(stream.next_batch(&cx(), LIMITS).await.unwrap().len(), 1);
        tools::install(&cx(), &client, &["orders"]).await.unwrap();
        execute(&client, "INSERT INTO orders VALUES (4, 4)").await.unwrap();
        assert_eq!(stream.next_batch(&cx(), LIMITS).await.unwrap().len(), 1, "no loss was marked");
    });
}

/// Names are taken as SQL writes them.
#[test]
fn a_table_with_a_dot_in_its_name_may_be_quoted() {
    let folder = Folder::new();
    block_on(async {
        let client = folder.client("app.db").await;
        execute(&client, r#"CREATE TABLE "a.b"(id INTEGER PRIMARY KEY)"#).await.unwrap();
        for named in [r#""a.b""#, "a.b", r#"main."a.b""#, r#""main"."a.b""#] {
            tools::install(&cx(), &client, &[named]).await.unwrap();
            let log = ChangeLog::open(&cx(), client.clone(), "it").await.unwrap();
            let log = log.only(&cx(), vec![named.to_owned()]).await.unwrap();
            let mut stream = log.open(&cx(), StartAt::Now).await.unwrap();
            execute(&client, r#"INSERT INTO "a.b" VALUES (NULL)"#).await.unwrap();
            assert_eq!(stream.next_batch(&cx(), LIMITS).await.unwrap().len(), 1, "{named}");
            tools::uninstall(&cx(), &client, &[named], tools::Unread::Discard).await.unwrap();
        }
    });
}
