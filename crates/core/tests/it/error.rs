//! Errors as people see them.

use std::error::Error as _;

use watchkeeper_core::error::{chain_text, is_corrupt};
use watchkeeper_core::{Component, Error, ErrorKind};

#[test]
fn an_error_shows_cause_code_and_remedy_in_one_line() {
    let error = Error::config("the lease is too short");
    assert_eq!(error.to_string(), "the lease is too short [WK-CONFIG]");
    let error = error.remedy("set it to 2s or more");
    assert_eq!(error.to_string(), "the lease is too short [WK-CONFIG]; set it to 2s or more");
    assert_eq!(error.message(), "the lease is too short");
}

#[test]
fn of_a_message_that_is_very_long_the_beginning_is_kept() {
    let error = Error::rejected(format!("duplicate key {}", "ä".repeat(100_000)));
    assert!(error.message().starts_with("duplicate key ää") && error.message().ends_with("ä… (200014 bytes)"));
    assert!((4_000..4_200).contains(&error.message().len()), "{}", error.message().len());
    assert_eq!(Error::rejected("x".repeat(4_096)).message().len(), 4_096);
}

#[test]
fn an_error_names_the_component_whose_call_failed() {
    let sink = Component::Sink("events".into());
    let error = Error::unavailable("no answer").raised_by(&sink).raised_by(&Component::Checkpoints);
    assert_eq!(error.component(), Some(&sink), "the one nearest to the call stays");
    assert_eq!(error.to_string(), "sink \"events\": no answer [WK-UNAVAILABLE]");
    assert_eq!(error.attributed_message(), "sink \"events\": no answer");
    assert_eq!(Error::internal("bare").attributed_message(), "bare");
}

#[test]
fn a_program_whose_main_returns_an_error_shows_a_line_for_people() {
    let error = Error::config("the lease is too short").remedy("set it to 2s or more");
    assert_eq!(format!("{error:?}"), "the lease is too short [WK-CONFIG]; set it to 2s or more");
    let error = Error::unavailable("no connection").caused_by(std::io::Error::other("connection reset"));
    assert_eq!(format!("{error:?}"), "no connection [WK-UNAVAILABLE]: connection reset");
    assert!(format!("{error:#?}").contains("kind: Unavailable"), "{error:#?}");
}

#[test]
fn the_native_error_lies_below() {
    assert!(Error::internal("bare").source().is_none());
    let native = std::io::Error::other("connection reset");
    let error = Error::unavailable("no connection").caused_by(native);
    assert_eq!(error.source().expect("it was given").to_string(), "connection reset");
    assert_eq!(error.to_string(), "no connection [WK-UNAVAILABLE]", "the native text is not repeated");
}

#[test]
fn what_cannot_be_decoded_is_recognised_below_the_error_and_keeps_its_native_error() {
    for error in [Error::corrupt("a row"), Error::corrupt("a row").caused_by(std::fmt::Error)] {
        assert!(is_corrupt(&error) && is_corrupt(error.source().expect("it shows what it is")));
    }
    let native = Error::corrupt("a row").caused_by(std::fmt::Error);
    assert!(native.native::<std::fmt::Error>().is_some() && native.native::<std::io::Error>().is_none());
    assert!(Error::unavailable("away").caused_by(std::fmt::Error).native::<std::fmt::Error>().is_some());
    assert_eq!(chain_text(&native), format!("a row [WK-CORRUPT]: {}", std::fmt::Error));
    assert!(!is_corrupt(&Error::internal("a bug")) && !is_corrupt(&std::fmt::Error));
}

#[test]
fn an_error_that_names_itself_as_its_source_is_followed_to_an_end() {
    #[derive(Debug)]
    struct Endless;
    impl std::fmt::Display for Endless {
        fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
            f.write_str("endless")
        }
    }
    impl std::error::Error for Endless {
        fn source(&self) -> Option<&(dyn std::error::Error + 'static)> {
            Some(self)
        }
    }
    assert!(!is_corrupt(&Endless));
    assert_eq!(chain_text(&Endless), "endless");
}

#[test]
fn every_kind_has_a_constructor_and_a_code_of_its_own() {
    for (error, kind, code) in [
        (Error::config(""), ErrorKind::Config, "WK-CONFIG"),
        (Error::new(ErrorKind::Denied, ""), ErrorKind::Denied, "WK-DENIED"),
        (Error::unavailable(""), ErrorKind::Unavailable, "WK-UNAVAILABLE"),
        (Error::unknown(""), ErrorKind::Unknown, "WK-UNKNOWN"),
        (Error::fenced(""), ErrorKind::Fenced, "WK-FENCED"),
        (Error::position_lost(""), ErrorKind::PositionLost, "WK-POSITION-LOST"),
        (Error::corrupt(""), ErrorKind::Corrupt, "WK-CORRUPT"),
        (Error::rejected(""), ErrorKind::Rejected, "WK-REJECTED"),
        (Error::internal(""), ErrorKind::Internal, "WK-INTERNAL"),
    ] {
        assert_eq!((error.kind(), error.kind().code()), (kind, code));
    }
}
