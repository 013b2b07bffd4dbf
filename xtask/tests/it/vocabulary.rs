//! One vocabulary: words that a stranger would have to learn do not stand in names, and one name means one thing.

use std::collections::BTreeMap;
use std::path::{Path, PathBuf};

use crate::lexer::code_only;
use crate::root;

/// Words that no identifier has in it. The project keeps one metaphor, the watch and its keeper; see CONTRIBUTING.md.
const NEVER: [&str; 75] = [
    "basket",
    "befall",
    "bereft",
    "berth",
    "berths",
    "bury",
    "courier",
    "deed",
    "disband",
    "disperse",
    "errand",
    "errands",
    "fate",
    "fates",
    "fleet",
    "forsake",
    "gear",
    "happening",
    "harbour",
    "harbours",
    "intake",
    "lookout",
    "mood",
    "moods",
    "moored",
    "outline",
    "pen",
    "pulse",
    "pump",
    "reign",
    "relieve",
    "rig",
    "rigs",
    "sail",
    "scene",
    "sea",
    "seat",
    "seats",
    "sentry",
    "ship",
    "ships",
    "stillness",
    "steer",
    "stumble",
    "vet",
    "vets",
    "voyage",
    "voyages",
    "weather",
    "wharf",
    "wish",
    "wishes",
    "witness",
    "witnesses",
    "actor",
    "actors",
    "spare",
    "sentries",
    "harboured",
    "couriers",
    "desert",
    "told",
    "untold",
    "heed",
    "heeds",
    "heeded",
    "stir",
    "stirred",
    "sight",
    "sights",
    "onlooker",
    "onlookers",
    "mend",
    "mended",
    "burying",
];

/// The Rust files of the workspace.
fn sources(folder: &Path, found: &mut Vec<PathBuf>) {
    for entry in std::fs::read_dir(folder).expect("it can be read") {
        let path = entry.expect("it can be read").path();
        if path.is_dir() {
            sources(&path, found);
        } else if path.extension().is_some_and(|extension| extension == "rs") {
            found.push(path);
        }
    }
}

fn all_sources() -> Vec<PathBuf> {
    let mut found = Vec::new();
    for folder in ["crates", "xtask/src"] {
        sources(&root().join(folder), &mut found);
    }
    found
}

/// The words of all identifiers of `code`, in small letters: `SinkDelivery` and `sink_delivery` have two.
fn words(code: &str) -> impl Iterator<Item = String> + '_ {
    let identifiers = code.split(|c: char| !c.is_alphanumeric() && c != '_').filter(|name| !name.is_empty());
    identifiers.flat_map(|name| {
        let mut words = vec![String::new()];
        let mut last_is_small = false;
        for c in name.chars() {
            if c == '_' || (c.is_uppercase() && last_is_small) {
                words.push(String::new());
            }
            last_is_small = c.is_lowercase();
            if c != '_' {
                words.last_mut().expect("it has one").extend(c.to_lowercase());
            }
        }
        words
    })
}

/// The names of the public types that `source` defines.
fn public_types(source: &str) -> Vec<String> {
    let code = code_only(source);
    let defined = code.lines().filter_map(|line| {
        let rest = line.trim_start().strip_prefix("pub ")?;
        let rest = ["struct ", "enum ", "trait ", "type "].iter().find_map(|kind| rest.strip_prefix(kind))?;
        Some(rest.chars().take_while(|c| c.is_alphanumeric() || *c == '_').collect())
    });
    defined.collect()
}

#[test]
fn no_identifier_has_a_word_that_a_stranger_would_have_to_learn() {
    let mut found = Vec::new();
    for path in all_sources() {
        let code = code_only(&std::fs::read_to_string(&path).expect("it can be read"));
        let banned = words(&code).filter(|word| NEVER.contains(&&**word));
        found.extend(banned.map(|word| format!("{}: {word}", path.display())));
    }
    assert!(found.is_empty(), "{found:#?}");
}

#[test]
fn no_two_public_types_of_a_crate_share_a_name() {
    let mut defined: BTreeMap<(String, String), Vec<PathBuf>> = BTreeMap::new();
    for path in all_sources() {
        let relative = path.strip_prefix(root()).expect("it is below the root").to_owned();
        let mut parts = relative.iter().skip(1).map(|part| part.to_string_lossy().into_owned());
        let (Some(krate), Some(part)) = (parts.next(), parts.next()) else { continue };
        if part != "src" {
            continue;
        }
        for name in public_types(&std::fs::read_to_string(&path).expect("it can be read")) {
            defined.entry((krate.clone(), name)).or_default().push(relative.clone());
        }
    }
    assert!(defined.len() > 200, "types are found");
    defined.retain(|_, places| places.len() > 1);
    assert!(defined.is_empty(), "{defined:#?}");
}

/// Every file that the code map names is there.
#[test]
fn files_that_documents_name_exist() {
    let mut files = all_sources();
    sources(&root().join("xtask"), &mut files);
    let names: Vec<String> = files.iter().map(|path| format!("/{}", path.display())).collect();
    for document in ["ARCHITECTURE.md", "CONTRIBUTING.md", "README.md"] {
        let text = std::fs::read_to_string(root().join(document)).expect("it can be read");
        let quoted = text.split('`').skip(1).step_by(2);
        for name in
            quoted.filter(|quoted| quoted.ends_with(".rs") && !quoted.contains(|c: char| c.is_whitespace() || c == '{'))
        {
            let end = format!("/{name}");
            assert!(names.iter().any(|path| path.ends_with(&end)), "{document} names {name}, which is not there");
        }
    }
}

#[test]
fn words_are_found_in_names_of_every_form() {
    let found: Vec<String> = words("let SinkDelivery = a_berth(HTTPServer, MOOD_OF);").collect();
    assert_eq!(found, ["let", "sink", "delivery", "a", "berth", "httpserver", "mood", "of"]);
    assert_eq!(public_types("pub struct A;\npub(crate) enum B {}\n// pub enum C\npub type D = u8;"), ["A", "D"]);
}
