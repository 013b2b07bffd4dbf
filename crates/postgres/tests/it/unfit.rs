//! Values that the types of a target do not take: their changes are rejected, whatever error the server raises.

use watchkeeper_core::Transacted;
use watchkeeper_postgres::{Rows, VersionedRows};
use watchkeeper_testkit::servers::postgres::Version;

use crate::rows::{opened, write};
use crate::sink::{INSERT, Row, SinkFixture};
use crate::support::{Base, block_on};

/// A type whose check raises what it is given as an SQLSTATE, a row type, and `hstore`, which raises an internal error in some versions.
const TYPES: &str = "CREATE FUNCTION raising(code text) RETURNS boolean LANGUAGE plpgsql AS $$
    BEGIN IF code <> '' THEN RAISE EXCEPTION 'not this one' USING ERRCODE = code; END IF; RETURN true; END $$;
    CREATE DOMAIN raises AS text CHECK (raising(VALUE)); CREATE TYPE pair AS (a int, b int); CREATE EXTENSION hstore;
    CREATE TABLE copy (id int PRIMARY KEY, code raises, pair pair, map hstore, number int)";

const BAD: [&str; 10] = [
    r#""code":"XX000""#,
    r#""code":"42P01""#,
    r#""code":"42704""#,
    r#""code":"0A000""#,
    r#""code":"54000""#,
    r#""pair":[1,2]"#,
    r#""pair":{"a":"x"}"#,
    r#""map":{"a":{"b":"c"}}"#,
    r#""map":"no pairs""#,
    r#""number":[[1]]"#,
];

#[test]
fn what_a_conversion_refuses_is_a_rejected_change_whatever_error_it_raises() {
    for version in Version::ALL {
        block_on(async {
            let base = Base::new(version).await;
            base.admin().await.batch_execute(TYPES).await.expect("they are new");
            let bodies: Vec<String> = (0..).zip(BAD).map(|(id, field)| format!(r#"{{"id":{id},{field}}}"#)).collect();
            let keys: Vec<String> = (0..BAD.len()).map(|id| id.to_string()).collect();
            let mut changes: Vec<Row<'_>> =
                keys.iter().zip(&bodies).map(|(key, body)| (INSERT, Some(key.as_str()), body.as_str())).collect();
            changes.insert(
                3,
                (INSERT, Some("98"), r#"{"id":98,"code":"","map":{"a":"1","b":null},"pair":{"a":1,"b":2}}"#),
            );
            changes.push((INSERT, Some("99"), r#"{"id":99,"number":1}"#));
            let bad: Vec<u32> = (0..12).filter(|row| ![3, 11].contains(row)).collect();
            let rows = Rows::into("public.copy").expect("a name");
            let mut fixture = SinkFixture::new(base.client().await, rows.clone()).await;
            let answer = fixture.transact(1, &changes).await.expect("it is no error of the server");
            let Transacted::Rejected(faults) = answer else { panic!("{answer:?}") };
            let mut found: Vec<u32> = faults.iter().map(|fault| fault.row).collect();
            found.sort_unstable();
            assert_eq!(found, bad);
            assert!(faults.iter().all(|fault| fault.error.advice().is_some()), "{faults:?}");
            fixture.committed(1, &[changes[3], changes[11]]).await;
            let observation = "SELECT concat_ws(' ', id, map, pair) FROM copy ORDER BY id";
            assert_eq!(fixture.shown(observation).await, [r#"98 "a"=>"1", "b"=>NULL (1,2)"#, "99"]);
            fixture.client.write(&crate::support::cx(), "DELETE FROM copy", &[]).await.expect("it can be emptied");
            let sink = VersionedRows::new(fixture.client.clone(), rows).expect("a name");
            let writer = opened(&sink, &fixture).await;
            assert_eq!(write(&*writer, &changes).await, bad);
            assert_eq!(fixture.shown(observation).await.len(), 2);
        });
    }
}

/// Words that the server reads as a time of its own clock, a date whose order of day and month is a setting, and what is no bytes.
const CHANGING: [&str; 8] = [
    r#""at":"now""#,
    r#""at":"Today 12:00""#,
    r#""day":"tomorrow""#,
    r#""days":["2024-01-01","yesterday"]"#,
    r#""span":"[today,)""#,
    r#""day":"02/03/2024""#,
    r#""bytes":12"#,
    r#""bytes":{"a":"b"}"#,
];

#[test]
fn values_that_depend_on_when_and_where_they_are_read_are_rejected() {
    block_on(async {
        let base = Base::new(Version::V18).await;
        let table = "CREATE TABLE copy (id int PRIMARY KEY, at timestamptz, day date, days date[], span daterange, bytes bytea);
            DO $$ BEGIN EXECUTE format('ALTER DATABASE %I SET timezone = ''Asia/Tokyo''', current_database());
            EXECUTE format('ALTER DATABASE %I SET datestyle = ''ISO, DMY''', current_database()); END $$";
        base.admin().await.batch_execute(table).await.expect("they are new");
        let bodies: Vec<String> = (0..).zip(CHANGING).map(|(id, field)| format!(r#"{{"id":{id},{field}}}"#)).collect();
        let keys: Vec<String> = (0..CHANGING.len()).map(|id| id.to_string()).collect();
        let mut changes: Vec<Row<'_>> =
            keys.iter().zip(&bodies).map(|(key, body)| (INSERT, Some(key.as_str()), body.as_str())).collect();
        let good =
            r#"{"id":99,"at":"2024-03-02 01:02:03","day":"infinity","bytes":"\\x0041","span":"[epoch,2024-01-01)"}"#;
        changes.push((INSERT, Some("99"), good));
        let mut fixture = SinkFixture::new(base.client().await, Rows::into("public.copy").expect("a name")).await;
        let answer = fixture.transact(1, &changes).await.expect("it is no error of the server");
        let Transacted::Rejected(faults) = answer else { panic!("{answer:?}") };
        let mut found: Vec<u32> = faults.iter().map(|fault| fault.row).collect();
        found.sort_unstable();
        assert_eq!(found, (0..8).collect::<Vec<_>>());
        fixture.committed(1, &changes[8..]).await;
        let observation = "SELECT concat_ws(' ', at AT TIME ZONE 'UTC', day, bytes, span) FROM copy";
        assert_eq!(fixture.shown(observation).await, [r"2024-03-02 01:02:03 infinity \x0041 [1970-01-01,2024-01-01)"]);
    });
}

/// What is wrong with the table itself is nobody's rejected change.
#[test]
fn a_table_that_is_gone_rejects_nothing() {
    let base = Base::schema(Version::V18);
    let table = base.table("gone");
    block_on(async {
        let admin = base.admin().await;
        admin.batch_execute(&format!("CREATE TABLE {table} (id int PRIMARY KEY)")).await.expect("it is new");
        let rows = Rows::into(&table).expect("a name");
        let mut fixture = SinkFixture::new(base.client().await, rows).await;
        admin.batch_execute(&format!("DROP TABLE {table}")).await.expect("it is there");
        let answer =
            fixture.transact(1, &[(INSERT, Some("1"), r#"{"id":1}"#), (INSERT, Some("2"), r#"{"id":2}"#)]).await;
        assert!(answer.is_err(), "{answer:?}");
    });
}
