//! `cargo xtask rusqlite`: the tests of the SQLite backend with both ends of the range of `rusqlite` that its users may choose from.

use std::path::{Path, PathBuf};
use std::process::ExitCode;

use crate::cargo::{Call, root};

/// What a copy of the workspace consists of: what is changed is copied, the rest is linked to.
const COPIED: [&str; 2] = ["Cargo.toml", "Cargo.lock"];
const LINKED: [&str; 3] = ["crates", "xtask", "clippy.toml"];

/// Tests with the lowest version of the range, then with the newest below its end.
pub(crate) fn test_both_ends() -> ExitCode {
    match ends().and_then(|ends| ends.iter().try_for_each(test)) {
        Ok(()) => ExitCode::SUCCESS,
        Err(cause) => {
            eprintln!("error: {cause}");
            ExitCode::FAILURE
        }
    }
}

/// An end of the range.
#[derive(Debug, PartialEq, Eq)]
struct End {
    name: &'static str,
    /// What selects it. Without a version cargo takes the newest one of the range.
    version: Option<String>,
}

fn ends() -> Result<[End; 2], String> {
    let manifest = read(&root().join("Cargo.toml"))?;
    let lowest = lowest(&manifest).ok_or("Cargo.toml has no range of rusqlite that begins with `>=`")?;
    Ok([End { name: "lowest", version: Some(lowest) }, End { name: "newest", version: None }])
}

/// The lowest version that `rusqlite = { version = ">=0.32, <0.42" }` allows.
fn lowest(manifest: &str) -> Option<String> {
    let line = manifest.lines().find(|line| line.starts_with("rusqlite = "))?;
    let version = line.split_once("\">=")?.1.split([',', '"']).next()?.trim();
    let numbers = version.split('.').count();
    Some(version.to_owned() + &".0".repeat(3_usize.checked_sub(numbers)?))
}

fn test(end: &End) -> Result<(), String> {
    let copy = copy(end.name)?;
    let manifest = copy.join("Cargo.toml").display().to_string();
    let on_copy = |line: &str| {
        let mut call = Call::new(line).with("CARGO_TARGET_DIR", copy.join("target").display().to_string());
        call.words.extend(["--manifest-path".to_owned(), manifest.clone()]);
        call
    };
    let mut select = on_copy("update --package rusqlite");
    if let Some(version) = &end.version {
        select.words.extend(["--precise".to_owned(), version.clone()]);
    }
    for call in [select, on_copy("test --package watchkeeper-sqlite")] {
        println!("\n[{} rusqlite] {}", end.name, call.line());
        match call.run()? {
            0 => {}
            code => return Err(format!("with the {} rusqlite it ended with exit code {code}", end.name)),
        }
    }
    println!("\nwatchkeeper-sqlite passes with rusqlite {}", chosen(&read(&copy.join("Cargo.lock"))?));
    Ok(())
}

/// The version in the text of a `Cargo.lock`.
fn chosen(lock: &str) -> &str {
    let after = lock.split_once("name = \"rusqlite\"\nversion = \"").map_or("", |(_, after)| after);
    after.split('"').next().unwrap_or("")
}

/// The workspace with a `Cargo.lock` of its own, in a folder of this name inside the target folder.
fn copy(name: &str) -> Result<PathBuf, String> {
    let target = std::env::var_os("CARGO_TARGET_DIR").map_or_else(|| root().join("target"), PathBuf::from);
    let copy = root().join(target).join("rusqlite").join(name);
    let named = |error: std::io::Error| format!("{}: {error}", copy.display());
    std::fs::create_dir_all(&copy).map_err(named)?;
    for file in COPIED {
        std::fs::copy(root().join(file), copy.join(file)).map_err(named)?;
    }
    for file in LINKED {
        let link = copy.join(file);
        // Another clone with the same target folder may have left one of its own.
        let _ = std::fs::remove_file(&link);
        std::os::unix::fs::symlink(root().join(file), &link).map_err(named)?;
    }
    Ok(copy)
}

fn read(path: &Path) -> Result<String, String> {
    std::fs::read_to_string(path).map_err(|error| format!("{}: {error}", path.display()))
}

#[cfg(test)]
mod tests {
    use super::{chosen, ends, lowest};

    #[test]
    fn the_lowest_version_is_that_of_the_manifest() {
        let line = |version: &str| format!("other = \"1\"\nrusqlite = {{ version = \"{version}\" }}\n");
        assert_eq!(lowest(&line(">=0.32, <0.42")).as_deref(), Some("0.32.0"));
        assert_eq!(lowest(&line(">=0.32.1")).as_deref(), Some("0.32.1"));
        assert_eq!(lowest(&line("0.41")), None);
        assert!(ends().expect("the workspace has a range")[0].version.is_some());
    }

    #[test]
    fn the_chosen_version_is_that_of_the_lock_file() {
        assert_eq!(chosen("[[package]]\nname = \"rusqlite\"\nversion = \"0.32.1\"\nsource = \"x\""), "0.32.1");
    }
}
