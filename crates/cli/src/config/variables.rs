//! Settings as variables: `WATCHKEEPER__GROUP__LEASE=5s`, `WATCHKEEPER__STREAM__orders__SINK__0__URL=…`.
//!
//! Two underscores go one step down. Names of settings may be in any case. A stream is named as in the file, exactly
//! or with another case and `_` for every other letter than a-z and 0-9; a sink by its number, counted from 0, or by
//! its name. A list or table is written as in the file: `["a", "b"]`. A variable is stronger than the file, and one that
//! names no setting is refused.

use watchkeeper::core::{Options, Origin, Reread, Setting, WrittenSetting};
use watchkeeper::{Error, Result};

use super::toml;

const PREFIX: &str = "WATCHKEEPER__";

/// Settings that may be a URL or a table with one.
const SYSTEMS: [&str; 4] = ["store", "source", "leases", "records"];

/// Settings of which there are several.
const LISTS: [&str; 2] = ["stream", "sink"];

/// Puts the variables that are settings over those of the file.
///
/// # Errors
/// `Config` naming the variable.
pub(super) fn over(root: &mut Options, variables: impl Iterator<Item = (String, String)>) -> Result<()> {
    let mut ours: Vec<_> = variables.filter(|(name, _)| name.starts_with(PREFIX)).collect();
    // A stream that is not in the file begins with its source; what else is said of it comes after.
    ours.sort_by_key(|(name, _)| (!name.to_uppercase().contains("__SOURCE"), name.clone()));
    for (name, value) in &ours {
        let origin = Origin::new(name.as_str());
        let steps: Vec<&str> = name[PREFIX.len()..].split("__").collect();
        if steps.iter().any(|step| step.is_empty()) {
            let remedy = format!("write {PREFIX}GROUP__LEASE, say");
            root.report(Error::config("this variable names no setting").remedy(remedy).at(&origin))?;
            continue;
        }
        let put = put(root, &steps, value, &origin);
        root.reported(put)?;
    }
    Ok(())
}

fn put(options: &mut Options, steps: &[&str], value: &str, origin: &Origin) -> Result<()> {
    let [step, below @ ..] = steps else { return Ok(()) };
    let name = step.to_lowercase();
    if below.is_empty() {
        let path = path(options, &name);
        let is_written = value.starts_with(['[', '{']);
        let setting = if is_written { toml::value(origin, &path, value)? } else { Setting::Text(value.to_owned()) };
        options.insert(name, WrittenSetting { setting, origin: origin.clone() });
        return Ok(());
    }
    let path = path(options, &name);
    if options.peek(&name).is_none() {
        let empty = match LISTS.contains(&name.as_str()) {
            true => Setting::List(Vec::new()),
            false => Setting::Table(Options::new(path.as_str(), origin.clone())),
        };
        options.insert(name.as_str(), WrittenSetting { setting: empty, origin: origin.clone() });
    }
    let reread = options.reread(&name).cloned();
    // It was put there just now, if it was not there before.
    let Some(written) = options.peek_mut(&name) else { return Ok(()) };
    open_url(&name, &path, written, reread);
    match &mut written.setting {
        Setting::Table(table) => put(table, below, value, origin),
        Setting::List(list) if LISTS.contains(&name.as_str()) => {
            let [which, below @ ..] = below else { return Ok(()) };
            let element = element(list, &name, &path, which, below, origin)?;
            put(element, below, value, origin)
        }
        _ => Err(Error::config(format!("{path}: this has no settings of its own"))
            .remedy("set it as a whole")
            .at(origin)),
    }
}

fn path(options: &Options, name: &str) -> String {
    if options.path().is_empty() { name.to_owned() } else { format!("{}.{name}", options.path()) }
}

/// `source = "sqlite:app.db"` is short for a table with this URL.
fn open_url(name: &str, path: &str, written: &mut WrittenSetting, reread: Option<Reread>) {
    let Setting::Text(url) = &written.setting else { return };
    if SYSTEMS.contains(&name) {
        let mut table = Options::new(path, written.origin.clone());
        table.insert("url", WrittenSetting::text(url.clone(), written.origin.clone()));
        reread.into_iter().for_each(|reread| table.set_reread("url", reread));
        written.setting = Setting::Table(table);
    }
}

/// The stream or sink that a variable names.
fn element<'l>(
    list: &'l mut Vec<WrittenSetting>,
    kind: &str,
    path: &str,
    which: &str,
    below: &[&str],
    origin: &Origin,
) -> Result<&'l mut Options> {
    let names: Vec<Option<String>> = list.iter().map(name_of).collect();
    let number = (kind == "sink").then(|| which.parse::<usize>().ok()).flatten().filter(|at| *at <= list.len());
    let at = match number.or_else(|| find(&names, which)) {
        Some(at) => at,
        None if kind == "stream" && below.first().is_some_and(|step| step.eq_ignore_ascii_case("source")) => list.len(),
        None => {
            let known: Vec<_> = names.into_iter().flatten().collect();
            return Err(Error::config(format!("there is no {kind} {which:?} in the file"))
                .remedy(format!("known are: {}", known.join(", ")))
                .at(origin));
        }
    };
    if at == list.len() {
        let label = if kind == "sink" { format!("[{at}]") } else { format!(".{}", which.to_lowercase()) };
        let mut fresh = Options::new(format!("{path}{label}"), origin.clone());
        if kind == "stream" {
            fresh.insert("name", WrittenSetting::text(which.to_lowercase(), origin.clone()));
        }
        list.push(WrittenSetting { setting: Setting::Table(fresh), origin: origin.clone() });
    }
    match &mut list[at].setting {
        Setting::Table(table) => Ok(table),
        _ => Err(Error::config(format!("{path}: these are no tables")).remedy(format!("write [[{kind}]]")).at(origin)),
    }
}

/// What people call a stream or sink: its name, or the type of a sink.
fn name_of(written: &WrittenSetting) -> Option<String> {
    let Setting::Table(table) = &written.setting else { return None };
    table.peek_text("name").or_else(|| table.peek_text("type")).map(str::to_owned)
}

fn find(names: &[Option<String>], which: &str) -> Option<usize> {
    let exact = names.iter().position(|name| name.as_deref() == Some(which));
    let plain = |name: &str| name.to_lowercase().replace(|letter: char| !letter.is_ascii_alphanumeric(), "_");
    exact.or_else(|| names.iter().position(|name| name.as_deref().map(plain) == Some(plain(which))))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn file(variables: &[(&str, &str)]) -> Result<Options> {
        let text = "[group]\nlease = \"5s\"\n[[stream]]\nname = \"new-orders\"\nsource = \"sqlite:app.db\"\n\
                    [[stream.sink]]\ntype = \"file\"\nfolder = \"out\"";
        let mut root = toml::read("shop.toml", text)?;
        over(&mut root, variables.iter().map(|(name, value)| ((*name).to_owned(), (*value).to_owned())))?;
        Ok(root)
    }

    fn stream(variables: &[(&str, &str)]) -> Options {
        let mut root = file(variables).expect("the variables are good");
        root.tables("stream").expect("tables").pop().expect("there is a stream")
    }

    #[test]
    fn a_variable_is_stronger_than_the_file_and_is_its_own_origin() {
        let mut root = file(&[("WATCHKEEPER__GROUP__LEASE", "9s"), ("OTHER__GROUP__LEASE", "1s")]).expect("good");
        let group = root.table("group").expect("a table").expect("it is there");
        assert_eq!(group.peek_text("lease"), Some("9s"));
        assert_eq!(group.origin_of("lease").to_string(), "WATCHKEEPER__GROUP__LEASE");
    }

    #[test]
    fn streams_are_found_by_name_and_sinks_by_number_or_name() {
        for name in
            ["WATCHKEEPER__STREAM__new-orders__SINK__0__FOLDER", "WATCHKEEPER__STREAM__NEW_ORDERS__SINK__FILE__FOLDER"]
        {
            let sinks = stream(&[(name, "elsewhere")]).tables("sink").expect("tables");
            assert_eq!(sinks.len(), 1);
            assert_eq!(sinks[0].peek_text("folder"), Some("elsewhere"), "{name}");
        }
        let sinks = stream(&[("WATCHKEEPER__STREAM__NEW_ORDERS__SINK__1__TYPE", "stdout")]).tables("sink");
        assert_eq!(sinks.expect("tables").len(), 2, "the next number is a new sink");
    }

    #[test]
    fn a_url_that_is_short_for_a_table_takes_settings() {
        let mut stream = stream(&[("WATCHKEEPER__STREAM__NEW_ORDERS__SOURCE__TABLES", r#"["a", "b"]"#)]);
        let mut source = stream.table("source").expect("a table").expect("it is there");
        assert_eq!(source.peek_text("url"), Some("sqlite:app.db"));
        assert_eq!(source.texts("tables").expect("a list"), Some(vec!["a".to_owned(), "b".to_owned()]));
    }

    #[test]
    fn a_stream_can_be_made_of_variables_alone() {
        let mut stream = stream(&[
            ("WATCHKEEPER__STREAM__USERS__CONCURRENCY", "4"),
            ("WATCHKEEPER__STREAM__USERS__SOURCE__URL", "sqlite:b.db"),
        ]);
        assert_eq!(stream.peek_text("name"), Some("users"));
        assert_eq!(stream.count("concurrency").expect("a number"), Some(4));
    }

    #[test]
    fn what_names_nothing_is_refused() {
        for (name, cause) in [
            ("WATCHKEEPER__", "names no setting"),
            ("WATCHKEEPER__GROUP____LEASE", "names no setting"),
            ("WATCHKEEPER__STREAM__ODERS__CONCURRENCY", "there is no stream \"ODERS\""),
            ("WATCHKEEPER__STREAM__NEW_ORDERS__SINK__7__FOLDER", "there is no sink \"7\""),
            ("WATCHKEEPER__GROUP__LEASE__LENGTH", "has no settings of its own"),
        ] {
            let error = file(&[(name, "1")]).expect_err("it names nothing");
            assert_eq!(error.place(), Some(name));
            assert!(error.to_string().contains(cause), "{error}");
        }
    }
}
