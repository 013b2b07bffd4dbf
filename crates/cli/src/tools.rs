//! Commands of backends, such as `watchkeeper sqlite install`. Only the backends know them; here they are listed.

use std::sync::Arc;

use clap::{Arg, ArgAction, ArgMatches, Command};
use watchkeeper::core::{Argument, Options, Origin, Report, Setting, Takes, Tool, WrittenSetting as Written};
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
            arguments.insert(argument.name, Written { setting, origin });
        }
    }
    Some(Call { tool, arguments })
}

fn setting(argument: &Argument, matches: &ArgMatches, origin: &Origin) -> Option<Setting> {
    match argument.takes {
        Takes::One | Takes::Required => matches.get_one::<String>(argument.name).cloned().map(Setting::Text),
        Takes::Many => {
            let values = matches.get_many::<String>(argument.name)?;
            Some(Setting::List(values.map(|value| Written::text(value, origin.clone())).collect()))
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
