//! The pages of the guide: links lead somewhere, and the tables have the settings that the program knows.

use std::collections::BTreeSet;
use std::fs;
use std::path::{Path, PathBuf};

use crate::workspace::Workspace;

fn repository() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("../..")
}

fn read(page: &Path) -> String {
    fs::read_to_string(page).unwrap_or_else(|error| panic!("{}: {error}", page.display()))
}

/// The README and the pages of the guide.
fn pages() -> Vec<PathBuf> {
    let guide = fs::read_dir(repository().join("docs/guide")).expect("the guide is there");
    let guide = guide.map(|entry| entry.expect("it can be read").path());
    guide.chain([repository().join("README.md")]).collect()
}

/// The lines of a page that are not in a block of code.
fn prose(text: &str) -> impl Iterator<Item = &str> {
    let mut is_code = false;
    text.lines().filter(move |line| {
        is_code ^= line.starts_with("```");
        !is_code && !line.starts_with("```")
    })
}

/// The anchor that GitHub gives a heading.
fn anchor(heading: &str) -> String {
    let kept = heading.trim().chars().filter(|sign| sign.is_alphanumeric() || " -_".contains(*sign));
    kept.map(|sign| if sign == ' ' { '-' } else { sign.to_ascii_lowercase() }).collect()
}

fn anchors(text: &str) -> BTreeSet<String> {
    let headings = prose(text).filter(|line| line.starts_with('#'));
    headings.map(|line| anchor(line.trim_start_matches('#'))).collect()
}

#[test]
fn links_lead_somewhere() {
    let mut broken = Vec::new();
    for page in pages() {
        let text = read(&page);
        let links = prose(&text).flat_map(|line| line.split("](").skip(1).filter_map(|rest| rest.split(')').next()));
        for link in links.filter(|link| !link.starts_with("http")) {
            let (file, wanted) = link.split_once('#').unwrap_or((link, ""));
            let target = if file.is_empty() { page.clone() } else { page.with_file_name(file) };
            let is_there = target.exists() && (wanted.is_empty() || anchors(&read(&target)).contains(wanted));
            if !is_there {
                broken.push(format!("{}: {link}", page.display()));
            }
        }
    }
    assert!(broken.is_empty(), "{broken:#?}");
}

/// The settings in the tables below a heading of a page: all that is in backticks in the first column.
fn listed(page: &str, heading: &str) -> BTreeSet<String> {
    let text = read(&repository().join("docs/guide").join(page));
    let is_heading = |line: &&str| line.starts_with('#') && line.trim_start_matches('#').trim() == heading;
    let mut lines = text.lines().skip_while(|line| !is_heading(line));
    assert!(lines.next().is_some(), "{page} has no heading {heading:?}");
    let section = lines.take_while(|line| !line.starts_with('#')).filter(|line| line.starts_with("| `"));
    let cells = section.filter_map(|line| line.split('|').nth(1));
    cells.flat_map(|cell| cell.split('`').skip(1).step_by(2).map(str::to_owned).collect::<Vec<_>>()).collect()
}

/// Of these settings the ones of the table `within`, or those of no table; a table in them counts as one.
fn of_table(settings: &BTreeSet<String>, within: &str) -> BTreeSet<String> {
    let names = settings.iter().filter_map(|name| match within {
        "" => name.split('.').next(),
        _ => name.strip_prefix(within)?.strip_prefix('.'),
    });
    names.map(str::to_owned).collect()
}

/// A setting that is like no other, so that a check lists those that it knows.
const UNKNOWN: &str = "qqqqqqqqqqqqqqqqqqqq";

/// The settings that a check knows there.
fn known(checked: &str, path: &str) -> BTreeSet<String> {
    let place = format!(" {path}.{UNKNOWN}: ");
    let line = checked.lines().find(|line| line.contains(&place));
    let line = line.unwrap_or_else(|| panic!("nothing is said of {path}: {checked}"));
    let (_, names) = line.split_once("known here: ").unwrap_or_else(|| panic!("no names are listed: {line}"));
    names.split(';').next().expect("there is one").split(", ").map(|name| name.trim().to_owned()).collect()
}

/// A file with an unknown setting in every table.
fn file_of_unknowns() -> String {
    let no = format!("{UNKNOWN} = 1");
    let tables = ["checkpoint", "batch", "window", "retry", "breaker", "timeouts"];
    let tables = tables.map(|table| format!("{table} = {{ {no} }}\n")).concat();
    let sinks = [
        "type = \"file\"\nfolder = \".\"",
        "type = \"stdout\"",
        "url = \"sqlite:copy.db\"\ntable = \"copies\"",
        "url = \"mongodb://localhost/copy\"\ncollection = \"copies\"",
        "url = \"postgres://a@localhost/copy\"\ntable = \"copies\"\nmode = \"rows\"",
    ];
    let sinks = sinks.map(|sink| format!("[[stream.sink]]\n{sink}\n{no}\nfilter = {{ {no} }}\n")).concat();
    let sources = [
        ("mongo", "url = \"mongodb://localhost/shop\", collection = \"orders\""),
        ("log", "url = \"postgres://a@localhost/shop\", outbox = \"o\", columns = { key = \"k\", QQ }"),
        ("wal", "url = \"postgres://a@localhost/shop\", mode = \"replication\""),
    ];
    let others = sources.map(|(name, source)| {
        let source = source.replace("QQ", &no);
        format!("[[stream]]\nname = \"{name}\"\nsource = {{ {source}, {no} }}\n[[stream.sink]]\ntype = \"stdout\"\n")
    });
    format!(
        "[group]\nname = \"shop\"\n{no}\n[group.store]\nurl = \"postgres://a@localhost/shop\"\n{no}\n[instance]\n{no}\n\
         [[stream]]\nname = \"orders\"\n{no}\nsource = {{ url = \"sqlite:app.db\", {no} }}\n{tables}{sinks}{}",
        others.concat()
    )
}

#[test]
fn the_tables_have_the_settings_that_the_program_knows() {
    const STREAM: (&str, &str) = ("configuration.md", "Settings of `[[stream]]`");
    const SINK: (&str, &str) = ("configuration.md", "Settings of every `[[stream.sink]]`");
    const OF_POSTGRES: (&str, &str) = ("postgresql.md", "Connections");
    let every_sink = |page, heading| vec![SINK, (page, heading)];
    let tables = [
        ("group", "", vec![("configuration.md", "Settings of `[group]`")]),
        ("group.store", "", vec![OF_POSTGRES]),
        ("instance", "", vec![("configuration.md", "Settings of `[instance]`")]),
        ("stream.orders", "", vec![STREAM]),
        ("stream.orders.checkpoint", "checkpoint", vec![STREAM]),
        ("stream.orders.batch", "batch", vec![STREAM]),
        ("stream.orders.window", "window", vec![STREAM]),
        ("stream.orders.retry", "retry", vec![STREAM]),
        ("stream.orders.breaker", "breaker", vec![STREAM]),
        ("stream.orders.timeouts", "timeouts", vec![STREAM]),
        (
            "stream.orders.source",
            "",
            vec![("sqlite.md", "Settings of a connection"), ("sqlite.md", "Settings of the source")],
        ),
        ("stream.orders.sink[0]", "", every_sink("files.md", "Settings of a `file` sink")),
        ("stream.orders.sink[0].filter", "filter", vec![SINK]),
        ("stream.orders.sink[1]", "", every_sink("files.md", "Settings of a `stdout` sink")),
        (
            "stream.orders.sink[2]",
            "",
            [every_sink("sqlite.md", "Settings of a sink"), vec![("sqlite.md", "Settings of a connection")]].concat(),
        ),
        (
            "stream.orders.sink[3]",
            "",
            [every_sink("mongodb.md", "Settings of a sink"), vec![("mongodb.md", "Connections")]].concat(),
        ),
        ("stream.orders.sink[4]", "", [every_sink("postgresql.md", "Settings of a sink"), vec![OF_POSTGRES]].concat()),
        ("stream.mongo.source", "", vec![("mongodb.md", "Connections"), ("mongodb.md", "Settings of the source")]),
        ("stream.log.source", "", vec![OF_POSTGRES, ("postgresql-change-log.md", "Settings of the source")]),
        ("stream.log.source.columns", "", vec![("postgresql-change-log.md", "An outbox")]),
        ("stream.wal.source", "", vec![OF_POSTGRES, ("postgresql-replication.md", "Settings of the source")]),
    ];
    let workspace = Workspace::empty();
    workspace.write("watchkeeper.toml", &file_of_unknowns());
    let checked = workspace.run(&["check", "--offline"]);
    let checked = format!("{}{}", checked.out, checked.err);
    // What is by type has no URL, and the other way round.
    let without_url = |names: BTreeSet<String>| -> BTreeSet<String> {
        names.into_iter().filter(|name| !["type", "url"].contains(&name.as_str())).collect()
    };
    for (path, within, sections) in tables {
        let written = sections.iter().flat_map(|(page, heading)| listed(page, heading)).collect();
        let written = without_url(of_table(&written, within));
        assert_eq!(written, without_url(known(&checked, path)), "{path}, in the guide and in the program");
    }
}

#[test]
fn the_file_for_production_is_accepted() {
    let page = read(&repository().join("docs/guide/production.md"));
    let (file, _) = page.split_once("```toml\n").and_then(|(_, rest)| rest.split_once("```")).expect("it shows a file");
    let workspace = Workspace::empty();
    workspace.write("db-password", "secret\n");
    let secret = workspace.path("db-password").display().to_string();
    workspace.write("watchkeeper.toml", &file.replace("/run/credentials/watchkeeper.service/db-password", &secret));
    let mut command = workspace.command();
    let checked = command.args(["check", "--offline"]).env("HOSTNAME", "localhost").output().expect("it runs");
    assert!(checked.status.success(), "{checked:?}");
}

/// The file that `init` writes, with the line of this number put in force. A table that is commented out as a whole is so as a whole.
fn put_in_force(file: &str, number: usize) -> String {
    let lines: Vec<&str> = file.lines().collect();
    let heading = lines[..number].iter().rposition(|line| line.trim_start_matches("# ").starts_with('['));
    let heading = heading.expect("it stands below a heading");
    let is_whole = lines[heading].starts_with('#');
    let end = lines[heading..].iter().position(|line| line.is_empty()).map_or(lines.len(), |length| heading + length);
    let plain = |(at, line): (usize, &&str)| match at == number || is_whole && (heading..end).contains(&at) {
        true => format!("{}\n", line.strip_prefix("# ").unwrap_or(line)),
        false => format!("{line}\n"),
    };
    lines.iter().enumerate().map(plain).collect()
}

#[test]
fn every_line_of_the_first_file_that_is_commented_out_is_accepted() {
    let workspace = Workspace::empty();
    assert_eq!(workspace.run(&["init"]).code, Some(0));
    let file = read(&workspace.path("watchkeeper.toml"));
    let settings = file.lines().enumerate().filter(|(_, line)| {
        let name = line.strip_prefix("# ").and_then(|line| line.split_once(" = ")).map(|(name, _)| name);
        name.is_some_and(|name| name.bytes().all(|byte| byte.is_ascii_lowercase() || byte == b'_'))
    });
    let settings: Vec<_> = settings.collect();
    assert!(settings.len() > 10, "{settings:?}");
    for (number, line) in settings {
        workspace.write("watchkeeper.toml", &put_in_force(&file, number));
        let mut command = workspace.command();
        let checked = command.args(["check", "--offline"]).env("HOSTNAME", "localhost").output().expect("it runs");
        assert!(checked.status.success(), "{line}: {checked:?}");
    }
    assert!(file.contains("may wait this long before it is visible"), "{file}");
}
