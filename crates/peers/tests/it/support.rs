use std::io::{BufRead, BufReader};
use std::process::{Child, Command, Stdio};
use std::sync::Arc;
use std::time::Duration;

use rustix::process::{Pid, Signal, kill_process};
use watchkeeper_core::{Address, BootClock, Cx, Entropy, HeldTenures, Listening, Peers, TenureId, Verdict};
use watchkeeper_peers::{Settings, TcpPeers};

/// How long anything may take that should happen at once.
pub(crate) const SOON: Duration = Duration::from_secs(10);

pub(crate) fn cx() -> Cx {
    Cx::new(Arc::new(BootClock))
}

pub(crate) fn tenure() -> TenureId {
    Entropy::from_system().tenure()
}

/// How long peers wait for an answer here.
const ANSWER_WITHIN: Duration = Duration::from_millis(600);

/// Longer than it takes to find out that there is no answer: a watch that has no verdict by then was answered.
pub(crate) const A_WHILE: Duration = Duration::from_millis(800);

/// Peers that do not wait long for an answer.
pub(crate) fn peers() -> TcpPeers {
    TcpPeers::new(Settings { answer_within: ANSWER_WITHIN, ..Settings::default() }).expect("the settings are good")
}

/// A holder in this process, answering for one tenure.
pub(crate) async fn listen(tenure: TenureId) -> (Box<dyn Listening>, Address, HeldTenures) {
    listen_by(&peers(), tenure).await
}

/// A holder in this process that listens by `peers`.
pub(crate) async fn listen_by(peers: &TcpPeers, tenure: TenureId) -> (Box<dyn Listening>, Address, HeldTenures) {
    let held_tenures = HeldTenures::default();
    held_tenures.enter(tenure);
    let listening = peers.listen(&cx(), held_tenures.clone()).await.expect("a free port can be listened on");
    let address = listening.address().expect("it listens");
    (listening, address, held_tenures)
}

/// A watch that is under way.
pub(crate) struct Watching(tokio::task::JoinHandle<Verdict>);

impl Watching {
    pub(crate) fn start(address: &Address, tenure: TenureId) -> Self {
        let address = address.clone();
        Self(tokio::spawn(async move { peers().watch(&cx(), &address, tenure).await.expect("a watch has an answer") }))
    }

    pub(crate) async fn verdict(self) -> Verdict {
        tokio::time::timeout(SOON, self.0).await.expect("there is a verdict soon").expect("no panic")
    }

    /// Looks for a while whether there is a verdict.
    pub(crate) async fn is_open_after(&mut self, duration: Duration) -> bool {
        tokio::time::timeout(duration, &mut self.0).await.is_err()
    }
}

/// A holder in a process of its own.
pub(crate) struct Holder {
    child: Child,
    pub(crate) address: Address,
    pub(crate) tenure: TenureId,
}

/// Set for the child, which is this test program again.
const CHILD: &str = "PEERS_TEST_TENURE";

impl Holder {
    pub(crate) fn start() -> Self {
        let tenure = tenure();
        let program = std::env::current_exe().expect("this program has a path");
        let mut command = Command::new(program);
        command.args(["--exact", "support::as_a_child_it_holds_until_it_is_killed", "--nocapture"]);
        command.env(CHILD, tenure.to_string()).stdout(Stdio::piped()).stdin(Stdio::piped());
        let mut child = command.spawn().expect("this program starts");
        let lines = BufReader::new(child.stdout.take().expect("it is piped")).lines();
        let mut words = lines.map(|line| line.expect("it writes text"));
        let address = words.find_map(|line| line.split_once("address=").map(|(_, rest)| Address(rest.into())));
        Self { child, address: address.expect("it says where it listens"), tenure }
    }

    pub(crate) fn signal(&self, signal: Signal) {
        let pid = Pid::from_child(&self.child);
        kill_process(pid, signal).expect("it is our own child, and not waited for");
    }

    pub(crate) fn kill(&mut self) {
        self.child.kill().expect("it is our own child");
    }
}

impl Drop for Holder {
    fn drop(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

/// Not a test when it is run as one: what [`Holder`] starts.
#[tokio::test]
async fn as_a_child_it_holds_until_it_is_killed() {
    let Ok(tenure) = std::env::var(CHILD) else { return };
    let tenure = TenureId(tenure.parse().expect("the parent gave a tenure"));
    let (_listening, address, _roll) = listen(tenure).await;
    println!("address={address}");
    // Ends with the parent, should that forget to kill it.
    let parent = tokio::task::spawn_blocking(|| std::io::stdin().lines().count());
    let _ = parent.await;
}
