//! Commands of backends, such as `watchkeeper sqlite install`. Only the backends know them; here they are listed.

use std::ffi::OsString;
use std::sync::Arc;

use clap::{Arg, ArgAction, ArgMatches, Command, CommandFactory};
use watchkeeper::core::{Argument, Options, Origin, Report, Setting, Takes, Tool, WrittenSetting};
use watchkeeper::{Result, Seams, registry};

/// A tool that was asked for, with its arguments.
#[derive(Debug)]
pub(crate) struct Call {
    tool: Arc<dyn Tool>,
    arguments: Options,
}

/// One command per backend that has tools, with one command per tool.
pub(crate) fn commands() -> Vec<Command> {
    let with_tools = registry::all().into_iter().filter(|backend| !backend.tools().is_empty());
    let of_backend = |backend: Arc<dyn watchkeeper::core::Backend>| {
        let command = Command::new(backend.name()).about(format!("Tools for {}", backend.name()));
        let command = command.subcommand_required(true).arg_required_else_help(true);
        backend.tools().iter().fold(command, |command, tool| command.subcommand(of_tool(&**tool)))
    };
    with_tools.map(of_backend).collect()
}

fn of_tool(tool: &dyn Tool) -> Command {
    tool.arguments().iter().fold(Command::new(tool.name()).about(tool.about()), |command, argument| {
        let arg = Arg::new(argument.name).long(argument.name).help(argument.help);
        command.arg(match argument.takes {
            Takes::One => arg.action(ArgAction::Set),
            Takes::Required => arg.action(ArgAction::Set).required(true),
            Takes::Many => arg.action(ArgAction::Append).required(true),
            Takes::Nothing => arg.action(ArgAction::SetTrue),
        })
    })
}

/// Options of every command that are followed by a value.
const VALUED: [&str; 4] = ["--config", "-c", "--log", "--log-format"];

/// The words of a command line with the backend's name in front of its tool, where that was left out: `oplog --url mongodb://…` means
/// `mongodb oplog --url mongodb://…`. A name of two words may be written as two.
pub(crate) fn spelled_out(mut words: Vec<OsString>) -> Vec<OsString> {
    let Some(at) = command_at(&words) else { return words };
    let two = words.get(at + 1).and_then(|second| Some(format!("{}-{}", words[at].to_str()?, second.to_str()?)));
    let one = words[at].to_str().map(str::to_owned);
    let taken = |name: &String| super::args::Args::command().find_subcommand(name).is_some();
    for (name, length) in [(two, 2), (one, 1)] {
        let Some(name) = name.filter(|name| !taken(name)) else { continue };
        if let Some(backend) = backend_with(&name, url_in(&words)) {
            words.splice(at..at + length, [backend.into(), name.into()]);
            return words;
        }
    }
    words
}

/// Where the command stands, behind the program's name and options of every command.
fn command_at(words: &[OsString]) -> Option<usize> {
    let mut at = 1;
    while words.get(at)?.to_str()?.starts_with('-') {
        at += if VALUED.contains(&words[at].to_str()?) { 2 } else { 1 };
    }
    Some(at)
}

/// The URL that a tool is given.
fn url_in(words: &[OsString]) -> Option<&str> {
    let mut words = words.iter().filter_map(|word| word.to_str());
    words
        .by_ref()
        .find_map(|word| match word {
            "--url" => Some(None),
            word => word.strip_prefix("--url=").map(Some),
        })?
        .or_else(|| words.next())
}

/// The backend whose tool this is: the one of the URL, or the only one.
fn backend_with(tool: &str, url: Option<&str>) -> Option<&'static str> {
    let mut with: Vec<_> = registry::all();
    with.retain(|backend| backend.tools().iter().any(|known| known.name() == tool));
    if let Some(of_url) = url.and_then(|url| registry::of_url(url).ok()) {
        with.retain(|backend| backend.name() == of_url.name());
    }
    match &with[..] {
        [only] => Some(only.name()),
        _ => None,
    }
}

/// The tool that the command line names, if it names one.
pub(crate) fn asked(matches: &ArgMatches) -> Option<Call> {
    let (backend, matches) = matches.subcommand()?;
    let backend = registry::all().into_iter().find(|known| known.name() == backend)?;
    let (name, matches) = matches.subcommand()?;
    let tool = backend.tools().into_iter().find(|tool| tool.name() == name)?;
    let mut arguments = Options::new("", Origin::new("command line"));
    for argument in tool.arguments() {
        let origin = Origin::new(format!("--{}", argument.name));
        if let Some(setting) = setting(argument, matches, &origin) {
            arguments.insert(argument.name, WrittenSetting { setting, origin });
        }
    }
    Some(Call { tool, arguments })
}

fn setting(argument: &Argument, matches: &ArgMatches, origin: &Origin) -> Option<Setting> {
    match argument.takes {
        Takes::One | Takes::Required => matches.get_one::<String>(argument.name).cloned().map(Setting::Text),
        Takes::Many => {
            let values = matches.get_many::<String>(argument.name)?;
            Some(Setting::List(values.map(|value| WrittenSetting::text(value, origin.clone())).collect()))
        }
        Takes::Nothing => matches.get_flag(argument.name).then_some(Setting::Flag(true)),
    }
}

impl Call {
    /// Runs the tool.
    pub(crate) async fn run(mut self) -> Result<Report> {
        let report = self.tool.run(&Seams::system().cx(), &mut self.arguments).await?;
        self.arguments.finish()?;
        Ok(report)
    }
}

#[cfg(test)]
mod tests {
    use super::spelled_out;

    fn spelled(line: &str) -> String {
        let words = spelled_out(line.split_whitespace().map(Into::into).collect());
        words.iter().filter_map(|word| word.to_str()).collect::<Vec<_>>().join(" ")
    }

    #[test]
    fn the_url_tells_whose_tool_it_is() {
        for (line, expected) in [
            ("wk oplog", "wk mongodb oplog"),
            ("wk audit query --limit 5", "wk mongodb audit-query --limit 5"),
            ("wk --json -c a.toml audit-query", "wk --json -c a.toml mongodb audit-query"),
            ("wk setup --images --url mongodb://h/d", "wk mongodb setup --images --url mongodb://h/d"),
            ("wk setup --url=postgres://h/d", "wk postgres setup --url=postgres://h/d"),
            ("wk install --url sqlite:a.db", "wk sqlite install --url sqlite:a.db"),
        ] {
            assert_eq!(spelled(line), expected);
        }
    }

    #[test]
    fn what_is_not_left_out_or_not_clear_stays_as_it_is() {
        for line in
            ["wk", "wk run", "wk setup", "wk mongodb oplog", "wk oplog --url sqlite:a.db", "wk --json", "wk query"]
        {
            assert_eq!(spelled(line), line);
        }
    }
}
