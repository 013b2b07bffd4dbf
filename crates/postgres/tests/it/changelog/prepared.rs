//! Transactions in two phases, and writers that tell of their changes or do not.

use watchkeeper_core::{Source, StartAt};
use watchkeeper_postgres::{ChangeLog, Client, Config, tokio_postgres};
use watchkeeper_testkit::servers::postgres::{Server, ServerSettings, Version};

use super::configured::{flagged, listed, options_at, run};
use super::support::{THINGS, is_quiet, read};
use crate::support::{Base, block_on, connect, cx, eventually};

const CHANNEL: &str = "watchkeeper_log";

async fn client_of(url: &str) -> Client {
    Client::open(&cx(), Config::new(url).unwrap()).await.unwrap()
}

/// Begins to log the table as the command does, with this flag if there is one; what it says beside that it did.
async fn install(url: &str, flag: Option<&str>) -> Option<String> {
    let options = listed(options_at(url), "table", &["things"]);
    let options = flag.into_iter().fold(options, flagged);
    let mut received = run("install", options).await.unwrap();
    assert_eq!(received.remove(0), "public.things: changes are logged from now on");
    received.pop()
}

/// Whether a session that listens is notified of a change. What is sent to it is sent before the answer to whatever it asks next.
async fn is_hinted(url: &str, application: &tokio_postgres::Client, id: u32) -> bool {
    let listener = client_of(url).await.dedicated(&cx()).await.unwrap();
    listener.batch_execute(&format!("LISTEN {CHANNEL}; LISTEN told")).await.unwrap();
    let counts = listener.notifications();
    application.batch_execute(&format!("INSERT INTO things VALUES ({id})")).await.unwrap();
    application.batch_execute("NOTIFY told").await.unwrap();
    eventually("the later hint arrives", async || counts.borrow().contains_key("told")).await;
    counts.borrow().contains_key(CHANNEL)
}

#[test]
fn a_prepared_transaction_is_reported_when_it_is_committed() {
    for version in Version::ALL {
        let config = vec!["max_prepared_transactions = 4".to_owned()];
        let server = Server::with(&ServerSettings { config, ..ServerSettings::new(version) });
        block_on(async {
            let url = server.url("postgres");
            let application = connect(&url).await;
            application.batch_execute(THINGS).await.unwrap();
            let received = install(&url, None).await;
            assert!(received.is_some_and(|received| received.contains("PREPARE TRANSACTION")), "{version:?}");
            let log = ChangeLog::open(&cx(), client_of(&url).await, "it").await.unwrap();
            let mut stream = log.open(&cx(), StartAt::Oldest).await.unwrap();
            for (id, name) in [(1, "kept"), (2, "undone")] {
                let sql = format!("BEGIN; INSERT INTO things VALUES ({id}); PREPARE TRANSACTION '{name}'");
                application.batch_execute(&sql).await.unwrap();
            }
            application.batch_execute("INSERT INTO things VALUES (3)").await.unwrap();
            let between = read(&mut *stream, 1).await.remove(0);
            assert_eq!(between.key(), Some(&b"[3]"[..]));
            stream.close(&cx()).await.unwrap();
            application.batch_execute("ROLLBACK PREPARED 'undone'").await.unwrap();
            application.batch_execute("COMMIT PREPARED 'kept'").await.unwrap();
            let mut stream = log.open(&cx(), StartAt::After(between.position())).await.unwrap();
            assert_eq!(read(&mut *stream, 1).await[0].key(), Some(&b"[1]"[..]));
            assert!(is_quiet(&mut *stream).await);
            // Whoever asks for hints gets them, and cannot prepare any more.
            assert!(!is_hinted(&url, &application, 4).await);
            assert_eq!(install(&url, Some("notify")).await, None);
            assert!(is_hinted(&url, &application, 5).await);
            let refused =
                application.batch_execute("BEGIN; INSERT INTO things VALUES (6); PREPARE TRANSACTION 'no'").await;
            assert_eq!(refused.unwrap_err().code().map(|code| code.code()), Some("0A000"));
        });
    }
}

#[test]
fn writers_tell_of_their_changes_unless_they_are_to_be_silent() {
    block_on(async {
        let base = Base::new(Version::V18).await;
        let (url, application) = (base.url(), base.admin().await);
        application.batch_execute(THINGS).await.unwrap();
        assert_eq!(install(&url, None).await, None);
        assert!(is_hinted(&url, &application, 1).await);
        assert_eq!(install(&url, Some("silent")).await, None);
        assert!(!is_hinted(&url, &application, 2).await, "an older trigger is taken away");
        assert_eq!(install(&url, None).await, None);
        assert!(is_hinted(&url, &application, 3).await);
    });
}
