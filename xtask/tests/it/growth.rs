//! Public enums may grow without breaking the programs that use them.
//!
//! Every `pub enum` of the library is `#[non_exhaustive]`, so that a new variant breaks no caller. An enum whose variants callers have
//! to handle one by one is listed in [`EXHAUSTIVE`] with the reason: a new variant there has to be a breaking change.

use crate::lexer::code_only;
use crate::sources::rust_files;

/// The folders whose public enums programs see.
const LIBRARY: [&str; 3] = ["crates/core/src", "crates/engine/src", "crates/watchkeeper/src"];

/// Enums that stay exhaustive, with the reason.
const EXHAUSTIVE: [(&str, &str); 17] = [
    ("Acquired", "answer of a lease store: an instance must know whether it holds"),
    ("Back", "order of an operator: a program must know what it asks for, and shows that first"),
    ("Claim", "answer of a checkpoint store: an instance must know whether it may write"),
    ("Commit", "answer of a checkpoint store: an instance must know whether it is fenced"),
    ("Ending", "answer of a lease store: it decides whether a takeover waits for late writes"),
    ("FaultKind", "answer of a sink: each kind asks the engine for something else"),
    ("Move", "order of an operator: a program must know what it asks for, and shows that first"),
    ("OpenedSink", "answer of a sink: each kind is written in its own way"),
    ("PutOutcome", "answer of a records store: a writer must know whether it was written"),
    ("Released", "answer of a lease store: whoever leaves must know whether it is free"),
    ("Renewal", "answer of a lease store: an instance must know whether it still holds"),
    (
        "Resolution",
        "stored by checkpoint stores as a word: one without a word for it would lose what became of an entry",
    ),
    ("Setting", "value of a setting: secrets are hidden, and variables expanded, in every kind of it"),
    ("Takes", "request of a backend: a program that does not know a form of argument cannot read it"),
    ("Transacted", "answer of a transactional sink: an instance must know whether it is fenced"),
    ("Unchangeable", "field of a user's type: a value was sent or not, and there is no third case"),
    ("Verdict", "answer of peers: only a proof of death may break a lease"),
];

/// The public enums of `source`, each with whether it is `#[non_exhaustive]`.
fn public_enums(source: &str) -> Vec<(String, bool)> {
    let code = code_only(source);
    let mut found = Vec::new();
    for (at, _) in code.match_indices("pub enum ") {
        let rest = &code[at + "pub enum ".len()..];
        let name = rest.chars().take_while(|c| c.is_alphanumeric() || *c == '_').collect();
        found.push((name, attributes_before(&code[..at]).contains("#[non_exhaustive]")));
    }
    found
}

/// The attributes that stand directly before an item: everything since the end of the item before it.
fn attributes_before(code: &str) -> &str {
    let end_of_last = code.rfind([';', '}', '{']).map_or(0, |at| at + 1);
    &code[end_of_last..]
}

#[test]
fn every_public_enum_may_grow_or_says_why_not() {
    let mut seen = Vec::new();
    let mut wrong = Vec::new();
    for folder in LIBRARY {
        for file in rust_files(&crate::root().join(folder)) {
            let source = std::fs::read_to_string(&file).expect("a source file is text");
            for (name, may_grow) in public_enums(&source) {
                let is_listed = EXHAUSTIVE.iter().any(|(listed, _)| *listed == name);
                if may_grow == is_listed {
                    let what = if may_grow { "is listed as exhaustive" } else { "is not `#[non_exhaustive]`" };
                    wrong.push(format!("{}: {name} {what}", file.display()));
                }
                seen.push(name);
            }
        }
    }
    assert!(wrong.is_empty(), "{}", wrong.join("\n"));
    for (name, reason) in EXHAUSTIVE {
        assert!(seen.iter().any(|seen| seen == name), "there is no public enum {name}");
        assert!(!reason.is_empty());
    }
}

#[test]
fn an_enum_that_may_not_grow_is_found() {
    for (source, may_grow) in [
        ("pub enum Kind { A }", false),
        ("#[non_exhaustive]\npub enum Kind { A }", true),
        ("#[derive(Debug)]\n#[non_exhaustive]\n#[serde(rename_all = \"x\")]\npub enum Kind { A }", true),
        ("#[non_exhaustive]\npub struct Other;\n\n/// Says #[non_exhaustive].\npub enum Kind { A }", false),
        ("#[non_exhaustive]\npub enum First { A }\npub enum Kind { A }", false),
    ] {
        let found = public_enums(source);
        assert_eq!(found.last(), Some(&("Kind".to_owned(), may_grow)), "{source}");
    }
    assert_eq!(public_enums("enum Private { A }\npub(crate) enum Inner { A }"), []);
}
