use watchkeeper_core::ErrorKind;

use super::*;

const MILLI: Duration = Duration::from_millis(1);

#[test]
fn the_usual_settings_hold_for_all_leases_that_make_sense() {
    for ttl in [100, 500, 1_000, 5_000, 30_000, 600_000] {
        let settings = LeaseSettings::new(ttl * MILLI);
        settings.validate().unwrap_or_else(|error| panic!("{ttl} ms: {error}"));
        assert!(settings.tick() <= settings.ttl / 20);
        let acting_time = settings.acting_time(Hooks::default());
        assert!(
            acting_time < settings.ttl && acting_time > settings.renew_every,
            "a holder ends itself before its lease does"
        );
    }
    InstanceSettings::new("shop", "a").validate().expect("the usual settings are good");
    StreamSettings::new("orders").validate().expect("the usual settings are good");
}

#[test]
fn a_lease_of_fifteen_seconds_outlasts_an_election_of_twelve() {
    let settings = LeaseSettings::new(Duration::from_secs(15));
    let left = settings.acting_time(Hooks::default()) - settings.renew_every;
    assert!(left >= Duration::from_secs(12), "just before a renewal the holder may still act for {left:?}");
}

fn lease(change: impl FnOnce(&mut LeaseSettings)) -> LeaseSettings {
    let mut settings = LeaseSettings::new(Duration::from_secs(10));
    change(&mut settings);
    settings
}

#[test]
fn a_lease_whose_relations_are_wrong_is_refused_with_what_to_do() {
    let wrong = [
        (lease(|it| it.ttl = 99 * MILLI), "the lease is shorter than 100 ms"),
        (lease(|it| it.margin = it.tick() - MILLI), "the margin is smaller"),
        (lease(|it| it.renew_every = it.ttl - it.margin), "not longer than its renewal interval"),
        (lease(|it| it.call_timeout = it.renew_every), "a renewal may take longer"),
        (lease(|it| it.retry_every = it.renew_every), "failed renewals are tried again later"),
        (lease(|it| it.retry_every = Duration::ZERO), "the retry interval is zero"),
    ];
    for (settings, cause) in wrong {
        let error = settings.validate().expect_err(cause);
        assert_eq!(error.kind(), ErrorKind::Config);
        assert!(error.message().contains(cause), "{error}");
        assert!(error.to_string().contains("; "), "it says what to do: {error}");
    }
}

#[test]
fn an_instance_whose_settings_make_no_sense_is_refused() {
    let instance = |change: fn(&mut InstanceSettings)| {
        let mut settings = InstanceSettings::new("shop", "a");
        change(&mut settings);
        settings.validate().expect_err("it makes no sense").to_string()
    };
    for (error, cause) in [
        (instance(|it| it.group.clear()), "the group has no name"),
        (instance(|it| it.group = "a/b".into()), "contains a slash"),
        (instance(|it| it.name.clear()), "the instance has no name"),
        (instance(|it| it.retry_floor = 1_001 * MILLI), "less than once a second"),
        (instance(|it| it.retry_floor = Duration::ZERO), "without a pause"),
        (instance(|it| it.unhealthy_after = it.heartbeat_every), "before their next heartbeat"),
        (instance(|it| it.max_listeners = Some(0)), "no instance may join"),
        (instance(|it| it.lease.margin = Duration::ZERO), "the margin is smaller"),
    ] {
        assert!(error.contains(cause), "{error}");
    }
}

#[test]
fn a_stream_whose_settings_make_no_sense_is_refused_by_its_name() {
    let stream = |change: fn(&mut StreamSettings)| {
        let mut settings = StreamSettings::new("orders");
        change(&mut settings);
        settings.validate().expect_err("it makes no sense").to_string()
    };
    for (error, cause) in [
        (stream(|it| it.name = "a/b".into()), "contains a slash"),
        (stream(|it| it.concurrency = 0), "concurrency is not between"),
        (stream(|it| it.concurrency = 1_025), "concurrency is not between"),
        (stream(|it| it.limits.rows = 0), "nothing may be read"),
        (stream(|it| it.limits.bytes = 1 << 30), "more than 1 GiB"),
        (stream(|it| it.window_pieces = 1), "reading cannot overlap writing"),
        (stream(|it| it.window_bytes = it.limits.bytes - 1), "smaller than one batch"),
        (stream(|it| it.checkpoint.every = Duration::ZERO), "without a pause"),
        (stream(|it| it.checkpoint.events = Some(0)), "after zero changes"),
        (stream(|it| it.retry.attempts = Some(0)), "never tried"),
        (stream(|it| it.retry.fatal_instances = 0), "halts nothing and nobody"),
    ] {
        assert!(error.contains(cause), "{error}");
        assert!(error.starts_with("stream \""), "{error}");
    }
}
