//! At most so many instances: numbered slots, each a record that is put only if absent.
//!
//! A slot outlives its instance when that crashes, so a slot whose instance is not registered and
//! healthy any more may be taken over. The order of reading matters: slots first, members after. An
//! instance registers *before* it takes a slot, so whoever sees the slot then sees the member too,
//! and a newcomer is never mistaken for dead.

use std::sync::Arc;

use serde::{Deserialize, Serialize};
use watchkeeper_core::{Cx, Error, InstanceId, PutOutcome, Records, Result, Revision};

use super::registry::{Listed, Member, Registry};
use super::{ATTEMPTS, decode, encode};

#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
struct Occupant {
    instance: InstanceId,
    name: String,
}

/// One slot as it was read. An occupant that cannot be read counts as gone.
struct Slot {
    number: usize,
    revision: Revision,
    occupant: Option<Occupant>,
}

/// The slots of a group.
#[derive(Debug)]
pub struct Slots {
    records: Arc<dyn Records>,
    group: String,
    max: usize,
}

impl Slots {
    /// The slots of `group`, `max` of them.
    pub fn new(records: Arc<dyn Records>, group: &str, max: usize) -> Self {
        Self { records, group: group.to_owned(), max }
    }

    /// Takes a slot for a registered member; the answer is its number. A member that has one keeps it.
    ///
    /// # Errors
    /// `Config` when the group is full, `Internal` when the member has not registered before.
    pub async fn enter(&self, cx: &Cx, registry: &Registry, member: &Member) -> Result<usize> {
        // Every conflict is another one's success, and a full group is noticed: this ends.
        for _ in 0..ATTEMPTS + self.max {
            cx.check()?;
            let slots = self.read(cx).await?;
            let members = registry.list(cx).await?;
            if !members.iter().any(|listed| listed.member.instance == member.instance) {
                return Err(Error::internal("an instance has to register before it takes a slot"));
            }
            let own = slots.iter().find(|slot| slot.is_of(member.instance)).map(|slot| slot.number);
            if let Some(number) = own.filter(|number| *number < self.max) {
                return Ok(number);
            }
            let others: Vec<&Slot> =
                slots.iter().filter(|slot| !slot.is_of(member.instance) && slot.is_live(&members)).collect();
            if others.len() >= self.max {
                return Err(self.full(&others));
            }
            if let Some(number) = self.take(cx, member, &slots, &others).await? {
                return Ok(number);
            }
        }
        Err(Error::unavailable(format!("the slots of group {} changed all the time", self.group)))
    }

    /// Whether an instance still has a slot. It may have lost it after having been silent for long.
    pub async fn has(&self, cx: &Cx, instance: InstanceId) -> Result<bool> {
        Ok(self.read(cx).await?.iter().any(|slot| slot.is_of(instance)))
    }

    /// Gives the slots of an instance back.
    pub async fn leave(&self, cx: &Cx, instance: InstanceId) -> Result<()> {
        for slot in self.read(cx).await?.iter().filter(|slot| slot.is_of(instance)) {
            // A conflict means that it has been taken over, which is as good.
            self.records.delete_if(cx, &self.name(slot.number), slot.revision).await?;
        }
        Ok(())
    }

    /// Takes the first slot that no live instance has; `None` when someone else was faster.
    async fn take(&self, cx: &Cx, member: &Member, slots: &[Slot], others: &[&Slot]) -> Result<Option<usize>> {
        let free = |number: &usize| !others.iter().any(|slot| slot.number == *number);
        let Some(number) = (0..self.max).find(free) else { return Ok(None) };
        let expected = slots.iter().find(|slot| slot.number == number).map(|slot| slot.revision);
        let name = self.name(number);
        let occupant = Occupant { instance: member.instance, name: member.name.clone() };
        let put = self.records.put_if(cx, &name, expected, encode(&name, &occupant)?).await?;
        Ok(matches!(put, PutOutcome::Done(_)).then_some(number))
    }

    async fn read(&self, cx: &Cx) -> Result<Vec<Slot>> {
        let prefix = format!("{}/slots/", self.group);
        let records = self.records.list(cx, &prefix).await?;
        let slot = |record: &watchkeeper_core::Record| {
            let number = record.name.strip_prefix(&prefix)?.parse().ok()?;
            Some(Slot { number, revision: record.revision, occupant: decode(record).ok() })
        };
        Ok(records.iter().filter_map(slot).collect())
    }

    fn name(&self, number: usize) -> String {
        format!("{}/slots/{number}", self.group)
    }

    fn full(&self, others: &[&Slot]) -> Error {
        let present = |slot: &&Slot| slot.occupant.as_ref().map(|who| format!("{} ({})", who.name, who.instance));
        let present: Vec<String> = others.iter().filter_map(present).collect();
        let (group, max) = (&self.group, self.max);
        Error::config(format!("group {group} takes {max} instances and has them: {}", present.join(", ")))
            .remedy("raise max_instances (in the library: max_listeners) on all instances, or stop one of these")
    }
}

impl Slot {
    fn is_of(&self, instance: InstanceId) -> bool {
        self.occupant.as_ref().is_some_and(|occupant| occupant.instance == instance)
    }

    fn is_live(&self, members: &[Listed]) -> bool {
        members.iter().any(|listed| listed.healthy && self.is_of(listed.member.instance))
    }
}
