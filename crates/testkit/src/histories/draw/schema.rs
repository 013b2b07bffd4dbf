//! Draws changes of the schema: those that a stream follows, and those at which it halts.

use super::super::model::at;
use super::super::{Column, Halt, Kind, SchemaChange, Source, Step};
use super::Drawing;

/// Of a table that is gone or that the source no longer reports.
const GONE: &[&str] = &["dropped", "gone", "no longer logged", "not logged", "does not tell of"];

/// Of a rename that a mirror cannot follow.
const RENAMED: &[&str] = &["was renamed"];

impl Drawing {
    /// A change of the schema that the stream cannot follow, if there is one here; how it has to halt.
    pub(super) fn fatal_end(&mut self) -> Option<Halt> {
        let existing: Vec<usize> = (0..self.tables.len()).filter(|number| self.tables[*number].exists).collect();
        if existing.is_empty() {
            return None;
        }
        let number = existing[at(&self.entropy, existing.len())];
        let table = self.tables[number].table.name.clone();
        let (change, words) = match self.source {
            Source::Mongodb if self.sink.is_mirror() => (self.rename_or_replace(number), RENAMED),
            // Events tell of every rename.
            Source::Mongodb => return None,
            // The change log goes on reporting a table that was renamed, under its old name.
            Source::ChangeLog => (self.take_table_away(&table, 2), GONE),
            Source::Sqlite | Source::Replication => (self.take_table_away(&table, 3), GONE),
        };
        self.steps.extend([Step::CatchUp, Step::Schema(change)]);
        Some(Halt { table, words, is_final: self.source != Source::Replication })
    }

    fn take_table_away(&mut self, table: &str, ways: u64) -> SchemaChange {
        let table = table.to_owned();
        match self.below(ways) {
            0 => SchemaChange::DropTable { table },
            1 => SchemaChange::RebuildTable { table },
            _ => SchemaChange::Rename { to: format!("{table}_away"), table },
        }
    }

    /// The collection gets another name, or another collection its name. It has to exist.
    fn rename_or_replace(&mut self, number: usize) -> SchemaChange {
        let table = self.tables[number].table.name.clone();
        match self.below(3) {
            0 => {
                self.tables[number].drop_all();
                self.rev += 1;
                SchemaChange::Rename { to: format!("{table}_away{}", self.rev), table }
            }
            way => {
                self.tables[number].replace_by_empty();
                if way == 1 { SchemaChange::RenameOver { table } } else { SchemaChange::Out { table } }
            }
        }
    }

    /// A change of the schema that the stream follows, if there is one here.
    pub(super) fn schema_change(&mut self) {
        let number = at(&self.entropy, self.tables.len());
        let change = match self.source {
            Source::Mongodb => Some(self.collection_change(number)),
            _ => self.table_change(number),
        };
        self.steps.extend(change.map(Step::Schema));
    }

    /// At any time: also before a snapshot has come to the collection, and while it is read.
    fn collection_change(&mut self, number: usize) -> SchemaChange {
        if self.tables[number].exists && self.sink.keeps_events() && self.one_in(2) {
            return self.rename_or_replace(number);
        }
        self.tables[number].drop_all();
        SchemaChange::DropCollection { table: self.tables[number].table.name.clone() }
    }

    fn table_change(&mut self, number: usize) -> Option<SchemaChange> {
        let (foreign, table) = (self.is_foreign(), self.tables[number].table.name.clone());
        let kind = self.pick(Kind::of(self.source, foreign));
        let picked = self.tables[number].some_column(&self.entropy).map(|column| column.name.clone());
        let rows = &mut self.tables[number];
        match (self.entropy.below(4), picked) {
            (0, _) => {
                let column = Column { name: rows.new_column(), kind };
                rows.table.columns.push(column.clone());
                Some(SchemaChange::AddColumn { table, column })
            }
            (1, Some(column)) => {
                rows.table.columns.retain(|present| present.name != column);
                Some(SchemaChange::DropColumn { table, column })
            }
            (2, Some(from)) if !self.sink.has_typed_columns() => {
                let to = rows.new_column();
                rows.table.columns.iter_mut().filter(|column| column.name == from).for_each(|column| {
                    column.name.clone_from(&to);
                });
                self.rev += 1;
                Some(SchemaChange::RenameColumn { table, from, to, rev: self.rev })
            }
            (3, _) if self.source.is_postgres() => {
                Some(SchemaChange::RenameAndBack { meanwhile: format!("{table}_away"), table })
            }
            _ => None,
        }
    }
}
