//! Just enough of Rust's grammar to look at code without its comments and literals.

/// `source` with comments and the contents of literals replaced by spaces; lines stay where they are.
pub(crate) fn code_only(source: &str) -> String {
    let characters: Vec<char> = source.chars().collect();
    let mut code = String::with_capacity(source.len());
    let mut at = 0;
    while at < characters.len() {
        let length = literal(&characters, at);
        if length == 0 {
            code.push(characters[at]);
            at += 1;
            continue;
        }
        code.extend(characters[at..at + length].iter().map(|c| if *c == '\n' { '\n' } else { ' ' }));
        at += length;
    }
    code
}

/// The length of the comment or literal that begins at `at`; zero if none does.
fn literal(text: &[char], at: usize) -> usize {
    let rest = &text[at..];
    let inside_word = at > 0 && (text[at - 1].is_alphanumeric() || text[at - 1] == '_');
    match rest {
        ['/', '/', ..] => rest.iter().position(|c| *c == '\n').unwrap_or(rest.len()),
        ['/', '*', ..] => block_comment(rest),
        ['"', ..] => quoted(rest, '"'),
        ['\'', '\\', ..] => quoted(rest, '\''),
        ['\'', _, '\'', ..] => 3,
        ['r', '"' | '#', ..] if !inside_word => raw(&rest[1..]).map_or(0, |length| length + 1),
        ['b' | 'c', 'r', '"' | '#', ..] if !inside_word => raw(&rest[2..]).map_or(0, |length| length + 2),
        _ => 0,
    }
}

fn block_comment(rest: &[char]) -> usize {
    let (mut depth, mut at) = (0, 0);
    while at < rest.len() {
        match &rest[at..] {
            ['/', '*', ..] => (depth, at) = (depth + 1, at + 2),
            ['*', '/', ..] => (depth, at) = (depth - 1, at + 2),
            _ => at += 1,
        }
        if depth == 0 {
            break;
        }
    }
    at
}

fn quoted(rest: &[char], quote: char) -> usize {
    let mut at = 1;
    while at < rest.len() {
        match rest[at] {
            '\\' => at += 2,
            c if c == quote => return at + 1,
            _ => at += 1,
        }
    }
    rest.len()
}

/// The length of a raw string from its first `#` or quote; `None` for a raw identifier.
fn raw(rest: &[char]) -> Option<usize> {
    let hashes = rest.iter().take_while(|c| **c == '#').count();
    if rest.get(hashes) != Some(&'"') {
        return None;
    }
    let closing = |window: &[char]| window[0] == '"' && window[1..].iter().all(|c| *c == '#');
    let end = rest[hashes + 1..].windows(hashes + 1).position(closing);
    Some(end.map_or(rest.len(), |end| hashes + 1 + end + hashes + 1))
}

#[test]
fn comments_and_literals_are_blank_and_code_is_kept() {
    for (source, words) in [
        ("a // hidden \n b", "a b"),
        ("a /* hidden /* deeper */ hidden */ b", "a b"),
        (r#"a("hidden \" hidden") b"#, "a( ) b"),
        (r##"a r#"hidden " hidden"# b"##, "a b"),
        ("a br\"hidden\\\" b", "a b"),
        ("fn f<'a>(x: &'a str) { '\"' }", "fn f<'a>(x: &'a str) { }"),
        ("match c { '\\'' => 1, '/' => 2 }", "match c { => 1, => 2 }"),
        ("r#type x", "r#type x"),
    ] {
        let code = code_only(source);
        assert_eq!(code.split_whitespace().collect::<Vec<_>>().join(" "), words, "{source}");
        assert_eq!(code.lines().count(), source.lines().count(), "{source}");
    }
}
