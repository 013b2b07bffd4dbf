//! Where the checkpoint of a stream is kept.
//!
//! A transactional sink brings the store of its stream's checkpoint with it. Whoever gives a stream another sink may so give
//! it another store, in which there is no checkpoint: the stream would begin anew, and what changed since the last commit
//! would be passed over without a word. So it is noted in which store a stream began, beside the leases, which stay where
//! they are.

use std::sync::Arc;

use serde::{Deserialize, Serialize};
use watchkeeper_core::{Cx, Error, Records, Result, StoreIdentity};

use super::amend;

#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
struct Home {
    store: Option<StoreIdentity>,
}

/// The homes of a group's streams.
#[derive(Debug, Clone)]
pub struct Homes {
    records: Arc<dyn Records>,
    group: String,
}

impl Homes {
    /// The homes of the streams of `group`.
    pub fn new(records: Arc<dyn Records>, group: &str) -> Self {
        Self { records, group: group.to_owned() }
    }

    /// The names of all streams that have ever begun, in their order.
    ///
    /// # Errors
    /// What the records say when they do not answer.
    pub async fn streams(&self, cx: &Cx) -> Result<Vec<String>> {
        let prefix = format!("{}/home/", self.group);
        let records = self.records.list(cx, &prefix).await?;
        let mut names: Vec<_> =
            records.iter().filter_map(|record| record.name.strip_prefix(&prefix)).map(str::to_owned).collect();
        names.sort();
        Ok(names)
    }

    /// Notes that a stream begins in `store`, where it has no checkpoint.
    ///
    /// # Errors
    /// `Config` if it has begun elsewhere before.
    pub async fn settle(&self, cx: &Cx, stream: &str, store: StoreIdentity) -> Result<()> {
        let name = format!("{}/home/{stream}", self.group);
        let home: Home = amend(&*self.records, cx, &name, |home: &mut Home| {
            home.store.get_or_insert(store);
        })
        .await?;
        if home.store == Some(store) {
            return Ok(());
        }
        Err(Error::config(format!("stream {stream:?} has no checkpoint in this store, but began in another one")).remedy(
            format!(
                "its sinks decide which store that is: give it back those that it had, and look there where it stands \
                (watchkeeper checkpoint show {stream}); then it can begin there with the new ones: watchkeeper checkpoint set \
                {stream} POSITION"
            ),
        ))
    }
}
