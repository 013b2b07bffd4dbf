use rcgen::{BasicConstraints, CertificateParams, CertifiedIssuer, IsCa, KeyPair};
use watchkeeper_core::{ErrorKind, Result, Source, StartAt};
use watchkeeper_postgres::{Config, Replication};
use watchkeeper_testkit::servers::postgres::{Server, ServerSettings, Version};

use super::bench::{Base, Watch, assert_error, block_on, cx};

const THINGS: &str = "CREATE TABLE things(id int PRIMARY KEY)";

async fn opened(base: &Base<'_>, user: &str, parameters: &str) -> Result<Watch> {
    let url = format!("{}?{parameters}", base.server.url_of(user, &base.name));
    let source = Replication::new(Config::new(&url).expect("the URL is one"), base.settings());
    source.open(&cx(), StartAt::Now).await.map(|stream| Watch { stream })
}

#[test]
fn a_password_is_proved_in_every_way_that_servers_ask_for() {
    for version in Version::ALL {
        let mut settings = ServerSettings::new(version);
        let rule = |user: &str, way: &str| format!("host all {user} 127.0.0.1/32 {way}");
        let rules = [("postgres", "trust"), ("modern", "scram-sha-256"), ("old", "md5"), ("open", "password")];
        settings.hba = rules.iter().map(|(user, way)| rule(user, way)).collect();
        let server = Server::with(&settings);
        block_on(async {
            let base = Base::new(&server, THINGS).await;
            base.run("CREATE PUBLICATION changes FOR TABLE things").await;
            for (user, encryption) in [("modern", "scram-sha-256"), ("old", "md5"), ("open", "scram-sha-256")] {
                base.run(&format!("SET password_encryption = '{encryption}'; CREATE ROLE {user} LOGIN REPLICATION PASSWORD 'pass word'")).await;
                let mut watch = opened(&base, &format!("{user}:pass%20word"), "").await.expect("the password is right");
                base.run("INSERT INTO things SELECT coalesce(max(id), 0) + 1 FROM things").await;
                watch.changes(1).await;
                watch.close().await;
                let wrong = opened(&base, &format!("{user}:wrong"), "").await;
                assert_error(wrong, ErrorKind::Denied, "password authentication failed");
                let none = opened(&base, user, "").await;
                assert_error(none, ErrorKind::Denied, "asks for a password; none is set");
            }
            let bound = opened(&base, "modern:pass%20word", "channel_binding=require").await;
            assert_error(bound, ErrorKind::Config, "channel_binding=require");
            let tls = opened(&base, "postgres", "sslmode=require").await;
            let remedy = tls.as_ref().err().and_then(|error| error.advice()).unwrap_or_default();
            assert!(remedy.contains("ssl = on") && !remedy.contains("authority"), "{remedy}");
            assert_error(tls, ErrorKind::Config, "does not speak TLS");
            let nowhere = Config::new(&server.url("nowhere")).expect("the URL is one");
            let nowhere = Replication::new(nowhere, base.settings());
            assert_error(nowhere.identity(&cx()).await, ErrorKind::Config, "\"nowhere\" does not exist");
        });
    }
}

#[test]
fn a_server_that_is_not_there_is_unavailable() {
    block_on(async {
        let config = Config::new("postgres://postgres@127.0.0.1:1/nowhere").expect("the URL is one");
        let source = Replication::new(config, watchkeeper_postgres::replication::Settings::new("s", "p"));
        assert_error(source.identity(&cx()).await, ErrorKind::Unavailable, "127.0.0.1:1/nowhere");
    });
}

/// A certificate authority, and the certificate and key of a server called `localhost` by it.
fn certificates() -> (String, String, String) {
    let mut params = CertificateParams::new(Vec::new()).expect("it has no names");
    params.is_ca = IsCa::Ca(BasicConstraints::Unconstrained);
    let authority = CertifiedIssuer::self_signed(params, KeyPair::generate().expect("a key can be made"));
    let authority = authority.expect("a certificate can be made");
    let key = KeyPair::generate().expect("a key can be made");
    let params = CertificateParams::new(vec!["localhost".to_owned()]).expect("it is a name");
    let certificate = params.signed_by(&key, &authority).expect("it can be signed");
    (authority.pem(), certificate.pem(), key.serialize_pem())
}

#[test]
fn a_password_is_bound_to_the_certificate_that_was_checked() {
    let (authority, certificate, key) = certificates();
    let folder = tempfile::tempdir().expect("a folder can be made");
    let root = folder.path().join("root.pem");
    std::fs::write(&root, authority).expect("the folder is ours");
    for version in Version::ALL {
        let mut settings = ServerSettings::new(version);
        settings.config = ["ssl = on", "ssl_cert_file = 's.crt'", "ssl_key_file = 's.key'"].map(str::to_owned).to_vec();
        settings.hba = vec![
            "host all postgres 127.0.0.1/32 trust".to_owned(),
            "hostssl all all 127.0.0.1/32 scram-sha-256".to_owned(),
        ];
        let file = |name: &str, content: &str| (name.to_owned(), content.as_bytes().to_vec());
        settings.files = vec![file("s.crt", &certificate), file("s.key", &key)];
        let server = Server::with(&settings);
        block_on(async {
            let base = Base::new(&server, THINGS).await;
            base.run(
                "CREATE ROLE keeper LOGIN REPLICATION PASSWORD 'secret'; CREATE PUBLICATION changes FOR TABLE things",
            )
            .await;
            let open = async |host: &str, parameters: &str| {
                let url = format!(
                    "postgres://keeper:secret@{host}:{}/{}?hostaddr=127.0.0.1&{parameters}",
                    server.port(),
                    base.name
                );
                let source = Replication::new(Config::new(&url).expect("the URL is one"), base.settings());
                source.open(&cx(), StartAt::Now).await.map(|stream| Watch { stream })
            };
            let checked = format!("sslmode=verify-full&sslrootcert={}", root.display());
            let bound = format!("{checked}&channel_binding=require");
            let mut watch = open("localhost", &bound).await.expect("all is right");
            let encrypted =
                "SELECT bool_and(ssl)::text FROM pg_stat_ssl s JOIN pg_replication_slots r ON r.active_pid = s.pid";
            assert_eq!(base.ask(encrypted).await, "true");
            base.run("INSERT INTO things SELECT generate_series(1, 5000)").await;
            watch.changes(5_000).await;
            watch.close().await;
            assert_error(open("elsewhere", &checked).await, ErrorKind::Config, "not valid for name");
            assert_error(open("localhost", "sslmode=disable").await, ErrorKind::Denied, "28000");
        });
    }
}
