//! SQLite as a configuration file names it.

use std::path::Path;
use std::time::Duration;

use watchkeeper_core::{
    Backend, ErrorKind, Limits, Operation, Options, Origin, Purpose, Setting, Severity, StartAt, WrittenSetting,
};
use watchkeeper_sqlite::{ChangeLog, Sqlite, tools};

use crate::support::{Folder, assert_error, block_on, cx, execute};

const LIMITS: Limits = Limits { rows: 100, bytes: 1 << 20, wait: Duration::from_millis(20) };

fn options(file: &Path, tables: &[&str]) -> Options {
    let origin = Origin::new("shop.toml:1");
    let mut options = Options::new("stream.orders.source", origin.clone());
    options.insert("url", WrittenSetting::text(format!("sqlite:{}", file.display()), origin.clone()));
    let list = tables.iter().map(|table| WrittenSetting::text(*table, origin.clone())).collect();
    if !tables.is_empty() {
        options.insert("tables", WrittenSetting { setting: Setting::List(list), origin });
    }
    options
}

fn purpose() -> Purpose {
    Purpose::new("shop", "orders")
}

#[test]
fn a_source_of_some_tables_passes_over_the_others_and_moves_past_them() {
    let folder = Folder::new();
    block_on(async {
        let client = folder.client("app.db").await;
        execute(&client, "CREATE TABLE a(id INTEGER PRIMARY KEY); CREATE TABLE B(id INTEGER PRIMARY KEY)")
            .await
            .unwrap();
        tools::install(&cx(), &client, &["a", "B"]).await.unwrap();
        execute(&client, "INSERT INTO a VALUES (1); INSERT INTO B VALUES (2); INSERT INTO a VALUES (3)").await.unwrap();
        let source = Sqlite.source(&cx(), &purpose(), &mut options(&folder.file("app.db"), &["b"])).await.unwrap();
        let mut stream = source.open(&cx(), StartAt::Oldest).await.unwrap();
        let batch = stream.next_batch(&cx(), LIMITS).await.unwrap();
        assert_eq!(batch.len(), 1);
        assert_eq!((&**batch.namespace(0), batch.rows()[0].operation), ("B", Operation::Insert));
        assert_eq!(ChangeLog::number(&batch.end).unwrap(), 3, "it does not look at the others again");
        execute(&client, "INSERT INTO a VALUES (4)").await.unwrap();
        let batch = stream.next_batch(&cx(), LIMITS).await.unwrap();
        assert_eq!((batch.len(), ChangeLog::number(&batch.end).unwrap()), (0, 4));
    });
}

#[test]
fn a_table_that_is_not_logged_is_refused_with_the_command_that_logs_it() {
    let folder = Folder::new();
    block_on(async {
        let client = folder.client("app.db").await;
        execute(&client, "CREATE TABLE a(id INTEGER PRIMARY KEY); CREATE TABLE b(id INTEGER PRIMARY KEY)")
            .await
            .unwrap();
        tools::install(&cx(), &client, &["a"]).await.unwrap();
        let file = folder.file("app.db");
        let made = Sqlite.source(&cx(), &purpose(), &mut options(&file, &["b"])).await.unwrap();
        let opened = made.open(&cx(), StartAt::Oldest).await.map(drop);
        assert_error(opened, ErrorKind::Config, &format!("sqlite install --db {} --table b", file.display()));
        // One that was uninstalled is a matter of the stream that reads it.
        tools::install(&cx(), &client, &["b"]).await.unwrap();
        tools::uninstall(&cx(), &client, &["b"], tools::Unread::Keep).await.unwrap();
        let opened = made.open(&cx(), StartAt::Oldest).await.map(drop);
        assert_error(opened, ErrorKind::PositionLost, "b is no longer logged: it was uninstalled");
        tools::install(&cx(), &client, &["b"]).await.unwrap();
        made.open(&cx(), StartAt::Now).await.unwrap();
        tools::uninstall(&cx(), &client, &["b"], tools::Unread::Discard).await.unwrap();
        let found = Sqlite.check_source(&cx(), &purpose(), &mut options(&file, &["b"])).await.unwrap();
        assert_eq!(found[0].severity, Severity::Error, "{found:?}");
        execute(&client, "CREATE TABLE c(id INTEGER PRIMARY KEY)").await.unwrap();
        let inspected = Sqlite.check_source(&cx(), &purpose(), &mut options(&file, &["c"])).await;
        assert_error(inspected, ErrorKind::Config, "the table c is not logged");
    });
}

#[test]
fn a_look_changes_nothing() {
    let folder = Folder::new();
    block_on(async {
        let file = folder.file("state.db");
        let found = Sqlite.check_store(&cx(), &mut options(&file, &[])).await.unwrap();
        assert_eq!(found[0].severity, Severity::Note);
        assert!(found[0].what.contains("will be made"), "{found:?}");
        assert!(!file.exists());

        let application = folder.file("app.db");
        let connection = watchkeeper_sqlite::rusqlite::Connection::open(&application).unwrap();
        connection.execute_batch("CREATE TABLE a(id INTEGER PRIMARY KEY)").unwrap();
        let before = std::fs::read(&application).unwrap();
        let inspected = Sqlite.check_source(&cx(), &purpose(), &mut options(&application, &[])).await;
        assert_error(inspected, ErrorKind::Config, "no table of this database is logged");
        assert_eq!(std::fs::read(&application).unwrap(), before, "not even the journal's mode");

        let nowhere = folder.file("gone/state.db");
        assert_error(Sqlite.check_store(&cx(), &mut options(&nowhere, &[])).await, ErrorKind::Config, "is not there");
        std::fs::write(&file, "this is a text and no database, by far").unwrap();
        assert_error(
            Sqlite.check_store(&cx(), &mut options(&file, &[])).await,
            ErrorKind::Config,
            "not a SQLite database",
        );
    });
}

#[test]
fn a_table_that_cannot_be_logged_is_reported_so_before_it_is_to_be_installed() {
    let folder = Folder::new();
    block_on(async {
        let client = folder.client("app.db").await;
        execute(&client, "CREATE TABLE a(id INTEGER PRIMARY KEY); CREATE TABLE heap(x)").await.unwrap();
        let file = folder.file("app.db");
        // Once without any log, once beside another table's.
        for _ in 0..2 {
            let made = Sqlite.source(&cx(), &purpose(), &mut options(&file, &["heap"])).await.unwrap();
            let opened = made.open(&cx(), StartAt::Oldest).await.map(drop);
            assert_error(opened, ErrorKind::Config, "heap cannot be followed: it has no primary key");
            let inspected = Sqlite.check_source(&cx(), &purpose(), &mut options(&file, &["heap"])).await;
            assert_error(inspected, ErrorKind::Config, "heap cannot be followed: it has no primary key");
            tools::install(&cx(), &client, &["a"]).await.unwrap();
        }
    });
}

#[test]
fn a_look_at_a_source_tells_of_a_rebuilt_table_that_is_read() {
    let folder = Folder::new();
    block_on(async {
        let client = folder.client("app.db").await;
        let tables = "CREATE TABLE a(id INTEGER PRIMARY KEY); CREATE TABLE b(id INTEGER PRIMARY KEY)";
        execute(&client, tables).await.unwrap();
        tools::install(&cx(), &client, &["a", "b"]).await.unwrap();
        execute(&client, "DROP TABLE a; CREATE TABLE a(id INTEGER PRIMARY KEY)").await.unwrap();
        let file = folder.file("app.db");
        for (tables, errors) in [(vec![], 1), (vec!["A"], 1), (vec!["b"], 0)] {
            let found = Sqlite.check_source(&cx(), &purpose(), &mut options(&file, &tables)).await.unwrap();
            let wrong: Vec<_> = found.iter().filter(|finding| finding.severity != Severity::Note).collect();
            assert_eq!(wrong.len(), errors, "{found:?}");
            assert!(wrong.iter().all(|finding| finding.severity == Severity::Error), "{found:?}");
        }
    });
}

#[test]
fn a_missing_file_is_distinguished_from_a_missing_folder() {
    let folder = Folder::new();
    block_on(async {
        let cases = [("gone.db", "create the database first"), ("gone/app.db", "create its folder")];
        for (name, remedy) in cases {
            let mut options = options(&folder.file(name), &[]);
            let made = Sqlite.source(&cx(), &purpose(), &mut options).await.map(|_| ());
            assert_error(made, ErrorKind::Config, remedy);
        }
        assert!(!folder.file("gone.db").exists());
    });
}

#[test]
fn a_url_with_parameters_is_refused_without_repeating_them() {
    let folder = Folder::new();
    block_on(async {
        let file = folder.file("state.db?password=hunter22");
        let Err(error) = Sqlite.store(&cx(), &mut options(&file, &[])).await else { panic!("it is no file's name") };
        assert_eq!(error.kind(), ErrorKind::Config);
        let text = error.to_string();
        assert!(text.contains("without parameters") && text.contains("write \"sqlite:state.db\""), "{text}");
        assert!(!text.contains("hunter22"), "{text}");
        assert!(!file.exists());
    });
}
