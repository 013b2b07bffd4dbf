//! What is asked for on the command line.

/// How to call it.
pub(crate) const HELP: &str = "usage: watchkeeper-bench engine [--rounds N] [--quick]

  --rounds N   rounds of each measurement that is repeated (5)
  --quick      fewer changes, streams and rounds: to see that it works, not for figures to quote";

/// How much to measure.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Options {
    /// Rounds of what is repeated.
    pub(crate) rounds: usize,
    /// Changes in one round.
    pub(crate) changes: u64,
    /// Changes in the long run that must not grow.
    pub(crate) changes_long: u64,
    /// Streams that a standby stands by for.
    pub(crate) streams: usize,
}

impl Options {
    const FULL: Self = Self { rounds: 5, changes: 1_000_000, changes_long: 10_000_000, streams: 1_000 };
    const QUICK: Self = Self { rounds: 2, changes: 200_000, changes_long: 2_000_000, streams: 200 };
}

/// Reads the words after the program's name.
pub(crate) fn parse(words: &[String]) -> Result<Options, String> {
    let Some((what, mut rest)) = words.split_first() else {
        return Err("name a benchmark: `engine`".to_owned());
    };
    if what != "engine" {
        return Err(format!("there is no benchmark `{what}`; there is `engine`"));
    }
    let quick = rest.iter().any(|word| word == "--quick");
    let mut options = if quick { Options::QUICK } else { Options::FULL };
    while let Some((option, after)) = rest.split_first() {
        rest = match (option.as_str(), after) {
            ("--quick", _) => after,
            ("--rounds", [number, after @ ..]) => {
                options.rounds = rounds(number)?;
                after
            }
            ("--rounds", []) => return Err("`--rounds` needs a number".to_owned()),
            _ => return Err(format!("`engine` does not take `{option}`")),
        };
    }
    Ok(options)
}

fn rounds(number: &str) -> Result<usize, String> {
    let rounds = number.parse().ok().filter(|rounds| *rounds > 0);
    rounds.ok_or_else(|| format!("`--rounds` takes a number of at least 1, not `{number}`"))
}

#[cfg(test)]
mod tests {
    use super::{Options, parse};

    fn parsed(line: &str) -> Result<Options, String> {
        parse(&line.split_whitespace().map(str::to_owned).collect::<Vec<_>>())
    }

    #[test]
    fn options_are_read_in_any_order() {
        assert_eq!(parsed("engine"), Ok(Options::FULL));
        assert_eq!(parsed("engine --rounds 9"), Ok(Options { rounds: 9, ..Options::FULL }));
        assert_eq!(parsed("engine --rounds 9 --quick"), Ok(Options { rounds: 9, ..Options::QUICK }));
    }

    #[test]
    fn what_is_not_understood_is_said() {
        for (line, cause) in [
            ("", "name a benchmark"),
            ("disk", "no benchmark `disk`"),
            ("engine --rounds", "needs a number"),
            ("engine --rounds 0", "at least 1"),
            ("engine --slow", "does not take `--slow`"),
        ] {
            assert!(parsed(line).is_err_and(|text| text.contains(cause)), "{line}");
        }
    }
}
