use super::super::guard::{Folder, Program};
use super::super::{cache, free_port, listens, wait_for};
use super::{SUPERUSER, Server, give_away, reachable, unprivileged};

/// PgBouncer in transaction mode before a server: every transaction may be on another connection.
#[derive(Debug)]
pub struct Pooler {
    // Dropped in this order: the process before its folder.
    _program: Program,
    port: u16,
    _folder: Folder,
}

impl Pooler {
    /// A pooler that has this many connections to the server for each database.
    ///
    /// # Panics
    /// When PgBouncer is not installed, with the command that does it, or does not start.
    pub fn start(server: &Server, connections: usize) -> Self {
        let installed = reachable(cache::PGBOUNCER, "pgbouncer", "cargo xtask servers pgbouncer");
        for _ in 0..5 {
            let (port, folder) = (free_port(), Folder::new("pgbouncer"));
            let at = |name: &str| folder.path().join(name);
            let users = at("users").display().to_string();
            std::fs::write(at("users"), format!("\"{SUPERUSER}\" \"\"\n")).expect("the folder is ours");
            let file = format!(
                "[databases]\n* = host=127.0.0.1 port={}\n[pgbouncer]\nlisten_addr = 127.0.0.1\nlisten_port = {port}\n\
                 unix_socket_dir =\nauth_type = trust\nauth_file = {users}\npool_mode = transaction\n\
                 default_pool_size = {connections}\nmax_client_conn = 1000\n",
                server.port()
            );
            std::fs::write(at("pgbouncer.ini"), file).expect("the folder is ours");
            give_away(folder.path());
            let mut line = unprivileged();
            line.extend([installed.join("pgbouncer"), at("pgbouncer.ini")].map(|path| path.display().to_string()));
            let program = Program::start(&line, &at("log"));
            // Another program may take a free port first, so it is tried again.
            if wait_for("pgbouncer", || if program.runs() { listens(port).then_some(true) } else { Some(false) }) {
                return Self { _program: program, port, _folder: folder };
            }
        }
        panic!("pgbouncer does not start");
    }

    /// A URL of the superuser through the pooler, for this database.
    pub fn url(&self, database: &str) -> String {
        format!("postgres://{SUPERUSER}@127.0.0.1:{}/{database}", self.port)
    }
}
