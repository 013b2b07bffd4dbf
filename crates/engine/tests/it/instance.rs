//! Instances as a whole: joining, several streams, leaving.

use crate::support::*;

#[test]
fn heartbeats_do_not_answer_each_other() {
    let rig = Rig::new();
    let (a, _b, _c) = (rig.start("a"), rig.start("b"), rig.start("c"));
    rig.run_for(60 * SECOND);
    // One every 2.5 to 5 seconds, and what belongs to joining and taking the watch.
    let written = a.faults.records.calls("put_if");
    assert!((12..40).contains(&written), "{written} records were written in a minute");
}
