//! Whose log a position belongs to.

use serde::{Deserialize, Serialize};
use watchkeeper_core::source::ACCEPT_GAP;
use watchkeeper_core::{Error, Pedigree, Result};

use super::position::{Lsn, ReplicationPosition};
use super::publication_definition::PublicationDefinition;
use super::version_origin::Origin;
use super::wire::{Failure, Wire};

/// The identity of a log.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub(super) struct SourceLineage {
    /// The identifier that the cluster was given when it was made.
    pub(super) system: String,
    /// Which of its histories this is; a standby that takes over begins a new one.
    pub(super) timeline: u32,
    pub(super) database: String,
    /// What the publication was made of when it was looked at last; not known in what older versions have stored, and before
    /// there is one.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub(super) publication: Option<PublicationDefinition>,
}

impl SourceLineage {
    pub(super) async fn ask(wire: &mut Wire) -> Result<Self, Failure> {
        let rows = wire.query("IDENTIFY_SYSTEM").await?;
        let field = |at: usize| rows.first().and_then(|row| row.get(at)).and_then(Option::as_deref).unwrap_or_default();
        let timeline = field(1).parse().map_err(std::io::Error::other)?;
        Ok(Self { system: field(0).to_owned(), timeline, database: field(3).to_owned(), publication: None })
    }

    pub(super) fn to_pedigree(&self) -> Pedigree {
        let publication = self.publication.as_ref().map(PublicationDefinition::condensed);
        // Plain values can be written as JSON.
        Pedigree(serde_json::to_vec(&Self { publication, ..self.clone() }).unwrap_or_default().into())
    }

    pub(super) fn from_pedigree(pedigree: &Pedigree) -> Option<Self> {
        serde_json::from_slice(&pedigree.0).ok()
    }

    /// The first part of the ids of changes. Without the timeline: a change keeps its id when a standby takes over.
    pub(super) fn origin(&self) -> Origin {
        Origin::new(format!("postgres-{}", self.system), &self.system, self.timeline)
    }

    /// Makes sure that `place` belongs to the history that answers now.
    pub(super) async fn recognise(
        &self,
        wire: &mut Wire,
        place: &ReplicationPosition,
        stored: &Pedigree,
    ) -> Result<Result<()>, Failure> {
        let Some(stored) = Self::from_pedigree(stored) else { return Ok(Err(foreign("another kind of log"))) };
        if stored.system != self.system {
            return Ok(Err(foreign(&format!("the cluster {}, but {} answers", stored.system, self.system))));
        }
        if stored.database != self.database {
            return Ok(Err(foreign(&format!("the database {}, but {} is read", stored.database, self.database))));
        }
        if stored.timeline == self.timeline {
            return Ok(Ok(()));
        }
        let left = left_at(wire, self.timeline, stored.timeline).await?;
        Ok(match left {
            // What was read lies in the part of the log that both histories share.
            Some(left) if place.lsn < left || (place.lsn == left && place.ordinal == 0) => Ok(()),
            _ => {
                let (theirs, ours) = (stored.timeline, self.timeline);
                Err(foreign(&format!("timeline {theirs} at {}, which timeline {ours} does not share", place.lsn)))
            }
        })
    }
}

/// Where the history of timeline `current` left the timeline `old`; `None` when it does not descend from it.
async fn left_at(wire: &mut Wire, current: u32, old: u32) -> Result<Option<Lsn>, Failure> {
    if old > current || current == 1 {
        return Ok(None);
    }
    let rows = wire.query(&format!("TIMELINE_HISTORY {current}")).await?;
    let content = rows.first().and_then(|row| row.get(1)).and_then(Option::as_deref).unwrap_or_default();
    Ok(content.lines().find_map(|line| left_in(line, old)))
}

/// A line of a history: the timeline that was left, where, and why.
fn left_in(line: &str, old: u32) -> Option<Lsn> {
    let mut words = line.split_whitespace();
    let timeline: u32 = words.next()?.parse().ok()?;
    let left = Lsn::parse(words.next()?)?;
    (timeline == old).then_some(left)
}

fn foreign(whose: &str) -> Error {
    Error::position_lost(format!("the checkpoint belongs to {whose}"))
        .remedy(format!("point the stream at the log it was reading, or {ACCEPT_GAP}"))
}

#[cfg(test)]
mod tests {
    use watchkeeper_core::Pedigree;

    use super::{Lsn, SourceLineage, left_in};

    #[test]
    fn what_older_versions_have_stored_can_be_read() {
        let stored = Pedigree(r#"{"system":"7","timeline":1,"database":"shop"}"#.into());
        let lineage = SourceLineage::from_pedigree(&stored).expect("it is one of ours");
        assert_eq!((lineage.publication.clone(), lineage.to_pedigree()), (None, stored));
    }

    #[test]
    fn a_history_tells_where_a_timeline_was_left() {
        assert_eq!(left_in("1\t0/3000060\tno recovery target specified", 1), Some(Lsn(0x300_0060)));
        assert_eq!(left_in("1\t0/3000060\tno recovery target specified", 2), None);
        assert_eq!(left_in("# comment", 1), None);
    }
}
