//! What this instance last heard of the others. It may be stale, and only ever hurries or delays.

use std::sync::{Mutex, PoisonError};

use watchkeeper_core::InstanceId;

use super::registry::Listed;

/// The members as last listed.
#[derive(Debug)]
pub struct GroupView {
    me: InstanceId,
    members: Mutex<Vec<Listed>>,
}

impl GroupView {
    /// Nobody has been heard of yet.
    pub fn new(me: InstanceId) -> Self {
        Self { me, members: Mutex::default() }
    }

    /// Takes in a new list.
    pub fn update(&self, members: Vec<Listed>) {
        *self.members.lock().unwrap_or_else(PoisonError::into_inner) = members;
    }

    /// Whether another instance could run `stream`, and perhaps do better than this one.
    pub fn has_healthy_peer(&self, stream: &str) -> bool {
        self.any_healthy_peer(|listed| listed.member.streams.iter().any(|known| known == stream))
    }

    /// Whether another instance of this name is there.
    pub fn has_healthy_named(&self, name: &str) -> bool {
        self.any_healthy_peer(|listed| listed.member.name == name)
    }

    fn any_healthy_peer(&self, wanted: impl Fn(&Listed) -> bool) -> bool {
        let members = self.members.lock().unwrap_or_else(PoisonError::into_inner);
        members.iter().any(|listed| listed.healthy && listed.member.instance != self.me && wanted(listed))
    }

    /// The members as last listed.
    pub fn members(&self) -> Vec<Listed> {
        self.members.lock().unwrap_or_else(PoisonError::into_inner).clone()
    }
}
