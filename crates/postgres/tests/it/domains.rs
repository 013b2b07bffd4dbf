//! Typed rows in tables whose columns cannot be null, or cannot be written.

use watchkeeper_core::{ErrorKind, Operation, Sink, SinkContext};
use watchkeeper_postgres::{Rows, Transactional, VersionedRows};
use watchkeeper_testkit::servers::postgres::Version;

use crate::sink::{INSERT, SinkFixture, grant};
use crate::support::{Base, assert_error, block_on, cx};

/// Only what is told of a row has to be there: its key when it is deleted, what is named in `columns` otherwise.
#[test]
fn a_column_whose_domain_takes_no_null_need_not_be_reported() {
    for version in Version::ALL {
        let base = Base::schema(version);
        let (table, domain) = (base.table("typed"), base.table("certain"));
        block_on(async {
            let sql = format!(
                "CREATE DOMAIN {domain} AS text NOT NULL; CREATE TABLE {table} (id int PRIMARY KEY, v {domain}, more {domain} DEFAULT 'x')"
            );
            base.admin().await.batch_execute(&sql).await.expect("it is new");
            let rows = Rows::into(&table).expect("a name").column("id", "id").column("v", "v");
            let mut fixture = SinkFixture::new(base.client().await, rows).await;
            let observation = format!("SELECT concat_ws(' ', id, v, more) FROM {table} ORDER BY id");
            let both = [(INSERT, Some("1"), r#"{"id":1,"v":"a"}"#), (INSERT, Some("2"), r#"{"id":2,"v":"b"}"#)];
            fixture.committed(1, &both).await;
            fixture.committed(2, &[(Operation::Update, Some("1"), r#"{"id":1,"v":"c"}"#)]).await;
            assert_eq!(fixture.shown(&observation).await, ["1 c x", "2 b x"]);
            fixture.committed(3, &[(Operation::Delete, Some("1"), r#"{"id":1}"#)]).await;
            assert_eq!(fixture.shown(&observation).await, ["2 b x"]);
        });
    }
}

#[test]
fn a_column_that_the_server_numbers_itself_is_refused_before_anything_is_written() {
    let base = Base::schema(Version::V15);
    let table = base.table("numbered");
    block_on(async {
        let sql = format!("CREATE TABLE {table} (id int PRIMARY KEY, n int GENERATED ALWAYS AS IDENTITY)");
        base.admin().await.batch_execute(&sql).await.expect("it is new");
        let rows = || Rows::into(&table).expect("a name");
        let sink = Transactional::open(&cx(), base.client().await, rows()).await.expect("the tables can be made");
        let cause = "is GENERATED ALWAYS AS IDENTITY, which no update can write";
        assert_error(sink.check(&cx()).await, ErrorKind::Config, cause);
        let versioned = VersionedRows::new(base.client().await, rows()).expect("a name");
        assert_error(versioned.check(&cx()).await, ErrorKind::Config, cause);
        let without = Transactional::open(&cx(), base.client().await, rows().column("id", "id")).await;
        without.expect("the tables can be made").check(&cx()).await.expect("that one is not written");
    });
}

/// A value that moves from one row to another needs an order between keys, which lanes do not keep.
#[test]
fn rows_that_depend_on_one_another_are_not_written_in_lanes() {
    let base = Base::schema(Version::V18);
    let table = base.table("unique_mail");
    block_on(async {
        let sql = format!("CREATE TABLE {table} (id int PRIMARY KEY, mail text)");
        base.admin().await.batch_execute(&sql).await.expect("it is new");
        let sink = VersionedRows::new(base.client().await, Rows::into(&table).expect("a name")).expect("a name");
        let checkpoints = SinkFixture::new(base.client().await, Rows::into(&table).expect("a name")).await;
        let context = |lanes| SinkContext {
            grant: grant(1),
            stream: "orders".to_owned(),
            sink: "copy".to_owned(),
            partition: 0,
            lanes,
            store: checkpoints.sink.checkpoints().store_identity(),
        };
        sink.open(&cx(), &context(4)).await.expect("only its key is unique");
        base.admin().await.batch_execute(&format!("ALTER TABLE {table} ADD UNIQUE (mail)")).await.expect("it is empty");
        sink.open(&cx(), &context(1)).await.expect("one lane keeps every order");
        assert_error(
            sink.open(&cx(), &context(4)).await.map(drop),
            ErrorKind::Config,
            "beside its primary key, and 4 lanes",
        );
    });
}
