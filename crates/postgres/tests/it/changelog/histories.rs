//! Random statements on a table that triggers, functions and foreign keys change as well: what the log says is what the table has.

use std::collections::BTreeMap;

use watchkeeper_core::{ChangeStream, Entropy, Operation, Source, StartAt};
use watchkeeper_testkit::servers::postgres::Version;

use super::support::{LIMITS, Shop};
use crate::sink::shown;
use crate::support::{block_on, cx};

const TABLE: &str = "CREATE TABLE owners (id int PRIMARY KEY); INSERT INTO owners VALUES (1), (2), (3), (4);
    CREATE TABLE things (id int PRIMARY KEY, v text, n int DEFAULT 0,
        first int REFERENCES owners ON DELETE SET NULL ON UPDATE CASCADE, second int REFERENCES owners ON DELETE CASCADE ON UPDATE SET NULL)";

/// What an application may do while a statement runs. The triggers come after the log, which would else log row by row.
const FUNCTIONS: &str = "
    CREATE FUNCTION again() RETURNS trigger LANGUAGE plpgsql AS $$ BEGIN
        IF NEW.v = 'done' THEN UPDATE things SET v = 'closed' WHERE id = NEW.id; END IF;
        IF NEW.v = 'job' THEN DELETE FROM things WHERE id = NEW.id; END IF;
        IF NEW.v = 'next' AND pg_trigger_depth() < 3 THEN UPDATE things SET n = n + 1 WHERE id = NEW.id + 1; END IF;
        IF NEW.v = 'eats' THEN DELETE FROM things WHERE id = NEW.id + 1; END IF;
        IF NEW.v = 'moves' AND pg_trigger_depth() < 3 AND NOT EXISTS (SELECT FROM things WHERE id = NEW.id + 101) THEN
            UPDATE things SET id = id + 100 WHERE id = NEW.id + 1; UPDATE things SET n = 5 WHERE id = NEW.id + 101;
        END IF;
        IF NEW.v = 'fails' THEN
            BEGIN UPDATE things SET v = 'undone' WHERE id = NEW.id; RAISE 'no'; EXCEPTION WHEN raise_exception THEN NULL; END;
        END IF;
        RETURN NULL; END $$;
    CREATE FUNCTION refill() RETURNS trigger LANGUAGE plpgsql AS $$ BEGIN
        IF OLD.v = 'phoenix' THEN INSERT INTO things VALUES (OLD.id, 'risen') ON CONFLICT DO NOTHING; END IF; RETURN NULL; END $$;
    CREATE FUNCTION total() RETURNS trigger LANGUAGE plpgsql AS $$ BEGIN
        UPDATE things SET n = n + 1 WHERE v = 'a' AND n < 4; RETURN NULL; END $$;
    CREATE FUNCTION meddle() RETURNS trigger LANGUAGE plpgsql AS $$ BEGIN
        IF NEW.v = 'b' THEN DELETE FROM things WHERE id = NEW.id + 2; END IF;
        IF NEW.v = 'a' AND TG_OP = 'INSERT' THEN INSERT INTO things VALUES (NEW.id + 50, 'made') ON CONFLICT DO NOTHING; END IF;
        RETURN NEW; END $$;
    CREATE FUNCTION mark(i int) RETURNS text LANGUAGE plpgsql AS $$ BEGIN
        UPDATE things SET v = 'marked' WHERE id < i; DELETE FROM things WHERE id = i - 3; RETURN 'called'; END $$;
    CREATE FUNCTION each(i int) RETURNS int LANGUAGE plpgsql AS $$ DECLARE r record; BEGIN
        FOR r IN UPDATE things SET n = n + 1 WHERE id >= i RETURNING id LOOP UPDATE things SET v = 'each' WHERE id = r.id; END LOOP;
        RETURN 1; END $$";

const TRIGGERS: [&str; 5] = [
    "CREATE TRIGGER again AFTER INSERT OR UPDATE ON things FOR EACH ROW EXECUTE FUNCTION again()",
    "CREATE TRIGGER refill AFTER DELETE ON things FOR EACH ROW EXECUTE FUNCTION refill()",
    r#"CREATE TRIGGER " first" AFTER INSERT OR UPDATE ON things FOR EACH STATEMENT WHEN (pg_trigger_depth() < 2) EXECUTE FUNCTION total()"#,
    "CREATE TRIGGER last AFTER DELETE OR UPDATE ON things FOR EACH STATEMENT WHEN (pg_trigger_depth() < 2) EXECUTE FUNCTION total()",
    "CREATE TRIGGER meddle BEFORE INSERT OR UPDATE ON things FOR EACH ROW WHEN (pg_trigger_depth() < 2) EXECUTE FUNCTION meddle()",
];

/// What such statements may be refused for: keys that are there already, owners that are not, and rows that are changed twice.
const REFUSED: [&str; 4] = ["23505", "23503", "21000", "27000"];

struct Dice(Entropy);

impl Dice {
    fn up_to(&self, most: u64) -> u64 {
        1 + self.0.below(most)
    }

    fn one<'a>(&self, of: &[&'a str]) -> &'a str {
        of[self.0.below(of.len() as u64) as usize]
    }

    fn list(&self, one: impl Fn() -> String) -> String {
        (0..self.up_to(5)).map(|_| one()).collect::<Vec<_>>().join(", ")
    }

    fn key(&self) -> String {
        self.up_to(12).to_string()
    }

    fn row(&self) -> String {
        let value = self.one(&["a", "b", "done", "job", "next", "moves", "fails", "phoenix", "eats"]);
        let owners = ["NULL", "1", "2", "3", "4"];
        format!("({}, '{value}', {}, {}, {})", self.key(), self.up_to(4) - 1, self.one(&owners), self.one(&owners))
    }

    fn statement(&self) -> String {
        let (key, row) = (self.key(), self.row());
        let (keys, rows) = (self.list(|| self.key()), self.list(|| self.row()));
        match self.up_to(16) {
            1 => format!("INSERT INTO things VALUES {rows} ON CONFLICT (id) DO UPDATE SET v = excluded.v, n = things.n + 1"),
            2 => format!("INSERT INTO things VALUES {rows} ON CONFLICT DO NOTHING"),
            3 => format!("INSERT INTO things VALUES {row}"),
            4 => format!("INSERT INTO things VALUES {rows} ON CONFLICT (id) DO UPDATE SET id = things.id + 20, v = excluded.v"),
            5 => format!("UPDATE things SET v = '{}' WHERE id IN ({keys})", self.one(&["a", "done", "next", "moves"])),
            6 => "UPDATE things SET n = n + 1".to_owned(),
            7 => format!("UPDATE things SET v = mark(id) WHERE id IN ({keys})"),
            8 => format!("UPDATE things SET id = id + {} WHERE id IN ({keys})", self.one(&["-5", "5", "20", "40"])),
            9 => "UPDATE things SET id = id - 20 WHERE id > 20".to_owned(),
            10 => format!("DELETE FROM things WHERE id IN ({keys})"),
            11 => format!(
                "MERGE INTO things t USING (VALUES {rows}) AS s (id, v, n, first, second) ON t.id = s.id WHEN MATCHED AND s.n = 0 THEN DELETE
                    WHEN MATCHED THEN UPDATE SET v = s.v, n = s.n WHEN NOT MATCHED THEN INSERT VALUES ({}, s.v, s.n)",
                self.one(&["s.id", "5"])
            ),
            12 => format!(
                "WITH gone AS (DELETE FROM things WHERE id IN ({keys}) RETURNING *) INSERT INTO things SELECT id, v, n + 1 FROM gone LIMIT {}",
                self.up_to(3)
            ),
            13 => format!("DELETE FROM owners WHERE id = {}", self.up_to(4)),
            14 => format!("UPDATE owners SET id = id + 10 WHERE id = {}", self.up_to(4)),
            15 => "INSERT INTO owners VALUES (1), (2), (3), (4) ON CONFLICT DO NOTHING".to_owned(),
            _ => format!("SELECT each({key})"),
        }
    }
}

/// The rows by their keys, as what is read from the log says.
async fn follow(stream: &mut dyn ChangeStream, rows: &mut BTreeMap<String, serde_json::Value>) {
    loop {
        let batch = stream.next_batch(&cx(), LIMITS).await.expect("the log can be read");
        if batch.is_empty() {
            return;
        }
        for (row, number) in batch.rows().iter().zip(0..) {
            let key = String::from_utf8(batch.key(number).expect("a row has a key").to_vec()).expect("a key is text");
            let body: serde_json::Value = serde_json::from_slice(batch.body(number)).expect("a body is JSON");
            match row.operation {
                Operation::Delete => drop(rows.remove(&key)),
                _ => drop(rows.insert(key, body["after"].clone())),
            }
        }
    }
}

async fn run(version: Version, seed: u64) {
    let dice = Dice(Entropy::seeded(seed));
    let shop = Shop::with(version, TABLE, "things").await;
    shop.run(FUNCTIONS).await;
    for trigger in TRIGGERS {
        if dice.up_to(2) == 1 {
            shop.run(trigger).await;
        }
    }
    let mut stream = shop.log().await.open(&cx(), StartAt::Oldest).await.unwrap();
    let (mut received, mut done) = (BTreeMap::new(), Vec::new());
    for _ in 0..25 {
        let statements: Vec<String> = (0..dice.up_to(3)).map(|_| dice.statement()).collect();
        let sql = statements.join("; ");
        done.push(sql.clone());
        // Several statements are one transaction.
        if let Err(error) = shop.application.batch_execute(&sql).await {
            let code = error.code().map(|code| code.code().to_owned()).unwrap_or_default();
            assert!(REFUSED.contains(&&*code), "seed {seed}: {sql}: {error:?}");
        }
        follow(&mut *stream, &mut received).await;
        let held = shown(&shop.client, "SELECT '[' || id || ']' || row_to_json(things) FROM things ORDER BY 1").await;
        let mut received: Vec<String> = received.iter().map(|(key, row)| format!("{key}{row}")).collect();
        received.sort();
        let mut held: Vec<String> = held
            .into_iter()
            .map(|row| {
                let (key, row) = row.split_at(row.find('{').expect("a row is an object"));
                format!("{key}{}", serde_json::from_str::<serde_json::Value>(row).expect("it is JSON"))
            })
            .collect();
        held.sort();
        assert_eq!(received, held, "seed {seed} on {version:?}, after {done:#?}");
    }
}

#[test]
fn the_log_says_what_the_table_has_after_every_transaction() {
    for version in Version::ALL {
        block_on(async {
            for seed in 0..8 {
                run(version, seed).await;
            }
        });
    }
}
