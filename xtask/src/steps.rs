//! `cargo xtask test`: what has to pass before anything lands.

use std::process::ExitCode;
use std::time::{Duration, Instant};

use crate::cargo::{Call, in_turn};
use crate::{macos, programs, servers, tools};

/// How many seeds every test run simulates; long runs are a command of their own.
const SEEDS: u32 = 100;

/// How many faults every test run strikes at each kind of sink; many are a command of their own.
const FAULTS: u32 = 6;

/// How many faults every test run strikes at each part of `chaos program`.
const PROGRAM_FAULTS: u32 = 3;

/// How many random histories every test run copies; many are a command of their own.
const HISTORIES: u32 = 10;

/// One thing that has to pass.
#[derive(Debug)]
struct Step {
    name: &'static str,
    work: Work,
    /// Whether `--quick` leaves it out.
    slow: bool,
}

/// What a step does.
#[derive(Debug)]
enum Work {
    Call(Call),
    /// Calls that need each other, one after the other.
    InTurn(Vec<Call>),
    /// Calls of `cargo test`, whose programs then run beside each other.
    Tests(Vec<Call>),
}

impl Work {
    /// What a person would type for it.
    fn line(&self) -> String {
        match self {
            Self::Call(call) => call.line(),
            Self::InTurn(calls) | Self::Tests(calls) => calls.iter().map(Call::line).collect::<Vec<_>>().join(" && "),
        }
    }

    fn run(&self) -> Result<u8, String> {
        match self {
            Self::Call(call) => call.run(),
            Self::InTurn(calls) => in_turn(calls),
            Self::Tests(calls) => programs::build_and_run(calls),
        }
    }
}

/// All steps, the quickest to fail first.
fn steps() -> Vec<Step> {
    let step = |name, line: &str| Step { name, work: Work::Call(Call::new(line)), slow: false };
    let slow = |name, call| Step { name, work: Work::Call(call), slow: true };
    let seeds = format!("run --quiet --package watchkeeper-sim -- --seeds {SEEDS}");
    let docs = Call::new("doc --no-deps --workspace").with("RUSTDOCFLAGS", "-D warnings");
    // The engine once more, as it is with metrics, and what the facade records with them: a program that exists only then.
    let tests = [
        "test --workspace",
        "test -p watchkeeper-engine --features metrics",
        "test -p watchkeeper --features metrics --test listener_metrics",
    ];
    // The shipped program is built by itself, as users get it.
    let with_program = |name, line: String| {
        let lines =
            ["build --quiet --package watchkeeper-cli", &format!("run --quiet --package watchkeeper-chaos -- {line}")];
        Step { name, work: Work::InTurn(lines.map(Call::new).to_vec()), slow: false }
    };
    vec![
        step("format", "fmt --all --check"),
        step("clippy", "clippy --workspace --all-targets -- -D warnings"),
        // The workspace as a whole has the engine's `mutants` on, for the simulation. This is what users build.
        step("clippy, as shipped", "clippy -p watchkeeper-engine -p watchkeeper -- -D warnings"),
        step(
            "clippy, with metrics",
            "clippy -p watchkeeper-engine -p watchkeeper --all-targets \
             --features watchkeeper-engine/metrics,watchkeeper/metrics -- -D warnings",
        ),
        // What the manifests state, and clippy sees of it only what concerns the standard library.
        slow("lowest Rust", Call::new("check -p watchkeeper -p watchkeeper-cli").on(tools::LOWEST_RUST)),
        // Nothing is linked, so this needs no macOS.
        slow("macOS", macos::check()),
        slow("docs", docs),
        Step { name: "tests", work: Work::Tests(tests.map(Call::new).to_vec()), slow: false },
        step("examples in the docs", "test --workspace --doc --quiet"),
        step("simulation", &seeds),
        step("simulation, fences only", &format!("{seeds} --no-self-fencing")),
        step("chaos on SQLite", &format!("run --quiet --package watchkeeper-chaos -- sqlite --faults {FAULTS}")),
        step("chaos on MongoDB", &format!("run --quiet --package watchkeeper-chaos -- mongodb --faults {FAULTS}")),
        step("chaos on PostgreSQL", &format!("run --quiet --package watchkeeper-chaos -- postgres --faults {FAULTS}")),
        with_program("chaos on the program", format!("program --faults {PROGRAM_FAULTS}")),
        with_program("random histories", format!("histories --seeds {HISTORIES}")),
        slow("mutants", Call::new("run --quiet --package watchkeeper-sim -- --mutants")),
        // Its bars on memory and on what hangs hold in any build.
        slow("bars of the engine", Call::new("run --quiet --package watchkeeper-bench -- engine --quick")),
    ]
}

/// How a step ended, and after how long.
#[derive(Debug, Clone, Copy)]
enum Outcome {
    Passed(Duration),
    Failed(Duration),
    NotRun,
}

/// Runs the steps up to the first that fails.
pub(crate) fn test(quick: bool) -> ExitCode {
    if let Err(cause) = tools::install_missing().and_then(|()| servers::install(&[])) {
        eprintln!("error: {cause}");
        return ExitCode::FAILURE;
    }
    let steps: Vec<Step> = steps().into_iter().filter(|step| !(quick && step.slow)).collect();
    let begun = Instant::now();
    let mut failed = None;
    let mut outcomes = Vec::new();
    for (at, step) in steps.iter().enumerate() {
        let outcome = if failed.is_some() { Outcome::NotRun } else { run(step, at + 1, steps.len()) };
        if matches!(outcome, Outcome::Failed(_)) {
            failed = Some(step);
        }
        outcomes.push((step.name, outcome));
    }
    print!("\n{}", table(&outcomes, begun.elapsed()));
    let Some(step) = failed else { return ExitCode::SUCCESS };
    eprintln!("error: `{}` failed; run it alone with: {}", step.name, step.work.line());
    ExitCode::FAILURE
}

fn run(step: &Step, number: usize, of: usize) -> Outcome {
    println!("\n[{number}/{of}] {}: {}", step.name, step.work.line());
    let begun = Instant::now();
    let answer = step.work.run();
    let took = begun.elapsed();
    match answer {
        Ok(0) => {
            println!("[{number}/{of}] {}: passed in {:.1} s", step.name, took.as_secs_f64());
            Outcome::Passed(took)
        }
        Ok(code) => {
            println!("[{number}/{of}] {}: failed (exit code {code})", step.name);
            Outcome::Failed(took)
        }
        Err(cause) => {
            println!("[{number}/{of}] {}: {cause}", step.name);
            Outcome::Failed(took)
        }
    }
}

/// The last thing that is shown: a line per step and the total.
fn table(outcomes: &[(&str, Outcome)], total: Duration) -> String {
    let line = |name: &str, word: &str, seconds: String| format!("{name:<24} {word:<8} {seconds:>9}\n");
    let seconds = |took: Duration| format!("{:.1} s", took.as_secs_f64());
    let mut text = String::new();
    for (name, outcome) in outcomes {
        text += &match outcome {
            Outcome::Passed(took) => line(name, "passed", seconds(*took)),
            Outcome::Failed(took) => line(name, "FAILED", seconds(*took)),
            Outcome::NotRun => line(name, "not run", "-".to_owned()),
        };
    }
    text + &line("total", "", seconds(total))
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use super::{Outcome, steps, table};

    #[test]
    fn the_table_has_a_line_per_step_and_the_total() {
        let tenth = Duration::from_millis(100);
        let outcomes =
            [("format", Outcome::Passed(tenth)), ("clippy", Outcome::Failed(tenth * 2)), ("docs", Outcome::NotRun)];
        let expected = "\
format                   passed       0.1 s
clippy                   FAILED       0.2 s
docs                     not run          -
total                                 0.3 s
";
        assert_eq!(table(&outcomes, tenth * 3), expected);
    }

    #[test]
    fn quick_leaves_out_what_is_slow_only() {
        let slow: Vec<_> = steps().iter().filter(|step| step.slow).map(|step| step.name).collect();
        assert_eq!(slow, ["lowest Rust", "macOS", "docs", "mutants", "bars of the engine"]);
    }
}
