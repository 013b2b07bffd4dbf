//! The tools that the tests need beside cargo: found, or installed.

use std::path::Path;
use std::process::{Command, Stdio};

use crate::cargo::Call;
use crate::macos;

/// Parts of the toolchain that a minimal installation lacks, with the cargo command that each brings.
const COMPONENTS: [(&str, &str); 2] = [("rustfmt", "fmt"), ("clippy", "clippy")];

/// The oldest Rust that the library and the program are built with.
pub(crate) const LOWEST_RUST: &str = env!("CARGO_PKG_RUST_VERSION");

/// Installs what is missing. Without anything missing nothing is run but the questions.
pub(crate) fn install_missing() -> Result<(), String> {
    let missing: Vec<&str> = COMPONENTS
        .iter()
        .filter(|(_, command)| !Call::new(&format!("{command} --version")).succeeds())
        .map(|(component, _)| *component)
        .collect();
    if !missing.is_empty() {
        add(&missing)?;
    }
    if !Call::new("--version").on(LOWEST_RUST).succeeds() {
        add_toolchain(LOWEST_RUST)?;
    }
    if !has_target(macos::TARGET) {
        add_target(macos::TARGET)?;
    }
    if !has_c_compiler() {
        // Only a note: the linker may be another one. If it is not, the next step says the same in many lines.
        eprintln!("note: no C compiler (cc) was found; if linking fails, install one (gcc or clang)");
    }
    Ok(())
}

fn add(components: &[&str]) -> Result<(), String> {
    let names = components.join(" ");
    println!("installing {names}");
    let mut rustup = Command::new("rustup");
    rustup.args(["component", "add"]).args(components);
    match rustup.status() {
        Ok(status) if status.success() => Ok(()),
        Ok(_) => Err(format!("{names} missing, and `rustup component add {names}` failed")),
        Err(_) => Err(format!("{names} missing, and there is no rustup: install with the toolchain's own means")),
    }
}

fn add_toolchain(version: &str) -> Result<(), String> {
    println!("installing Rust {version}, the oldest that has to build the library and the program");
    let status = Command::new("rustup")
        .args(["toolchain", "install", version, "--profile", "minimal", "--no-self-update"])
        .status();
    match status {
        Ok(status) if status.success() => Ok(()),
        Ok(_) => Err(format!("`rustup toolchain install {version}` failed")),
        Err(_) => Err(format!("Rust {version} is missing, and there is no rustup to install it with")),
    }
}

/// Whether the toolchain that runs everything has the standard library of `target`.
fn has_target(target: &str) -> bool {
    let sysroot = Command::new("rustc").args(["--print", "target-libdir", "--target", target]).output();
    sysroot.is_ok_and(|output| Path::new(String::from_utf8_lossy(&output.stdout).trim()).is_dir())
}

fn add_target(target: &str) -> Result<(), String> {
    println!("installing the standard library of {target}, for which the library has to compile");
    match Command::new("rustup").args(["target", "add", target]).status() {
        Ok(status) if status.success() => Ok(()),
        Ok(_) => Err(format!("`rustup target add {target}` failed")),
        Err(_) => {
            Err(format!("the standard library of {target} is missing, and there is no rustup to install it with"))
        }
    }
}

fn has_c_compiler() -> bool {
    let chosen = std::env::var("CC").ok();
    let usual = ["cc", "gcc", "clang"].map(str::to_owned);
    chosen.into_iter().chain(usual).any(|compiler| answers(&compiler))
}

fn answers(program: &str) -> bool {
    // `CC` may carry arguments.
    let Some(program) = program.split_whitespace().next() else { return false };
    let mut command = Command::new(program);
    command.arg("--version").stdin(Stdio::null()).stdout(Stdio::null()).stderr(Stdio::null());
    command.status().is_ok_and(|status| status.success())
}
