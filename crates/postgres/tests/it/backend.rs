//! PostgreSQL as a file names it, and as the least that a role may.

use watchkeeper_core::{
    Acquired, Backend, Claim, Collector, Commit, Entropy, ErrorKind, Lease, Options, Origin, PutOutcome, Released,
    Renewal, Resolution, Severity, WrittenSetting,
};
use watchkeeper_postgres::{Client, Config, Events, Leases, Postgres};
use watchkeeper_testkit::servers::postgres::Version;

use crate::sink::{INSERT, SinkFixture, write};
use crate::specifics::ask;
use crate::support::{Base, assert_error, block_on, cx};

pub(crate) fn options(settings: &[(&str, &str)]) -> Options {
    let origin = Origin::new("test.toml:1");
    let mut options = Options::new("", origin.clone());
    for (name, value) in settings {
        options.insert(*name, WrittenSetting::text(*value, origin.clone()));
    }
    options
}

/// Runs `watchkeeper postgres setup`.
async fn setup(settings: &[(&str, &str)]) -> Vec<String> {
    let tools = Postgres.tools();
    let tool = tools.iter().find(|tool| tool.name() == "setup").expect("it has this tool");
    let mut options = options(settings);
    let report = tool.run(&cx(), &mut options).await.expect("it works");
    options.finish().expect("everything was taken");
    report.lines
}

#[test]
fn a_role_with_the_least_privileges_can_do_everything() {
    for version in Version::ALL {
        block_on(async {
            let base = Base::new(version).await;
            let user = base.user().await;
            let (url, own) = (base.url(), base.url_of(&user));
            let denied = Client::open(&cx(), base.config_of(&user)).await.expect("it may log in");
            assert_error(Leases::open(&cx(), denied.clone()).await, ErrorKind::Denied, "access is denied");
            let found = Postgres.check_store(&cx(), &mut options(&[("url", &own)])).await.expect("it can look");
            assert!(found.iter().any(|finding| finding.what.contains("may not make them")), "{found:?}");
            // Twice: it can be run again at any time.
            setup(&[("url", &url)]).await;
            setup(&[("url", &url), ("role", &user)]).await;
            let found = Postgres.check_store(&cx(), &mut options(&[("url", &own)])).await.expect("it can look");
            assert!(found.iter().all(|finding| finding.what.contains("fsync")), "{found:?}");
            use_everything(&base, &user).await;
        });
    }
}

async fn use_everything(base: &Base, user: &str) {
    let offer = Postgres.store(&cx(), &mut options(&[("url", &base.url_of(user))])).await.expect("it opens");
    let (leases, records) = (offer.leases.expect("it has them"), offer.records.expect("it has them"));
    let checkpoints = offer.checkpoints.expect("it has them");
    let asked = ask("a", &Entropy::from_system());
    let Acquired::Granted { grant, .. } = leases.try_acquire(&cx(), &asked).await.expect("it may") else {
        panic!("it is free")
    };
    let lease = Lease { grant: grant.clone(), ttl: asked.ttl };
    assert_eq!(leases.renew(&cx(), &[lease]).await.expect("it may"), [Renewal::Held]);
    assert!(leases.holders(&cx(), std::slice::from_ref(&grant.key)).await.expect("it may")[0].is_some());
    assert_eq!(checkpoints.claim(&cx(), &grant).await.expect("it may"), Claim::Claimed(None));
    let mut settled = write(&grant, 1);
    settled.resolve = vec![(1, Resolution::Purged)];
    assert_eq!(checkpoints.commit(&cx(), &[settled]).await.expect("it may"), [Commit::Committed]);
    let PutOutcome::Done(revision) = records.put_if(&cx(), "x", None, "1".into()).await.expect("it may") else {
        panic!("new")
    };
    records.delete_if(&cx(), "x", revision).await.expect("it may");
    records.append(&cx(), "log", "1".into(), 1).await.expect("it may");
    records.append(&cx(), "log", "2".into(), 1).await.expect("it may");
    assert_eq!(leases.release(&cx(), &grant).await.expect("it may"), Released::Released);
    // A sink into a table that an administrator has made and opened to it.
    let admin = Client::open(&cx(), base.config()).await.expect("the server is there");
    SinkFixture::new(admin, Events::into("public.events").expect("a name")).await;
    let sql = format!("GRANT INSERT ON public.events TO {user}");
    base.admin().await.batch_execute(&sql).await.expect("the superuser may");
    let client = Client::open(&cx(), base.config_of(user)).await.expect("it may");
    let mut fixture = SinkFixture::newer(client.clone(), Events::into("public.events").expect("a name"), 2).await;
    fixture.committed(1, &[(INSERT, Some("a"), "{}")]).await;
    // And no more than that.
    let delete = client.write(&cx(), "DELETE FROM watchkeeper.leases", &[]).await;
    assert_error(delete, ErrorKind::Denied, "42501");
}

#[test]
fn what_a_file_says_about_a_sink_is_looked_at() {
    let base = Base::schema(Version::V18);
    block_on(async {
        let (url, table) = (base.url(), base.table("events"));
        let purpose = watchkeeper_core::Purpose::new("g", "s");
        let settings = [("url", url.as_str()), ("table", table.as_str()), ("schema", base.schema_name())];
        let mut taken = options(&settings);
        let seen = Postgres.check_sink(&cx(), &purpose, &mut taken).await.expect("it can look");
        taken.finish().expect("everything was taken");
        assert!(seen.findings.iter().any(|finding| finding.what.contains("will be made")), "{seen:?}");
        let target = Postgres.sink(&cx(), &purpose, &mut options(&settings)).await.expect("it opens");
        assert!(target.checkpoints.is_some());
        assert_eq!(
            target.sink.profile().store,
            Some(target.checkpoints.expect("it is there").identity(&cx()).await.expect("it answers"))
        );
        let wrong = options(&[("url", &url), ("table", "a.b.c")]);
        assert_error(Postgres.sink(&cx(), &purpose, &mut wrong.clone()).await.map(|_| ()), ErrorKind::Config, "a.b.c");
        let wrong = options(&[("url", &url), ("schema", "Robert'); --"), ("table", "t")]);
        assert_error(Postgres.sink(&cx(), &purpose, &mut wrong.clone()).await.map(|_| ()), ErrorKind::Config, "schema");
    });
}

#[test]
fn foreign_keys_of_a_target_are_warned_of_unless_they_rest() {
    let base = Base::schema(Version::V18);
    block_on(async {
        let (url, admin) = (base.url(), base.admin().await);
        let (parents, children) = (base.table("parents"), base.table("children"));
        let sql = format!(
            "CREATE TABLE {parents} (id int PRIMARY KEY); CREATE TABLE {children} (id int PRIMARY KEY, parent int REFERENCES {parents})"
        );
        admin.batch_execute(&sql).await.expect("they are new");
        let warned = async |table: &str, url: &str| {
            let settings = [("url", url), ("table", table), ("mode", "rows"), ("schema", base.schema_name())];
            let purpose = watchkeeper_core::Purpose::new("g", "s");
            let seen = Postgres.check_sink(&cx(), &purpose, &mut options(&settings)).await.expect("it can look");
            seen.findings.iter().filter(|found| found.what.starts_with("the foreign key ")).count()
        };
        assert_eq!((warned(&parents, &url).await, warned(&children, &url).await), (1, 1));
        let sign = if url.contains('?') { '&' } else { '?' };
        let resting = format!("{url}{sign}options=-c%20session_replication_role%3Dreplica");
        assert_eq!(warned(&children, &resting).await, 0);
    });
}

/// What a table lacks is found before the first change is written.
#[test]
fn a_table_of_other_columns_is_found_before_it_is_written() {
    for version in Version::ALL {
        let base = Base::schema(version);
        block_on(async {
            let (url, admin) = (base.url(), base.admin().await);
            let purpose = watchkeeper_core::Purpose::new("g", "s");
            let observation = async |mode: &str, table: &str| {
                let settings =
                    [("url", url.as_str()), ("table", table), ("mode", mode), ("schema", base.schema_name())];
                let seen = Postgres.check_sink(&cx(), &purpose, &mut options(&settings)).await.expect("it can look");
                let wrong = seen.findings.into_iter().filter(|found| found.severity == Severity::Error);
                let (what, remedies): (Vec<_>, Vec<_>) = wrong.map(|found| (found.what, found.remedy)).unzip();
                assert!(
                    remedies
                        .iter()
                        .all(|remedy| remedy.as_ref().is_some_and(|remedy| remedy.contains("it will be made"))
                            || remedy.as_ref().is_some_and(|remedy| remedy.contains("ADD PRIMARY KEY"))),
                    "{remedies:?}"
                );
                what
            };
            for mode in ["events", "mirror", "versioned"] {
                let table = base.table(mode);
                let settings =
                    [("url", url.as_str()), ("table", &table), ("mode", mode), ("schema", base.schema_name())];
                let target = Postgres.sink(&cx(), &purpose, &mut options(&settings)).await.expect("it opens");
                target.sink.check(&cx()).await.expect("it can be made");
                assert_eq!(observation(mode, &table).await, Vec::<String>::new(), "what it makes itself is good");
            }
            let table = base.table("wrong");
            let sql = format!(
                "CREATE TABLE {table} (id varchar, operation text, namespace text, key text, time bigint, version_time bigint,
                    version_ordinal numeric, event jsonb, epoch bigint, tenure uuid, number int NOT NULL,
                    filled int NOT NULL DEFAULT 1)"
            );
            admin.batch_execute(&sql).await.expect("it is new");
            assert_eq!(
                observation("events", &table).await,
                [
                    format!("the column \"time\" of {table:?} is bigint, and does not take a timestamp with time zone"),
                    format!("the table {table:?} has no column \"seq\""),
                    format!("the column \"number\" of {table:?} cannot be empty, and nothing is written to it"),
                ]
            );
            let mirror = base.table("keyless");
            let sql = format!(
                "CREATE TABLE {mirror} (namespace text, key bytea, document json, time timestamptz, version_time bigint,
                    version_ordinal bigint); CREATE UNIQUE INDEX ON {mirror} (key) INCLUDE (namespace)"
            );
            admin.batch_execute(&sql).await.expect("it is new");
            let cause = format!("nothing keeps two rows of one namespace and key out of the table {mirror:?}");
            assert_eq!(observation("mirror", &mirror).await, [cause]);
            assert_eq!(
                observation("versioned", &mirror).await,
                [format!("the table {mirror:?} has no column \"deleted\"")]
            );
            admin.batch_execute(&format!("CREATE UNIQUE INDEX ON {mirror} (key, namespace)")).await.expect("it can");
            assert_eq!(observation("mirror", &mirror).await, Vec::<String>::new());
        });
    }
}

#[test]
fn a_store_is_peeked_at_without_making_anything_of_it() {
    let base = Base::schema(Version::V15);
    block_on(async {
        let (url, schema) = (base.url(), base.schema_name().to_owned());
        let settings = [("url", url.as_str()), ("schema", schema.as_str())];
        let offer = Postgres.peek_store(&cx(), &mut options(&settings)).await.expect("it can look").expect("it looks");
        assert!(offer.leases.is_none() && offer.checkpoints.is_none() && offer.records.is_none());
        let count = format!("SELECT count(*) FROM pg_tables WHERE schemaname = '{schema}'");
        let made = base.admin().await.query_one(&count, &[]).await.expect("it answers").get::<_, i64>(0);
        assert_eq!(made, 0, "nothing was made");
        let store = Postgres.store(&cx(), &mut options(&settings)).await.expect("it opens");
        let offer = Postgres.peek_store(&cx(), &mut options(&settings)).await.expect("it can look").expect("it looks");
        assert!(offer.leases.is_some() && offer.records.is_some());
        let (made, seen) = (store.checkpoints.expect("it has them"), offer.checkpoints.expect("it has them"));
        assert_eq!(made.identity(&cx()).await.expect("it answers"), seen.identity(&cx()).await.expect("it answers"));
    });
}

#[test]
fn a_url_that_is_wrong_is_the_only_error_of_its_settings() {
    for url in ["postgres://app@localhost:notaport/shop", "postgres://app@localhost/shop?pasword=x", "postgres://"] {
        let errors = Collector::default();
        let mut settings = options(&[("url", url)]);
        settings.collect_into(Some(&errors));
        Config::from_options(&mut settings).expect("the error is collected");
        let errors = errors.take();
        assert_eq!(errors.len(), 1, "{url}: {errors:?}");
    }
}
