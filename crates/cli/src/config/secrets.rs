//! What may not be shown: passwords in URLs, what `${…}` stands for, and settings that are secrets by their name.
//!
//! Whoever reads a setting may put it into an error, and a driver may put it into its own. So nothing relies on
//! their care: all that goes to standard error is searched for secrets on its way.

use std::sync::{PoisonError, RwLock};

use watchkeeper::core::{Options, Setting};

/// A process reads one configuration, and everything that it says may come from there.
static KNOWN: RwLock<Vec<String>> = RwLock::new(Vec::new());

/// Shorter values are found everywhere by chance; nothing that short keeps anyone out.
const LENGTH_MIN: usize = 4;

/// Settings that are secrets wherever they stand.
const NAMES: [&str; 5] = ["password", "secret", "token", "api_key", "access_key"];

/// From now on `secret` is not shown.
pub(crate) fn hide(secret: &str) {
    let mut known = KNOWN.write().unwrap_or_else(PoisonError::into_inner);
    // Quoted in a message, it may look different.
    let quoted = format!("{secret:?}");
    for form in [secret, quoted.trim_matches('"')] {
        if form.len() >= LENGTH_MIN && !known.iter().any(|other| other == form) {
            known.push(form.to_owned());
        }
    }
    // The longest first: one may be part of another.
    known.sort_by_key(|secret| std::cmp::Reverse(secret.len()));
}

/// `text` as it may be shown.
pub(crate) fn masked(text: &str) -> String {
    let known = KNOWN.read().unwrap_or_else(PoisonError::into_inner);
    known.iter().fold(text.to_owned(), |shown, secret| match shown.contains(secret.as_str()) {
        true => shown.replace(secret.as_str(), "***"),
        false => shown,
    })
}

/// Hides what is a secret by its name or its form.
pub(super) fn hide_all(options: &mut Options) {
    for (name, value) in options.iter_mut() {
        hide_in(name, &mut value.setting);
    }
}

fn hide_in(name: &str, setting: &mut Setting) {
    match setting {
        Setting::Text(text) => {
            if NAMES.iter().any(|secret| name.to_lowercase().ends_with(secret)) {
                hide(text);
            }
            if let Some(password) = password(text) {
                hide(password);
            }
        }
        Setting::List(list) => list.iter_mut().for_each(|value| hide_in(name, &mut value.setting)),
        Setting::Table(table) => hide_all(table),
        Setting::Integer(_) | Setting::Float(_) | Setting::Flag(_) => {}
    }
}

/// The password in a URL.
fn password(url: &str) -> Option<&str> {
    let (_, rest) = url.split_once("://")?;
    let end = rest.find(['/', '?', '#']).unwrap_or(rest.len());
    // An unescaped "/" or "@" inside a password must not let its tail through.
    let at = rest[..end].rfind('@').or_else(|| rest.rfind('@'))?;
    rest[..at].split_once(':').map(|(_, password)| password).filter(|password| !password.is_empty())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn passwords_are_found_where_they_stand() {
        assert_eq!(password("mongodb://ann:s3cret@db1,db2/shop"), Some("s3cret"));
        assert_eq!(password("mongodb://ann:s3/cr@et@db1/shop"), Some("s3/cr@et"));
        assert_eq!(password("http://search:9200"), None);
        assert_eq!(password("sqlite:a@b:c.db"), None);
    }

    #[test]
    fn what_is_hidden_is_not_shown_in_any_form() {
        hide("hidden\"twice");
        hide("hidden\"twice and longer");
        hide("ab");
        let shown = masked(&format!("{:?} hidden\"twice and longer, ab", "hidden\"twice"));
        assert_eq!(shown, "\"***\" ***, ab");
    }
}
