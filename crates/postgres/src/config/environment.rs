//! What a process finds around it.

use std::path::PathBuf;

/// What a process finds around it: variables and files. Tests bring their own.
pub(super) trait Environment {
    /// A variable of the environment.
    fn variable(&self, name: &str) -> Option<String>;

    /// The home folder.
    fn home(&self) -> Option<PathBuf> {
        self.variable("HOME").map(PathBuf::from)
    }
}

/// This process.
#[derive(Debug, Clone, Copy)]
pub(super) struct Process;

impl Environment for Process {
    fn variable(&self, name: &str) -> Option<String> {
        std::env::var(name).ok()
    }
}

/// No surroundings at all: nothing but what a URL says.
#[derive(Debug, Clone, Copy)]
pub(super) struct EmptyEnvironment;

impl Environment for EmptyEnvironment {
    fn variable(&self, _name: &str) -> Option<String> {
        None
    }
}

/// Surroundings that a test makes up.
#[cfg(test)]
pub(super) mod scripted {
    use std::collections::BTreeMap;
    use std::path::Path;

    use super::Environment;

    /// Variables by their names.
    pub(crate) struct FixedEnvironment(BTreeMap<&'static str, String>);

    impl Environment for FixedEnvironment {
        fn variable(&self, name: &str) -> Option<String> {
            self.0.get(name).cloned()
        }
    }

    /// Nothing but these variables.
    pub(crate) fn environment(variables: &[(&'static str, &str)]) -> FixedEnvironment {
        FixedEnvironment(variables.iter().map(|(name, value)| (*name, (*value).to_owned())).collect())
    }

    /// Makes a file; the answer is where it lies.
    pub(crate) fn write(folder: &Path, name: &str, text: &str, mode: u32) -> String {
        use std::os::unix::fs::PermissionsExt;
        let path = folder.join(name);
        std::fs::write(&path, text).expect("the folder is ours");
        std::fs::set_permissions(&path, std::fs::Permissions::from_mode(mode)).expect("the file is ours");
        path.display().to_string()
    }
}
