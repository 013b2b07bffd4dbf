//! By what a publication is known again at once.
//!
//! What it is made of takes a new process of the server longer to find out than all the rest, and a takeover is waited for. So it is
//! presumed to be what is remembered if nothing speaks against it that costs little to look at: the numbers of its entries, and those of
//! the columns that tell rows apart. No table is opened for that. Everything is looked at right after.

use std::collections::{BTreeMap, BTreeSet};

use serde::Deserialize;

use super::publication_definition::{HAS_SCHEMAS, PublicationDefinition};
use super::settings::literal;

/// What costs little to look at.
#[derive(Debug, Clone, Deserialize)]
pub(super) struct PublicationFingerprint {
    id: u32,
    altered: u32,
    entries: BTreeSet<u32>,
    /// The columns that tell rows apart, by the number of their table.
    keys: BTreeMap<u32, Vec<i16>>,
}

impl PublicationFingerprint {
    /// Whether nothing speaks against its being what is remembered.
    pub(super) fn is_of(&self, scope: &PublicationDefinition) -> bool {
        let keys = scope.keys.iter().flatten();
        (self.id, self.altered) == (scope.id, scope.altered)
            && scope.entries.iter().all(|entry| self.entries.contains(&entry.id))
            && keys.into_iter().all(|key| self.keys.get(&key.id) == Some(&key.columns))
    }
}

/// Whether enough is remembered to be compared with a mark.
pub(super) fn is_enough_for(scope: &PublicationDefinition) -> bool {
    let is_whole = scope.many.is_none() && scope.keys_of_many.is_none() && scope.keys.is_some();
    is_whole && scope.lapsed.is_empty() && scope.entries.iter().all(|entry| !entry.gone)
}

/// An expression that is the [`PublicationFingerprint`] of the publication as JSON, or null if there is none, on a server of this version.
pub(super) fn expression(scope: &PublicationDefinition, version: u32) -> String {
    let tables = "SELECT r.oid::bigint AS id FROM pg_catalog.pg_publication_rel r WHERE r.prpubid = p.oid";
    let schemas = "SELECT s.oid::bigint FROM pg_catalog.pg_publication_namespace s WHERE s.pnpubid = p.oid";
    let entries = if version < HAS_SCHEMAS { tables.to_owned() } else { format!("{tables} UNION ALL {schemas}") };
    let keyed: Vec<_> = scope.keys.iter().flatten().map(|key| key.id.to_string()).collect();
    format!(
        "(SELECT pg_catalog.jsonb_build_object('id', p.oid::bigint, 'altered', p.xmin::text::bigint,
            'entries', (SELECT coalesce(pg_catalog.jsonb_agg(e.id), '[]') FROM ({entries}) e),
            'keys', (SELECT coalesce(pg_catalog.jsonb_object_agg(c.oid, coalesce(
                    (SELECT pg_catalog.jsonb_agg(n ORDER BY n) FROM pg_catalog.unnest((i.indkey::int2[])[0:i.indnkeyatts - 1]) n), '[]')), '{{}}')
                FROM pg_catalog.pg_class c LEFT JOIN pg_catalog.pg_index i ON i.indrelid = c.oid
                    AND CASE c.relreplident WHEN 'i' THEN i.indisreplident WHEN 'n' THEN false ELSE i.indisprimary END
                WHERE c.oid = ANY ('{{{}}}'::oid[])))
        FROM pg_catalog.pg_publication p WHERE p.pubname = {})",
        keyed.join(","),
        literal(&scope.name)
    )
}
