//! A URL as libpq reads it.

use watchkeeper_core::{Error, Result};

use super::address::{Parameters, require_known};

/// An error about a URL, in which the URL itself cannot appear: it may hold a password.
pub(super) fn unreadable(cause: impl std::fmt::Display) -> Error {
    let shape = "write \"postgres://user:password@host1,host2/database?sslmode=verify-full\", with signs in a password \
                 escaped (@ is %40)";
    Error::config(format!("this is not a URL of PostgreSQL: {cause}")).remedy(shape)
}

/// What a URL says.
pub(super) fn from_url(url: &str) -> Result<Parameters> {
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

#[cfg(test)]
mod tests {
    use super::super::address::gather;
    use super::super::environment::scripted::environment;

    #[test]
    fn a_url_is_read_as_libpq_reads_it() {
        let known = gather("postgresql://u%40x:p%3Aw@[::1]:5433,db2,db3:1/shop?sslmode=require", &environment(&[]));
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
    fn a_password_is_never_reported() {
        for url in [
            "postgres://user:hunter2@db1:notaport/shop",
            "postgres://user:hun%ter2@db1/shop",
            "postgres://user:hunter2@[::1/shop",
            "postgres://user@db/shop?hunter2=hunter2",
            "postgres://user@db/shop?hunter2",
            "mysql://user:hunter2@db1/shop",
        ] {
            let error = gather(url, &environment(&[])).expect_err(url);
            assert!(!format!("{error} {error:?}").contains("hunter2"), "{url}: {error:?}");
            assert!(error.advice().is_some(), "{url}");
        }
    }
}
