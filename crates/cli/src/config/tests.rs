use std::time::Duration;

use watchkeeper::{OnHistoryLost, OnReject, OperationTime, Park, SourceTime, StartAt};

use super::*;

/// What is read of a file, and all that is wrong with it.
fn examined(text: &str) -> (Option<Config>, Vec<Error>) {
    let collector = Collector::default();
    let config = read(toml::read("shop.toml", text).expect("it is TOML"), &collector);
    (config.expect("errors are collected"), in_order(collector.take()))
}

fn config(text: &str) -> Result<Config> {
    let (config, errors) = examined(text);
    first(errors)?;
    Ok(config.expect("nothing is wrong with it"))
}

const SINK: &str = "[[stream.sink]]\ntype = \"stdout\"\n";

const GROUP: &str = "[group]\nname = \"shop\"\nstore = \"sqlite:state.db\"\n";

fn stream(text: &str) -> Result<Stream> {
    let head = "[[stream]]\nname = \"orders\"\nsource = \"sqlite:app.db\"\n";
    let sink = if text.contains("[[stream.sink]]") { "" } else { SINK };
    config(&format!("{GROUP}{head}{text}{sink}")).map(|mut config| config.streams.remove(0))
}

#[test]
fn little_has_to_be_written() {
    let config =
        config(&format!("{GROUP}lease = \"3s\"\n[[stream]]\nname = \"a\"\nsource = \"sqlite:app.db\"\n{SINK}"))
            .expect("good");
    assert_eq!(config.group.settings.group, "shop");
    let name = &config.group.settings.name;
    assert!(name.ends_with(&format!("-{}", std::process::id())), "two on one machine are told apart: {name}");
    assert_eq!(config.group.settings.lease.renew_every, Duration::from_secs(1));
    assert_eq!(config.group.store.backend.name(), "sqlite");
    assert_eq!(config.streams[0].settings.start, StartAt::Now);
}

#[test]
fn what_the_engine_can_do_can_be_written() {
    let stream = stream(
        "start = 2026-01-01T00:00:00Z\nconcurrency = 4\ncheckpoint = { every = \"2s\", events = 100 }\n\
         on_history_lost = \"gap\"\nhistory = 5\ngive_up = \"20s\"\nbatch = { rows = 10, bytes = \"1MiB\", wait = \"1s\" }\n\
         window = { bytes = \"2MiB\", pieces = 8 }\nretry = { attempts = 3, backoff = \"1s\", recovery_backoff_max = \"1m\" }\n\
         breaker = { failures = 2 }\ntimeouts = { write = \"5s\" }\n\
         [[stream.sink]]\ntype = \"stdout\"\nname = \"out\"\non_reject = \"dead_letter\"\npark = \"change\"\n\
         filter = { operations = [\"insert\"], namespaces = [\"orders\"] }\n",
    )
    .expect("all of it is known");
    let settings = &stream.settings;
    assert_eq!(settings.start, StartAt::Time(SourceTime(1_767_225_600_000)));
    assert_eq!((settings.concurrency, settings.history, settings.checkpoint.events), (4, 5, Some(100)));
    assert_eq!((settings.limits.rows, settings.window_bytes, settings.window_pieces), (10, 2 << 20, 8));
    assert_eq!((settings.retry.attempts, settings.breaker.failures), (Some(3), 2));
    assert_eq!(settings.retry.recovery_backoff.max, Duration::from_secs(60));
    assert_eq!(settings.on_history_lost, OnHistoryLost::GoOn(StartAt::Oldest));
    let sink = &stream.sinks[0];
    assert_eq!((sink.name.as_str(), sink.on_reject), ("out", OnReject::DeadLetter { park: Park::Change }));
    assert!(sink.filter.is_some());
    assert_eq!(sink.namespaces.as_deref(), Some(&["orders".to_owned()][..]));
}

#[test]
fn a_stream_may_start_at_an_operation_time() {
    let text = format!(
        "{GROUP}[[stream]]\nname = \"orders\"\nstart = \"1700000000:7\"\n{SINK}\
         [stream.source]\nurl = \"mongodb://localhost/shop\"\ncollection = \"orders\"\n"
    );
    let stream = config(&text).expect("it is known").streams.remove(0);
    assert_eq!(stream.settings.start, StartAt::Operation(OperationTime { seconds: 1_700_000_000, increment: 7 }));
}

#[test]
fn a_small_window_is_good_for_small_batches() {
    let small = stream("batch = { bytes = \"1MiB\" }\nwindow = { bytes = \"2MiB\" }\n").expect("they fit together");
    assert_eq!((small.settings.limits.bytes, small.settings.window_bytes), (1 << 20, 2 << 20));
}

#[test]
fn the_names_that_listeners_have_for_settings_of_a_group_are_known_too() {
    let text = "max_listeners = 10\nhealth_check_interval = \"2s\"\nfailover_threshold = \"30s\"\n";
    let settings = config(&format!("{GROUP}{text}")).expect("they are known").group.settings;
    assert_eq!(settings.max_listeners, Some(10));
    assert_eq!((settings.heartbeat_every.as_secs(), settings.unhealthy_after.as_secs()), (2, 30));
}

#[test]
fn what_is_wrong_names_its_line_and_the_remedy() {
    for (text, line, part) in [
        ("renew_every = \"5s\"\n", 4, "the lease of 5s is not longer than its renewal interval of 5s"),
        ("lease = \"50ms\"\n", 4, "the lease is shorter than 100 ms"),
        ("laese = \"5s\"\n", 4, "did you mean \"lease\"?"),
        ("lease = \"5 lightyears\"\n", 4, "group.lease: \"5 lightyears\" is not a time"),
        ("bar = \"1s\"\nunhealthy_after = \"1s\"\n", 5, "before their next heartbeat"),
        ("takeover = \"slow\"\n", 4, "\"slow\" is not known"),
        ("max_instances = 0\n", 4, "no instance may join the group"),
        ("max_listeners = 0\n", 4, "no instance may join the group"),
        ("max_instances = 2\nmax_listeners = 3\n", 5, "another name of \"max_instances\", which is there too"),
        ("[instance]\nlisten = \"here\"\n", 5, "\"here\" is no address"),
        ("[instance]\nlisten = \"0.0.0.0:1\"\n", 5, "advertise ="),
        ("[instance]\nlisten_on = \"x\"\n", 5, "did you mean \"listen\"?"),
        ("[group.leases]\nurl = \"nosuch:x\"\n", 5, "group.leases.url: no system in this build understands"),
        ("[streams]\n", 4, "did you mean \"stream\"?"),
        ("[[stream]]\nname = \"a\"\n", 4, "stream.a.source: this is missing"),
        ("[[stream]]\nsource = \"sqlite:a\"\n", 4, "stream[0].name: this is missing"),
    ] {
        let error = config(&format!("{GROUP}{text}")).expect_err(text);
        assert_eq!(error.place(), Some(format!("shop.toml:{line}").as_str()), "{error}");
        assert!(error.to_string().contains(part) && error.advice().is_some(), "{error}");
    }
    for (text, line, part) in [
        ("start = \"soon\"\n", 7, "\"now\", \"oldest\", \"snapshot\", a time"),
        ("start = \"soon\"\n", 7, "or a position as `checkpoint show` tells it"),
        ("start = \"1700000000:\"\n", 7, "start: \"1700000000:\" is no operation time [WK-CONFIG]; write its seconds"),
        ("start = \"4294967296:1\"\n", 7, "each below 4294967296: \"1700000000:7\""),
        ("start = \"Timestamp(1700000000, 7)\"\n", 7, "an operation time such as \"1700000000:7\""),
        ("concurrency = 0\n", 7, "concurrency is not between 1 and 1024 [WK-CONFIG]; write 1 to 1024"),
        ("start = \"now\"\n[stream.checkpoint]\nevery = \"0s\"\n", 9, "checkpoints are committed without a pause"),
        ("[stream.batch]\nrows = 10\nbytes = \"64MiB\"\n", 9, "the window is smaller than one batch"),
        ("[stream.window]\npieces = 4\nbytes = \"1MiB\"\n", 9, "the window is smaller than one batch"),
        ("[stream.retry]\nrecoveries = 2\nattempts = 0\n", 9, "a change is never tried"),
        ("[[stream.sink]]\nurl = \"fiel:out\"\n", 8, "or write type = \"file\" or type = \"stdout\""),
        ("checkpoint = { evry = \"1s\" }\n", 7, "did you mean \"every\"?"),
        ("breaker = { failures = 0 }\n", 7, "at least one failure"),
        ("retry = { backoff = \"1m\", backoff_max = \"1s\" }\n", 7, "is below the first"),
        ("[[stream.sink]]\ntype = \"files\"\n", 8, "known are: file, stdout, mongodb, postgres, sqlite"),
        ("[[stream.sink]]\ntype = \"kafka\"\n", 8, "stream.orders.sink[0].type: there is no system \"kafka\""),
        ("[[stream.sink]]\nfolder = \"x\"\n", 7, "stream.orders.sink[0].url: this is missing"),
        ("[[stream.sink]]\ntype = \"stdout\"\npark = \"key\"\n", 9, "only dead letters are parked"),
        ("[[stream.sink]]\ntype = \"stdout\"\nfilter = { operations = [\"insrt\"] }\n", 9, "is no operation"),
        (
            "[[stream.sink]]\ntype = \"stdout\"\n[[stream]]\nname = \"orders\"\nsource = \"sqlite:b\"\n\
             [[stream.sink]]\ntype = \"stdout\"\n",
            9,
            "the other one is at shop.toml:4",
        ),
    ] {
        let error = stream(text).expect_err(text);
        assert_eq!(error.place(), Some(format!("shop.toml:{line}").as_str()), "{error}");
        assert!(error.to_string().contains(part), "{error}");
    }
}

#[test]
fn one_slot_is_for_one_stream() {
    let streams = |first: &str, second: &str| {
        let stream = |name: &str, url: &str| {
            format!(
                "[[stream]]\nname = \"{name}\"\nsource = {{ url = \"{url}\", mode = \"replication\", slot = \"s\" }}\n{SINK}"
            )
        };
        let (_, errors) = examined(&format!("{GROUP}{}{}", stream("a", first), stream("b", second)));
        errors.into_iter().find(|error| error.message().contains("name one slot"))
    };
    for (first, second) in [
        ("postgres://u@db/shop", "postgres://u@db/shop"),
        ("postgres://u:p@DB:5432/shop", "postgresql://other@db/other?sslmode=disable"),
        ("postgres://u@db1,db2:5432/shop", "postgres://u@db2,db1/shop"),
        ("postgres://u@127.0.0.1:6000/shop", "postgres://u@localhost:6000/shop"),
        ("postgres:///shop?service=x", "postgres:///other?service=x"),
    ] {
        let error = streams(first, second).expect(second);
        let text = error.to_string();
        assert!(text.contains("the streams \"a\" and \"b\" name one slot, \"s\""), "{text}");
        assert!(text.contains("shop.toml:11"), "{text}");
        assert!(error.advice().is_some_and(|advice| advice.contains("leave `slot` out")), "{error:?}");
    }
    for (first, second) in [
        ("postgres://u@db1/shop", "postgres://u@db2/shop"),
        ("postgres://u@db/shop", "postgres://u@db:6000/shop"),
        ("postgres:///shop?service=x", "postgres:///shop?service=y"),
        ("postgres://u@localhosts/shop", "postgres://u@localhost/shop"),
    ] {
        assert!(streams(first, second).is_none(), "these are two: {first}, {second}");
    }
}
