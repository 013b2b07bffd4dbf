use super::State;

/// The page that people read has the words that `status` prints.
#[test]
fn every_state_is_in_the_guide() {
    let page = include_str!("../../../../docs/guide/troubleshooting.md");
    let states = [
        State::Running,
        State::Recovering,
        State::Failing,
        State::Pausing,
        State::Paused,
        State::Moving,
        State::Halted,
        State::Vacant,
        State::Unmanned,
    ];
    for state in states {
        let heading = |line: &str| line.starts_with("## ") && line.contains(&format!("`{state}`"));
        assert!(page.lines().any(heading), "no heading for {state}");
    }
}
