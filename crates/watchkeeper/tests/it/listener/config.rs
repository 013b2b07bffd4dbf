use watchkeeper::MultiListenerConfig;

/// What an error should say, and how to provoke it.
type Wrong = (&'static str, fn(&mut MultiListenerConfig));

#[test]
fn test_multi_listener_config_defaults() {
    let config = MultiListenerConfig::default();
    assert!(!config.enabled);
    let id = config.listener_id.strip_prefix("listener-").expect("it says what it is");
    assert_eq!((id.len(), id.matches('-').count()), (36, 4), "{id} is no UUID");
    assert_eq!(config.lease_duration_ms, 30_000);
    assert_eq!(config.health_check_interval_ms, 5_000);
    assert_eq!(config.failover_threshold_ms, 60_000);
    assert_eq!(config.max_listeners, 10);
    assert_ne!(MultiListenerConfig::default().listener_id, config.listener_id, "every instance has its own");
    config.validate().expect("the defaults are good");

    let json = serde_json::to_string(&config).expect("it can be written");
    assert_eq!(serde_json::from_str::<MultiListenerConfig>(&json).expect("and read"), config);
    let partly: MultiListenerConfig = serde_json::from_str(r#"{"enabled": true}"#).expect("the rest has defaults");
    assert_eq!((partly.enabled, partly.lease_duration_ms), (true, 30_000));
}

#[test]
fn test_multi_listener_config_validation() {
    let wrong: [Wrong; 8] = [
        ("listener_id is empty", |config| config.listener_id.clear()),
        ("contains a slash", |config| config.listener_id = "a/b".to_owned()),
        ("lease_duration_ms is below", |config| config.lease_duration_ms = 99),
        ("health_check_interval_ms is zero", |config| config.health_check_interval_ms = 0),
        ("before its next sign of life", |config| config.health_check_interval_ms = 60_000),
        ("while its lease runs", |config| config.lease_duration_ms = 60_001),
        ("max_listeners is zero", |config| config.max_listeners = 0),
        ("while its lease runs", |config| config.failover_threshold_ms = 29_999),
    ];
    for (cause, change) in wrong {
        let mut config = MultiListenerConfig::default();
        change(&mut config);
        let error = config.validate().expect_err(cause).to_string();
        assert!(error.contains(cause) && error.contains("]; "), "{error:?} should say {cause:?} and a remedy");
    }
}
