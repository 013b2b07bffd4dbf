//! The bars of MongoDB.

use crate::speed::consumer::Consumer;
use crate::speed::verdict::{self, Bar, Ratio, ResourceLimit};
use crate::speed::{Measured, median};

/// Ours, as a multiple of another's rate in the same round.
const RATIOS: [Ratio; 5] = [
    (Consumer::Watchkeeper, Consumer::RawBatches, 0.95),
    (Consumer::BusyWatchkeeper, Consumer::BusyLoop, 1.5),
    (Consumer::Lines, Consumer::Watchkeeper, 0.85),
    (Consumer::Watchkeeper, Consumer::Node, 1.8),
    (Consumer::Watchkeeper, Consumer::Debezium, 4.0),
];

const MOST: ResourceLimit = ResourceLimit { by: Consumer::Watchkeeper, cpu: 1.5, megabytes: 45.0 };

/// How much later than to the bare driver changes may come, in milliseconds.
const LATER_MAX: f64 = 0.3;

/// Prints medians and bars; whether all bars were kept.
pub(super) fn report(measured: &Measured, late: &[(f64, f64)]) -> bool {
    verdict::print_table(measured);
    let (bare, ours) = (median(late.iter().map(|late| late.0)), median(late.iter().map(|late| late.1)));
    println!("live, ms late: driver {bare:.2}, Watchkeeper {ours:.2}\n");
    verdict::judge(&bars(measured, late))
}

fn bars(measured: &Measured, late: &[(f64, f64)]) -> Vec<Bar> {
    let mut bars = verdict::ratios(measured, &RATIOS);
    bars.extend(verdict::used(measured, &MOST));
    let later = median(late.iter().map(|(bare, ours)| ours - bare));
    bars.push(Bar::at_most(format!("live, later than the driver by {later:.2} ms"), later, LATER_MAX));
    bars
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::speed::verdict::figures;

    fn measured(ours: &[f64], bare: &[f64]) -> Measured {
        let busy = figures(&[1.0]);
        vec![
            (Consumer::RawBatches, figures(bare)),
            (Consumer::Watchkeeper, figures(ours)),
            (Consumer::Lines, figures(ours)),
            (Consumer::BusyLoop, busy),
            (Consumer::BusyWatchkeeper, figures(&[2.0])),
        ]
    }

    fn missed(measured: &Measured, late: &[(f64, f64)]) -> Vec<String> {
        verdict::missed(bars(measured, late))
    }

    #[test]
    fn rates_are_compared_within_their_round() {
        // The machine was slow in the first round: by medians alone ours would be far behind.
        assert_eq!(missed(&measured(&[10.0, 50.0, 51.0], &[10.0, 52.0, 52.0]), &[(1.0, 1.1)]), [""; 0]);
        let slower = missed(&measured(&[9.0, 45.0, 46.0], &[10.0, 52.0, 52.0]), &[(1.0, 1.1)]);
        assert_eq!(slower.len(), 1);
        assert!(slower[0].contains("0.88 x (0.87 to 0.90), at least 0.95"), "{slower:?}");
    }

    #[test]
    fn what_was_not_measured_keeps_no_bar() {
        let nothing = missed(&measured(&[], &[]), &[]);
        assert_eq!(nothing.len(), 5, "{nothing:?}");
    }

    #[test]
    fn live_differences_are_paired() {
        let good = measured(&[50.0], &[50.0]);
        assert_eq!(missed(&good, &[(1.0, 1.2), (9.0, 9.3), (2.0, 2.1)]), [""; 0]);
        assert_eq!(missed(&good, &[(1.0, 1.5), (9.0, 9.1), (2.0, 2.6)]).len(), 1);
    }
}
