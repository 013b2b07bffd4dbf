//! Collections of MongoDB.

use async_trait::async_trait;
use watchkeeper_mongodb::mongodb::bson::spec::BinarySubtype;
use watchkeeper_mongodb::mongodb::bson::{Binary, Bson, DateTime, Document, doc};
use watchkeeper_mongodb::mongodb::{self, Client, Database as Handle};
use watchkeeper_testkit::histories::{Plan, SchemaChange, Statement, Value};

use super::super::Trouble;
use super::super::config::Paths;
use super::super::extjson::relaxed;
use super::super::target::{Content, Form, all};
use super::{Database, normal, normal_rows, unequal};

pub(super) struct Collections {
    client: Client,
    database: Handle,
    /// Whether fields without a value are stored as null: the target would keep the value of a field that is missing.
    stores_nulls: bool,
}

fn to_trouble(error: mongodb::error::Error) -> Trouble {
    format!("the source: {error}")
}

/// The database that a URL names.
pub(in super::super) async fn connect(url: &str) -> Result<(Client, Handle), mongodb::error::Error> {
    let client = Client::with_uri_str(url).await?;
    let database = client.default_database().ok_or_else(|| mongodb::error::Error::custom("no database is named"))?;
    Ok((client, database))
}

fn bson(value: &Value) -> Bson {
    match value {
        Value::Null => Bson::Null,
        Value::Integer(number) => match i32::try_from(*number) {
            Ok(small) if small % 2 == 0 => Bson::Int32(small),
            _ => Bson::Int64(*number),
        },
        Value::Float(number) => Bson::Double(*number),
        Value::Text(text) => Bson::String(text.clone()),
        Value::Boolean(value) => Bson::Boolean(*value),
        Value::Bytes(bytes) => Bson::Binary(Binary { subtype: BinarySubtype::Generic, bytes: bytes.clone() }),
        // As many digits as the type has.
        Value::Decimal(text) => text.chars().take(30).collect::<String>().parse().map_or(Bson::Null, Bson::Decimal128),
        Value::Time(millis) => Bson::DateTime(DateTime::from_millis(*millis)),
        Value::Date(days) => Bson::DateTime(DateTime::from_millis(i64::from(*days) * 86_400_000)),
        Value::Uuid(number) => {
            Bson::Binary(Binary { subtype: BinarySubtype::Uuid, bytes: number.to_be_bytes().to_vec() })
        }
        Value::Json(name, inner) => Bson::Document(doc! { name: bson(inner) }),
        Value::List(values) => Bson::Array(values.iter().map(bson).collect()),
    }
}

impl Collections {
    pub(super) async fn open(places: &Paths) -> Result<Self, Trouble> {
        let (client, database) = connect(&places.source).await.map_err(to_trouble)?;
        Ok(Self { client, database, stores_nulls: false })
    }

    async fn rename(&self, table: &str, to: &str, drop_target: bool) -> Result<(), Trouble> {
        let name = |table: &str| format!("{}.{table}", self.database.name());
        let rename = doc! { "renameCollection": name(table), "to": name(to), "dropTarget": drop_target };
        self.client.database("admin").run_command(rename).await.map(drop).map_err(to_trouble)
    }

    async fn execute(&self, statement: &Statement, session: &mut mongodb::ClientSession) -> Result<(), Trouble> {
        let documents = |table: &str| self.database.collection::<Document>(table);
        let document = |key: &Value, rev: u64, fields: &[(String, Value)]| {
            let mut document = doc! { "_id": bson(key), "rev": rev.cast_signed() };
            document.extend(fields.iter().map(|(name, value)| (name.clone(), bson(value))));
            document
        };
        match statement {
            Statement::Insert { table, key, rev, fields } => {
                let documents = documents(table);
                let insert = documents.insert_one(document(key, *rev, fields));
                insert.session(session).await.map(drop).map_err(to_trouble)
            }
            Statement::Replace { table, key, rev, fields } => {
                let documents = documents(table);
                let replace = documents.replace_one(doc! { "_id": bson(key) }, document(key, *rev, fields));
                replace.session(session).await.map(drop).map_err(to_trouble)
            }
            Statement::Update { table, key, rev, fields } => {
                let (mut set, mut unset) = (doc! { "rev": rev.cast_signed() }, Document::new());
                for (name, value) in fields {
                    match value {
                        Value::Null if !self.stores_nulls => unset.insert(name, ""),
                        value => set.insert(name, bson(value)),
                    };
                }
                let mut update = doc! { "$set": set };
                if !unset.is_empty() {
                    update.insert("$unset", unset);
                }
                let documents = documents(table);
                let update = documents.update_one(doc! { "_id": bson(key) }, update);
                update.session(session).await.map(drop).map_err(to_trouble)
            }
            Statement::Delete { table, key } => {
                let documents = documents(table);
                let delete = documents.delete_one(doc! { "_id": bson(key) });
                delete.session(session).await.map(drop).map_err(to_trouble)
            }
            Statement::MoveKey { .. } | Statement::Truncate { .. } => Err(format!("MongoDB has no {statement:?}")),
        }
    }
}

#[async_trait(?Send)]
impl Database for Collections {
    async fn create(&mut self, plan: &Plan) -> Result<(), Trouble> {
        self.stores_nulls = plan.keeps_missing;
        for table in &plan.tables {
            self.database.create_collection(&table.name).await.map_err(to_trouble)?;
        }
        Ok(())
    }

    async fn transact(&mut self, statements: &[Statement], commit: bool) -> Result<(), Trouble> {
        let mut session = self.client.start_session().await.map_err(to_trouble)?;
        session.start_transaction().await.map_err(to_trouble)?;
        for statement in statements {
            self.execute(statement, &mut session).await?;
        }
        let ended = if commit { session.commit_transaction().await } else { session.abort_transaction().await };
        ended.map_err(to_trouble)
    }

    async fn change_schema(&mut self, change: &SchemaChange) -> Result<(), Trouble> {
        match change {
            SchemaChange::DropCollection { table } => {
                self.database.collection::<Document>(table).drop().await.map_err(to_trouble)
            }
            SchemaChange::Rename { table, to } => self.rename(table, to, false).await,
            SchemaChange::RenameOver { table } => {
                let staged = format!("{table}_staged");
                self.database.create_collection(&staged).await.map_err(to_trouble)?;
                self.rename(&staged, table, true).await
            }
            SchemaChange::Out { table } => {
                let stages = [doc! { "$match": { "rev": -1 } }, doc! { "$out": table }];
                self.database.collection::<Document>(table).aggregate(stages).await.map(drop).map_err(to_trouble)
            }
            _ => Err(format!("MongoDB has no {change:?}")),
        }
    }

    async fn differences(&mut self, plan: &Plan, content: &Content) -> Result<Vec<String>, Trouble> {
        let mut found = Vec::new();
        for table in &plan.tables {
            let documents = all(&self.database, &table.name, doc! {}).await.map_err(to_trouble)?;
            found.extend(match content.form {
                Form::Bson => {
                    let source = documents.iter().map(|document| format!("{document:?}")).collect();
                    unequal(&table.name, source, content.rows.get(&table.name).cloned().unwrap_or_default())
                }
                Form::Json => {
                    let normal = |document: &Document| normal(relaxed(document)).to_string();
                    let source = documents.iter().map(normal).collect();
                    unequal(&table.name, source, normal_rows(content, &table.name)?)
                }
            });
        }
        Ok(found)
    }
}
