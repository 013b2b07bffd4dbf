//! The program `watchkeeper`.
//!
//! It knows no system by name: it finds backends in the facade's registry, and they take their own settings. Commands
//! work on a `Site`, which opens what the configuration file describes. Commands of operators write only through the
//! means of the engine (control records and operators' moves) and answer with one `Report`: lines for people, a
//! document for programs.
//!
//! # Modules
//!
//! | module | contents |
//! |---|---|
//! | `args` | the command line; `args::operate` has the commands of operators, `when` reads times, positions and amounts |
//! | `config` | the file: `toml` reads it, `expand` replaces `${…}`, `variables` adds environment variables; the result is one tree of settings that know where they were written |
//! | `config::group`, `stream`, `system` | the tree as settings of the engine and systems to open; `stream::whole` checks source and sinks together, `conflicts` several streams |
//! | `config::secrets` | texts that must not be shown; everything on standard error is searched for them |
//! | `site` | opens the group's stores; `parts` opens source and sinks of one stream, `keeper` finds the store of a checkpoint without opening the stream, `movable` is a stream whose checkpoint is moved, with or without its source |
//! | `console` | what commands of operators use: stores by stream, holders, members, performing a move, bounded waiting; `unverified` is a move to a position that no source could verify |
//! | `overview` | the group as data with a stable shape (`status --json`): `stream`, `holder_reports` from the instances, `health` in three words |
//! | `tools` | commands of backends, turned into a command line at run time |
//! | `answer`, `logging`, `exit`, `signals` | output, confirmation (refused without a terminal), logs, exit codes, signals |
//! | `demo` | three processes on an embedded database, faults in turn, and a verdict |
//!
//! | command | contents |
//! |---|---|
//! | `run`, `connect` | opens the group's stores with retries, connects streams for the engine, drains on a signal, ends at once on a second one |
//! | `check` | checks every part without changes and grades the streams; `history` left, `store_binding`, `departed` streams that left the file, `reported` by running instances |
//! | `status`, `why` | who holds the watch and how far it is; the last takeovers in sentences |
//! | `tail` | changes as they happen, through `Source::peek`: no lease, no acknowledgement, nothing held back |
//! | `checkpoint` | shows and moves positions (`set`, `rewind`, `skip`, `accept-gap`, `reset`); `plan` describes a move before it is performed |
//! | `handoff`, `pause` | writes a request and waits until it is fulfilled; `resume` also lifts a halt |
//! | `dead_letters` | list, replay and purge; the holder serves a request, a purge also works without one |
//! | `init`, `explain` | a commented file to start from; what error codes mean |

mod answer;
mod args;
mod commands;
mod config;
mod console;
mod demo;
mod exit;
mod logging;
mod overview;
mod signals;
mod site;
mod tools;
mod when;

use std::process::ExitCode;

fn main() -> ExitCode {
    let asked = args::read();
    let (json, is_run) = (asked.common().json, asked.is_run());
    commands::run(asked).unwrap_or_else(|error| {
        // Once something runs, standard output may be a sink's, and nothing else may stand there.
        if json && (!is_run || error.kind() == watchkeeper::ErrorKind::Config) {
            exit::report_program(&error);
        }
        exit::failed(&error)
    })
}
