//! `explain CODE`: what an error means, and what to do.

use std::process::ExitCode;

use serde_json::json;
use watchkeeper::core::Report;
use watchkeeper::{Error, ErrorKind, Result};

use crate::answer;
use crate::args::Common;

/// What is said of a kind that has no page. No kind is without one.
const NOT_DESCRIBED: &str = "A kind of error that is not described here yet.";

/// What it means, and what to do.
fn page(kind: ErrorKind) -> (&'static str, &'static str) {
    match kind {
        ErrorKind::Config => (
            "A setting is wrong, or names something that is not there. Trying again is useless until a person changes it. \
             While a stream runs, this instance gives it up for a while and another one tries.",
            "Read the place at the beginning of the line (file and line, variable or flag) and the remedy at its end. \
             `watchkeeper check` tells all that is wrong at once.",
        ),
        ErrorKind::Denied => (
            "Credentials or privileges are missing. Another instance may have them, so this one gives up the watch and \
             stays away for a while.",
            "Give this user access to what the line names: a role of MongoDB, a privilege of PostgreSQL (`watchkeeper postgres \
             install --role ROLE` grants what reading a change log needs), the owner and mode of a file. The instance tries again \
             by itself; `watchkeeper resume STREAM` makes it try at once. A password in `${file:…}` is read again whenever access \
             is denied, so that rotating it needs no restart.",
        ),
        ErrorKind::Unavailable => (
            "Something did not answer or had no room, and nothing was changed. It is tried again with growing pauses; \
             nothing is lost, the stream only falls behind.",
            "Look at the system that the line names: is it up, reachable, full? If it takes long, compare the lag with how \
             far the source's history reaches.",
        ),
        ErrorKind::Unknown => (
            "A call was not answered in time and may or may not have happened. It is repeated unchanged; every write \
             carries what is needed to recognise the repetition.",
            "Nothing, if it stays rare. If not, the network or the system that the line names is too slow for the time-out.",
        ),
        ErrorKind::Fenced => (
            "A newer holder has claimed the checkpoint, so this one may write nothing more. This is the protection at \
             work: the instance was replaced while it was paused, cut off or too slow to renew its lease.",
            "Nothing for the data. If it comes often, look for pauses of the process or the machine, or lengthen the lease.",
        ),
        ErrorKind::PositionLost => (
            "The history after the checkpoint is gone (pruned, rolled over), or the log that answers is another one (a \
             restored backup, a recreated slot). The stream halts or notes a gap, as on_history_lost says; it never \
             skips silently.",
            "Point the stream at its own log again, if it was moved. Otherwise decide: accept the gap, or read everything \
             again. Longer retention at the source prevents it.",
        ),
        ErrorKind::Corrupt => (
            "Stored bytes do not mean what they should: a damaged file, or something else wrote there. The stream is \
             halted, since going on could lose changes.",
            "`watchkeeper why STREAM` names what it is. One change of the source that cannot be decoded: `watchkeeper skip STREAM` \
             passes over exactly that change and records it. The checkpoint: choose an earlier one (`watchkeeper checkpoint history \
             STREAM`, then `watchkeeper checkpoint rewind STREAM`). A file or table: restore it, then `watchkeeper resume STREAM`.",
        ),
        ErrorKind::Rejected => (
            "A target will never take a change, for example because a constraint of its table is violated. The stream is halted, \
             as on_reject = \"stop\" says; what comes before the change is committed.",
            "Change the target so that it takes the change and resume the stream, or pass over it with `watchkeeper skip`. With \
             on_reject = \"dead_letter\" such changes are set aside and the stream goes on.",
        ),
        ErrorKind::Internal => (
            "A handler panicked or called a change fatal, or something happened that should not be possible: a bug in Watchkeeper, in \
             a backend, or in what it talks to. The instance gives up the stream, and another one tries.",
            "If the line names a handler, look into that handler first. Otherwise report the bug with the log lines before it.",
        ),
        _ => (NOT_DESCRIBED, "Read the cause and the remedy in the line itself."),
    }
}

pub(crate) fn run(common: &Common, code: Option<&str>) -> Result<ExitCode> {
    let kinds = match code {
        None => ErrorKind::ALL.to_vec(),
        Some(code) => vec![find(code)?],
    };
    let pages = kinds.iter().map(|kind| {
        let (meaning, remedy) = page(*kind);
        json!({ "code": kind.code(), "meaning": meaning, "remedy": remedy })
    });
    let lines = kinds.iter().enumerate().map(|(at, kind)| {
        let (meaning, remedy) = page(*kind);
        let apart = if at > 0 { "\n" } else { "" };
        format!("{apart}{}\n  {meaning}\n  What to do: {remedy}", kind.code())
    });
    answer::print_report(&Report { lines: lines.collect(), data: pages.collect() }, common.json)?;
    Ok(ExitCode::SUCCESS)
}

/// The kind of this code, in any case and without its prefix too.
fn find(code: &str) -> Result<ErrorKind> {
    let wanted = code.to_uppercase().replace('_', "-");
    let is_wanted = |kind: &ErrorKind| kind.code() == wanted || kind.code().strip_prefix("WK-") == Some(&wanted);
    ErrorKind::ALL.iter().copied().find(is_wanted).ok_or_else(|| {
        let known: Vec<_> = ErrorKind::ALL.iter().map(|kind| kind.code()).collect();
        Error::config(format!("there is no code {code:?}")).remedy(format!("known are: {}", known.join(", ")))
    })
}

#[cfg(test)]
mod tests {
    use super::{ErrorKind, NOT_DESCRIBED, page};

    #[test]
    fn every_kind_of_error_has_a_page() {
        let without: Vec<_> = ErrorKind::ALL.iter().filter(|kind| page(**kind).0 == NOT_DESCRIBED).collect();
        assert!(without.is_empty(), "{without:?}");
    }
}
