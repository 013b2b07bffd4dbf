//! Whom a client believes, and how it shows who it is.

use std::path::Path;

use rcgen::{BasicConstraints, CertificateParams, CertifiedIssuer, IsCa, KeyPair};
use tempfile::TempDir;
use watchkeeper_core::{ErrorKind, Result, Source};
use watchkeeper_postgres::{Client, Config, Replication, replication};
use watchkeeper_testkit::servers::postgres::{Server, ServerSettings, Version};

use crate::support::{assert_error, block_on, cx};

/// A server that speaks TLS and asks for passwords, with a certificate for `localhost` by an authority of its own.
struct Guarded {
    server: Server,
    folder: TempDir,
}

fn authority(name: &str) -> CertifiedIssuer<'static, KeyPair> {
    let mut params = CertificateParams::new(Vec::new()).expect("it has no names");
    params.is_ca = IsCa::Ca(BasicConstraints::Unconstrained);
    params.distinguished_name.push(rcgen::DnType::CommonName, name);
    let key = KeyPair::generate().expect("a key can be made");
    CertifiedIssuer::self_signed(params, key).expect("a certificate can be made")
}

/// Writes the certificate of a user, and its key, by this authority.
fn write_identity(folder: &Path, name: &str, user: &str, by: &CertifiedIssuer<'static, KeyPair>) {
    let key = KeyPair::generate().expect("a key can be made");
    let mut params = CertificateParams::new(Vec::new()).expect("it has no names");
    params.distinguished_name = rcgen::DistinguishedName::new();
    params.distinguished_name.push(rcgen::DnType::CommonName, user);
    let certificate = params.signed_by(&key, by).expect("it can be signed");
    std::fs::write(folder.join(format!("{name}.crt")), certificate.pem()).expect("the folder is ours");
    std::fs::write(folder.join(format!("{name}.key")), key.serialize_pem()).expect("the folder is ours");
}

impl Guarded {
    fn start(version: Version) -> Self {
        let (ours, other) = (authority("ours"), authority("another"));
        let key = KeyPair::generate().expect("a key can be made");
        let params = CertificateParams::new(vec!["localhost".to_owned()]).expect("it is a name");
        let certificate = params.signed_by(&key, &ours).expect("it can be signed");
        let mut settings = ServerSettings::new(version);
        let lines =
            ["ssl = on", "ssl_cert_file = 'server.crt'", "ssl_key_file = 'server.key'", "ssl_ca_file = 'ours.crt'"];
        settings.config = lines.map(str::to_owned).to_vec();
        // The superuser is let in without a password, so that the others can be made.
        settings.hba = vec![
            "host all postgres 127.0.0.1/32 trust".to_owned(),
            "hostssl all bearer 127.0.0.1/32 cert".to_owned(),
            "hostssl all all 127.0.0.1/32 scram-sha-256".to_owned(),
        ];
        settings.files = vec![
            ("server.crt".to_owned(), certificate.pem().into_bytes()),
            ("server.key".to_owned(), key.serialize_pem().into_bytes()),
            ("ours.crt".to_owned(), ours.pem().into_bytes()),
        ];
        let server = Server::with(&settings);
        let folder = tempfile::tempdir().expect("a folder can be made");
        std::fs::write(folder.path().join("ours.pem"), ours.pem()).expect("the folder is ours");
        std::fs::write(folder.path().join("other.pem"), other.pem()).expect("the folder is ours");
        for (name, user, by) in [("own", "bearer", &ours), ("borrowed", "keeper", &ours), ("forged", "bearer", &other)]
        {
            write_identity(folder.path(), name, user, by);
        }
        Self { server, folder }
    }

    /// Whether someone is let in: by which name the server is called, as whom, and with which parameters.
    async fn open(&self, host: &str, user: &str, parameters: &str) -> Result<Client> {
        Client::open(&cx(), self.config(host, user, parameters)?).await
    }

    fn config(&self, host: &str, user: &str, parameters: &str) -> Result<Config> {
        let folder = self.folder.path().display().to_string();
        let parameters = parameters.replace("{folder}", &folder);
        let port = self.server.port();
        Config::new(&format!("postgres://{user}@{host}:{port}/postgres?hostaddr=127.0.0.1&{parameters}"))
    }
}

const OURS: &str = "sslrootcert={folder}/ours.pem";
const OTHER: &str = "sslrootcert={folder}/other.pem";

#[test]
fn a_server_is_believed_only_by_its_certificate() {
    let guarded = Guarded::start(Version::V18);
    block_on(async {
        let admin = guarded.open("localhost", "postgres", "sslmode=disable").await.expect("it is let in");
        admin.write(&cx(), "CREATE ROLE keeper LOGIN PASSWORD 'secret'", &[]).await.expect("the superuser may");
        let full = format!("sslmode=verify-full&{OURS}");
        let encrypted = async |client: Client| -> bool {
            let sql = "SELECT ssl FROM pg_stat_ssl WHERE pid = pg_backend_pid()";
            client.read(&cx(), sql, &[]).await.expect("it answers")[0].get(0)
        };
        // The right name and authority, a password, and both bound together.
        let bound = format!("{full}&channel_binding=require");
        assert!(encrypted(guarded.open("localhost", "keeper:secret", &bound).await.expect("all is right")).await);
        // Who only asks for TLS gets the same scrutiny.
        let plain = format!("sslmode=require&{OURS}");
        assert!(encrypted(guarded.open("localhost", "keeper:secret", &plain).await.expect("all is right")).await);
        // Another name, another authority.
        assert_error(guarded.open("elsewhere", "keeper:secret", &full).await, ErrorKind::Config, "not valid for name");
        assert_error(guarded.open("elsewhere", "keeper:secret", &plain).await, ErrorKind::Config, "not valid for name");
        let wrong = format!("sslmode=verify-full&{OTHER}");
        assert_error(guarded.open("localhost", "keeper:secret", &wrong).await, ErrorKind::Config, "TLS");
        let wrong = format!("sslmode=verify-ca&{OTHER}");
        assert_error(guarded.open("localhost", "keeper:secret", &wrong).await, ErrorKind::Config, "TLS");
        // The authority alone, whatever the name; and whoever it is, only out of the sight of others.
        let any_name = format!("sslmode=verify-ca&{OURS}");
        assert!(encrypted(guarded.open("elsewhere", "keeper:secret", &any_name).await.expect("it is ours")).await);
        assert!(
            encrypted(guarded.open("elsewhere", "keeper:secret", "sslmode=prefer").await.expect("it is any")).await
        );
        // Who wants to see a certificate is not sent away from one quietly.
        let distrust = format!("sslmode=prefer&{OTHER}");
        assert_error(guarded.open("localhost", "keeper:secret", &distrust).await, ErrorKind::Config, "TLS");
    });
}

#[test]
fn who_is_not_who_it_says_is_not_let_in() {
    let guarded = Guarded::start(Version::V15);
    block_on(async {
        let admin = guarded.open("localhost", "postgres", "sslmode=disable").await.expect("it is let in");
        admin.write(&cx(), "CREATE ROLE keeper LOGIN PASSWORD 'secret'", &[]).await.expect("the superuser may");
        let full = format!("sslmode=verify-full&{OURS}");
        guarded.open("localhost", "keeper:secret", &full).await.expect("all is right");
        let wrong = guarded.open("localhost", "keeper:hunter2", &full).await;
        assert_error(wrong.as_ref().map(|_| ()).map_err(copy), ErrorKind::Denied, "28P01");
        assert!(!format!("{wrong:?}").contains("hunter2"), "{wrong:?}");
        assert_error(guarded.open("localhost", "keeper", &full).await, ErrorKind::Denied, "password missing");
        // Without TLS the server has no line for it.
        assert_error(guarded.open("localhost", "keeper:secret", "sslmode=disable").await, ErrorKind::Denied, "28000");
        // A binding without TLS cannot be.
        let unbound = "sslmode=disable&channel_binding=require";
        let error = guarded.open("localhost", "postgres", unbound).await.expect_err("there is nothing to bind to");
        assert_eq!(error.kind(), ErrorKind::Denied, "{error}");
    });
}

#[test]
fn a_client_shows_its_certificate_to_a_server_that_demands_one() {
    for version in Version::ALL {
        let guarded = Guarded::start(version);
        block_on(async {
            let admin = guarded.open("localhost", "postgres", "sslmode=disable").await.expect("it is let in");
            admin.write(&cx(), "CREATE ROLE bearer LOGIN REPLICATION", &[]).await.expect("the superuser may");
            let full = format!("sslmode=verify-full&{OURS}");
            let with = |name: &str| format!("{full}&sslcert={{folder}}/{name}.crt&sslkey={{folder}}/{name}.key");
            let logs = |config| Replication::new(config, replication::Settings::new("slot", "changes"));
            guarded.open("localhost", "bearer", &with("own")).await.expect("it is its own");
            let config = guarded.config("localhost", "bearer", &with("own")).expect("the files can be read");
            logs(config).identity(&cx()).await.expect("it is let in to replicate, too");
            for (parameters, cause) in [(full.clone(), "28000"), (with("borrowed"), "28000")] {
                let config = guarded.config("localhost", "bearer", &parameters).expect("the files can be read");
                assert_error(logs(config).identity(&cx()).await, ErrorKind::Denied, cause);
                assert_error(guarded.open("localhost", "bearer", &parameters).await, ErrorKind::Denied, cause);
            }
            let forged = guarded.config("localhost", "bearer", &with("forged")).expect("the files can be read");
            logs(forged).identity(&cx()).await.expect_err("another authority has signed it");
            guarded.open("localhost", "bearer", &with("forged")).await.expect_err("another authority has signed it");
        });
    }
}

fn copy(error: &watchkeeper_core::Error) -> watchkeeper_core::Error {
    watchkeeper_core::Error::new(error.kind(), error.message()).remedy(error.advice().unwrap_or_default())
}
