//! The words of the command line.

use std::path::PathBuf;
use std::time::Duration;

use watchkeeper_testkit::histories::{Narrow, Sink, Source};

use crate::harness::Kind;
use crate::histories;
use crate::instance::Orders;
use crate::program;
use crate::speed::{BenchTask, Plan, System};

pub(crate) const USAGE: &str = "\
Usage: watchkeeper-chaos <command>

  sqlite|mongodb|postgres|replication [--faults N] [--sink transactional|fenced] [--seed S] [--no-self-fencing] [--log FOLDER]
             three instances under load and faults: on SQLite, on a MongoDB replica set of three, or on a PostgreSQL
             server (with its change log and with replication, or with replication alone); servers are struck, too; without --sink both, without
             --no-self-fencing also a few pauses without it; what the instances log goes to FOLDER
  program [sqlite|mongodb|postgres] [--faults N] [--seed S] [--program PATH] [--log FOLDER]
             three instances of the shipped `watchkeeper run` with a file and copies, and three of a program with a handler,
             under load and faults on the named systems, or on all; PATH is the program, by default the one next to this
  histories [--seeds N] [--seed S] [--source NAME] [--sink NAME] [--jobs N] [--program PATH] [--keep FOLDER]
             random histories from seed 0 on, or of seed S alone, copied by the shipped program: at the end the target
             equals the source; with --keep the files of a seed that fails stay in FOLDER
  failover [mongodb|postgres|replication] [--rounds N] [--lease-ms N] [--log FOLDER]
             how long a takeover takes, for every kind of fault, with leases of this length (1,000 ms by default)
  elections [--rounds N] [--log FOLDER]
             how soon changes are delivered behind a new primary, and whether the watch stays where it is; MongoDB
  latency [postgres] [--samples N]
             leases and commits beside bare durable writes of the same size: on three MongoDB servers, or on a PostgreSQL
             server under a thousand streams
  speed [postgres] [--rounds N] [--changes N] [--live-rounds N] [--no-peers]
             how fast changes are read from MongoDB or PostgreSQL, beside the bare driver and others' programs
";

/// The seed of a run that names none. With it six faults are enough to strike servers as well as processes.
pub(crate) const SEED: u64 = 9;

/// What to do.
#[derive(Debug, PartialEq, Eq)]
pub(crate) enum Task {
    Help,
    /// A child of this program.
    Instance(Orders),
    /// A child of this program.
    Handler(program::Orders),
    /// A child of this program, which becomes another one.
    Launch {
        program: String,
        arguments: Vec<String>,
    },
    Program(program::Plan),
    Histories(histories::Selection),
    Chaos(Chaos),
    /// A child of this program.
    Consume {
        bench_task: BenchTask,
        name: String,
    },
    Speed(Plan),
    Latency {
        harness: &'static str,
        samples: u64,
    },
    Elections {
        rounds: usize,
        log: Option<PathBuf>,
    },
    Failover {
        harness: &'static str,
        rounds: usize,
        lease: Duration,
        log: Option<PathBuf>,
    },
}

/// A run of faults.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct Chaos {
    pub(crate) harness: &'static str,
    pub(crate) faults: usize,
    pub(crate) sink: Option<Kind>,
    pub(crate) seed: u64,
    pub(crate) self_fencing: bool,
    pub(crate) log: Option<PathBuf>,
}

/// The words after a command, taken one by one.
struct Words<'a>(std::slice::Iter<'a, String>);

impl<'a> Words<'a> {
    fn flag(&mut self) -> Option<&'a str> {
        self.0.next().map(String::as_str)
    }

    fn value(&mut self, flag: &str) -> Result<&'a str, String> {
        self.0.next().map(String::as_str).ok_or_else(|| format!("{flag} needs a value"))
    }

    fn number(&mut self, flag: &str) -> Result<u64, String> {
        let text = self.value(flag)?;
        text.parse().map_err(|_| format!("{flag} needs a whole number, not {text:?}"))
    }

    fn count(&mut self, flag: &str) -> Result<usize, String> {
        let count = self.number(flag)?;
        usize::try_from(count).ok().filter(|count| *count > 0).ok_or_else(|| format!("{flag} needs at least 1"))
    }
}

pub(crate) fn parse(words: &[String]) -> Result<Task, String> {
    let Some((command, rest)) = words.split_first() else { return Err("no command was given".to_owned()) };
    let words = Words(rest.iter());
    match command.as_str() {
        "help" | "--help" | "-h" => Ok(Task::Help),
        "instance" => instance(words).map(Task::Instance),
        "handler" => handler(words).map(Task::Handler),
        "launch" => match rest.split_first() {
            Some((program, arguments)) => Ok(Task::Launch { program: program.clone(), arguments: arguments.to_vec() }),
            None => Err("launch needs a program".to_owned()),
        },
        "histories" => histories(words).map(Task::Histories),
        "program" => shipped(words).map(Task::Program),
        "sqlite" => chaos("sqlite", words).map(Task::Chaos),
        "mongodb" => chaos("mongodb", words).map(Task::Chaos),
        "postgres" => chaos("postgres", words).map(Task::Chaos),
        "replication" => chaos("replication", words).map(Task::Chaos),
        "failover" => failover(words),
        "elections" => elections(words),
        "latency" => latency(words),
        "speed" => speed(words),
        "consume" => consume(words),
        unknown => Err(format!("there is no command {unknown:?}")),
    }
}

fn chaos(harness: &'static str, mut words: Words<'_>) -> Result<Chaos, String> {
    let mut chaos = Chaos { harness, faults: 60, sink: None, seed: SEED, self_fencing: true, log: None };
    while let Some(flag) = words.flag() {
        match flag {
            "--faults" => chaos.faults = words.count(flag)?,
            "--sink" => chaos.sink = Some(words.value(flag)?.parse()?),
            "--seed" => chaos.seed = words.number(flag)?,
            "--no-self-fencing" => chaos.self_fencing = false,
            "--log" => chaos.log = Some(PathBuf::from(words.value(flag)?)),
            other => return Err(format!("{harness} does not take {other:?}")),
        }
    }
    Ok(chaos)
}

/// The program that was built beside this one.
fn beside() -> PathBuf {
    std::env::current_exe().unwrap_or_default().with_file_name("watchkeeper")
}

fn shipped(mut words: Words<'_>) -> Result<program::Plan, String> {
    let (mut systems, mut faults, mut seed, mut log, mut path) = (Vec::new(), 60, SEED, None, beside());
    while let Some(flag) = words.flag() {
        match flag {
            "--faults" => faults = words.count(flag)?,
            "--seed" => seed = words.number(flag)?,
            "--log" => log = Some(PathBuf::from(words.value(flag)?)),
            "--program" => path = PathBuf::from(words.value(flag)?),
            other => match program::SYSTEMS.iter().find(|system| **system == other) {
                Some(system) => systems.push(*system),
                None => return Err(format!("program does not take {other:?}")),
            },
        }
    }
    let systems = if systems.is_empty() { program::SYSTEMS.to_vec() } else { systems };
    Ok(program::Plan { systems, faults, seed, log, program: path })
}

/// The one of these that has this name.
fn named<T: Copy>(all: &[T], name: fn(T) -> &'static str, wanted: &str) -> Result<T, String> {
    let names = || all.iter().map(|one| name(*one)).collect::<Vec<_>>().join(", ");
    let found = all.iter().copied().find(|one| name(*one) == wanted);
    found.ok_or_else(|| format!("there is no {wanted:?}; there are: {}", names()))
}

fn histories(mut words: Words<'_>) -> Result<histories::Selection, String> {
    let mut wanted = histories::Selection {
        first: 0,
        count: 200,
        narrow: Narrow::default(),
        jobs: 2,
        program: beside(),
        keep: None,
    };
    while let Some(flag) = words.flag() {
        match flag {
            "--seeds" => wanted.count = words.count(flag)? as u64,
            "--seed" => (wanted.first, wanted.count) = (words.number(flag)?, 1),
            "--from" => wanted.first = words.number(flag)?,
            "--source" => wanted.narrow.source = Some(named(&Source::ALL, Source::as_str, words.value(flag)?)?),
            "--sink" => wanted.narrow.sink = Some(named(&Sink::ALL, Sink::as_str, words.value(flag)?)?),
            "--jobs" => wanted.jobs = words.count(flag)? as u64,
            "--program" => wanted.program = PathBuf::from(words.value(flag)?),
            "--keep" => wanted.keep = Some(PathBuf::from(words.value(flag)?)),
            other => return Err(format!("histories does not take {other:?}")),
        }
    }
    Ok(wanted)
}

fn handler(mut words: Words<'_>) -> Result<program::Orders, String> {
    let (mut harness, mut place, mut name, mut lease, mut log) = (None, None, None, None, None);
    while let Some(flag) = words.flag() {
        match flag {
            "--rig" => harness = Some(words.value(flag)?.to_owned()),
            "--place" => place = Some(PathBuf::from(words.value(flag)?)),
            "--name" => name = Some(words.value(flag)?.to_owned()),
            "--lease-ms" => lease = Some(Duration::from_millis(words.number(flag)?)),
            "--log" => log = Some(PathBuf::from(words.value(flag)?)),
            other => return Err(format!("handler does not take {other:?}")),
        }
    }
    let missing = || "handler needs --rig, --place, --name and --lease-ms".to_owned();
    Ok(program::Orders {
        harness: harness.ok_or_else(missing)?,
        place: place.ok_or_else(missing)?,
        name: name.ok_or_else(missing)?,
        lease: lease.ok_or_else(missing)?,
        log,
    })
}

fn failover(mut words: Words<'_>) -> Result<Task, String> {
    let (mut harness, mut rounds, mut lease, mut log) = ("sqlite", 30, crate::LEASE, None);
    while let Some(flag) = words.flag() {
        match flag {
            "mongodb" => harness = "mongodb",
            "postgres" => harness = "postgres",
            "replication" => harness = "replication",
            "--rounds" => rounds = words.count(flag)?,
            "--lease-ms" => lease = Duration::from_millis(words.number(flag)?),
            "--log" => log = Some(PathBuf::from(words.value(flag)?)),
            other => return Err(format!("failover does not take {other:?}")),
        }
    }
    Ok(Task::Failover { harness, rounds, lease, log })
}

fn elections(mut words: Words<'_>) -> Result<Task, String> {
    let (mut rounds, mut log) = (5, None);
    while let Some(flag) = words.flag() {
        match flag {
            "--rounds" => rounds = words.count(flag)?,
            "--log" => log = Some(PathBuf::from(words.value(flag)?)),
            other => return Err(format!("elections does not take {other:?}")),
        }
    }
    Ok(Task::Elections { rounds, log })
}

fn latency(mut words: Words<'_>) -> Result<Task, String> {
    let (mut harness, mut samples) = ("mongodb", 2_000);
    while let Some(flag) = words.flag() {
        match flag {
            "postgres" => harness = "postgres",
            "--samples" => samples = words.count(flag)? as u64,
            other => return Err(format!("latency does not take {other:?}")),
        }
    }
    Ok(Task::Latency { harness, samples })
}

fn speed(mut words: Words<'_>) -> Result<Task, String> {
    let mut plan = Plan::of(System::Mongodb);
    while let Some(flag) = words.flag() {
        match flag {
            "postgres" => plan.system = System::Postgres,
            "--rounds" => plan.rounds = words.count(flag)?,
            "--changes" => plan.changes = words.count(flag)? as u64,
            "--live-rounds" => plan.live_rounds = words.count(flag)?,
            "--no-peers" => plan.peers = false,
            other => return Err(format!("speed does not take {other:?}")),
        }
    }
    Ok(Task::Speed(plan))
}

fn consume(mut words: Words<'_>) -> Result<Task, String> {
    let (mut by, mut url, mut group, mut name, mut mark, mut changes) = (None, None, None, None, None, None);
    let (mut folder, mut live) = (None, false);
    while let Some(flag) = words.flag() {
        match flag {
            "--by" => by = Some(words.value(flag)?.parse()?),
            "--url" => url = Some(words.value(flag)?.to_owned()),
            "--group" => group = Some(words.value(flag)?.to_owned()),
            "--name" => name = Some(words.value(flag)?.to_owned()),
            "--mark" => mark = Some(words.number(flag)?),
            "--changes" => changes = Some(words.number(flag)?),
            "--folder" => folder = Some(PathBuf::from(words.value(flag)?)),
            "--live" => live = true,
            other => return Err(format!("consume does not take {other:?}")),
        }
    }
    let missing = || "consume needs --by, --url, --group, --name, --mark, --changes and --folder".to_owned();
    let bench_task = BenchTask {
        by: by.ok_or_else(missing)?,
        url: url.ok_or_else(missing)?,
        group: group.ok_or_else(missing)?,
        mark: mark.ok_or_else(missing)?,
        changes: changes.ok_or_else(missing)?,
        live,
        folder: folder.ok_or_else(missing)?,
    };
    Ok(Task::Consume { bench_task, name: name.ok_or_else(missing)? })
}

fn instance(mut words: Words<'_>) -> Result<Orders, String> {
    let (mut harness, mut place, mut name, mut kind, mut lease, mut self_fencing) =
        (None, None, None, None, None, true);
    let mut log = None;
    while let Some(flag) = words.flag() {
        match flag {
            "--rig" => harness = Some(words.value(flag)?.to_owned()),
            "--place" => place = Some(PathBuf::from(words.value(flag)?)),
            "--name" => name = Some(words.value(flag)?.to_owned()),
            "--sink" => kind = Some(words.value(flag)?.parse()?),
            "--lease-ms" => lease = Some(Duration::from_millis(words.number(flag)?)),
            "--no-self-fencing" => self_fencing = false,
            "--log" => log = Some(PathBuf::from(words.value(flag)?)),
            other => return Err(format!("instance does not take {other:?}")),
        }
    }
    let missing = || "instance needs --rig, --place, --name, --sink and --lease-ms".to_owned();
    Ok(Orders {
        harness: harness.ok_or_else(missing)?,
        place: place.ok_or_else(missing)?,
        name: name.ok_or_else(missing)?,
        kind: kind.ok_or_else(missing)?,
        lease: lease.ok_or_else(missing)?,
        self_fencing,
        log,
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    fn parsed(line: &str) -> Result<Task, String> {
        parse(&line.split_whitespace().map(str::to_owned).collect::<Vec<_>>())
    }

    #[test]
    fn commands_are_recognised() {
        let chaos = Chaos { harness: "sqlite", faults: 60, sink: None, seed: SEED, self_fencing: true, log: None };
        assert_eq!(parsed("sqlite"), Ok(Task::Chaos(chaos.clone())));
        let other = Chaos { faults: 6, sink: Some(Kind::Fenced), seed: 4, self_fencing: false, ..chaos.clone() };
        assert_eq!(parsed("sqlite --faults 6 --sink fenced --seed 4 --no-self-fencing"), Ok(Task::Chaos(other)));
        assert_eq!(parsed("mongodb"), Ok(Task::Chaos(Chaos { harness: "mongodb", ..chaos })));
        assert_eq!(
            parsed("failover mongodb"),
            Ok(Task::Failover { harness: "mongodb", rounds: 30, lease: crate::LEASE, log: None })
        );
        assert_eq!(parsed("elections"), Ok(Task::Elections { rounds: 5, log: None }));
        assert_eq!(parsed("latency --samples 9"), Ok(Task::Latency { harness: "mongodb", samples: 9 }));
        let plan = Plan { rounds: 2, changes: 9, peers: false, live_rounds: 3, system: System::Mongodb };
        assert_eq!(parsed("speed --rounds 2 --changes 9 --no-peers --live-rounds 3"), Ok(Task::Speed(plan)));
        assert_eq!(parsed("speed postgres"), Ok(Task::Speed(Plan::of(System::Postgres))));
        let log = Some(PathBuf::from("here"));
        let lease = Duration::from_secs(30);
        assert_eq!(
            parsed("failover --rounds 3 --lease-ms 30000 --log here"),
            Ok(Task::Failover { harness: "sqlite", rounds: 3, lease, log })
        );
    }

    #[test]
    fn a_wrong_call_is_refused_with_its_cause() {
        for (line, cause) in [
            ("", "no command was given"),
            ("fly", "there is no command \"fly\""),
            ("sqlite --faults", "--faults needs a value"),
            ("sqlite --faults 0", "--faults needs at least 1"),
            ("sqlite --seed x", "--seed needs a whole number, not \"x\""),
            ("sqlite --sink plain", "there is no sink \"plain\"; there are: transactional, fenced"),
            ("failover 5", "failover does not take \"5\""),
            ("instance --rig sqlite", "instance needs --rig, --place, --name, --sink and --lease-ms"),
        ] {
            assert_eq!(parsed(line), Err(cause.to_owned()), "{line}");
        }
    }
}
