//! Calls of cargo, always from the root of the workspace.

use std::path::PathBuf;
use std::process::{Command, ExitCode, ExitStatus, Stdio};

/// The program that started us, so that the same toolchain runs everything.
fn program() -> std::ffi::OsString {
    std::env::var_os("CARGO").unwrap_or_else(|| "cargo".into())
}

/// The root of the workspace. Asked for when running: several clones may share one target folder.
pub(crate) fn root() -> PathBuf {
    let here = std::env::var_os("CARGO_MANIFEST_DIR").unwrap_or_else(|| env!("CARGO_MANIFEST_DIR").into());
    let mut root = PathBuf::from(here);
    root.pop();
    root
}

/// A call of cargo, as it is shown and as it is made.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct Call {
    /// Variables that are set for it.
    pub(crate) variables: Vec<(&'static str, String)>,
    /// What follows `cargo`.
    pub(crate) words: Vec<String>,
    /// The toolchain, where it is not the one that started us.
    pub(crate) toolchain: Option<&'static str>,
}

impl Call {
    /// `cargo` with the words of `line`.
    pub(crate) fn new(line: &str) -> Self {
        let words = line.split_whitespace().map(str::to_owned).collect();
        Self { variables: Vec::new(), words, toolchain: None }
    }

    /// The same call with another toolchain, which rustup has to know.
    pub(crate) fn on(mut self, toolchain: &'static str) -> Self {
        self.toolchain = Some(toolchain);
        self
    }

    /// The same call with a variable set.
    pub(crate) fn with(mut self, name: &'static str, value: impl Into<String>) -> Self {
        self.variables.push((name, value.into()));
        self
    }

    /// The line that a person would type.
    pub(crate) fn line(&self) -> String {
        let variables = self.variables.iter().map(|(name, value)| format!("{name}=\"{value}\" "));
        let toolchain = self.toolchain.map(|toolchain| format!("+{toolchain} ")).unwrap_or_default();
        format!("{}cargo {toolchain}{}", variables.collect::<String>(), self.words.join(" "))
    }

    /// Runs it with our own input and output; the answer is its exit code.
    pub(crate) fn run(&self) -> Result<u8, String> {
        let mut command = self.command();
        let status = command.status().map_err(|error| format!("could not start cargo: {error}"))?;
        Ok(code(status))
    }

    /// Whether it succeeds, without showing anything.
    pub(crate) fn succeeds(&self) -> bool {
        self.command().output().is_ok_and(|output| output.status.success())
    }

    /// Runs it and gives what it printed on its output beside its exit code; what it says otherwise is shown.
    pub(crate) fn answer(&self) -> Result<(u8, String), String> {
        let output = self.command().stderr(Stdio::inherit()).output();
        let output = output.map_err(|error| format!("could not start cargo: {error}"))?;
        Ok((code(output.status), String::from_utf8_lossy(&output.stdout).into_owned()))
    }

    fn command(&self) -> Command {
        let mut command = match self.toolchain {
            None => without_our_own(Command::new(program())),
            Some(toolchain) => {
                let mut rustup = without_our_own(Command::new("rustup"));
                rustup.args(["run", toolchain, "cargo"]).env_remove("CARGO").env_remove("RUSTUP_TOOLCHAIN");
                rustup
            }
        };
        command.args(&self.words).envs(self.variables.iter().map(|(name, value)| (name, value))).current_dir(root());
        command
    }
}

/// The code that a shell would see. A signal has none.
fn code(status: ExitStatus) -> u8 {
    status.code().and_then(|code| u8::try_from(code).ok()).unwrap_or(1)
}

/// The command without what cargo set for this program. Build scripts ask for some of it, so that cargo would build their packages
/// again, and all that stand on them, whenever a call from here follows one from a shell.
pub(crate) fn without_our_own(mut command: Command) -> Command {
    let ours = |name: &str| {
        ["CARGO_PKG_", "CARGO_MANIFEST_", "CARGO_CRATE_", "CARGO_BIN_"].iter().any(|begin| name.starts_with(begin))
    };
    for (name, _) in std::env::vars_os() {
        if name.to_str().is_some_and(ours) {
            command.env_remove(name);
        }
    }
    command
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

/// The shipped program is built by itself, as users get it: built together with chaos it would contain the mutants.
pub(crate) fn chaos_program(arguments: &[String]) -> [Call; 2] {
    [Call::new("build --release --quiet --package watchkeeper-cli"), chaos(arguments)]
}

/// A benchmark.
pub(crate) fn bench(name: &str) -> Call {
    Call::new(&format!("run --release --quiet --package watchkeeper-bench -- {name}"))
}

/// Runs `calls` up to the first that fails, and ends as that ends.
pub(crate) fn hand_over_in_turn(calls: &[Call]) -> ExitCode {
    match in_turn(calls) {
        Ok(code) => ExitCode::from(code),
        Err(cause) => {
            eprintln!("error: {cause}");
            ExitCode::FAILURE
        }
    }
}

/// Runs `calls` up to the first that fails; its exit code, or that of the last.
pub(crate) fn in_turn(calls: &[Call]) -> Result<u8, String> {
    for call in calls {
        let code = call.run()?;
        if code != 0 {
            return Ok(code);
        }
    }
    Ok(0)
}

/// Runs `call` and ends as it ends.
pub(crate) fn hand_over(call: &Call) -> ExitCode {
    hand_over_in_turn(std::slice::from_ref(call))
}

#[cfg(test)]
mod tests {
    use std::process::Command;

    use super::{Call, bench, chaos, sim, without_our_own};

    #[test]
    fn what_cargo_set_for_this_program_is_not_passed_on() {
        assert!(std::env::var_os("CARGO_MANIFEST_DIR").is_some(), "run by cargo");
        let command = without_our_own(Command::new("env"));
        let removed = command.get_envs().filter(|(_, value)| value.is_none());
        let removed: Vec<_> = removed.filter_map(|(name, _)| name.to_str()).collect();
        assert!(removed.contains(&"CARGO_MANIFEST_DIR"), "{removed:?}");
        assert!(!removed.contains(&"CARGO_TARGET_DIR") && !removed.contains(&"CARGO_HOME"), "{removed:?}");
    }

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
