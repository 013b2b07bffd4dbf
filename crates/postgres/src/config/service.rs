//! Service files: parameters of connections under a name.

use std::path::{Path, PathBuf};

use watchkeeper_core::{Error, Result};

use super::address::{Parameters, require_known};
use super::environment::Environment;

/// The section of a service in the user's file, else in the system's.
pub(super) fn service_of(service: &str, named: Option<String>, around: &dyn Environment) -> Result<Parameters> {
    let own = named.map(PathBuf::from);
    let own = own.or_else(|| Some(around.home()?.join(".pg_service.conf")));
    let system = around.variable("PGSYSCONFDIR").map_or("/etc/postgresql-common".into(), PathBuf::from);
    for file in own.into_iter().chain([system.join("pg_service.conf")]) {
        let Ok(text) = std::fs::read_to_string(&file) else { continue };
        if let Some(found) = section(&text, service, &file)? {
            return Ok(found);
        }
    }
    Err(Error::config(format!("the service {service:?} stands in no service file"))
        .remedy("write it into ~/.pg_service.conf, or name the file in PGSERVICEFILE"))
}

fn section(text: &str, service: &str, file: &Path) -> Result<Option<Parameters>> {
    let mut found: Option<Parameters> = None;
    for line in text.lines().map(str::trim).filter(|line| !line.is_empty() && !line.starts_with('#')) {
        if let Some(name) = line.strip_prefix('[').and_then(|rest| rest.strip_suffix(']')) {
            if found.is_some() {
                break;
            }
            found = (name == service).then(Parameters::new);
        } else if let Some(found) = &mut found {
            let wrong = || Error::config(format!("{}: a line of [{service}] has no `=`", file.display()));
            let (name, value) = line.split_once('=').ok_or_else(|| wrong().remedy("write name=value"))?;
            require_known(name.trim()).map_err(|error| error.at(file.display()))?;
            found.entry(name.trim().to_owned()).or_insert_with(|| value.trim().to_owned());
        }
    }
    Ok(found)
}

#[cfg(test)]
mod tests {
    use super::super::address::gather;
    use super::super::environment::scripted::{environment, write};

    #[test]
    fn a_service_file_is_named_by_the_url_too() {
        let folder = tempfile::tempdir().expect("a folder can be made");
        let named = write(folder.path(), "named", "[shop]\nhost=named\ngssencmode=disable\n", 0o644);
        let other = write(folder.path(), "other", "[shop]\nhost=other\n", 0o644);
        let url = format!("postgres://u@/d?service=shop&servicefile={named}");
        let known = gather(&url, &environment(&[("PGSERVICEFILE", &other)])).expect("it is one");
        assert_eq!(known.get("host").map(String::as_str), Some("named"));
        assert!(!known.contains_key("servicefile"));
    }
}
