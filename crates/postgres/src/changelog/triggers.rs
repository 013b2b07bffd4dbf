//! The triggers of a logged table.

use super::columns::literal;
use super::install::{Wake, channel};
use super::shape::Shape;
use crate::client::{Client, quoted};

/// Logs single rows. Triggers run in the order of their names: those of the application may change a row again, which has to come
/// later in the log. A table that is logged by statements has this trigger too, for the sessions of replicas: a subscription writes rows
/// without statements.
pub(crate) const ROW: &str = "!watchkeeper_log_row";
/// Log whole statements, except in the sessions of replicas: one notes that a statement begins, and one for each operation logs its rows
/// when it ends. A statement that names a partitioned table fires no statement-level trigger of its partitions, so the table must not become
/// one: the server attaches no table that has a row-level trigger with a transition table, as the last one is. It never fires, and costs
/// next to nothing, and deletions only.
pub(super) const STATEMENT: [&str; 5] = [
    "!watchkeeper_log_open",
    "!watchkeeper_log_insert",
    "!watchkeeper_log_update",
    "!watchkeeper_log_delete",
    "!watchkeeper_log_partition",
];
const TRUNCATE: &str = "!watchkeeper_log_truncate";
pub(super) const WAKE: &str = "watchkeeper_log_wake";
/// Around the truncation of a partitioned table, whose partitions then need not tell of it.
const WHOLE: [&str; 2] = ["watchkeeper_log_whole", "watchkeeper_log_whole_end"];
/// On partitions: one that is truncated alone loses its rows only.
pub(super) const PART: &str = "watchkeeper_log_part";

const ANY_ROW: &str = "INSERT OR UPDATE OR DELETE";
const EACH_ROW: &str = "FOR EACH ROW";
const EACH_STATEMENT: &str = "FOR EACH STATEMENT";

/// In which sessions a trigger fires, as `ALTER TABLE … ENABLE` says it.
const ALWAYS: &str = "ALWAYS";
const FOR_REPLICAS: &str = "REPLICA";
const NOT_FOR_REPLICAS: &str = "";

/// Drops all triggers of a table and creates them again.
pub(super) fn make_all(client: &Client, shape: &Shape, wake: Wake) -> String {
    let (table, entity) = (&shape.name, literal(&shape.entity));
    let key: Vec<String> = shape.key.iter().map(|column| literal(column)).collect();
    let keyed = format!("{entity}, {}, {}", literal(&shape.traits), key.join(", "));
    let mut script = Script { client, sql: drop_all(shape) };
    let (any_row, log_row) = (format!("AFTER {ANY_ROW}"), format!("log_row({keyed})"));
    if shape.is_logged_by_statement {
        script.make(ROW, &any_row, table, EACH_ROW, &log_row, FOR_REPLICAS);
        script.make_statement_level(shape, &keyed);
    } else {
        script.make(ROW, &any_row, table, EACH_ROW, &log_row, ALWAYS);
    }
    script.make(TRUNCATE, "AFTER TRUNCATE", table, EACH_STATEMENT, &format!("log_truncate({entity})"), ALWAYS);
    if shape.is_partitioned {
        let call = format!("log_whole({entity})");
        script.make(WHOLE[0], "BEFORE TRUNCATE", table, EACH_STATEMENT, &call, ALWAYS);
        script.make(WHOLE[1], "AFTER TRUNCATE", table, EACH_STATEMENT, &call, ALWAYS);
    }
    for leaf in &shape.leaves {
        script.make(PART, "BEFORE TRUNCATE", leaf, EACH_STATEMENT, &format!("log_part({keyed})"), ALWAYS);
    }
    if wake == Wake::Notify {
        let (when, call) = (format!("AFTER {ANY_ROW} OR TRUNCATE"), format!("log_wake({})", literal(&channel(client))));
        for table in std::iter::once(table).chain(&shape.leaves) {
            script.make(WAKE, &when, table, EACH_STATEMENT, &call, ALWAYS);
        }
    }
    script.sql
}

struct Script<'a> {
    client: &'a Client,
    sql: String,
}

impl Script<'_> {
    fn make(&mut self, name: &str, when: &str, table: &str, each: &str, call: &str, fires: &str) {
        let (name, call) = (quoted(name), self.client.sql(&format!("{{schema}}.{call}")));
        self.sql += &format!(
            "CREATE TRIGGER {name} {when} ON {table} {each} EXECUTE FUNCTION {call};
            ALTER TABLE {table} ENABLE {fires} TRIGGER {name};"
        );
    }

    fn make_statement_level(&mut self, shape: &Shape, keyed: &str) {
        let (table, call) = (&shape.name, format!("log_of_{}({keyed})", shape.oid));
        let (old, new) = (r#"OLD TABLE AS "watchkeeper old""#, r#"NEW TABLE AS "watchkeeper new""#);
        let both = format!("{old} {new}");
        let [open, insert, update, delete, partition] = STATEMENT;
        let opened = format!("log_open_{}()", shape.oid);
        self.make(open, &format!("BEFORE {ANY_ROW}"), table, EACH_STATEMENT, &opened, NOT_FOR_REPLICAS);
        for (name, when, rows) in
            [(insert, "AFTER INSERT", new), (update, "AFTER UPDATE", &*both), (delete, "AFTER DELETE", old)]
        {
            self.make(name, when, table, &format!("REFERENCING {rows} {EACH_STATEMENT}"), &call, NOT_FOR_REPLICAS);
        }
        let never = format!("REFERENCING {old} {EACH_ROW} WHEN (false)");
        self.make(partition, "AFTER DELETE", table, &never, &call, NOT_FOR_REPLICAS);
    }
}

fn drop_all(shape: &Shape) -> String {
    let own = [ROW, TRUNCATE, WAKE, WHOLE[0], WHOLE[1]].into_iter().chain(STATEMENT).map(|name| (name, &shape.name));
    let parts = shape.leaves.iter().flat_map(|leaf| [(PART, leaf), (WAKE, leaf)]);
    own.chain(parts).map(|(name, table)| format!("DROP TRIGGER IF EXISTS {} ON {table};", quoted(name))).collect()
}
