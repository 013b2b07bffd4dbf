//! The parts of the file that depend on the systems that were named.

use clap::ValueEnum;

/// Where changes come from.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, ValueEnum)]
pub(crate) enum Source {
    /// A table of a SQLite database
    #[default]
    Sqlite,
    /// A collection of MongoDB
    #[value(name = "mongodb")]
    MongoDb,
    /// A table of PostgreSQL
    Postgres,
}

/// Where changes go.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, ValueEnum)]
pub(crate) enum Sink {
    /// Lines of JSON in files
    #[default]
    File,
    /// Lines of JSON on standard output
    Stdout,
    /// A table of a SQLite database
    Sqlite,
    /// A collection of MongoDB
    #[value(name = "mongodb")]
    MongoDb,
    /// A table of PostgreSQL
    Postgres,
}

impl Source {
    /// The group's store: where the source is, so that instances on several machines share it.
    pub(super) fn store(self) -> &'static str {
        match self {
            Self::Sqlite => {
                "# Instances on several machines share a server: store = \"mongodb://db1,db2,db3/watchkeeper?replicaSet=rs0\"\n\
                 store = \"sqlite:watchkeeper.db\"\n"
            }
            Self::MongoDb => "store = \"mongodb://localhost/watchkeeper?replicaSet=rs0\"\n",
            Self::Postgres => {
                "# Its tables are made in the schema \"watchkeeper\" of this database.\n\
                 store = \"postgres://app@localhost/shop\"\n"
            }
        }
    }

    pub(super) fn setting(self) -> &'static str {
        match self {
            Self::Sqlite => {
                "# The application's database. Log its tables first: watchkeeper sqlite install --db app.db --table orders\n\
                 # Watchkeeper writes to it, too: give the application's connections a PRAGMA busy_timeout.\n\
                 source = { url = \"sqlite:app.db\", tables = [\"orders\"] }\n"
            }
            Self::MongoDb => {
                "# A collection of a replica set, with its documents as they are after an update.\n\
                 source = { url = \"mongodb://localhost/shop?replicaSet=rs0\", collection = \"orders\", \
                 full_document = \"updateLookup\" }\n"
            }
            Self::Postgres => {
                "# The application's database. Log its tables first: watchkeeper postgres install --url … --table orders\n\
                 # Or read the write-ahead log, with wal_level = logical: mode = \"replication\"\n\
                 source = { url = \"postgres://app@localhost/shop\", tables = [\"orders\"] }\n"
            }
        }
    }

    /// What to do before the first check, if anything.
    pub(super) fn first_step(self) -> Option<&'static str> {
        match self {
            Self::Sqlite => {
                Some("  watchkeeper sqlite install --db app.db --table orders   # log the changes of a table")
            }
            Self::MongoDb => None,
            Self::Postgres => Some(
                "  watchkeeper postgres install --url postgres://app@localhost/shop --table orders   # log a table",
            ),
        }
    }
}

impl Sink {
    pub(super) fn table(self) -> &'static str {
        match self {
            Self::File => {
                "# This one writes lines of JSON into files in a folder that exists.\n\
                 [[stream.sink]]\ntype = \"file\"\nfolder = \".\"\nprefix = \"orders\"\n\
                 format = \"native\"                # or \"debezium\", \"cloudevents\"\n\
                 # rotate_bytes = \"64MiB\"       # never by default; also rotate_after = \"1h\"\n\
                 # When lines are forced to the disk. \"flush\": before every commit, so that nothing is lost; a time such as \"1s\",\n\
                 # or \"never\": a power failure may take what was not yet forced.\n\
                 # fsync = \"flush\"\n"
            }
            Self::Stdout => {
                "# This one writes lines of JSON to standard output.\n\
                 [[stream.sink]]\ntype = \"stdout\"\nformat = \"native\"                # or \"debezium\", \"cloudevents\"\n"
            }
            Self::Sqlite => {
                "# Exactly once, into a database: changes and checkpoint are one transaction there.\n\
                 [[stream.sink]]\nurl = \"sqlite:copy.db\"\ntable = \"orders\"\n\
                 mode = \"events\"                  # one row per change, or \"mirror\": the newest of every key\n"
            }
            Self::MongoDb => {
                "# Exactly once, into a database: changes and checkpoint are one transaction there.\n\
                 [[stream.sink]]\nurl = \"mongodb://localhost/copy?replicaSet=rs0\"\ncollection = \"orders\"\n\
                 mode = \"events\"                  # one document per change; \"mirror\", \"versioned\" and \"audit\" are the others\n"
            }
            Self::Postgres => {
                "# Exactly once, into a database: changes and checkpoint are one transaction there.\n\
                 [[stream.sink]]\nurl = \"postgres://app@localhost/copy\"\ntable = \"orders_events\"\n\
                 mode = \"events\"                  # one row per change; \"mirror\", \"rows\" and their versioned forms are the others\n"
            }
        }
    }
}
