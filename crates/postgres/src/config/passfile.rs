//! Passwords that lie in a file of the user.

use std::path::{Path, PathBuf};

use super::address::Parameters;
use super::environment::Environment;

/// The password that `~/.pgpass` has for the first of the hosts.
pub(super) fn password_of(known: &Parameters, around: &dyn Environment) -> Option<String> {
    let file = known.get("passfile").map(PathBuf::from);
    let file = file.or_else(|| Some(around.home()?.join(".pgpass")))?;
    let text = std::fs::read_to_string(&file).ok()?;
    if !is_private(&file) {
        tracing::warn!(file = %file.display(), "others can read the file of passwords: it is not used; chmod 0600 it");
        return None;
    }
    let first = |name: &str, usual: &str| {
        let value = known.get(name).and_then(|list| list.split(',').next()).filter(|value| !value.is_empty());
        value.unwrap_or(usual).to_owned()
    };
    let host = first("host", &first("hostaddr", "localhost"));
    // libpq looks for the folder of sockets under the name of this machine.
    let host = if host.starts_with('/') { "localhost".to_owned() } else { host };
    let wanted = [host, first("port", "5432"), known["dbname"].clone(), known["user"].clone()];
    text.lines().filter(|line| !line.starts_with('#')).find_map(|line| {
        let fields = pass_fields(line);
        let (password, places) = fields.split_last()?;
        let fits = |(field, wanted): (&String, &String)| field == "*" || field == wanted;
        (places.len() == wanted.len() && places.iter().zip(&wanted).all(fits)).then(|| password.clone())
    })
}

#[cfg(unix)]
fn is_private(file: &Path) -> bool {
    use std::os::unix::fs::PermissionsExt;
    std::fs::metadata(file).is_ok_and(|meta| meta.permissions().mode() & 0o077 == 0)
}

#[cfg(not(unix))]
fn is_private(_file: &Path) -> bool {
    true
}

/// The fields of a line, in which `\:` is a colon and `\\` a backslash.
fn pass_fields(line: &str) -> Vec<String> {
    let mut fields = vec![String::new()];
    let mut letters = line.chars();
    while let Some(letter) = letters.next() {
        match letter {
            ':' if fields.len() < 5 => fields.push(String::new()),
            letter => {
                let letter = if letter == '\\' { letters.next().unwrap_or('\\') } else { letter };
                fields.last_mut().into_iter().for_each(|field| field.push(letter));
            }
        }
    }
    fields
}

#[cfg(test)]
mod tests {
    use super::super::address::gather;
    use super::super::environment::scripted::{environment, write};

    #[test]
    fn a_password_comes_from_a_private_file_only() {
        let folder = tempfile::tempdir().expect("a folder can be made");
        let lines = "# none\ndb1:5432:shop:other:no\ndb1:*:shop:u:a\\:b\\\\c\n*:*:*:*:any\n";
        let private = write(folder.path(), "private", lines, 0o600);
        let open = write(folder.path(), "open", lines, 0o644);
        let password = |url: &str, file: &str| {
            let known = gather(url, &environment(&[("PGPASSFILE", file)])).expect("it is one");
            known.get("password").cloned()
        };
        assert_eq!(password("postgres://u@db1/shop", &private).as_deref(), Some("a:b\\c"));
        assert_eq!(password("postgres://u@db2:1/x", &private).as_deref(), Some("any"));
        assert_eq!(password("postgres://u:own@db1/shop", &private).as_deref(), Some("own"));
        assert_eq!(password("postgres://u@db1/shop", &open), None);
    }
}
