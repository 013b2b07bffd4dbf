//! Errors as people see them.

use std::error::Error as _;

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
fn an_error_names_the_component_whose_call_failed() {
    let sink = Component::Sink("events".into());
    let error = Error::unavailable("no answer").raised_by(&sink).raised_by(&Component::Checkpoints);
    assert_eq!(error.component(), Some(&sink), "the one nearest to the call stays");
    assert_eq!(error.to_string(), "sink \"events\": no answer [WK-UNAVAILABLE]");
    assert_eq!(error.attributed_message(), "sink \"events\": no answer");
    assert_eq!(Error::internal("bare").attributed_message(), "bare");
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
