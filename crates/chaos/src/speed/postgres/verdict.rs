//! The bars of PostgreSQL.

use super::burden::{self, Load, Measurement};
use crate::speed::consumer::Consumer;
use crate::speed::verdict::{self, Bar, Ratio, ResourceLimit};
use crate::speed::{Measured, median};

/// Ours, as a multiple of another's rate in the same round.
const RATIOS: [Ratio; 3] = [
    (Consumer::Replication, Consumer::RecvLogical, 1.2),
    (Consumer::Replication, Consumer::PostgresDebezium, 4.5),
    (Consumer::ChangeLog, Consumer::Poll, 0.7),
];

const MOST: ResourceLimit = ResourceLimit { by: Consumer::Replication, cpu: 1.3, megabytes: 30.0 };

/// How late changes may come, in milliseconds.
const LATE_MAX: f64 = 3.0;

/// Prints medians and bars; whether all bars were kept.
pub(super) fn report(measured: &Measured, late: &[(f64, f64)], burden: &[(&'static Load, Measurement)]) -> bool {
    verdict::print_table(measured);
    println!("not measured: supabase/etl, which is not on crates.io\n");
    let mut bars = bars(measured, late);
    bars.extend(burden::bars(burden));
    verdict::judge(&bars)
}

fn bars(measured: &Measured, late: &[(f64, f64)]) -> Vec<Bar> {
    let mut bars = verdict::ratios(measured, &RATIOS);
    bars.extend(verdict::used(measured, &MOST));
    let (replication, log) = (median(late.iter().map(|late| late.0)), median(late.iter().map(|late| late.1)));
    for (source, late) in [("replication", replication), ("change log", log)] {
        bars.push(Bar::at_most(format!("live, {source} late by {late:.2} ms"), late, LATE_MAX));
    }
    bars
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::speed::verdict::figures;

    fn measured(replication: &[f64], received: &[f64]) -> Measured {
        vec![
            (Consumer::Replication, figures(replication)),
            (Consumer::RecvLogical, figures(received)),
            (Consumer::ChangeLog, figures(&[7.0])),
            (Consumer::Poll, figures(&[10.0])),
        ]
    }

    fn missed(measured: &Measured, late: &[(f64, f64)]) -> Vec<String> {
        verdict::missed(bars(measured, late))
    }

    #[test]
    fn peers_that_were_left_out_have_no_bar() {
        let with_peers = |mut measured: Measured| {
            measured.push((Consumer::PostgresDebezium, Vec::new()));
            measured
        };
        let good = measured(&[12.0], &[10.0]);
        assert_eq!(missed(&good, &[(1.0, 2.0)]), [""; 0]);
        assert_eq!(missed(&with_peers(good), &[(1.0, 2.0)]).len(), 1, "it was not left out and tells nothing");
    }

    #[test]
    fn each_source_has_its_bar_of_lateness() {
        let good = measured(&[12.0], &[10.0]);
        assert_eq!(missed(&good, &[(1.0, 3.5)]), ["live, change log late by 3.50 ms, at most 3"]);
        assert_eq!(missed(&good, &[]).len(), 2, "nothing was measured");
    }

    #[test]
    fn slower_than_asked_for_is_missed() {
        assert_eq!(missed(&measured(&[11.9], &[10.0]), &[(1.0, 1.0)]).len(), 1);
    }
}
