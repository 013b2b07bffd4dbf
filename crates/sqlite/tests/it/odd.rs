//! Values and keys that most tables never hold.

use serde_json::{Value, json};
use watchkeeper_core::source::Severity;
use watchkeeper_core::{ErrorKind, Operation, Options, Origin, Setting, Source, Tool, WrittenSetting};
use watchkeeper_sqlite::{ChangeLog, tools};

use crate::log::{logged, with_table};
use crate::support::{Folder, assert_error, block_on, cx, execute};

#[test]
fn text_that_is_not_utf8_arrives_marked_and_its_keys_stay_apart() {
    let folder = Folder::new();
    block_on(async {
        let client = with_table(&folder, "CREATE TABLE n(id TEXT PRIMARY KEY NOT NULL, x)", "n").await;
        let rows = "INSERT INTO n VALUES
            ('bad', CAST(x'41ff22000a42' AS TEXT)), (CAST(x'ff' AS TEXT), 'x'), (CAST(x'fe' AS TEXT), x'ff');
            UPDATE n SET id = CAST(x'fd' AS TEXT) WHERE x = 'x'";
        execute(&client, rows).await.unwrap();
        let log = logged(&client).await;
        let keys: Vec<_> = log.iter().map(|(operation, key, _)| (*operation, key.as_str())).collect();
        let expected = [
            (Operation::Insert, r#"["bad"]"#),
            (Operation::Insert, r#"[{"$textHex":"FF"}]"#),
            (Operation::Insert, r#"[{"$textHex":"FE"}]"#),
            (Operation::Delete, r#"[{"$textHex":"FF"}]"#),
            (Operation::Insert, r#"[{"$textHex":"FD"}]"#),
        ];
        assert_eq!(keys, expected);
        let body = |at: usize| serde_json::from_str::<Value>(&log[at].2).unwrap();
        assert_eq!(body(0)["after"], json!({ "id": "bad", "x": { "$textHex": "41FF22000A42" } }));
        assert_eq!(body(2)["after"], json!({ "id": { "$textHex": "FE" }, "x": { "$hex": "FF" } }));
        assert_eq!(body(3), json!({ "before": { "id": { "$textHex": "FF" }, "x": "x" }, "after": null }));
        assert_eq!(body(4), json!({ "before": null, "after": { "id": { "$textHex": "FD" }, "x": "x" } }));
    });
}

/// Kinds of tables, and which columns of their keys may be NULL.
const TABLES: [(&str, &[&str]); 6] = [
    ("CREATE TABLE orders(id TEXT PRIMARY KEY)", &["id"]),
    ("CREATE TABLE orders(a, b NOT NULL, c INT, PRIMARY KEY (c, b, a))", &["c", "a"]),
    ("CREATE TABLE orders(id INTEGER PRIMARY KEY)", &[]),
    ("CREATE TABLE orders(id TEXT PRIMARY KEY NOT NULL)", &[]),
    ("CREATE TABLE orders(a, b, PRIMARY KEY (a, b)) WITHOUT ROWID", &[]),
    ("CREATE TABLE orders(id TEXT PRIMARY KEY) STRICT", &[]),
];

#[test]
fn keys_that_may_be_null_are_warned_of() {
    for (table, columns) in TABLES {
        let folder = Folder::new();
        block_on(async {
            let client = with_table(&folder, table, "orders").await;
            let log = ChangeLog::open(&cx(), client.clone(), "it").await.unwrap();
            let findings = log.check(&cx()).await.unwrap();
            assert!(findings.iter().all(|finding| finding.severity == Severity::Warning && finding.remedy.is_some()));
            let reported: Vec<_> = findings.into_iter().map(|finding| finding.what).collect();
            let expected =
                |column: &&str| format!("orders.{column} may be NULL: rows without a key cannot be told apart");
            assert_eq!(reported, columns.iter().map(expected).collect::<Vec<_>>(), "{table}");
        });
    }
}

#[test]
fn rows_without_a_key_are_refused() {
    let folder = Folder::new();
    block_on(async {
        let client = folder.client("app.db").await;
        execute(
            &client,
            "CREATE TABLE \"or\"\"ders\"(id TEXT PRIMARY KEY); INSERT INTO \"or\"\"ders\" VALUES (NULL), (NULL)",
        )
        .await
        .unwrap();
        let cause = "or\"ders.id is NULL in some rows";
        assert_error(tools::install(&cx(), &client, &["or\"ders"]).await, ErrorKind::Config, cause);
        execute(&client, "DELETE FROM \"or\"\"ders\"").await.unwrap();
        tools::install(&cx(), &client, &["or\"ders"]).await.unwrap();
    });
}

#[test]
fn the_command_says_which_keys_may_be_null() {
    let folder = Folder::new();
    block_on(async {
        let client = folder.client("app.db").await;
        execute(&client, "CREATE TABLE good(id INTEGER PRIMARY KEY); CREATE TABLE loose(id TEXT PRIMARY KEY)")
            .await
            .unwrap();
        let origin = Origin::new("the command line");
        let text = |text: &str| WrittenSetting::text(text.to_owned(), origin.clone());
        let mut options = Options::new("sqlite install", origin.clone());
        options.insert("db", text(&folder.file("app.db").display().to_string()));
        let tables = Setting::List(vec![text("good"), text("loose")]);
        options.insert("table", WrittenSetting { setting: tables, origin: origin.clone() });
        let report = tools::Install.run(&cx(), &mut options).await.unwrap();
        let warnings: Vec<_> = report.lines.iter().filter(|line| line.starts_with("warning: ")).collect();
        assert_eq!(warnings.len(), 1, "{warnings:?}");
        assert!(warnings[0].contains("loose.id may be NULL") && warnings[0].contains("add NOT NULL"), "{warnings:?}");
    });
}
