//! What the README and the guide tell people to type, typed.

use crate::workspace::{Answer, Running, Workspace, until};

const README: &str = include_str!("../../../../README.md");
const QUESTIONS: &str = include_str!("../../../../docs/guide/questions.md");
const TROUBLESHOOTING: &str = include_str!("../../../../docs/guide/troubleshooting.md");

/// The blocks of this language, in order.
fn blocks<'a>(page: &'a str, language: &str) -> Vec<&'a str> {
    let opening = format!("```{language}\n");
    page.split(opening.as_str()).skip(1).map(|rest| rest.split("```").next().expect("a block has an end")).collect()
}

/// A line of a shell, as far as the README uses it: words, and one text in quotes.
fn words(line: &str) -> Vec<String> {
    let mut words = Vec::new();
    for (at, part) in line.split('"').enumerate() {
        match at % 2 {
            0 => words.extend(part.split_whitespace().map(str::to_owned)),
            _ => words.push(part.to_owned()),
        }
    }
    words
}

/// Types a line; what runs in the background is kept.
fn type_in(workspace: &Workspace, line: &str, running: &mut Vec<Running>) -> Option<Answer> {
    let words = words(line);
    let words: Vec<&str> = words.iter().map(String::as_str).collect();
    match words.as_slice() {
        ["sqlite3", "app.db", sql] => workspace.sql(sql),
        ["watchkeeper", rest @ .., "&"] => running.push(Running::start(workspace.command().args(rest))),
        ["watchkeeper", rest @ ..] => return Some(workspace.run(rest)),
        _ => panic!("nobody knows how to type {line:?}"),
    }
    None
}

#[test]
fn the_first_five_minutes_are_as_the_readme_says() {
    let workspace = Workspace::empty();
    let mut running: Vec<Running> = Vec::new();
    let pages: Vec<&str> = blocks(README, "sh").into_iter().filter(|block| block.contains("watchkeeper ")).collect();
    assert_eq!(pages.len(), 2, "the first steps, and what to look at then");
    for line in pages[0].lines() {
        // Whoever types is slower than the program: the first one has the watch before the second is started.
        if line.ends_with('&') && running.len() == 1 {
            running[0].says(&["to=running"]);
        }
        if let Some(answer) = type_in(&workspace, line, &mut running) {
            assert_eq!(answer.code, Some(0), "{line}: {answer:?}");
        }
    }
    running[1].says(&["standing by"]);
    until("the change has arrived where the README says", || workspace.delivered() == [1]);
    let mut said = Vec::new();
    for line in pages[1].lines() {
        let answer = type_in(&workspace, line, &mut running).expect("these are commands");
        assert_eq!(answer.code, Some(0), "{line}: {answer:?}");
        said.push((line, answer.out));
    }
    let of = |command: &str| &said.iter().find(|(line, _)| line.contains(command)).expect("it was typed").1;
    assert!(of("tail").contains("\"item\":\"rope\"") && of("tail").contains("total: 1"), "{said:?}");
    assert!(of("history").lines().any(|line| line.contains("epoch")), "there are entries: {said:?}");
    let why = workspace.run(&["why", "orders"]);
    assert!(why.out.contains("epoch 2"), "the hand-over is told: {why:?}");
    for mut one in running {
        one.ends_in_order();
    }
}

const GROUP: &str = "[group]\nname = \"shop\"\nstore = \"sqlite:state.db\"\n\n";

#[test]
fn the_filters_in_the_questions_are_accepted() {
    let snippets = blocks(QUESTIONS, "toml");
    assert_eq!(snippets.len(), 3, "a source's, a sink's, and a pipeline");
    let workspace = Workspace::with(&format!("{GROUP}{}{}", snippets[0], snippets[1]));
    let checked = workspace.run(&["check"]);
    assert_eq!(checked.code, Some(0), "{checked:?}");
    // Nobody answers there: what is written is understood, and only the server is missed.
    let pipeline = snippets[2].replace("db1,db2,db3", "127.0.0.1:1").replace("rs0", "rs0&serverSelectionTimeoutMS=200");
    let workspace = Workspace::with(&format!("{GROUP}[[stream]]\nname = \"orders\"\n{pipeline}\n{}", snippets[1]));
    let checked = workspace.run(&["check"]);
    assert_eq!(checked.code, Some(1), "{checked:?}");
    assert!(!checked.out.contains("WK-CONFIG") && !checked.err.contains("WK-CONFIG"), "{checked:?}");
}

#[test]
fn troubleshooting_has_every_error_code() {
    let (_, section) = TROUBLESHOOTING.split_once("\n## Error codes\n").expect("there is such a section");
    let section = section.split("\n## ").next().expect("it has an end");
    let rows = section.lines().filter_map(|line| line.strip_prefix("| `")).filter_map(|line| line.split_once("` |"));
    let listed: Vec<_> = rows
        .map(|(code, rest)| {
            let cells = rest.split(" | ").filter(|cell| !cell.trim_matches([' ', '|']).is_empty()).count();
            assert_eq!(cells, 2, "{code} has a meaning and a remedy");
            code
        })
        .collect();
    let known: Vec<_> = watchkeeper::ErrorKind::ALL.iter().map(|kind| kind.code()).collect();
    assert_eq!(listed, known);
}
