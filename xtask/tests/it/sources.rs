//! What may not stand in the sources, as far as no lint says so.
//!
//! A simulation is only as true as its seams: one socket, file or bare task in the engine and the
//! same seed no longer gives the same history.

use std::path::{Path, PathBuf};

use crate::lexer::code_only;

/// Modules whose use goes round a seam, as (root, module).
const BANNED_MODULES: [(&str, &str); 4] = [("std", "net"), ("tokio", "net"), ("std", "fs"), ("tokio", "fs")];

/// Words that may not stand in core and engine, with the reason.
const BANNED_WORDS: [(&str, &str); 3] = [
    ("tokio::spawn", "tasks go through `Spawn`"),
    ("spawn_blocking", "tasks go through `Spawn`"),
    ("unsafe", "there is no unsafe code"),
];

/// What is wrong with a file of core or engine, one line each.
fn violations(source: &str) -> Vec<String> {
    let code = code_only(source);
    let mut found = Vec::new();
    for (word, reason) in BANNED_WORDS {
        found.extend(places(&code, word).map(|line| format!("line {line}: `{word}`: {reason}")));
    }
    for (root, module) in BANNED_MODULES {
        let path = format!("{root}::{module}");
        found.extend(places(&code, &path).map(|line| format!("line {line}: `{path}`: no I/O here")));
        found.extend(grouped(&code, root, module).map(|line| format!("line {line}: `{path}`: no I/O here")));
    }
    found.extend(unbiased(&code).map(|line| format!("line {line}: `select!` is not `biased`")));
    found
}

fn ignored(source: &str) -> Vec<String> {
    let code = code_only(source);
    let lines = code.lines().enumerate().filter(|(_, line)| line.replace(' ', "").contains("#[ignore"));
    lines.map(|(at, _)| format!("line {}: a test that is ignored looks green", at + 1)).collect()
}

fn line_of(code: &str, at: usize) -> usize {
    code[..at].matches('\n').count() + 1
}

/// The lines where `word` stands as a word of its own.
fn places<'a>(code: &'a str, word: &'a str) -> impl Iterator<Item = usize> + 'a {
    let part_of_name = |c: Option<char>| c.is_some_and(|c| c.is_alphanumeric() || c == '_');
    let alone = move |at: &usize| {
        !part_of_name(code[..*at].chars().next_back()) && !part_of_name(code[at + word.len()..].chars().next())
    };
    code.match_indices(word).map(|(at, _)| at).filter(alone).map(|at| line_of(code, at))
}

/// The lines where `module` is imported in a group: `use root::{…, module, …}`.
fn grouped<'a>(code: &'a str, root: &str, module: &'a str) -> impl Iterator<Item = usize> + 'a {
    let opening = format!("{root}::{{");
    let groups: Vec<usize> = code.match_indices(&opening).map(|(at, _)| at).collect();
    let imports = move |at: &usize| {
        let inside = &code[at + opening.len()..];
        let group = &inside[..inside.find(';').unwrap_or(inside.len())];
        let names = group.split([',', '{', '}']);
        names.into_iter().any(|name| name.trim().split("::").next() == Some(module))
    };
    groups.into_iter().filter(imports).map(|at| line_of(code, at))
}

/// The lines of `select!` without `biased;` as its first words.
fn unbiased(code: &str) -> impl Iterator<Item = usize> {
    let calls = code.match_indices("select!");
    let fair = |(at, word): &(usize, &str)| {
        let arms = code[at + word.len()..].trim_start().trim_start_matches(['{', '(', '[']);
        !arms.trim_start().starts_with("biased;")
    };
    calls.filter(fair).map(|(at, _)| line_of(code, at))
}

pub(crate) fn rust_files(folder: &Path) -> Vec<PathBuf> {
    let mut found = Vec::new();
    for entry in std::fs::read_dir(folder).expect("the folder can be read") {
        let path = entry.expect("the entry can be read").path();
        if path.is_dir() {
            found.extend(rust_files(&path));
        } else if path.extension().is_some_and(|extension| extension == "rs") {
            found.push(path);
        }
    }
    found.sort();
    found
}

fn check(folders: &[&str], rule: fn(&str) -> Vec<String>) {
    let mut found = Vec::new();
    for folder in folders {
        let files = rust_files(&crate::root().join(folder));
        assert!(!files.is_empty(), "nothing was looked at in {folder}");
        for file in files {
            let source = std::fs::read_to_string(&file).expect("a source file is text");
            found.extend(rule(&source).into_iter().map(|line| format!("{}: {line}", file.display())));
        }
    }
    assert!(found.is_empty(), "{}", found.join("\n"));
}

#[test]
fn core_and_engine_reach_round_no_seam() {
    check(&["crates/core/src", "crates/engine/src"], violations);
}

#[test]
fn no_test_is_ignored() {
    check(&["crates", "xtask"], ignored);
}

#[test]
fn what_is_banned_is_found() {
    for source in [
        "fn f() { tokio::spawn(g()); }",
        "fn f() { tokio::task::spawn_blocking(g); }",
        "use std::net::TcpStream;",
        "use std::{fmt, net::TcpStream};",
        "use tokio::net;",
        "use std::{\n    fmt,\n    fs,\n};",
        "use tokio::fs::File;",
        "fn f() { unsafe { g() } }",
        "fn f() { tokio::select! { a = b => {} } }",
        "fn f() { select!(a = b => {}) }",
        "fn f() { tokio::select! { biased; a = b => {} }; tokio::select! { c = d => {} } }",
    ] {
        assert_eq!(violations(source).len(), 1, "{source}: {:?}", violations(source));
    }
    assert_eq!(ignored("#[test]\n#[ignore = \"needs a server\"]\nfn f() {}").len(), 1);
}

#[test]
fn what_only_looks_banned_is_let_through() {
    for source in [
        "// tokio::spawn, std::fs and unsafe are banned",
        "/// No `std::net` here.\nfn f() { g(\"unsafe\") }",
        "#![forbid(unsafe_code)]",
        "use std::{fmt, ops::Range}; mod fs;",
        "fn f() { self.handle.spawn(job); }",
        "fn f() { tokio::select! {\n    biased;\n    a = b => {}\n} }",
        "fn f() { tokio::select! {\n    // The end first.\n    biased;\n    a = b => {}\n} }",
    ] {
        assert_eq!(violations(source), Vec::<String>::new(), "{source}");
    }
    assert_eq!(ignored("// #[ignore] is not for us\nfn f() { g(\"#[ignore]\") }"), Vec::<String>::new());
}
