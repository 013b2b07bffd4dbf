//! Passwords that are replaced while the program runs.

use std::sync::{Arc, PoisonError, RwLock};

use watchkeeper_core::{Renewable, Result};

use super::address;
use super::environment::Process;

/// The password of a URL. Clones share it, so that one that is denied renews it for all.
#[derive(Debug, Clone)]
pub(crate) struct Credentials {
    url: Renewable,
    password: Arc<RwLock<Option<Vec<u8>>>>,
}

impl Credentials {
    /// Those of `url`, which the driver was told as `postgres`.
    pub(super) fn new(url: Renewable, postgres: &tokio_postgres::Config) -> Self {
        Self { url, password: Arc::new(RwLock::new(postgres.get_password().map(<[u8]>::to_vec))) }
    }

    /// The password as it was read last.
    pub(crate) fn password(&self) -> Option<Vec<u8>> {
        self.password.read().unwrap_or_else(PoisonError::into_inner).clone()
    }

    /// Reads the password again, after the server denied access with `used`. Whether there is another one now, be it that someone
    /// else has read it meanwhile.
    pub(crate) fn renew(&self, used: Option<&[u8]>, place: &str) -> bool {
        match self.read_again() {
            Ok(Some(password)) => {
                let mut current = self.password.write().unwrap_or_else(PoisonError::into_inner);
                if *current != Some(password.clone()) {
                    tracing::info!(
                        place,
                        "access was denied, and the password has changed: connecting with the new one"
                    );
                    *current = Some(password);
                }
            }
            Ok(None) => {}
            Err(error) => tracing::warn!(place, %error, "access was denied, and the password cannot be read again"),
        }
        self.password().as_deref() != used
    }

    fn read_again(&self) -> Result<Option<Vec<u8>>> {
        let Some(url) = self.url.read_again()? else { return Ok(None) };
        let known = address::gather(&url, &Process)?;
        Ok(known.get("password").map(|password| password.clone().into_bytes()))
    }
}
