//! `${NAME}` and `${file:PATH}` in the values of the file.
//!
//! Expanded are texts that were parsed already, so no value can change the shape of the file and lines stay true.
//! `$$` stands for a dollar sign, except in a `pipeline`, where every dollar sign but that of `${…}` is what it is.

use std::sync::Arc;

use watchkeeper::core::{Options, Reread, Setting, WrittenSetting};
use watchkeeper::{Error, Result};

use super::secrets;

/// Settings that are shown on purpose, so that `name = "${HOSTNAME}"` is still a name.
const SHOWN: [&str; 3] = ["name", "listen", "advertise"];

/// Settings in a language in which dollar signs have a meaning of their own, such as `$match` and `$$ROOT`.
const OF_DOLLARS: [&str; 1] = ["pipeline"];

/// How a text is expanded.
#[derive(Debug, Clone, Copy, Default)]
struct Expansion {
    /// What is put in is no secret.
    shown: bool,
    /// Dollar signs stand for themselves.
    dollars: bool,
}

/// Where values come from.
pub(super) trait Values: Send + Sync {
    /// The variable of this name.
    fn variable(&self, name: &str) -> Option<String>;
    /// The text of this file, without the line break at its end.
    fn file(&self, path: &str) -> std::io::Result<String>;
}

/// Expands all texts in `options`. What was put in is a secret from then on.
///
/// # Errors
/// `Config` with the line, for a variable or file that is not there, unless errors are collected.
pub(super) fn all(options: &mut Options, values: &Arc<dyn Values>) -> Result<()> {
    in_table(options, false, values)
}

fn in_table(options: &mut Options, dollars: bool, values: &Arc<dyn Values>) -> Result<()> {
    let mut rereads = Vec::new();
    let collector = options.collector().cloned();
    for (name, written) in options.iter_mut() {
        let way = Expansion { shown: SHOWN.contains(&name), dollars: dollars || OF_DOLLARS.contains(&name) };
        match (in_setting(written, way, values), &collector) {
            (Ok(reread), _) => rereads.extend(reread.map(|reread| (name.to_owned(), reread))),
            (Err(error), Some(collector)) => collector.push(error),
            (Err(error), None) => return Err(error),
        }
    }
    rereads.into_iter().for_each(|(name, reread)| options.set_reread(name, reread));
    Ok(())
}

/// Expands a setting; the answer is how its text is read again, if it may change while the program runs.
fn in_setting(written: &mut WrittenSetting, way: Expansion, values: &Arc<dyn Values>) -> Result<Option<Reread>> {
    match &mut written.setting {
        Setting::Text(text) if text.contains('$') => {
            let (template, origin) = (text.clone(), written.origin.clone());
            *text = expanded(&template, way, &**values).map_err(|error| error.at(&origin))?;
            // Files may change; the variables of a process do not.
            if !template.contains("${file:") {
                return Ok(None);
            }
            let values = Arc::clone(values);
            let again = move || expanded(&template, way, &*values).map_err(|error| error.at(&origin));
            return Ok(Some(Reread::new(again)));
        }
        Setting::List(list) => list.iter_mut().try_for_each(|value| in_setting(value, way, values).map(drop))?,
        Setting::Table(table) => in_table(table, way.dollars, values)?,
        Setting::Text(_) | Setting::Integer(_) | Setting::Float(_) | Setting::Flag(_) => {}
    }
    Ok(None)
}

fn expanded(text: &str, way: Expansion, values: &dyn Values) -> Result<String> {
    let mut out = String::new();
    let mut rest = text;
    while let Some((before, after)) = rest.split_once('$') {
        out.push_str(before);
        rest = match after.as_bytes().first() {
            Some(b'$') if !way.dollars => {
                out.push('$');
                &after[1..]
            }
            Some(b'{') => {
                let (name, behind) = after[1..].split_once('}').ok_or_else(|| {
                    Error::config("a \"${\" is not closed").remedy("write ${NAME}, or $$ for a dollar sign")
                })?;
                let value = look_up(name, values)?;
                if !way.shown {
                    secrets::hide(&value);
                }
                out.push_str(&value);
                behind
            }
            _ if way.dollars => {
                out.push('$');
                after
            }
            _ => {
                return Err(Error::config("a \"$\" stands alone").remedy("write ${NAME}, or $$ for a dollar sign"));
            }
        };
    }
    out.push_str(rest);
    Ok(out)
}

fn look_up(name: &str, values: &dyn Values) -> Result<String> {
    if let Some(path) = name.strip_prefix("file:") {
        return values.file(path).map_err(|error| {
            Error::config(format!("the file {path} of ${{{name}}} cannot be read: {error}"))
                .remedy("create it, or correct its path")
        });
    }
    values.variable(name).ok_or_else(|| {
        Error::config(format!("the variable {name} is not set"))
            .remedy(format!("set it, or write the value instead of ${{{name}}}"))
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    struct Fixed;

    impl Values for Fixed {
        fn variable(&self, name: &str) -> Option<String> {
            (name == "PASSWORD").then(|| "from-$-variable".to_owned())
        }

        fn file(&self, path: &str) -> std::io::Result<String> {
            match path {
                "secret" => Ok("from-file".to_owned()),
                _ => Err(std::io::ErrorKind::NotFound.into()),
            }
        }
    }

    fn fixed() -> Arc<dyn Values> {
        Arc::new(Fixed)
    }

    fn expand(text: &str) -> Result<String> {
        let mut options = crate::config::toml::read("shop.toml", &format!("\nurl = '{text}'"))?;
        all(&mut options, &fixed())?;
        options.required("url", "")
    }

    #[test]
    fn values_are_put_in_once_and_dollars_can_be_written() {
        assert_eq!(expand("a ${PASSWORD} b ${file:secret}").expect("known"), "a from-$-variable b from-file");
        assert_eq!(expand("100 $$ $${PASSWORD}").expect("known"), "100 $ ${PASSWORD}");
    }

    #[test]
    fn dollars_of_a_pipeline_are_its_own() {
        let text = r#"[{"$match": {"a": "$$ROOT", "b": "${PASSWORD}"}}]"#;
        let file = format!("pipeline = '{text}'\nlisted = {{ pipeline = [{{ \"$set\" = {{ a = \"$$NOW\" }} }}] }}");
        let mut options = crate::config::toml::read("shop.toml", &file).expect("it is TOML");
        all(&mut options, &fixed()).expect("known");
        assert_eq!(
            options.required("pipeline", "").expect("it is there"),
            text.replace("${PASSWORD}", "from-$-variable")
        );
        let listed = options.json("listed").expect("it is there");
        assert_eq!(listed["pipeline"][0]["$set"]["a"], "$$NOW");
    }

    #[test]
    fn what_is_missing_names_the_line_and_what_to_do() {
        for (text, part) in [
            ("${MISSING}", "the variable MISSING is not set [WK-CONFIG]; set it"),
            ("${file:gone}", "the file gone"),
            ("${PASSWORD", "is not closed"),
            ("a $ b", "stands alone"),
        ] {
            let error = expand(text).expect_err("it cannot be expanded").to_string();
            assert!(error.starts_with("shop.toml:2: ") && error.contains(part) && error.contains("; "), "{error}");
        }
    }

    #[test]
    fn a_file_that_was_put_in_is_read_again_and_its_new_content_is_a_secret_too() {
        struct Rotated(std::sync::atomic::AtomicUsize);

        impl Values for Rotated {
            fn variable(&self, _name: &str) -> Option<String> {
                Some("user".to_owned())
            }

            fn file(&self, _path: &str) -> std::io::Result<String> {
                let reads = self.0.fetch_add(1, std::sync::atomic::Ordering::Relaxed);
                Ok(format!("rotated-{reads}"))
            }
        }

        let file = "url = 'p://${USER}:${file:secret}@host'\nplain = 'p://${USER}@host'";
        let mut options = crate::config::toml::read("shop.toml", file).expect("it is TOML");
        let values: Arc<dyn Values> = Arc::new(Rotated(0.into()));
        all(&mut options, &values).expect("known");
        let url = options.renewable("url", "").expect("it is there");
        assert_eq!(url.text(), "p://user:rotated-0@host");
        assert_eq!(url.read_again().expect("it is there").as_deref(), Some("p://user:rotated-1@host"));
        assert_eq!(secrets::masked("it is rotated-1"), "it is ***");
        let plain = options.renewable("plain", "").expect("it is there");
        assert_eq!(plain.read_again().expect("nothing is read"), None, "it cannot change");
    }

    #[test]
    fn what_was_put_in_is_not_shown() {
        expand("${file:secret}").expect("known");
        assert_eq!(secrets::masked("it was from-file"), "it was ***");
    }
}
