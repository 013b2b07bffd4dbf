//! Encrypted connections, with a certificate authority of our own and a user with a password.

use std::path::{Path, PathBuf};

use rcgen::{BasicConstraints, CertificateParams, CertifiedIssuer, IsCa, KeyPair};
use watchkeeper_core::{
    AcquireRequest, Acquired, Candidate, Entropy, Epoch, Error, ErrorKind, LeaseKey, LeaseStore, Result,
};
use watchkeeper_mongodb::mongodb::bson::doc;
use watchkeeper_mongodb::{Client, Config, Leases};
use watchkeeper_testkit::servers::mongodb::{ReplicaSet, ReplicaSetSettings};

use crate::support::{block_on, cx, fresh_name};

/// Certificates in a folder: an authority, a server's by it, and an authority that nobody has to do with.
struct Papers {
    folder: tempfile::TempDir,
}

type Authority = CertifiedIssuer<'static, KeyPair>;

fn authority(name: &str) -> Authority {
    let mut params = CertificateParams::new(Vec::new()).expect("no names are fine");
    params.is_ca = IsCa::Ca(BasicConstraints::Unconstrained);
    params.distinguished_name.push(rcgen::DnType::CommonName, name);
    CertifiedIssuer::self_signed(params, KeyPair::generate().expect("a key can be made")).expect("it can be signed")
}

impl Papers {
    fn new() -> Self {
        let papers = Self { folder: tempfile::tempdir().expect("a folder can be made") };
        let (ours, strange) = (authority("ours"), authority("strange"));
        let key = KeyPair::generate().expect("a key can be made");
        let mut params = CertificateParams::new(["127.0.0.1".to_owned()]).expect("a name");
        params.distinguished_name.push(rcgen::DnType::CommonName, "mongod");
        let server = params.signed_by(&key, &ours).expect("it can be signed");
        papers.write("ours.pem", &ours.pem());
        papers.write("strange.pem", &strange.pem());
        papers.write("server.pem", &format!("{}{}", server.pem(), key.serialize_pem()));
        papers
    }

    fn write(&self, name: &str, text: &str) {
        std::fs::write(self.path(name), text).expect("a file can be written");
    }

    fn path(&self, name: &str) -> PathBuf {
        self.folder.path().join(name)
    }

    fn text(&self, name: &str) -> String {
        self.path(name).display().to_string()
    }

    /// A set that takes nothing but encrypted connections, with a user `keeper`.
    ///
    /// It is begun unencrypted, since a set has to be initiated before anyone can log in.
    async fn set(&self) -> ReplicaSet {
        let arguments = ["--tlsMode", "allowTLS", "--tlsAllowConnectionsWithoutCertificates", "--tlsCAFile"];
        let mut arguments: Vec<String> = arguments.map(str::to_owned).to_vec();
        arguments.extend([self.text("ours.pem"), "--tlsCertificateKeyFile".to_owned(), self.text("server.pem")]);
        let key = self.path("key");
        self.write("key", "c2VjcmV0IG9mIHRoZSBzZXQ=");
        std::fs::set_permissions(&key, std::os::unix::fs::PermissionsExt::from_mode(0o600)).expect("it is ours");
        arguments.extend(["--auth".to_owned(), "--keyFile".to_owned(), key.display().to_string()]);
        let set = ReplicaSet::with(&ReplicaSetSettings { nodes: 1, arguments, ..ReplicaSetSettings::default() });
        let direct = format!("mongodb://{}/?directConnection=true", set.hosts()[0]);
        let first = watchkeeper_mongodb::mongodb::Client::with_uri_str(direct).await.expect("the server is there");
        let user = doc! { "createUser": "keeper", "pwd": "hunter2", "roles": ["root"] };
        first.database("admin").run_command(user).await.expect("the first user can be made from here");
        let keeper = format!("mongodb://keeper:hunter2@{}/?directConnection=true&authSource=admin", set.hosts()[0]);
        let keeper = watchkeeper_mongodb::mongodb::Client::with_uri_str(keeper).await.expect("the server is there");
        for mode in ["preferTLS", "requireTLS"] {
            let only = doc! { "setParameter": 1, "tlsMode": mode };
            keeper.database("admin").run_command(only).await.expect("a stricter mode can be set");
        }
        set
    }
}

fn url(set: &ReplicaSet, password: &str, more: &str) -> String {
    let rest = set.url(&fresh_name()).replace("mongodb://", "");
    let soon = "serverSelectionTimeoutMS=5000&heartbeatFrequencyMS=500";
    format!("mongodb://keeper:{password}@{rest}&authSource=admin&{soon}{more}")
}

fn trusting(authority: &Path) -> String {
    // A path is no URL: its slashes would end it.
    format!("&tls=true&tlsCAFile={}", authority.display().to_string().replace('/', "%2F"))
}

async fn leases(url: &str) -> Result<Leases> {
    Leases::open(&cx(), Client::open(&cx(), Config::new(url)?).await?).await
}

async fn refused(url: &str) -> Error {
    let error = leases(url).await.expect_err("this cannot work");
    let text = error.to_string();
    assert!(!format!("{text} {error:?}").contains("hunter"), "a password is told: {text}");
    assert!(error.advice().is_some() && !text.contains('\n'), "one line with a remedy: {text}");
    error
}

#[test]
fn encrypted_connections_are_made_with_the_right_authority_and_password_only() {
    let papers = Papers::new();
    block_on(async {
        let set = papers.set().await;
        let ours = trusting(&papers.path("ours.pem"));
        let leases = leases(&url(&set, "hunter2", &ours)).await.expect("authority and password are right");
        let entropy = Entropy::from_system();
        let candidate =
            Candidate { instance: entropy.instance(), name: "a".to_owned(), address: None, tenure: entropy.tenure() };
        let ttl = std::time::Duration::from_secs(60);
        let ask =
            AcquireRequest { key: LeaseKey::new("orders"), candidate, ttl, floor: Epoch::ZERO, break_holder: None };
        let answer = leases.try_acquire(&cx(), &ask).await.expect("an answer");
        assert!(matches!(answer, Acquired::Granted { .. }), "{answer:?}");

        let error = refused(&url(&set, "hunter3", &ours)).await;
        assert_eq!(error.kind(), ErrorKind::Denied, "{error}");
        assert!(error.advice().is_some_and(|advice| advice.contains("password")), "{error}");

        let error = refused(&url(&set, "hunter2", &trusting(&papers.path("strange.pem")))).await;
        assert_eq!(error.kind(), ErrorKind::Config, "{error}");
        assert!(error.message().contains("the certificate of the server is not trusted"), "{error}");
        assert!(error.advice().is_some_and(|advice| advice.contains("tlsCAFile")), "{error}");

        let error = refused(&url(&set, "hunter2", "&tls=true")).await;
        assert!(error.message().contains("the certificate of the server is not trusted"), "{error}");

        let error = refused(&url(&set, "hunter2", &trusting(&papers.path("missing.pem")))).await;
        assert_eq!(error.kind(), ErrorKind::Config, "{error}");
        assert!(error.message().contains("missing.pem"), "{error}");

        // Without encryption the server hangs up: it cannot be told from one that is away, so what it may be is told.
        let error = refused(&url(&set, "hunter2", "")).await;
        assert!(error.advice().is_some_and(|advice| advice.contains("tls=true")), "{error}");
    });
}
