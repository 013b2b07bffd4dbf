//! A store, source or target as the file names it: by URL, or by type.

use std::path::PathBuf;
use std::sync::Arc;

use watchkeeper::core::{Backend, Collector, Options, Setting, WrittenSetting};
use watchkeeper::{Error, Result, registry};

/// A backend, and the settings that are for it.
#[derive(Debug, Clone)]
pub(crate) struct System {
    pub(crate) backend: Arc<dyn Backend>,
    pub(crate) options: Options,
}

impl System {
    /// Takes the system that is written under `name`: a URL, or a table with one.
    pub(super) fn take(parent: &mut Options, name: &str) -> Result<Option<Self>> {
        let Some(written) = parent.take(name) else { return Ok(None) };
        let reread = parent.reread(name).cloned();
        let path = if parent.path().is_empty() { name.to_owned() } else { format!("{}.{name}", parent.path()) };
        let options = match written.setting {
            Setting::Table(table) => table,
            Setting::Text(url) => {
                let mut table = Options::new(path, written.origin.clone());
                table.insert("url", WrittenSetting::text(url, written.origin));
                reread.into_iter().for_each(|reread| table.set_reread("url", reread));
                table
            }
            _ => {
                let error = Error::config(format!("{path}: this names no system")).at(&written.origin);
                return Err(error.remedy(format!("write {name} = \"sqlite:state.db\", say")));
            }
        };
        Self::of(options).map(Some)
    }

    /// The system that these settings name, by `type` or by the scheme of `url`.
    pub(super) fn of(mut options: Options) -> Result<Self> {
        let backend = match options.text("type")? {
            Some(name) => registry::named(&name).map_err(|error| about(&options, "type", &error))?,
            None => match options.peek_text("url") {
                Some(url) => registry::of_url(url).map_err(|error| about(&options, "url", &error))?,
                None => return Err(options.missing("url", "\"sqlite:state.db\"")),
            },
        };
        // Whoever opens it wants to know of errors; those of the file are collected when it is validated.
        options.collect_into(None);
        Ok(Self { backend, options })
    }

    /// What `validate` makes of the settings, without a connection. All that is wrong goes to `collector`.
    pub(super) fn validated<T>(
        &self,
        collector: &Collector,
        validate: impl FnOnce(&dyn Backend, &mut Options) -> Result<T>,
    ) -> Option<T> {
        let before = collector.len();
        let mut options = self.options.clone();
        options.collect_into(Some(collector));
        let validated = validate(&*self.backend, &mut options).map_err(|error| error.at(self.options.origin()));
        let plan = validated.and_then(|plan| options.finish().map(|()| plan));
        match plan {
            Ok(plan) => (collector.len() == before).then_some(plan),
            Err(error) => {
                collector.push(error);
                None
            }
        }
    }

    /// The absolute path of the file that it is as a store. `None` of a system that keeps no store in a file.
    pub(crate) fn store_file(&self) -> Option<PathBuf> {
        std::path::absolute(self.named_store_file()?).ok()
    }

    fn named_store_file(&self) -> Option<PathBuf> {
        // Settings are validated when the file is read.
        self.backend.store_file(&mut self.options.clone()).ok()?
    }

    /// Refuses a store that is a file and does not exist: opening it would make an empty one, perhaps in the wrong folder.
    pub(crate) fn require_store_file(&self) -> Result<()> {
        let Some(file) = self.store_file().filter(|file| !file.exists()) else { return Ok(()) };
        let is_relative = self.named_store_file().is_some_and(|named| named.is_relative());
        let relative = match is_relative {
            true => {
                "start the program in the folder of the store, or write an absolute path: relative paths begin in the folder in \
                 which the program is started"
            }
            false => "correct the path",
        };
        let cause = format!("the store {} does not exist, and this command makes none", file.display());
        let remedy = format!("{relative}; if the group has never run, start it with `watchkeeper run`");
        Err(Error::config(cause).remedy(remedy).at(self.options.origin()))
    }

    /// What `open` makes of the settings. None may be left over, and an error knows where the system was named.
    pub(crate) async fn open<T>(&self, open: impl AsyncFnOnce(&dyn Backend, &mut Options) -> Result<T>) -> Result<T> {
        let mut options = self.options.clone();
        let opened = open(&*self.backend, &mut options).await.map_err(|error| error.at(self.options.origin()))?;
        options.finish()?;
        Ok(opened)
    }
}

/// The same error, of this setting and the place where it was written.
fn about(options: &Options, name: &str, error: &Error) -> Error {
    options.wrong(name, error.message()).remedy(error.advice().unwrap_or_default())
}
