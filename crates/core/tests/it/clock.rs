//! Moments, and the clock of a running program.

use std::time::Duration;

use watchkeeper_core::{BootClock, Clock, Moment};

#[test]
fn moments_saturate_instead_of_wrapping() {
    let (early, late) = (Moment::from_nanos(5), Moment::from_nanos(9));
    assert_eq!(late.since(early), Duration::from_nanos(4));
    assert_eq!(early.since(late), Duration::ZERO);
    assert_eq!(early + Duration::MAX, Moment::from_nanos(u64::MAX));
    assert_eq!(early - Duration::from_secs(1), Moment::from_nanos(0));
}

#[test]
fn the_boot_clock_never_goes_back() {
    let moments: Vec<Moment> = (0..10_000).map(|_| BootClock.now()).collect();
    assert!(moments.is_sorted());
    assert!(moments[0].nanos() > 0);
}

#[test]
fn the_wall_clock_shows_this_century() {
    assert!(BootClock.wall_millis() > 1_700_000_000_000, "milliseconds, not seconds");
}

#[tokio::test]
async fn a_wait_is_never_early() {
    for micros in [0, 1, 300, 3_000] {
        let until = BootClock.now() + Duration::from_micros(micros);
        BootClock.sleep_until(until).await;
        assert!(BootClock.now() >= until, "early for {micros} µs");
    }
}

#[tokio::test]
async fn a_wait_for_the_past_is_over_at_once() {
    let past = BootClock.now() - Duration::from_millis(1);
    assert!(futures_util::poll!(BootClock.sleep_until(past)).is_ready());
}
