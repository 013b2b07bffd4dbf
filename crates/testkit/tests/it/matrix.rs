//! Every known-bad implementation against every law of its contract, as a snapshot.
//!
//! Regenerate with `UPDATE_SNAPSHOT=1 cargo test -p watchkeeper-testkit matrix`, and read the difference.

use std::fmt::Write;

use watchkeeper_testkit::known_bad::{self, KnownBad};
use watchkeeper_testkit::laws::{self, LawOf};

const SNAPSHOT: &str = concat!(env!("CARGO_MANIFEST_DIR"), "/tests/it/matrix.txt");

/// One contract: a column per known-bad one, a row per law; `X` where the law is broken.
fn table<B: ?Sized>(contract: &str, bad: &[KnownBad<B>], laws: &[LawOf<B>]) -> String {
    let mut text = format!("{contract}\n");
    for (letter, one) in ('a'..).zip(bad) {
        writeln!(text, "  {letter} {one:?}: {}", one.breaks).unwrap();
    }
    let letters: String = ('a'..).take(bad.len()).collect();
    writeln!(text, "\n  {:<60} {letters}", "").unwrap();
    let (mut found, mut useless) = (vec![false; bad.len()], Vec::new());
    for law in laws {
        let broken: Vec<_> = bad.iter().map(|one| one.judge(law).is_err()).collect();
        for ((found, one), broken) in found.iter_mut().zip(bad).zip(&broken) {
            *found |= *broken && one.breaks == law.name;
        }
        let row: String = broken.iter().map(|broken| if *broken { 'X' } else { '.' }).collect();
        writeln!(text, "  {:<60} {row}", law.name).unwrap();
        if !broken.contains(&true) {
            useless.push(law.name);
        }
    }
    let unfound: Vec<_> = bad.iter().zip(found).filter(|(_, found)| !found).map(|(one, _)| one).collect();
    assert!(unfound.is_empty(), "these do not break their own law: {unfound:?}\n{text}");
    assert!(useless.is_empty(), "none of these breaks: {useless:?}\n{text}");
    writeln!(text).unwrap();
    text
}

#[test]
fn every_known_bad_one_breaks_its_law() {
    let tables = [
        table("lease stores", &known_bad::leases(), &laws::lease::all()),
        table("checkpoint stores", &known_bad::checkpoints(), &laws::checkpoint::all()),
        table("records", &known_bad::records(), &laws::records::all()),
        table("sources", &known_bad::sources(), &laws::source::all()),
        table("sinks", &known_bad::sinks(), &laws::sink::all()),
        table("transactional sinks", &known_bad::transactional_sinks(), &laws::transactional::all()),
    ];
    let found = tables.concat();
    if std::env::var_os("UPDATE_SNAPSHOT").is_some() {
        std::fs::write(SNAPSHOT, &found).unwrap();
    }
    let expected = std::fs::read_to_string(SNAPSHOT).unwrap_or_default();
    let differ = |(old, new): &(&str, &str)| old != new;
    let changes: Vec<_> = expected.lines().zip(found.lines()).filter(differ).collect();
    assert!(found == expected, "the matrix has changed; (was, is): {changes:#?}\nit is now:\n{found}");
}
