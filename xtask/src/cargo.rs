//! Calls of cargo, always from the root of the workspace.

use std::path::PathBuf;
use std::process::{Command, ExitCode};

/// The program that started us, so that the same toolchain runs everything.
fn program() -> std::ffi::OsString {
    std::env::var_os("CARGO").unwrap_or_else(|| "cargo".into())
}

/// The root of the workspace. Asked for when running: several clones may share one target folder.
fn root() -> PathBuf {
    let here = std::env::var_os("CARGO_MANIFEST_DIR").unwrap_or_else(|| env!("CARGO_MANIFEST_DIR").into());
    let mut root = PathBuf::from(here);
    root.pop();
    root
}

/// A call of cargo, as it is shown and as it is made.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct Call {
    /// Variables that are set for it.
    pub(crate) variables: Vec<(&'static str, &'static str)>,
    /// What follows `cargo`.
    pub(crate) words: Vec<String>,
}

impl Call {
    /// `cargo` with the words of `line`.
    pub(crate) fn new(line: &str) -> Self {
        Self { variables: Vec::new(), words: line.split_whitespace().map(str::to_owned).collect() }
    }

    /// The same call with a variable set.
    pub(crate) fn with(mut self, name: &'static str, value: &'static str) -> Self {
        self.variables.push((name, value));
        self
    }

    /// The line that a person would type.
    pub(crate) fn line(&self) -> String {
        let variables = self.variables.iter().map(|(name, value)| format!("{name}=\"{value}\" "));
        format!("{}cargo {}", variables.collect::<String>(), self.words.join(" "))
    }

    /// Runs it with our own input and output; the answer is its exit code.
    pub(crate) fn run(&self) -> Result<u8, String> {
        let mut command = self.command();
        let status = command.status().map_err(|error| format!("could not start cargo: {error}"))?;
        // A signal has no code; neither has a code that no shell could see.
        Ok(status.code().and_then(|code| u8::try_from(code).ok()).unwrap_or(1))
    }

    /// Whether it succeeds, without showing anything.
    pub(crate) fn succeeds(&self) -> bool {
        self.command().output().is_ok_and(|output| output.status.success())
    }

    fn command(&self) -> Command {
        let mut command = Command::new(program());
        command.args(&self.words).envs(self.variables.iter().copied()).current_dir(root());
        command
    }
}

/// The simulation as people run it: optimised, since they ask for thousands of seeds.
pub(crate) fn sim(arguments: &[String]) -> Call {
    let mut call = Call::new("run --release --quiet --package watchkeeper-sim --");
    call.words.extend_from_slice(arguments);
    call
}

/// Real processes under faults, optimised, since takeovers are timed.
pub(crate) fn chaos(arguments: &[String]) -> Call {
    let mut call = Call::new("run --release --quiet --package watchkeeper-chaos --");
    call.words.extend_from_slice(arguments);
    call
}

/// A benchmark.
pub(crate) fn bench(name: &str) -> Call {
    Call::new(&format!("run --release --quiet --package watchkeeper-bench -- {name}"))
}

/// Runs `call` and ends as it ends.
pub(crate) fn hand_over(call: &Call) -> ExitCode {
    match call.run() {
        Ok(code) => ExitCode::from(code),
        Err(cause) => {
            eprintln!("error: {cause}");
            ExitCode::FAILURE
        }
    }
}

#[cfg(test)]
mod tests {
    use super::{Call, bench, chaos, sim};

    #[test]
    fn a_call_is_shown_as_a_person_would_type_it() {
        let call = Call::new("doc --no-deps").with("RUSTDOCFLAGS", "-D warnings");
        assert_eq!(call.line(), "RUSTDOCFLAGS=\"-D warnings\" cargo doc --no-deps");
    }

    #[test]
    fn simulation_chaos_and_benchmarks_run_optimised() {
        let words = ["--seed".to_owned(), "7".to_owned()];
        assert_eq!(sim(&words).line(), "cargo run --release --quiet --package watchkeeper-sim -- --seed 7");
        assert_eq!(chaos(&words).line(), "cargo run --release --quiet --package watchkeeper-chaos -- --seed 7");
        assert_eq!(bench("engine").line(), "cargo run --release --quiet --package watchkeeper-bench -- engine");
    }
}
