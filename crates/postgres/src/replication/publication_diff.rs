//! What became of a publication since it was looked at last.

use std::collections::BTreeSet;

use watchkeeper_core::{Error, Result};

use super::keys;
use super::publication_definition::{Digest, Entry, OPTIONS, PublicationDefinition};

/// A publication that lost nothing.
#[derive(Debug, Default)]
pub(super) struct PublicationDiff {
    /// What is remembered of it from now on. What has left is not forgotten: should it come back, something is missing.
    pub(super) scope: Option<PublicationDefinition>,
    /// What it tells no longer, in words.
    pub(super) left: Vec<String>,
}

impl PublicationDiff {
    /// Compares a publication with what is remembered of it.
    ///
    /// # Errors
    /// `PositionLost` when it did not tell of something for a while, of which it tells again; or when rows have other keys.
    pub(super) fn between(before: Option<&PublicationDefinition>, now: Option<&PublicationDefinition>) -> Result<Self> {
        match (before, now) {
            (Some(before), Some(now)) if before.name == now.name => {
                Comparison { name: &now.name, before, now }.compare()
            }
            // The tables of another one have the keys that they have.
            (Some(before), Some(now)) => {
                let scope = PublicationDefinition { keys: keys::compared(before, now)?, ..now.clone() };
                Ok(Self { scope: Some(scope), left: Vec::new() })
            }
            // Nothing is known of it yet; or it is not there, which is told when it is needed.
            (before, now) => Ok(Self { scope: now.or(before).cloned(), left: Vec::new() }),
        }
    }

    /// Tells those who run the stream what it will not get any more.
    pub(super) fn warn(&self) {
        for what in &self.left {
            tracing::warn!("{what}");
        }
    }
}

struct Comparison<'a> {
    name: &'a str,
    before: &'a PublicationDefinition,
    now: &'a PublicationDefinition,
}

impl Comparison<'_> {
    fn compare(&self) -> Result<PublicationDiff> {
        let Self { name, before, now } = self;
        if before.id != now.id {
            // The server refuses to decode what was written while there was no publication.
            let accept = "watchkeeper accept-gap STREAM --to now";
            return Err(lost(&format!("publication {name} was dropped and made anew"), accept));
        }
        if before.all != now.all {
            return Err(interrupted(&format!("publication {name} tells of its tables in another way")));
        }
        let mut left = Vec::new();
        let lapsed = self.lapsed(&mut left)?;
        let gone = match &before.many {
            Some(many) => self.gone_of_many(many, &mut left)?,
            None => self.gone(&mut left)?,
        };
        let entries = now.entries.iter().cloned().chain(gone).collect();
        let keys = keys::compared(before, now)?;
        Ok(PublicationDiff {
            scope: Some(PublicationDefinition { lapsed, entries, keys, ..PublicationDefinition::clone(now) }),
            left,
        })
    }

    /// The options that were on, and are off.
    fn lapsed(&self, left: &mut Vec<String>) -> Result<String> {
        let Self { name, before, now } = self;
        let mut lapsed = String::new();
        for (letter, _, what) in OPTIONS {
            let (was_reported, had_lapsed) = (before.published.contains(letter), before.lapsed.contains(letter));
            match now.published.contains(letter) {
                true if had_lapsed => {
                    return Err(interrupted(&format!("publication {name} did not tell of {what} for a while")));
                }
                false if was_reported => left.push(format!("publication {name} does not tell of {what} any more")),
                _ => {}
            }
            if !now.published.contains(letter) && (was_reported || had_lapsed) {
                lapsed.push(letter);
            }
        }
        if before.altered != now.altered && before.published == now.published {
            // A new owner is written in the same place; then nothing is known of the options in between.
            if before.owner == now.owner {
                let cause = format!("the options of publication {name} were altered and altered back");
                return Err(interrupted(&cause));
            }
            left.push(format!("publication {name} has another owner, who may have altered its options for a while"));
        }
        Ok(lapsed)
    }

    /// Of what was too much to remember one by one nothing is known but that some of it is not there: whatever was put in may have
    /// been there before.
    fn gone_of_many(&self, many: &Digest, left: &mut Vec<String>) -> Result<Vec<Entry>> {
        let name = self.name;
        if many.is_in(self.now.entries.iter().map(Entry::print)) {
            return Ok(Vec::new());
        }
        if self.now.entries.iter().any(|entry| many.is_older_than(entry.id)) {
            let cause = format!("tables were taken out of publication {name} and others, or the same, put in");
            return Err(interrupted(&cause));
        }
        left.push(format!("publication {name} does not tell of some of its tables any more"));
        Ok(Vec::new())
    }

    /// The entries that were there, and are not any more.
    fn gone(&self, left: &mut Vec<String>) -> Result<Vec<Entry>> {
        let (before, now) = (ids(self.before), ids(self.now));
        let (kept, missing): (Vec<_>, Vec<_>) = self.before.entries.iter().partition(|entry| now.contains(&entry.id));
        let added: Vec<_> = self.now.entries.iter().filter(|entry| !before.contains(&entry.id)).collect();
        let mut gone = Vec::new();
        for missing in missing {
            let reports_it = |kept: &Entry| kept.meets(missing) && (kept.table.is_none() || missing.table.is_some());
            if kept.iter().any(|kept| reports_it(kept)) {
                continue;
            }
            if let Some(added) = added.iter().find(|added| added.meets(missing)) {
                return Err(self.replaced(missing, added));
            }
            if !missing.gone {
                left.push(format!("publication {} does not tell of {} any more", self.name, missing.subject()));
            }
            gone.push(Entry { gone: true, ..missing.clone() });
        }
        Ok(gone)
    }

    fn replaced(&self, missing: &Entry, added: &Entry) -> Error {
        let name = self.name;
        // The narrower of the two is what both tell of.
        let subject = if missing.table.is_some() { missing.subject() } else { added.subject() };
        interrupted(&format!(
            "{subject} was taken out of publication {name} and put in again, or its filter or columns were changed"
        ))
    }
}

fn ids(scope: &PublicationDefinition) -> BTreeSet<u32> {
    scope.entries.iter().map(|entry| entry.id).collect()
}

fn interrupted(cause: &str) -> Error {
    lost(cause, "watchkeeper accept-gap STREAM")
}

fn lost(cause: &str, accept: &str) -> Error {
    Error::position_lost(format!("{cause}: what was written meanwhile may be missing"))
        .remedy(format!("accept the gap: {accept}; or begin anew with a snapshot, which has everything"))
}

#[cfg(test)]
mod tests {
    use watchkeeper_core::ErrorKind;

    use super::{Entry, PublicationDefinition, PublicationDiff};
    use crate::replication::keys::Key;
    use crate::replication::settings::Choice;

    fn entry(id: u32, name: &str) -> Entry {
        let (schema, table) = name.split_once('.').map_or((name, None), |(schema, table)| (schema, Some(table)));
        Entry { id, schema: schema.to_owned(), table: table.map(str::to_owned), gone: false }
    }

    fn scope(entries: &[(u32, &str)]) -> PublicationDefinition {
        let entries = entries.iter().map(|(id, name)| entry(*id, name)).collect();
        let published = "iudtr".to_owned();
        PublicationDefinition {
            name: "p".to_owned(),
            id: 1,
            all: false,
            altered: 1,
            owner: 1,
            published,
            lapsed: String::new(),
            entries,
            many: None,
            keys: None,
            keys_of_many: None,
            chosen: 0,
        }
    }

    fn compare(before: &PublicationDefinition, now: &PublicationDefinition) -> PublicationDiff {
        PublicationDiff::between(Some(before), Some(now)).expect("nothing is lost")
    }

    fn assert_lost(before: &PublicationDefinition, now: &PublicationDefinition, subject: &str) {
        let error = PublicationDiff::between(Some(before), Some(now)).map(|_| ()).expect_err(subject);
        assert_eq!(error.kind(), ErrorKind::PositionLost);
        assert!(error.to_string().contains(subject) && error.to_string().contains("publication p"), "{error}");
        assert!(error.advice().is_some_and(|advice| advice.contains("accept-gap STREAM")));
    }

    #[test]
    fn what_comes_is_remembered_and_what_is_replaced_is_lost() {
        let before = scope(&[(5, "public.a")]);
        let more = compare(&before, &scope(&[(5, "public.a"), (6, "public.b")]));
        assert!(more.left.is_empty());
        assert_lost(&more.scope.unwrap(), &scope(&[(5, "public.a"), (7, "public.b")]), "table public.b");
        assert!(compare(&before, &scope(&[(5, "public.renamed")])).left.is_empty());
    }

    #[test]
    fn what_has_left_is_reported_once_and_must_not_come_back() {
        let gone = compare(&scope(&[(5, "public.a"), (6, "public.b")]), &scope(&[(5, "public.a")]));
        assert_eq!(gone.left, ["publication p does not tell of table public.b any more"]);
        let stored: PublicationDefinition = serde_json::from_str(&serde_json::to_string(&gone.scope).unwrap()).unwrap();
        let later = compare(&stored, &scope(&[(5, "public.a"), (7, "public.c")]));
        assert!(later.left.is_empty(), "{later:?}");
        assert_lost(
            &later.scope.unwrap(),
            &scope(&[(5, "public.a"), (7, "public.c"), (8, "public.b")]),
            "table public.b",
        );
    }

    #[test]
    fn a_table_can_be_reported_in_two_ways() {
        let both = scope(&[(5, "public.a"), (6, "public")]);
        assert!(compare(&both, &scope(&[(6, "public")])).left.is_empty());
        compare(&both, &scope(&[(6, "public"), (7, "public.a")]));
        assert_lost(&both, &scope(&[(5, "public.a"), (7, "public")]), "schema public");
        assert_lost(&scope(&[(5, "public.a")]), &scope(&[(6, "public")]), "table public.a");
        assert_lost(&scope(&[(6, "public")]), &scope(&[(7, "public.a")]), "table public.a");
        compare(&scope(&[(6, "public")]), &scope(&[(7, "other.a")]));
    }

    #[test]
    fn options_may_go_but_not_come_back() {
        let less =
            |published: &str, altered| PublicationDefinition { published: published.to_owned(), altered, ..scope(&[]) };
        let lapsed = compare(&scope(&[]), &less("idtr", 2));
        assert_eq!(lapsed.left, ["publication p does not tell of updates any more"]);
        let lapsed = compare(&lapsed.scope.unwrap(), &less("dtr", 3));
        assert_eq!(lapsed.left, ["publication p does not tell of inserts any more"]);
        assert_lost(&lapsed.scope.unwrap(), &less("iudtr", 4), "did not tell of inserts for a while");
        assert!(compare(&less("i", 1), &less("iu", 2)).left.is_empty());
        assert_lost(&less("i", 1), &less("i", 2), "altered back");
        assert!(
            compare(&less("i", 1), &PublicationDefinition { owner: 2, ..less("i", 2) }).left[0]
                .contains("another owner")
        );
    }

    #[test]
    fn a_publication_that_was_made_anew_is_another_one() {
        assert_lost(&scope(&[]), &PublicationDefinition { id: 2, ..scope(&[]) }, "made anew");
        // Unless the settings name another one.
        let other = PublicationDefinition { name: "q".to_owned(), id: 2, ..scope(&[]) };
        assert_eq!(compare(&scope(&[]), &other).scope, Some(other));
        assert_lost(&scope(&[]), &PublicationDefinition { all: true, ..scope(&[]) }, "in another way");
    }

    #[test]
    fn a_great_many_tables_are_remembered_in_little_room() {
        let many = |ids: &mut dyn Iterator<Item = u32>| {
            let entries = ids.map(|id| entry(id, &format!("public.t{}", id % 10_000))).collect();
            PublicationDefinition { entries, ..scope(&[]) }
        };
        let stored = many(&mut (1..10_000)).condensed();
        assert!(serde_json::to_vec(&stored).unwrap().len() < 200, "{stored:?}");
        assert_eq!(many(&mut (1..50)).condensed(), many(&mut (1..50)));
        assert!(compare(&stored, &many(&mut (1..10_050))).left.is_empty());
        assert_eq!(compare(&stored, &many(&mut (1..9_000))).left.len(), 1);
        assert_lost(&stored, &many(&mut (2..10_000).chain([10_001])), "taken out");
    }

    #[test]
    fn the_keys_of_a_great_many_tables_are_remembered_in_little_room() {
        let key = |id: u32, columns: &[i16]| Key {
            id,
            columns: columns.to_vec(),
            names: columns.iter().map(|column| format!("c{column}")).collect(),
            table: format!("public.t{id}"),
        };
        let many = |odd: u32, columns: &[i16], last: u32| {
            let keys = (1..last).map(|id| key(id, if id == odd { columns } else { &[1] }));
            PublicationDefinition { keys: Some(keys.collect()), ..scope(&[]) }
        };
        let stored = many(0, &[], 10_000).condensed();
        assert!(serde_json::to_vec(&stored).unwrap().len() < 250, "{stored:?}");
        assert_eq!(many(0, &[], 50).condensed(), many(0, &[], 50));
        compare(&stored, &many(0, &[], 10_050));
        assert_lost(&stored, &many(77, &[2], 10_050), "told apart by other columns");
        // A table without a key may get it back, and of fewer nothing is known.
        compare(&stored, &many(77, &[], 10_050));
        compare(&stored, &many(77, &[2], 9_000));
    }

    #[test]
    fn a_key_that_is_taken_away_is_remembered_until_it_comes_back() {
        let key = |columns: &[i16]| {
            let (names, table) = (columns.iter().map(|column| format!("c{column}")).collect(), "public.a".to_owned());
            PublicationDefinition {
                keys: Some(vec![Key { id: 7, columns: columns.to_vec(), names, table }]),
                ..scope(&[])
            }
        };
        let without = compare(&key(&[1]), &key(&[])).scope.unwrap();
        assert_eq!(compare(&without, &key(&[1])).scope, Some(key(&[1])));
        let error =
            PublicationDiff::between(Some(&without), Some(&key(&[2]))).map(|_| ()).expect_err("it is another one");
        assert!(error.to_string().contains("public.a are told apart by (c2) from here on, not by (c1)"), "{error}");
        // Also under another publication.
        let other = PublicationDefinition { name: "q".to_owned(), id: 2, ..key(&[2]) };
        assert_eq!(
            PublicationDiff::between(Some(&without), Some(&other)).map(|_| ()).map_err(|error| error.kind()),
            Err(ErrorKind::PositionLost)
        );
        compare(&key(&[]), &key(&[2]));
    }

    #[test]
    fn what_is_not_given_out_does_not_count() {
        let wide = scope(&[(5, "public.a"), (6, "public.b"), (7, "other")]);
        let narrow = wide.clone().narrowed(&Choice::These(vec!["public.a".to_owned()]));
        assert_eq!(narrow.entries, [entry(5, "public.a")]);
        assert_eq!(wide.clone().narrowed(&Choice::AllBut("other.".to_owned())).entries.len(), 2);
    }
}
