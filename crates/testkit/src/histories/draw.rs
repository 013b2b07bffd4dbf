//! Draws plans.

use watchkeeper_core::Entropy;

use super::model::{Rows, at};
use super::{Column, Fields, Kind, Plan, SchemaChange, Sink, Source, Start, Statement, Step, Table};

/// What a plan is narrowed down to.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct Narrow {
    /// To this source.
    pub source: Option<Source>,
    /// To this sink.
    pub sink: Option<Sink>,
}

/// Two seeds that follow each other are far apart.
const SPREAD: u64 = 0x9E37_79B9_7F4A_7C15;

impl Plan {
    /// The plan of a seed. Seeds that follow each other go through all pairs of a source and a sink.
    pub fn drawn(seed: u64, narrow: Narrow) -> Self {
        let sources = Source::ALL.len() as u64;
        let source = narrow.source.unwrap_or(Source::ALL[(seed % sources) as usize]);
        let sink = narrow.sink.unwrap_or(Sink::ALL[((seed / sources) % Sink::ALL.len() as u64) as usize]);
        Drawing::new(seed, source, sink).plan()
    }
}

struct Drawing {
    seed: u64,
    entropy: Entropy,
    source: Source,
    sink: Sink,
    tables: Vec<Rows>,
    rev: u64,
    steps: Vec<Step>,
    running: bool,
}

impl Drawing {
    fn new(seed: u64, source: Source, sink: Sink) -> Self {
        let entropy = Entropy::seeded(seed.wrapping_mul(SPREAD));
        let mut drawing =
            Self { seed, entropy, source, sink, tables: Vec::new(), rev: 0, steps: Vec::new(), running: false };
        // Typed rows take one table; a copy in MongoDB has one collection for what is not one itself.
        let one = sink.has_typed_columns() || (sink.is_mongodb() && source != Source::Mongodb);
        let count = if one { 1 } else { 1 + drawing.below(3) };
        for number in 0..count {
            let table = drawing.table(number);
            drawing.tables.push(Rows::of(table));
        }
        drawing
    }

    fn below(&self, bound: u64) -> u64 {
        self.entropy.below(bound)
    }

    fn one_in(&self, count: u64) -> bool {
        self.below(count) == 0
    }

    fn pick(&self, kinds: &[Kind]) -> Kind {
        kinds[at(&self.entropy, kinds.len())]
    }

    /// Whether source and target are different systems, between which not every type has one form.
    fn is_foreign(&self) -> bool {
        match self.source {
            Source::Mongodb => !self.sink.is_mongodb() && self.sink.has_typed_columns(),
            Source::Sqlite => self.sink.is_postgres() || self.sink.is_mongodb(),
            Source::ChangeLog | Source::Replication => self.sink.is_mongodb(),
        }
    }

    fn table(&self, number: u64) -> Table {
        let foreign = self.is_foreign();
        let key = self.pick(Kind::of_keys(self.source, foreign));
        let column = |number| Column { name: format!("c{number}"), kind: self.pick(Kind::of(self.source, foreign)) };
        let columns = (1..=1 + self.below(5)).map(column).collect();
        Table { name: format!("t{number}"), key, columns }
    }

    fn plan(mut self) -> Plan {
        let tables: Vec<Table> = self.tables.iter().map(|rows| rows.table.clone()).collect();
        let can_begin_with_snapshot = matches!(self.source, Source::Replication | Source::Mongodb);
        let start = if can_begin_with_snapshot && self.below(5) < 3 { Start::Snapshot } else { Start::Oldest };
        // What a slot tells begins with the first start.
        let early = !(start == Start::Oldest && self.source == Source::Replication);
        if early {
            for _ in 0..self.below(30) + 1 {
                self.transaction(40);
            }
        } else {
            self.start();
            self.steps.push(Step::CatchUp);
        }
        self.start();
        for _ in 0..3 + self.below(4) {
            self.turn();
        }
        self.start();
        let halts_about = if self.one_in(10) { self.fatal_end() } else { None };
        if halts_about.is_none() {
            self.marker();
        }
        let Self { seed, source, sink, steps, entropy, .. } = self;
        let (concurrency, batch_rows) = (1 + 3 * entropy.below(2), [3, 20, 1_000][at(&entropy, 3)]);
        // Seeds go through all pairs, so it is not drawn: both are tried with every sink.
        let pairs = (Source::ALL.len() * Sink::ALL.len()) as u64;
        let keeps_missing = source != Source::Mongodb || (seed / pairs).is_multiple_of(2);
        Plan { seed, source, sink, start, concurrency, batch_rows, keeps_missing, tables, steps, halts_about }
    }

    fn start(&mut self) {
        if !self.running {
            self.steps.push(Step::Start);
            self.running = true;
        }
    }

    /// Some writes with the instance as it is, then something that happens to it.
    fn turn(&mut self) {
        for _ in 0..self.below(12) {
            if self.one_in(8) {
                self.schema_change();
            } else {
                self.transaction(6);
            }
        }
        match self.below(5) {
            0 | 1 if self.running => {
                self.steps.push(Step::Kill { after_ms: self.below(400) });
                self.running = false;
            }
            2 if self.running => {
                self.steps.push(Step::Stop);
                self.running = false;
            }
            3 if self.running => self.steps.push(Step::CatchUp),
            _ => {}
        }
        if self.one_in(2) {
            self.start();
        }
    }

    /// A change of the schema that the stream can not follow, if there is one here; the table that it is about.
    fn fatal_end(&mut self) -> Option<String> {
        let existing: Vec<&Rows> = self.tables.iter().filter(|rows| rows.exists).collect();
        if existing.is_empty() {
            return None;
        }
        let table = existing[at(&self.entropy, existing.len())].table.name.clone();
        let change = match (self.source, self.sink) {
            (Source::Sqlite | Source::ChangeLog, _) => SchemaChange::DropTable { table: table.clone() },
            (Source::Mongodb, Sink::MongodbMirror | Sink::MongodbVersioned) => {
                SchemaChange::RenameCollection { to: format!("{table}_away"), table: table.clone() }
            }
            _ => return None,
        };
        self.steps.extend([Step::CatchUp, Step::Schema(change)]);
        Some(table)
    }

    /// The last change of every table: when they have arrived, everything was read.
    fn marker(&mut self) {
        let mut statements = Vec::new();
        for number in 0..self.tables.len() {
            self.rev += 1;
            let mut rows = self.tables[number].clone();
            let key = rows.table.key.key(rows.free_key(&self.entropy));
            let (table, fields) = (rows.table.name.clone(), self.fields(&rows, true));
            statements.push(Statement::Insert { table, key, rev: self.rev, fields });
        }
        self.steps.push(Step::Transaction { statements, commit: true });
    }

    fn transaction(&mut self, statements_max: u64) {
        let before = self.tables.clone();
        let statements: Vec<_> = (0..=self.below(statements_max)).map(|_| self.statement()).collect();
        let commit = !self.one_in(8);
        if !commit {
            self.tables = before;
        }
        self.steps.push(Step::Transaction { statements, commit });
    }

    fn fields(&self, rows: &Rows, all: bool) -> Fields {
        let wanted = rows.table.columns.iter().filter(|_| all || self.below(2) == 0);
        wanted.map(|column| (column.name.clone(), column.kind.draw(&self.entropy))).collect()
    }

    fn statement(&mut self) -> Statement {
        let number = at(&self.entropy, self.tables.len());
        self.rev += 1;
        let rev = self.rev;
        let mut rows = self.tables[number].clone();
        let (table, kind) = (rows.table.name.clone(), rows.table.key);
        let statement = match (self.below(20), rows.some_key(&self.entropy)) {
            (0..5, Some(key)) => {
                Statement::Update { table, key: kind.key(key), rev, fields: self.fields(&rows, false) }
            }
            (5..7, Some(key)) if self.source == Source::Mongodb => {
                Statement::Replace { table, key: kind.key(key), rev, fields: self.fields(&rows, true) }
            }
            (5..7, Some(key)) => {
                let to = rows.free_key(&self.entropy);
                rows.remove(key);
                rows.keys.push(to);
                Statement::MoveKey { table, from: kind.key(key), to: kind.key(to), rev }
            }
            (7..11, Some(key)) => {
                rows.remove(key);
                Statement::Delete { table, key: kind.key(key) }
            }
            (11, Some(_)) if self.source.is_postgres() && self.one_in(4) => {
                rows.clear();
                Statement::Truncate { table }
            }
            _ => {
                let key = rows.free_key(&self.entropy);
                rows.insert(key);
                Statement::Insert { table, key: kind.key(key), rev, fields: self.fields(&rows, true) }
            }
        };
        self.tables[number] = rows;
        statement
    }

    fn schema_change(&mut self) {
        let number = at(&self.entropy, self.tables.len());
        let change = match self.source {
            Source::Mongodb => Some(self.drop_collection(number)),
            _ => self.table_change(number),
        };
        self.steps.extend(change.map(Step::Schema));
    }

    /// At any time: also before a snapshot has come to the collection, and while it is read.
    fn drop_collection(&mut self, number: usize) -> SchemaChange {
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
            (1, Some(column)) if self.source.is_postgres() => {
                rows.table.columns.retain(|present| present.name != column);
                Some(SchemaChange::DropColumn { table, column })
            }
            (2, Some(from)) if self.source.is_postgres() && !self.sink.has_typed_columns() => {
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

#[cfg(test)]
mod tests {
    use std::collections::BTreeSet;

    use super::*;

    #[test]
    fn the_seed_is_the_plan() {
        let plan = |seed| Plan::drawn(seed, Narrow::default());
        assert_eq!(plan(7), plan(7));
        assert_ne!(plan(7).steps, plan(7 + 44).steps);
    }

    #[test]
    fn all_pairs_of_source_and_sink_are_reached() {
        let pairs: BTreeSet<_> =
            (0..44).map(|seed| Plan::drawn(seed, Narrow::default())).map(|plan| (plan.source, plan.sink)).collect();
        assert_eq!(pairs.len(), 44);
    }

    #[test]
    fn the_instance_runs_at_the_end() {
        for seed in 0..200 {
            let plan = Plan::drawn(seed, Narrow::default());
            let ends = |step: &&Step| matches!(step, Step::Start | Step::Kill { .. } | Step::Stop);
            assert_eq!(plan.steps.iter().rfind(ends), Some(&Step::Start), "{plan}");
        }
    }

    #[test]
    fn statements_are_valid_where_they_stand() {
        for seed in 0..400 {
            let plan = Plan::drawn(seed, Narrow::default());
            let mut present: BTreeSet<String> = BTreeSet::new();
            for step in &plan.steps {
                let Step::Transaction { statements, commit } = step else {
                    if let Step::Schema(SchemaChange::DropCollection { table }) = step {
                        present.retain(|row| !row.starts_with(&format!("{table} ")));
                    }
                    continue;
                };
                let before = present.clone();
                for statement in statements {
                    check(&mut present, statement).unwrap_or_else(|row| panic!("{row}: {statement:?} in {plan}"));
                }
                if !commit {
                    present = before;
                }
            }
        }
    }

    #[test]
    fn only_collections_that_exist_are_renamed() {
        for seed in 0..2_000 {
            let plan = Plan::drawn(seed, Narrow { source: Some(Source::Mongodb), ..Narrow::default() });
            let Some(Step::Schema(SchemaChange::RenameCollection { table, .. })) = plan.steps.last() else { continue };
            let makes_or_ends = |step: &&Step| match step {
                Step::Schema(SchemaChange::DropCollection { table: dropped }) => dropped == table,
                Step::Transaction { statements, commit: true } => statements
                    .iter()
                    .any(|statement| matches!(statement, Statement::Insert { table: into, .. } if into == table)),
                _ => false,
            };
            let last = plan.steps.iter().rfind(makes_or_ends);
            assert!(!matches!(last, Some(Step::Schema(_))), "{table} was dropped: {plan}");
        }
    }

    fn check(present: &mut BTreeSet<String>, statement: &Statement) -> Result<(), String> {
        let row = |table: &String, key| format!("{table} {key:?}");
        let expect = |holds: bool, row: String| if holds { Ok(()) } else { Err(row) };
        match statement {
            Statement::Insert { table, key, .. } => expect(present.insert(row(table, key)), row(table, key)),
            Statement::Update { table, key, .. } | Statement::Replace { table, key, .. } => {
                expect(present.contains(&row(table, key)), row(table, key))
            }
            Statement::Delete { table, key } => expect(present.remove(&row(table, key)), row(table, key)),
            Statement::MoveKey { table, from, to, .. } => {
                expect(present.remove(&row(table, from)), row(table, from))?;
                expect(present.insert(row(table, to)), row(table, to))
            }
            Statement::Truncate { table } => {
                present.retain(|row| !row.starts_with(&format!("{table} ")));
                Ok(())
            }
        }
    }
}
