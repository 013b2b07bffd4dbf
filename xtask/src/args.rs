//! What was asked for on the command line.

use crate::servers;

/// One line per command, shown by `help` and below every wrong call.
pub(crate) const HELP: &str = "\
Usage: cargo xtask <command>

  test [--quick]            format, clippy, docs, all tests, 100 simulated seeds, every mutant, 6 faults on each store,
                            3 faults against every part of `chaos program`, 10 random histories
                            (--quick leaves out the lowest Rust, macOS, the docs, the mutants and the bars of the engine)
  sim [--seeds N]           simulate N seeds
  sim --seed S [--trace]    simulate one seed, and show what happened
  sim --mutant NAME         simulate an engine that breaks one guarantee (with --seeds or --seed)
  sim --no-self-fencing     simulate holders that do not end themselves: the fences must hold alone
  sim --mutants             every mutant with the seeds that are known to catch it
  chaos sqlite [--faults N] three real processes on SQLite under N faults, with each kind of sink
  chaos mongodb [--faults N]
                            the same on a replica set of three, whose primary is killed, too, and connections are cut
  chaos postgres [--faults N]
                            the same on a PostgreSQL server that is restarted, with the change log and with replication
                            (all also: --sink transactional|fenced, --seed S, --no-self-fencing)
  chaos program [sqlite|mongodb|postgres] [--faults N]
                            N faults against `watchkeeper run` with a file and copies, and against a program with a
                            handler, on the named systems, or on all (also: --seed S, --log FOLDER)
  histories [--seeds N]     N random histories (200 by default) copied by `watchkeeper run`: at the end the target equals the source
  histories --seed S        one of them (both also: --source NAME, --sink NAME, --jobs N, --keep FOLDER)
  rusqlite                  the tests of the SQLite backend with the lowest and the newest rusqlite that its range allows
  servers [NAME…]           install the real servers that the tests start into a cache outside of the clone
  bench engine              what the engine itself costs, with source and sink in memory
  bench failover [mongodb|postgres|replication]
                            how long a takeover takes after each kind of fault (--rounds N, 30 by default; --lease-ms N)
  bench elections           how soon changes are delivered behind a new primary of MongoDB, with a short and a long lease (--rounds N)
  bench mongodb             how fast changes are read from MongoDB, beside the bare driver and others' programs, which are
                            installed first (--rounds N, --changes N, --live-rounds N; --no-peers leaves the others out)
  bench postgres            how fast changes are read from PostgreSQL by replication and from the change log, beside
                            pg_recvlogical, bare loops and others' programs, and what triggers cost the writers (as above)
  bench latency [postgres]  leases and commits beside bare durable writes: on three MongoDB servers, or on PostgreSQL
                            under a thousand streams (--samples N)
  help                      this list
";

/// What to do.
#[derive(Debug, PartialEq, Eq)]
pub(crate) enum Command {
    Help,
    Test {
        quick: bool,
    },
    /// The arguments of the simulation's own program.
    Sim(Vec<String>),
    /// The arguments of the program that strikes real processes.
    Chaos(Vec<String>),
    /// The arguments of the same program, which starts the shipped one.
    ChaosProgram(Vec<String>),
    /// The servers to install; none named means all.
    Servers(Vec<String>),
    BenchEngine,
    Rusqlite,
    /// The arguments of the program that reads real changes.
    Speed(Vec<String>),
}

/// Reads the words after `cargo xtask`; the error is one line that says what is wrong with them.
pub(crate) fn parse(words: &[String]) -> Result<Command, String> {
    let Some((command, rest)) = words.split_first() else {
        return Err("no command was given".to_owned());
    };
    match command.as_str() {
        "help" | "--help" | "-h" => nothing_after(command, rest).map(|()| Command::Help),
        _ if rest.iter().any(|word| word == "--help" || word == "-h") => Ok(Command::Help),
        "test" => parse_test(rest),
        "sim" => parse_sim(rest),
        "rusqlite" => nothing_after(command, rest).map(|()| Command::Rusqlite),
        "servers" => parse_servers(rest),
        "bench" => parse_bench(rest),
        // Its own program knows its words, and says what is wrong with them.
        "chaos" if rest.is_empty() => {
            Err("`chaos` needs the name of a store: `sqlite`, `mongodb` or `postgres`".to_owned())
        }
        "histories" => Ok(Command::ChaosProgram(words.to_vec())),
        "chaos" if rest[0] == "program" => Ok(Command::ChaosProgram(rest.to_vec())),
        "chaos" if !["sqlite", "mongodb", "postgres"].contains(&rest[0].as_str()) => {
            Err(format!("there is no chaos on `{}`; there is on `sqlite`, `mongodb` and `postgres`", rest[0]))
        }
        "chaos" => Ok(Command::Chaos(rest.to_vec())),
        unknown => Err(format!("there is no command `{unknown}`")),
    }
}

fn nothing_after(command: &str, rest: &[String]) -> Result<(), String> {
    rest.first().map_or(Ok(()), |word| Err(unexpected(command, word)))
}

fn unexpected(command: &str, word: &str) -> String {
    format!("`{command}` does not take `{word}`")
}

fn parse_test(rest: &[String]) -> Result<Command, String> {
    let mut quick = false;
    for word in rest {
        match word.as_str() {
            "--quick" => quick = true,
            other => return Err(unexpected("test", other)),
        }
    }
    Ok(Command::Test { quick })
}

fn parse_servers(rest: &[String]) -> Result<Command, String> {
    let known = servers::names();
    match rest.iter().find(|word| !known.contains(&word.as_str())) {
        Some(word) => Err(format!("there is no server `{word}`; there is {}", known.join(", "))),
        None => Ok(Command::Servers(rest.to_vec())),
    }
}

/// All benchmarks.
const BENCHMARKS: &str = "`elections`, `engine`, `failover`, `latency`, `mongodb` and `postgres`";

/// The system whose speed is measured, as the program that does it is told.
pub(crate) const POSTGRES: &str = "postgres";

fn parse_bench(rest: &[String]) -> Result<Command, String> {
    match rest.split_first() {
        Some((what, after)) if what == "engine" => nothing_after("bench engine", after).map(|()| Command::BenchEngine),
        Some((what, _)) if ["elections", "failover", "latency"].contains(&what.as_str()) => {
            Ok(Command::Chaos(rest.to_vec()))
        }
        Some((what, after)) if what == "mongodb" => Ok(Command::Speed([&["speed".to_owned()], after].concat())),
        Some((what, _)) if what == POSTGRES => Ok(Command::Speed([&["speed".to_owned()], rest].concat())),
        Some((what, _)) => Err(format!("there is no benchmark `{what}`; there are {BENCHMARKS}")),
        None => Err(format!("`bench` needs the name of a benchmark: {BENCHMARKS}")),
    }
}

/// Which of the simulation's flags were given; they exclude each other in some pairs.
#[derive(Debug, Default)]
struct SimFlags {
    seeds: bool,
    seed: bool,
    trace: bool,
    mutant: bool,
    mutants: bool,
    no_self_fencing: bool,
}

fn parse_sim(rest: &[String]) -> Result<Command, String> {
    let mut given = SimFlags::default();
    let mut passed_on = Vec::new();
    let mut words = rest.iter();
    while let Some(word) = words.next() {
        // Both `--seed 7` and `--seed=7` are usual.
        let (flag, inline) = word.split_once('=').map_or((word.as_str(), None), |(flag, value)| (flag, Some(value)));
        let place = match flag {
            "--seeds" => &mut given.seeds,
            "--seed" => &mut given.seed,
            "--trace" => &mut given.trace,
            "--mutant" => &mut given.mutant,
            "--mutants" => &mut given.mutants,
            "--no-self-fencing" => &mut given.no_self_fencing,
            _ => return Err(unexpected("sim", word)),
        };
        if std::mem::replace(place, true) {
            return Err(format!("`{flag}` was given twice"));
        }
        passed_on.push(flag.to_owned());
        match (takes_value(flag), inline) {
            (false, None) => {}
            (false, Some(_)) => return Err(format!("`{flag}` takes no value")),
            (true, Some(value)) => passed_on.push(checked(flag, value)?),
            (true, None) => {
                let value = words.next().ok_or_else(|| format!("`{flag}` needs a value"))?;
                passed_on.push(checked(flag, value)?);
            }
        }
    }
    given.check().map(|()| Command::Sim(passed_on))
}

fn takes_value(flag: &str) -> bool {
    matches!(flag, "--seeds" | "--seed" | "--mutant")
}

/// The value, if it can be one of `flag`.
fn checked(flag: &str, value: &str) -> Result<String, String> {
    let fits = match flag {
        "--mutant" => !value.is_empty() && !value.starts_with('-'),
        "--seeds" => value.parse::<u64>().is_ok_and(|count| count > 0),
        _ => value.parse::<u64>().is_ok(),
    };
    let wanted = if flag == "--mutant" { "a name" } else { "a whole number" };
    if fits { Ok(value.to_owned()) } else { Err(format!("`{flag}` needs {wanted}, not `{value}`")) }
}

impl SimFlags {
    fn check(&self) -> Result<(), String> {
        if self.seeds && self.seed {
            return Err("`--seeds` and `--seed` exclude each other".to_owned());
        }
        if self.no_self_fencing && (self.seed || self.mutant) {
            return Err("`--no-self-fencing` goes with `--seeds` only".to_owned());
        }
        if self.mutants && (self.seeds || self.seed || self.mutant || self.no_self_fencing) {
            return Err("`--mutants` brings its own seeds and names".to_owned());
        }
        if self.trace && !self.seed {
            return Err("`--trace` shows one seed: name it with `--seed`".to_owned());
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::{Command, parse};

    fn parsed(line: &str) -> Result<Command, String> {
        parse(&line.split_whitespace().map(str::to_owned).collect::<Vec<_>>())
    }

    fn sim(words: &[&str]) -> Result<Command, String> {
        Ok(Command::Sim(words.iter().map(|word| (*word).to_owned()).collect()))
    }

    #[test]
    fn commands_are_recognised() {
        assert_eq!(parsed("test"), Ok(Command::Test { quick: false }));
        assert_eq!(parsed("test --quick"), Ok(Command::Test { quick: true }));
        assert_eq!(parsed("bench engine"), Ok(Command::BenchEngine));
        assert_eq!(parsed("rusqlite"), Ok(Command::Rusqlite));
        assert_eq!(parsed("servers"), Ok(Command::Servers(Vec::new())));
        assert_eq!(parsed("servers mongodb"), Ok(Command::Servers(vec!["mongodb".to_owned()])));
        assert_eq!(parsed("help"), Ok(Command::Help));
        assert_eq!(parsed("sim --help"), Ok(Command::Help));
    }

    #[test]
    fn the_flags_of_the_simulation_are_passed_on() {
        assert_eq!(parsed("sim"), sim(&[]));
        assert_eq!(parsed("sim --seeds 1000"), sim(&["--seeds", "1000"]));
        assert_eq!(parsed("sim --seed=7 --trace"), sim(&["--seed", "7", "--trace"]));
        assert_eq!(parsed("sim --mutant no-barrier --seed 3"), sim(&["--mutant", "no-barrier", "--seed", "3"]));
        assert_eq!(parsed("sim --mutants"), sim(&["--mutants"]));
    }

    #[test]
    fn chaos_and_the_benchmark_of_failover_are_one_program() {
        let words = |line: &str| line.split_whitespace().map(str::to_owned).collect();
        assert_eq!(parsed("chaos sqlite --faults 60"), Ok(Command::Chaos(words("sqlite --faults 60"))));
        assert_eq!(parsed("chaos mongodb"), Ok(Command::Chaos(words("mongodb"))));
        assert_eq!(parsed("chaos program --faults 60"), Ok(Command::ChaosProgram(words("program --faults 60"))));
        assert_eq!(parsed("histories --seed 7"), Ok(Command::ChaosProgram(words("histories --seed 7"))));
        assert_eq!(parsed("bench mongodb --rounds 3"), Ok(Command::Speed(words("speed --rounds 3"))));
        assert_eq!(parsed("bench postgres --rounds 3"), Ok(Command::Speed(words("speed postgres --rounds 3"))));
        assert_eq!(parsed("bench latency"), Ok(Command::Chaos(words("latency"))));
        assert_eq!(parsed("bench failover --rounds 5"), Ok(Command::Chaos(words("failover --rounds 5"))));
    }

    #[test]
    fn a_wrong_call_is_refused_with_its_cause() {
        for (line, cause) in [
            ("", "no command was given"),
            ("fly", "there is no command `fly`"),
            ("test --slow", "`test` does not take `--slow`"),
            ("help me", "`help` does not take `me`"),
            (
                "bench",
                "`bench` needs the name of a benchmark: `elections`, `engine`, `failover`, `latency`, `mongodb` and `postgres`",
            ),
            (
                "bench disk",
                "there is no benchmark `disk`; there are `elections`, `engine`, `failover`, `latency`, `mongodb` and `postgres`",
            ),
            ("chaos", "`chaos` needs the name of a store: `sqlite`, `mongodb` or `postgres`"),
            ("chaos paper", "there is no chaos on `paper`; there is on `sqlite`, `mongodb` and `postgres`"),
            (
                "servers oracle",
                "there is no server `oracle`; there is mongodb, pgbouncer, postgresql-15, postgresql-18",
            ),
            ("rusqlite 0.32", "`rusqlite` does not take `0.32`"),
            ("bench engine 5", "`bench engine` does not take `5`"),
            ("sim --sedes 5", "`sim` does not take `--sedes`"),
            ("sim --seeds", "`--seeds` needs a value"),
            ("sim --seeds 0", "`--seeds` needs a whole number, not `0`"),
            ("sim --seed -1", "`--seed` needs a whole number, not `-1`"),
            ("sim --mutant --seeds", "`--mutant` needs a name, not `--seeds`"),
            ("sim --seed 1 --seed 2", "`--seed` was given twice"),
            ("sim --seeds 5 --seed 1", "`--seeds` and `--seed` exclude each other"),
            ("sim --mutants --seeds 5", "`--mutants` brings its own seeds and names"),
            ("sim --mutants=all", "`--mutants` takes no value"),
            ("sim --seeds 5 --trace", "`--trace` shows one seed: name it with `--seed`"),
        ] {
            assert_eq!(parsed(line), Err(cause.to_owned()), "{line}");
        }
    }
}
