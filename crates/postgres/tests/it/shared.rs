//! Rows of several tables in one.

use std::sync::Arc;
use std::time::Duration;

use watchkeeper_core::{
    Backend, Batch, ChangeStream, Limits, OpenedSink, Purpose, SinkContext, Source, StartAt, Target, Transacted,
};
use watchkeeper_postgres::changelog::{Wake, install};
use watchkeeper_postgres::{ChangeLog, Postgres};
use watchkeeper_testkit::servers::postgres::Version;

use crate::backend::options;
use crate::sink::{grant, shown, write};
use crate::support::{Base, block_on, cx};

const TABLES: &str =
    "CREATE TABLE a (id int PRIMARY KEY); CREATE TABLE b (id int PRIMARY KEY); CREATE TABLE copy (id int PRIMARY KEY)";

async fn next(stream: &mut dyn ChangeStream) -> Arc<Batch> {
    let limits = Limits { rows: 1_000, bytes: 1 << 20, wait: Duration::from_millis(50) };
    for _ in 0..600 {
        let batch = stream.next_batch(&cx(), limits).await.expect("it can be read");
        if !batch.is_empty() {
            return Arc::new(batch);
        }
    }
    panic!("nothing comes");
}

/// Delivers batches as the first ones of an instance.
async fn deliver(target: &Target, epoch: u64, batches: &[&Arc<Batch>]) -> Transacted {
    let (grant, checkpoints) = (grant(epoch), target.checkpoints.as_ref().expect("it keeps them"));
    checkpoints.claim(&cx(), &grant).await.expect("it is free");
    let context = SinkContext {
        grant: grant.clone(),
        stream: "shared".to_owned(),
        sink: "copy".to_owned(),
        partition: 0,
        lanes: 1,
        store: checkpoints.identity(&cx()).await.expect("it has one"),
    };
    let opened = target.sink.open(&cx(), &context).await.expect("it opens");
    let OpenedSink::Transactional(mut writer) = opened else { panic!("it is transactional") };
    let mut answer = None;
    for (seq, batch) in (1..).zip(batches) {
        let rows: Vec<u32> = (0..).take(batch.len()).collect();
        answer = Some(writer.write_and_commit(&cx(), batch, &rows, &write(&grant, seq)).await.expect("it answers"));
    }
    answer.expect("there is a batch")
}

fn assert_rejected(answer: &Transacted) {
    let Transacted::Rejected(faults) = answer else { panic!("{answer:?}") };
    let reported = faults[0].error.to_string();
    assert!(reported.contains("the truncate of public.a would clear \"public.copy\""), "{reported}");
}

#[test]
fn a_truncate_of_one_table_clears_no_rows_of_another() {
    for version in Version::ALL {
        block_on(async {
            let base = Base::new(version).await;
            let (client, application) = (base.client().await, base.admin().await);
            application.batch_execute(TABLES).await.expect("they are new");
            install(&cx(), &client, &["a", "b"], Wake::Silent).await.expect("they can be logged");
            let log = ChangeLog::open(&cx(), client.clone(), "shared").await.expect("there is a log");
            let mut stream = log.open(&cx(), StartAt::Oldest).await.expect("it opens");
            application.batch_execute("INSERT INTO a VALUES (1); INSERT INTO b VALUES (2)").await.expect("it may");
            let rows = next(&mut *stream).await;
            application.batch_execute("TRUNCATE a").await.expect("it may");
            let truncate = next(&mut *stream).await;
            let url = base.url();
            let sink = async |purpose: &Purpose| {
                let mut settings = options(&[("url", &url), ("mode", "rows"), ("table", "public.copy")]);
                Postgres.sink(&cx(), purpose, &mut settings).await.expect("it opens")
            };
            let copied = || shown(&client, "SELECT id::text FROM copy ORDER BY id");
            // The changes themselves tell it.
            let purpose = Purpose::new("shop", "shared");
            assert_rejected(&deliver(&sink(&purpose).await, 1, &[&rows, &truncate]).await);
            assert_eq!(copied().await, ["1", "2"]);
            // So does the source, when the truncate is the first that comes after a restart.
            let purpose = purpose.reading(&Postgres, &options(&[("url", &url)]));
            assert_rejected(&deliver(&sink(&purpose).await, 2, &[&truncate]).await);
            assert_eq!(copied().await, ["1", "2"]);
            // With a filter for one table the target is that one's.
            let purpose = purpose.with_namespaces(Some(vec!["public.a".to_owned()]));
            let answer = deliver(&sink(&purpose).await, 3, &[&truncate]).await;
            assert!(matches!(answer, Transacted::Committed), "{answer:?}");
            assert_eq!(copied().await, [""; 0]);
        });
    }
}
