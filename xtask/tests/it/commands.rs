//! The program as a person calls it.

use std::process::{Command, Output};

fn xtask(words: &[&str]) -> Output {
    Command::new(env!("CARGO_BIN_EXE_xtask")).args(words).output().expect("xtask starts")
}

fn text(bytes: &[u8]) -> String {
    String::from_utf8(bytes.to_vec()).expect("output is text")
}

#[test]
fn help_lists_every_command() {
    let output = xtask(&["help"]);
    assert!(output.status.success());
    let shown = text(&output.stdout);
    for command in ["test ", "sim ", "servers ", "chaos sqlite ", "bench engine ", "bench failover ", "help "] {
        assert!(shown.contains(&format!("\n  {command}")), "{command} is missing in:\n{shown}");
    }
}

#[test]
fn a_wrong_call_names_its_cause_lists_the_commands_and_exits_with_2() {
    for (words, cause) in [
        (&["fly"][..], "error: there is no command `fly`"),
        (&["test", "--slow"], "error: `test` does not take `--slow`"),
        (&["sim", "--seed", "many"], "error: `--seed` needs a whole number, not `many`"),
    ] {
        let output = xtask(words);
        assert_eq!(output.status.code(), Some(2), "{words:?}");
        let shown = text(&output.stderr);
        assert_eq!(shown.lines().next(), Some(cause));
        assert!(shown.contains("Usage: cargo xtask <command>"), "{shown}");
        assert!(output.stdout.is_empty(), "errors go to the error output");
    }
}
