//! Where a server is and who asks it, gathered as libpq does: from the URL, a service file, `PG*` variables, `~/.pgpass`.

use std::collections::BTreeMap;
use std::path::{Path, PathBuf};

use watchkeeper_core::{Error, Result};

use super::words;

/// What is known about a connection, by libpq's names of parameters.
pub(super) type Parameters = BTreeMap<String, String>;

/// Parameters and the variables that give them when nothing nearer does.
const VARIABLES: [(&str, &str); 18] = [
    ("host", "PGHOST"),
    ("hostaddr", "PGHOSTADDR"),
    ("port", "PGPORT"),
    ("dbname", "PGDATABASE"),
    ("user", "PGUSER"),
    ("password", "PGPASSWORD"),
    ("passfile", "PGPASSFILE"),
    ("channel_binding", "PGCHANNELBINDING"),
    ("options", "PGOPTIONS"),
    ("application_name", "PGAPPNAME"),
    ("sslmode", "PGSSLMODE"),
    ("sslnegotiation", "PGSSLNEGOTIATION"),
    ("sslcert", "PGSSLCERT"),
    ("sslkey", "PGSSLKEY"),
    ("sslrootcert", "PGSSLROOTCERT"),
    ("connect_timeout", "PGCONNECT_TIMEOUT"),
    ("target_session_attrs", "PGTARGETSESSIONATTRS"),
    ("load_balance_hosts", "PGLOADBALANCEHOSTS"),
];

/// Parameters without a variable.
const FURTHER: [&str; 8] = [
    "service",
    "servicefile",
    "tcp_user_timeout",
    "keepalives",
    "keepalives_idle",
    "keepalives_interval",
    "keepalives_count",
    "fallback_application_name",
];

/// What a process finds around it: variables and files. Tests bring their own.
pub(super) trait Surroundings {
    /// A variable of the environment.
    fn variable(&self, name: &str) -> Option<String>;

    /// The home folder.
    fn home(&self) -> Option<PathBuf> {
        self.variable("HOME").map(PathBuf::from)
    }
}

/// This process.
#[derive(Debug, Clone, Copy)]
pub(super) struct Process;

impl Surroundings for Process {
    fn variable(&self, name: &str) -> Option<String> {
        std::env::var(name).ok()
    }
}

/// Everything that is known: what the URL says, then the service, then the variables, then what goes without saying.
pub(super) fn gather(url: &str, around: &dyn Surroundings) -> Result<Parameters> {
    let mut known = from_url(url)?;
    if let Some(service) = known.remove("service").or_else(|| around.variable("PGSERVICE")) {
        let file = known.remove("servicefile").or_else(|| around.variable("PGSERVICEFILE"));
        for (name, value) in service_of(&service, file, around)? {
            known.entry(name).or_insert(value);
        }
    }
    for (name, variable) in VARIABLES.into_iter().chain(words::variables()) {
        if let Some(value) = around.variable(variable).filter(|value| !value.is_empty()) {
            known.entry(name.to_owned()).or_insert(value);
        }
    }
    known.retain(|_, value| !value.is_empty());
    known.remove("servicefile");
    words::settle(&mut known)?;
    complete(&mut known, around)?;
    Ok(known)
}

/// What libpq assumes.
fn complete(known: &mut Parameters, around: &dyn Surroundings) -> Result<()> {
    if !known.contains_key("user") {
        let user = around.variable("USER").or_else(|| around.variable("LOGNAME"));
        let missing = || {
            Error::config("the URL of PostgreSQL names no user")
                .remedy("write \"postgres://user@host/database\", or set PGUSER")
        };
        known.insert("user".to_owned(), user.ok_or_else(missing)?);
    }
    let user = known["user"].clone();
    known.entry("dbname".to_owned()).or_insert(user);
    if !known.contains_key("host") && !known.contains_key("hostaddr") {
        let port = known.get("port").map_or("5432", String::as_str);
        let sockets = Path::new("/var/run/postgresql");
        let local = sockets.join(format!(".s.PGSQL.{port}")).exists();
        let host = if local { sockets.display().to_string() } else { "localhost".to_owned() };
        known.insert("host".to_owned(), host);
    }
    if !known.contains_key("password")
        && let Some(password) = password_of(known, around)
    {
        known.insert("password".to_owned(), password);
    }
    known.remove("passfile");
    if let Some(name) = known.remove("fallback_application_name") {
        known.entry("application_name".to_owned()).or_insert(name);
    }
    Ok(())
}

/// An error about a URL, in which the URL itself can not appear: it may hold a password.
pub(super) fn unreadable(cause: impl std::fmt::Display) -> Error {
    let shape = "write \"postgres://user:password@host1,host2/database?sslmode=verify-full\", with signs in a password \
                 escaped (@ is %40)";
    Error::config(format!("this is not a URL of PostgreSQL: {cause}")).remedy(shape)
}

fn from_url(url: &str) -> Result<Parameters> {
    let rest = ["postgres://", "postgresql://"].iter().find_map(|scheme| url.strip_prefix(scheme));
    let rest = rest.ok_or_else(|| unreadable("it does not begin with postgres:// or postgresql://"))?;
    let (rest, query) = rest.split_once('?').unwrap_or((rest, ""));
    let (authority, database) = rest.split_once('/').unwrap_or((rest, ""));
    let (credentials, hosts) = authority.rsplit_once('@').unwrap_or(("", authority));
    let (user, password) = credentials.split_once(':').unwrap_or((credentials, ""));
    let mut known = Parameters::new();
    for (name, text) in [("user", user), ("password", password), ("dbname", database)] {
        if !text.is_empty() {
            known.insert(name.to_owned(), decoded(text)?);
        }
    }
    add_hosts(&mut known, hosts)?;
    for pair in query.split('&').filter(|pair| !pair.is_empty()) {
        let (name, value) = pair.split_once('=').ok_or_else(|| unreadable("a parameter has no `=`"))?;
        let (name, value) = (decoded(name)?, decoded(value)?);
        // As libpq takes the word of JDBC.
        let (name, value) = match (name.as_str(), value.as_str()) {
            ("ssl", "true") => ("sslmode".to_owned(), "require".to_owned()),
            _ => (name, value),
        };
        require_known(&name)?;
        known.insert(name, value);
    }
    Ok(known)
}

fn require_known(name: &str) -> Result<()> {
    if FURTHER.contains(&name) || words::has(name) || VARIABLES.iter().any(|(known, _)| *known == name) {
        return Ok(());
    }
    // Only letters are repeated: what stands here may be a part of a password.
    let shown = if name.chars().all(|letter| letter.is_ascii_lowercase() || letter == '_') { name } else { "…" };
    let known = VARIABLES.iter().map(|(name, _)| *name).chain(FURTHER);
    let known = known.collect::<Vec<_>>().join(", ");
    Err(Error::config(format!("PostgreSQL's parameter {shown:?} is not known here")).remedy(format!("known: {known}")))
}

/// `host1:port,host2,[::1]:5433`; a host may be an escaped folder of sockets.
fn add_hosts(known: &mut Parameters, hosts: &str) -> Result<()> {
    if hosts.is_empty() {
        return Ok(());
    }
    let (mut names, mut ports) = (Vec::new(), Vec::new());
    for host in hosts.split(',') {
        let (name, port) = match host.strip_prefix('[') {
            Some(rest) => {
                let (name, port) = rest.split_once(']').ok_or_else(|| unreadable("a `[` has no `]`"))?;
                (name, port.strip_prefix(':').unwrap_or(port))
            }
            None => host.split_once(':').unwrap_or((host, "")),
        };
        if !port.is_empty() && port.parse::<u16>().is_err() {
            return Err(unreadable("a port is no number up to 65535"));
        }
        names.push(decoded(name)?);
        ports.push(port.to_owned());
    }
    if names.iter().any(|name| !name.is_empty()) {
        known.insert("host".to_owned(), names.join(","));
    }
    if ports.iter().any(|port| !port.is_empty()) {
        known.insert("port".to_owned(), ports.join(","));
    }
    Ok(())
}

fn decoded(text: &str) -> Result<String> {
    let mut bytes = Vec::with_capacity(text.len());
    let mut rest = text.as_bytes().iter();
    while let Some(byte) = rest.next() {
        if *byte != b'%' {
            bytes.push(*byte);
            continue;
        }
        let digits = [rest.next(), rest.next()].map(|digit| char::from(*digit.unwrap_or(&b'?')).to_digit(16));
        let [Some(high), Some(low)] = digits else { return Err(unreadable("a `%` is not followed by two digits")) };
        bytes.push(u8::try_from(high * 16 + low).unwrap_or(b'?'));
    }
    String::from_utf8(bytes).map_err(|_| unreadable("it is not UTF-8"))
}

/// The section of a service in the user's file, else in the system's.
fn service_of(service: &str, named: Option<String>, around: &dyn Surroundings) -> Result<Parameters> {
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

/// The password that `~/.pgpass` has for the first of the hosts.
fn password_of(known: &Parameters, around: &dyn Surroundings) -> Option<String> {
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
    use super::*;

    struct Scripted(BTreeMap<&'static str, String>);

    impl Surroundings for Scripted {
        fn variable(&self, name: &str) -> Option<String> {
            self.0.get(name).cloned()
        }
    }

    fn around(variables: &[(&'static str, &str)]) -> Scripted {
        Scripted(variables.iter().map(|(name, value)| (*name, (*value).to_owned())).collect())
    }

    fn write(folder: &Path, name: &str, text: &str, mode: u32) -> String {
        use std::os::unix::fs::PermissionsExt;
        let path = folder.join(name);
        std::fs::write(&path, text).expect("the folder is ours");
        std::fs::set_permissions(&path, std::fs::Permissions::from_mode(mode)).expect("the file is ours");
        path.display().to_string()
    }

    #[test]
    fn a_url_is_read_as_libpq_reads_it() {
        let known = gather("postgresql://u%40x:p%3Aw@[::1]:5433,db2,db3:1/shop?sslmode=require", &around(&[]));
        let known = known.expect("it is one");
        let value = |name: &str| known.get(name).map(String::as_str);
        assert_eq!(value("user"), Some("u@x"));
        assert_eq!(value("password"), Some("p:w"));
        assert_eq!(value("host"), Some("::1,db2,db3"));
        assert_eq!(value("port"), Some("5433,,1"));
        assert_eq!(value("dbname"), Some("shop"));
        assert_eq!(value("sslmode"), Some("require"));
    }

    #[test]
    fn the_nearest_word_counts() {
        let folder = tempfile::tempdir().expect("a folder can be made");
        let text = "[other]\nhost=no\n[shop]\n# a word\nhost=service\nport=6000\ndbname=service\n[more]\nuser=no\n";
        let file = write(folder.path(), "services", text, 0o644);
        let variables =
            [("PGSERVICEFILE", file.as_str()), ("PGPORT", "7000"), ("PGUSER", "variable"), ("PGAPPNAME", "a")];
        let known = gather("postgres:///url?service=shop", &around(&variables)).expect("it is one");
        let value = |name: &str| known.get(name).map(String::as_str);
        assert_eq!(value("dbname"), Some("url"));
        assert_eq!((value("host"), value("port")), (Some("service"), Some("6000")));
        assert_eq!((value("user"), value("application_name")), (Some("variable"), Some("a")));
        let error = gather("postgres://?service=none", &around(&variables)).expect_err("there is none");
        assert!(error.to_string().contains("none") && error.advice().is_some(), "{error}");
    }

    #[test]
    fn words_of_libpq_that_change_nothing_are_taken() {
        let url = "postgres://u@h/d?gssencmode=prefer&krbsrvname=postgres&sslcompression=0&client_encoding=UTF8\
            &ssl_min_protocol_version=TLSv1.2&sslsni=1&replication=false&keepalives_count=3&connect_timeout=5&ssl=true";
        let known =
            gather(url, &around(&[("PGGSSENCMODE", "disable"), ("PGCLIENTENCODING", "utf8")])).expect("it is one");
        let names: Vec<&str> = known.keys().map(String::as_str).collect();
        assert_eq!(names, ["connect_timeout", "dbname", "host", "keepalives_count", "sslmode", "user"]);
    }

    #[test]
    fn words_of_libpq_that_can_not_be_kept_are_refused() {
        for word in [
            "gssencmode=require",
            "sslcrl=/hunter2",
            "sslcrldir=/hunter2",
            "requirepeer=hunter2",
            "require_auth=scram-sha-256",
            "sslpassword=hunter2",
            "client_encoding=LATIN1",
            "replication=database",
            "ssl_min_protocol_version=TLSv1.3",
            "oauth_client_secret=hunter2",
            "scram_client_key=hunter2",
            "sslsni=0",
        ] {
            let error = gather(&format!("postgres://u@h/d?{word}"), &around(&[])).expect_err(word);
            let name = word.split('=').next().unwrap_or_default();
            assert!(error.to_string().contains(name) && error.advice().is_some(), "{word}: {error}");
            assert!(!format!("{error:?}").contains("hunter2"), "{word}: {error:?}");
        }
        let variables = [("PGREQUIREPEER", "postgres"), ("PGGSSENCMODE", "require")];
        assert!(
            gather("postgres://u@h/d?gssencmode=disable", &around(&variables[1..])).is_ok(),
            "the nearer one counts"
        );
        assert!(gather("postgres://u@h/d", &around(&variables[1..])).is_err());
        assert!(gather("postgres://u@h/d", &around(&variables[..1])).is_err());
    }

    #[test]
    fn a_service_file_is_named_by_the_url_too() {
        let folder = tempfile::tempdir().expect("a folder can be made");
        let named = write(folder.path(), "named", "[shop]\nhost=named\ngssencmode=disable\n", 0o644);
        let other = write(folder.path(), "other", "[shop]\nhost=other\n", 0o644);
        let url = format!("postgres://u@/d?service=shop&servicefile={named}");
        let known = gather(&url, &around(&[("PGSERVICEFILE", &other)])).expect("it is one");
        assert_eq!(known.get("host").map(String::as_str), Some("named"));
        assert!(!known.contains_key("servicefile"));
    }

    #[test]
    fn a_password_comes_from_a_private_file_only() {
        let folder = tempfile::tempdir().expect("a folder can be made");
        let lines = "# none\ndb1:5432:shop:other:no\ndb1:*:shop:u:a\\:b\\\\c\n*:*:*:*:any\n";
        let private = write(folder.path(), "private", lines, 0o600);
        let open = write(folder.path(), "open", lines, 0o644);
        let password = |url: &str, file: &str| {
            let known = gather(url, &around(&[("PGPASSFILE", file)])).expect("it is one");
            known.get("password").cloned()
        };
        assert_eq!(password("postgres://u@db1/shop", &private).as_deref(), Some("a:b\\c"));
        assert_eq!(password("postgres://u@db2:1/x", &private).as_deref(), Some("any"));
        assert_eq!(password("postgres://u:own@db1/shop", &private).as_deref(), Some("own"));
        assert_eq!(password("postgres://u@db1/shop", &open), None);
    }

    #[test]
    fn a_password_is_never_told() {
        for url in [
            "postgres://user:hunter2@db1:notaport/shop",
            "postgres://user:hun%ter2@db1/shop",
            "postgres://user:hunter2@[::1/shop",
            "postgres://user@db/shop?hunter2=hunter2",
            "postgres://user@db/shop?hunter2",
            "mysql://user:hunter2@db1/shop",
        ] {
            let error = gather(url, &around(&[])).expect_err(url);
            assert!(!format!("{error} {error:?}").contains("hunter2"), "{url}: {error:?}");
            assert!(error.advice().is_some(), "{url}");
        }
    }
}
