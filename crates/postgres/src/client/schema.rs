use tokio_postgres::types::Type;
use watchkeeper_core::{Cx, Entropy, Error, Result, StoreIdentity};

use super::{Client, Work};
use crate::error::native;

/// Tables of one role, with the steps that made them what they are.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Schema {
    /// What the tables are for.
    pub(crate) role: &'static str,
    /// Each brings the tables from one version to the next; the first makes them. `{schema}` stands for the schema. A step is
    /// never edited once it was released.
    pub(crate) steps: &'static [&'static str],
}

/// What belongs to the schema as a whole: versions and identity.
const META: &str = "CREATE TABLE IF NOT EXISTS {schema}.meta (name text PRIMARY KEY, value text NOT NULL)";

/// How often to look again when another one makes the same at the same time.
const TRIES: usize = 5;

/// A name in SQL, whatever signs it has.
pub(crate) fn quoted(name: &str) -> String {
    format!("\"{}\"", name.replace('"', "\"\""))
}

impl Client {
    /// SQL in which `{schema}` stands for the schema.
    pub(crate) fn sql(&self, template: &str) -> String {
        template.replace("{schema}", &quoted(self.schema()))
    }

    /// Makes sure that the tables of a role are there, in the shape that this program knows. It looks before it writes, so
    /// that a user who may not create anything can work with what is there.
    pub(crate) async fn ensure(&self, cx: &Cx, schema: Schema) -> Result<StoreIdentity> {
        for _ in 0..TRIES {
            if let Some(identity) = self.inspect(cx, schema).await? {
                return Ok(identity);
            }
            match self.make(cx, schema).await {
                Ok(()) => {}
                // Another instance makes the same just now; CREATE IF NOT EXISTS does not see that.
                Err(error) if is_race(&error) => {}
                Err(error) => return Err(error),
            }
        }
        Err(Error::unavailable(format!("{}: the tables are changed all the time", self.place()))
            .remedy("look who else makes them"))
    }

    /// The identity of the database, if the tables are there in the newest shape.
    pub(crate) async fn inspect(&self, cx: &Cx, schema: Schema) -> Result<Option<StoreIdentity>> {
        let (version, identity) = self.stored(cx, schema).await?;
        let Some(identity) = identity.filter(|_| version == schema.steps.len()) else { return Ok(None) };
        let uuid = identity.parse().map_err(|error| {
            Error::corrupt(format!("{}: the identity in {}.meta is no UUID", self.place(), self.schema()))
                .remedy("restore the table from a backup")
                .caused_by(error)
        })?;
        Ok(Some(StoreIdentity(uuid)))
    }

    /// How many steps have made the tables what they are; 0 when there are none.
    pub(crate) async fn version(&self, cx: &Cx, schema: Schema) -> Result<usize> {
        Ok(self.stored(cx, schema).await?.0)
    }

    /// The version of the tables and the identity of the database.
    async fn stored(&self, cx: &Cx, schema: Schema) -> Result<(usize, Option<String>)> {
        // The catalogue is asked first: a table that is not there would be an error.
        let there = "SELECT 1 FROM pg_catalog.pg_class c JOIN pg_catalog.pg_namespace n ON n.oid = c.relnamespace
            WHERE n.nspname = $1 AND c.relname = 'meta'";
        let name = self.schema().to_owned();
        if self.read(cx, there, &[(&name, Type::TEXT)]).await?.is_empty() {
            return Ok((0, None));
        }
        let sql = self.sql(
            "SELECT (SELECT value FROM {schema}.meta WHERE name = $1), (SELECT value FROM {schema}.meta WHERE name = 'identity')",
        );
        let rows = self.read(cx, &sql, &[(&schema.name(), Type::TEXT)]).await?;
        let (version, identity): (Option<String>, Option<String>) =
            rows.first().map_or((None, None), |row| (row.get(0), row.get(1)));
        Ok((self.version_of(schema, version)?, identity))
    }

    fn version_of(&self, schema: Schema, stored: Option<String>) -> Result<usize> {
        let version = stored.map_or(Some(0), |text| text.parse().ok()).unwrap_or(usize::MAX);
        if version <= schema.steps.len() {
            return Ok(version);
        }
        let (place, role, known) = (self.place(), schema.role, schema.steps.len());
        let cause = format!("{place}: the {role} tables have version {version}, this program knows {known}");
        Err(Error::config(cause).remedy("run the newest version of Watchkeeper that was ever used here"))
    }

    async fn make(&self, cx: &Cx, schema: Schema) -> Result<()> {
        let work = self.begin(cx).await?;
        self.make_meta(cx, &work, schema).await?;
        work.commit(cx).await?;
        let work = self.begin(cx).await?;
        self.migrate(cx, &work, schema).await.map_err(|error| may_not_make(self, schema, error))?;
        work.commit(cx).await
    }

    /// Makes the tables of a role where there are none, in a transaction that goes on: without its commit there are none after it.
    ///
    /// # Errors
    /// Also when another one makes the same at the same time ([`is_race`]).
    pub(crate) async fn make_within(&self, cx: &Cx, work: &Work, schema: Schema) -> Result<()> {
        self.make_meta(cx, work, schema).await?;
        self.migrate(cx, work, schema).await.map_err(|error| may_not_make(self, schema, error))
    }

    async fn make_meta(&self, cx: &Cx, work: &Work, schema: Schema) -> Result<()> {
        // A schema that an administrator has made is used without asking for the right to make one.
        let there = "SELECT 1 FROM pg_catalog.pg_namespace WHERE nspname = $1";
        if work.query(cx, there, &[(&self.schema().to_owned(), Type::TEXT)]).await?.is_empty() {
            work.run(cx, &self.sql("CREATE SCHEMA IF NOT EXISTS {schema}"))
                .await
                .map_err(|error| may_not_make(self, schema, error))?;
        }
        work.run(cx, &self.sql(META)).await.map_err(|error| may_not_make(self, schema, error))
    }

    /// The steps that are missing, one migration at a time.
    async fn migrate(&self, cx: &Cx, work: &Work, schema: Schema) -> Result<()> {
        work.run(cx, &self.sql("LOCK TABLE {schema}.meta IN SHARE ROW EXCLUSIVE MODE")).await?;
        let sql = self.sql("SELECT value FROM {schema}.meta WHERE name = $1");
        let rows = work.query(cx, &sql, &[(&schema.name(), Type::TEXT)]).await?;
        let version = self.version_of(schema, rows.first().map(|row| row.get(0)))?;
        for step in &schema.steps[version..] {
            work.run(cx, &self.sql(step)).await?;
        }
        let sql = self
            .sql("INSERT INTO {schema}.meta VALUES ($1, $2) ON CONFLICT (name) DO UPDATE SET value = excluded.value");
        let version = schema.steps.len().to_string();
        work.query(cx, &sql, &[(&schema.name(), Type::TEXT), (&version, Type::TEXT)]).await?;
        // The identity of the database is made once, by whoever comes first.
        let sql = self.sql("INSERT INTO {schema}.meta VALUES ('identity', $1) ON CONFLICT (name) DO NOTHING");
        let identity = Entropy::from_system().uuid().to_string();
        work.query(cx, &sql, &[(&identity, Type::TEXT)]).await?;
        Ok(())
    }
}

impl Schema {
    fn name(self) -> String {
        format!("schema/{}", self.role)
    }
}

/// Whether another one made the same at the same time.
pub(crate) fn is_race(error: &Error) -> bool {
    let code = native(error).and_then(tokio_postgres::Error::code);
    code.is_some_and(|code| ["23505", "42P06", "42P07", "42710", "XX000"].contains(&code.code()))
}

fn may_not_make(client: &Client, schema: Schema, error: Error) -> Error {
    if error.kind() != watchkeeper_core::ErrorKind::Denied {
        return error;
    }
    error.remedy(match schema.role {
        "log" => {
            "run it as a user who may create schemas (GRANT CREATE ON DATABASE …) and owns the tables; with `--role NAME` \
             another one may then read the log".to_owned()
        }
        _ => format!("run `{}` once, as a user who may create schemas", client.setup_command()),
    })
}
