//! Processes that watch each other: death is proved by the kernel of the dead one's machine.

use std::collections::BTreeMap;
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use async_trait::async_trait;
use watchkeeper_core::{Address, Cx, Latest, Listening, Peers, Result, Roll, TenureId, Verdict};

/// What became of a listener.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Fate {
    Listening,
    Closed,
    Killed,
}

/// All listeners of the world, by address.
#[derive(Debug, Clone, Default)]
pub struct Harbour {
    moored: Arc<Mutex<BTreeMap<String, Moored>>>,
}

#[derive(Debug, Clone)]
struct Moored {
    fate: Arc<Latest<Fate>>,
    roll: Roll,
}

/// The peers of one process.
#[derive(Debug)]
pub struct SimPeers {
    harbour: Harbour,
    address: String,
}

#[derive(Debug)]
struct Open {
    harbour: Harbour,
    address: String,
}

impl Harbour {
    /// The peers of the process with this address.
    pub fn peers(&self, address: &str) -> SimPeers {
        SimPeers { harbour: self.clone(), address: address.to_owned() }
    }

    /// The process at `address` was killed: its kernel closes and refuses.
    pub fn killed(&self, address: &str) {
        self.settle(address, Fate::Killed);
    }

    fn settle(&self, address: &str, fate: Fate) {
        let moored = self.moored.lock().unwrap_or_else(PoisonError::into_inner).get(address).cloned();
        if let Some(moored) = moored {
            // A killed process does not run its destructors: what comes after the kill is the simulation's.
            moored.fate.change_if(|current| {
                let first = *current == Fate::Listening;
                if first {
                    *current = fate;
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
        self.harbour.settle(&self.address, Fate::Closed);
    }
}

#[async_trait]
impl Peers for SimPeers {
    fn is_local(&self, _address: &Address) -> bool {
        true
    }

    async fn listen(&self, _cx: &Cx, roll: Roll) -> Result<Box<dyn Listening>> {
        let moored = Moored { fate: Arc::new(Latest::new(Fate::Listening)), roll };
        let mut all = self.harbour.moored.lock().unwrap_or_else(PoisonError::into_inner);
        all.insert(self.address.clone(), moored);
        Ok(Box::new(Open { harbour: self.harbour.clone(), address: self.address.clone() }))
    }

    async fn watch(&self, cx: &Cx, address: &Address, tenure: TenureId) -> Result<Verdict> {
        cx.sleep(Duration::from_millis(1)).await;
        let moored = {
            let all = self.harbour.moored.lock().unwrap_or_else(PoisonError::into_inner);
            all.get(&*address.0).cloned()
        };
        // Nothing is proved by someone who never answered on this connection.
        let Some(moored) = moored.filter(|moored| moored.roll.has(tenure)) else { return Ok(Verdict::Unproven) };
        let mut fate = moored.fate.follow();
        if *fate.get() != Fate::Listening {
            return Ok(Verdict::Unproven);
        }
        let _ = fate.changed().await;
        cx.sleep(Duration::from_millis(1)).await;
        let is_dead = *fate.get() == Fate::Killed;
        Ok(if is_dead { Verdict::Dead } else { Verdict::Unproven })
    }
}
