//! Whether an instance that was killed was in the middle of its snapshot.

use serde::Deserialize;
use watchkeeper_core::{Position, Source as _};
use watchkeeper_mongodb::{Feed, Scope, View};
use watchkeeper_postgres::replication::{Replication, Settings};
use watchkeeper_testkit::histories::{Plan, Source, Start};

use super::Trouble;
use super::config::Paths;
use crate::cluster::cx;

/// What `checkpoint show --json` prints.
#[derive(Debug, Deserialize)]
struct Shown {
    checkpoint: Option<Committed>,
}

#[derive(Debug, Deserialize)]
struct Committed {
    position: Option<String>,
}

/// The position in the answer of `checkpoint show --json`, if one was ever committed.
fn position(answer: &[u8]) -> Result<Option<Position>, Trouble> {
    let unreadable =
        |cause: String| format!("the checkpoint cannot be read: {cause}: {}", String::from_utf8_lossy(answer));
    let shown: Shown = serde_json::from_slice(answer).map_err(|error| unreadable(error.to_string()))?;
    let Some(digits) = shown.checkpoint.and_then(|committed| committed.position) else { return Ok(None) };
    let byte = |at: usize| digits.get(at..at + 2).and_then(|pair| u8::from_str_radix(pair, 16).ok());
    let bytes: Option<Vec<u8>> = (0..digits.len()).step_by(2).map(byte).collect();
    Ok(Some(Position::new(bytes.ok_or_else(|| unreadable("no position".to_owned()))?, None)))
}

/// Whether the committed position lies inside a snapshot, as the source itself says. Without a position nothing of it was committed.
pub(super) async fn is_under_way(plan: &Plan, places: &Paths, answer: &[u8]) -> Result<bool, Trouble> {
    let Some(position) = position(answer)?.filter(|_| plan.start == Start::Snapshot) else { return Ok(false) };
    let unusable = |error: watchkeeper_core::Error| error.to_string();
    match plan.source {
        Source::Sqlite | Source::ChangeLog => Ok(false),
        Source::Replication => {
            let config = watchkeeper_postgres::Config::new(places.source.as_str()).map_err(unusable)?;
            Ok(Replication::new(config, Settings::new("any", "any")).has_unfinished_snapshot(&position))
        }
        Source::Mongodb => {
            let config = watchkeeper_mongodb::Config::new(places.source.as_str()).map_err(unusable)?;
            let client = watchkeeper_mongodb::Client::open(&cx(), config).await.map_err(unusable)?;
            let names = plan.tables.iter().map(|table| table.name.clone()).collect();
            Ok(Feed::new(client, View::of(Scope::Collections(names))).has_unfinished_snapshot(&position))
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn positions_are_found_in_the_answer() {
        let found = position(br#"{"stream":"history","checkpoint":{"position":"00ff10","epoch":3}}"#);
        assert_eq!(found, Ok(Some(Position::new(vec![0, 255, 16], None))));
        assert_eq!(position(br#"{"stream":"history","checkpoint":null}"#), Ok(None));
        assert_eq!(position(br#"{"stream":"history","checkpoint":{"position":null}}"#), Ok(None));
        assert!(position(b"nothing").is_err());
    }
}
