//! Processes that watch each other: death is proved by the kernel of the dead one's machine.

use std::collections::BTreeMap;
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use async_trait::async_trait;
use watchkeeper_core::{Address, Cx, HeldTenures, Latest, Listening, Peers, Result, TenureId, Verdict};

/// What became of a listener.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum ListenerEnd {
    Listening,
    Closed,
    Killed,
}

/// All listeners of the world, by address.
#[derive(Debug, Clone, Default)]
pub struct PeerDirectory {
    listening: Arc<Mutex<BTreeMap<String, ListeningPeer>>>,
}

#[derive(Debug, Clone)]
struct ListeningPeer {
    end: Arc<Latest<ListenerEnd>>,
    held_tenures: HeldTenures,
}

/// The peers of one process.
#[derive(Debug)]
pub struct SimPeers {
    directory: PeerDirectory,
    address: String,
}

#[derive(Debug)]
struct Open {
    directory: PeerDirectory,
    address: String,
}

impl PeerDirectory {
    /// The peers of the process with this address.
    pub fn peers(&self, address: &str) -> SimPeers {
        SimPeers { directory: self.clone(), address: address.to_owned() }
    }

    /// The process at `address` was killed: its kernel closes and refuses.
    pub fn killed(&self, address: &str) {
        self.settle(address, ListenerEnd::Killed);
    }

    fn settle(&self, address: &str, end: ListenerEnd) {
        let listening = self.listening.lock().unwrap_or_else(PoisonError::into_inner).get(address).cloned();
        if let Some(listening) = listening {
            // A killed process does not run its destructors: what comes after the kill is the simulation's.
            listening.end.change_if(|current| {
                let first = *current == ListenerEnd::Listening;
                if first {
                    *current = end;
                }
                first
            });
        }
    }
}

impl Listening for Open {
    fn address(&self) -> Option<Address> {
        Some(Address(self.address.as_str().into()))
    }
}

impl Drop for Open {
    fn drop(&mut self) {
        self.directory.settle(&self.address, ListenerEnd::Closed);
    }
}

#[async_trait]
impl Peers for SimPeers {
    fn is_local(&self, _address: &Address) -> bool {
        true
    }

    async fn listen(&self, _cx: &Cx, held_tenures: HeldTenures) -> Result<Box<dyn Listening>> {
        let listening = ListeningPeer { end: Arc::new(Latest::new(ListenerEnd::Listening)), held_tenures };
        let mut all = self.directory.listening.lock().unwrap_or_else(PoisonError::into_inner);
        all.insert(self.address.clone(), listening);
        Ok(Box::new(Open { directory: self.directory.clone(), address: self.address.clone() }))
    }

    async fn watch(&self, cx: &Cx, address: &Address, tenure: TenureId) -> Result<Verdict> {
        cx.sleep(Duration::from_millis(1)).await;
        let listening = {
            let all = self.directory.listening.lock().unwrap_or_else(PoisonError::into_inner);
            all.get(&*address.0).cloned()
        };
        // Nothing is proved by someone who never answered on this connection.
        let Some(listening) = listening.filter(|listening| listening.held_tenures.has(tenure)) else {
            return Ok(Verdict::Unproven);
        };
        let mut end = listening.end.follow();
        if *end.get() != ListenerEnd::Listening {
            return Ok(Verdict::Unproven);
        }
        let _ = end.changed().await;
        cx.sleep(Duration::from_millis(1)).await;
        let is_dead = *end.get() == ListenerEnd::Killed;
        Ok(if is_dead { Verdict::Dead } else { Verdict::Unproven })
    }
}
