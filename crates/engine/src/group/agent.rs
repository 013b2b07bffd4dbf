//! Sends heartbeats, reads the other members, and reads the control records of the streams.

use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::Duration;

use tokio::sync::Notify;
use tokio_util::sync::CancellationToken;
use watchkeeper_core::{Cx, ErrorKind, Latest, Moment, Records, Result};

use super::control::{Control, Controls};
use super::registry::{Beat, Member, Registry};
use super::report::millis;
use super::slots::Slots;
use super::view::GroupView;
use crate::delivery::backoff::Backoff;
use crate::listener::StreamSlot;
use crate::log_limit::OutageLog;
use crate::seams::Seams;
use crate::settings::InstanceSettings;

/// What an agent works with.
#[derive(Debug, Clone)]
pub struct GroupAgent {
    /// Time and randomness.
    pub seams: Seams,
    /// How often.
    pub settings: InstanceSettings,
    /// The group's records.
    pub records: Arc<dyn Records>,
    /// Who this instance is, with all streams that it was given.
    pub member: Member,
    /// Its streams.
    pub posts: Vec<Arc<StreamSlot>>,
    /// Told when the report of a stream says something else.
    pub report_changed: Arc<Notify>,
    /// What it hears of the others.
    pub view: Arc<GroupView>,
    /// Where it tells what people want, by stream.
    pub controls: Arc<BTreeMap<String, Latest<Control>>>,
    /// Tells the standby that people want something else.
    pub news: Arc<Notify>,
}

/// Leaving may not hold up a shutdown: a record that stays behind is swept by the others.
const LEAVE: Duration = Duration::from_secs(1);

/// A stream that does something else is published no sooner after the last look: everybody is woken by it.
const REPORT_AFTER: Duration = Duration::from_millis(100);

/// Before hints are waited for again, the first time.
const LISTEN_AGAIN: Duration = Duration::from_millis(50);

/// Records of instances that were silent for so many thresholds are removed.
const SWEEP_AFTER: u32 = 20;

impl GroupAgent {
    fn registry(&self) -> Registry {
        Registry::new(Arc::clone(&self.records), &self.settings.group).unhealthy_after(self.settings.unhealthy_after)
    }

    /// This instance as it presents itself now: with the streams that it could run, and what it does with each.
    fn present(&self) -> Member {
        self.posts.iter().for_each(|stream_slot| stream_slot.refresh());
        let able = self.posts.iter().filter(|stream_slot| stream_slot.connected().is_some());
        let streams = able.map(|stream_slot| stream_slot.name().to_owned()).collect();
        let reports = self.posts.iter().map(|stream_slot| stream_slot.report()).collect();
        let heartbeat_millis = Some(millis(self.settings.heartbeat_every));
        Member { streams, reports, heartbeat_millis, ..self.member.clone() }
    }

    fn slots(&self) -> Option<Slots> {
        let max = self.settings.max_listeners?;
        Some(Slots::new(Arc::clone(&self.records), &self.settings.group, max))
    }

    fn cx(&self) -> Cx {
        self.seams.cx().within(self.settings.heartbeat_every.max(Duration::from_millis(200)))
    }

    /// Joins the group.
    ///
    /// # Errors
    /// `Config` when the group is full; anything else means that the store did not answer.
    pub async fn join(&self) -> Result<()> {
        let (cx, registry) = (self.cx(), self.registry());
        cx.run(registry.register(&cx, &self.present())).await?;
        if let Some(slots) = self.slots()
            && let Err(error) = cx.run(slots.enter(&cx, &registry, &self.member)).await
        {
            if error.kind() == ErrorKind::Config {
                let _ = cx.run(registry.deregister(&cx, self.member.instance)).await;
            }
            return Err(error);
        }
        let _ = self.refresh_members(&registry).await;
        Ok(())
    }

    /// Heartbeats until `stop`, then leaves the group.
    pub async fn run(self, stop: CancellationToken) {
        let registry = self.registry();
        let mut due = self.seams.clock.now();
        let mut unheard = 0;
        let mut outage = OutageLog::default();
        loop {
            let now = self.seams.clock.now();
            // A hint is answered by looking only: heartbeats are hints too, and instances that answered
            // each other's with their own would never come to rest.
            let done = if now >= due {
                due = now + self.seams.entropy.jitter(self.settings.heartbeat_every);
                self.beat(&registry).await
            } else {
                self.refresh_members(&registry).await
            };
            self.log(&mut outage, done);
            if !self.wait(&mut due, now, &mut unheard, &stop).await {
                break;
            }
        }
        self.leave(&registry).await;
    }

    /// Logs that the store does not answer, each cause once a minute, and that it answers again.
    fn log(&self, outage: &mut OutageLog, done: Result<()>) {
        let now = self.seams.clock.now();
        match done {
            Err(error) => {
                if let Some(due) = outage.fail(&error.to_string(), now) {
                    tracing::warn!(%error, left_out = due.left_out, "a heartbeat failed; it is repeated");
                }
            }
            Ok(()) => {
                if let Some(after) = outage.end(now) {
                    tracing::info!(after, "the store answers again");
                }
            }
        }
    }

    /// Waits until there is a hint, or the next heartbeat is due; false when it is to stop. A stream that does something else than
    /// it did makes the heartbeat due sooner: people should see it.
    async fn wait(&self, due: &mut Moment, inspected: Moment, unheard: &mut u32, stop: &CancellationToken) -> bool {
        loop {
            let cx = self.seams.cx().within(due.since(self.seams.clock.now()));
            tokio::select! {
                biased;
                () = stop.cancelled() => return false,
                () = self.report_changed.notified() => *due = (*due).min(inspected + REPORT_AFTER),
                // An answer is a hint, an error is the end of the wait: both mean to look again.
                hint = cx.run(self.records.changed(&cx)) => match hint {
                    Err(_) if self.seams.clock.now() < *due => {
                        self.pause(&cx, *unheard, stop).await;
                        *unheard += 1;
                        return !stop.is_cancelled();
                    }
                    _ => {
                        *unheard = 0;
                        return true;
                    }
                },
            }
        }
    }

    /// Waits before hints are waited for again, since the wait was refused `unheard` times before: what people want in the
    /// meantime is not heard, so not long at first, and never longer than until the next heartbeat.
    async fn pause(&self, cx: &Cx, unheard: u32, stop: &CancellationToken) {
        let backoff = Backoff { first: LISTEN_AGAIN, factor: 2, max: self.settings.heartbeat_every.max(LISTEN_AGAIN) };
        let left = cx.remaining().unwrap_or_default();
        tokio::select! {
            biased;
            () = stop.cancelled() => {}
            () = cx.sleep(backoff.delay(unheard, &self.seams.entropy).min(left)) => {}
        }
    }

    async fn beat(&self, registry: &Registry) -> Result<()> {
        let cx = self.cx();
        let beat = cx.run(registry.heartbeat(&cx, &self.present())).await?;
        if let Some(slots) = self.slots() {
            self.keep_place(registry, &slots, beat).await?;
        }
        self.refresh_members(registry).await?;
        cx.run(registry.sweep(&cx, self.settings.unhealthy_after * SWEEP_AFTER)).await.map(|_| ())
    }

    /// Others may take a silent instance for dead, and give its slot away: then there is one too many, and
    /// it is the one without a slot that stands down until there is room again.
    async fn keep_place(&self, registry: &Registry, slots: &Slots, beat: Beat) -> Result<()> {
        let cx = self.cx();
        if beat == Beat::Kept && cx.run(slots.has(&cx, self.member.instance)).await? {
            return Ok(());
        }
        let entered = cx.run(slots.enter(&cx, registry, &self.member)).await;
        let has_place = match entered {
            Ok(_) => true,
            Err(error) if error.kind() == ErrorKind::Config => {
                tracing::warn!(%error, "this instance has lost its place in the group, and stands down");
                false
            }
            Err(error) => return Err(error),
        };
        if self.view.set_place(has_place) {
            self.news.notify_one();
        }
        Ok(())
    }

    async fn refresh_members(&self, registry: &Registry) -> Result<()> {
        let cx = self.cx();
        self.view.update(cx.run(registry.list(&cx)).await?);
        self.posts
            .iter()
            .for_each(|stream_slot| stream_slot.merge_reports(&self.view.reports_of_others(stream_slot.name())));
        for other in self.view.with_other_settings(&self.member) {
            // What one of them leaves out, the other would have delivered.
            tracing::warn!(
                other,
                "another instance runs the same streams with other settings: give both the same file"
            );
        }
        let controls = Controls::new(Arc::clone(&self.records), &self.settings.group);
        let mut wanted = cx.run(controls.read_all(&cx)).await?;
        for (stream, latest) in &*self.controls {
            let control = wanted.remove(stream).unwrap_or_default();
            let news = latest.change_if(|current| {
                let news = *current != control;
                *current = control;
                news
            });
            if news {
                self.news.notify_one();
            }
        }
        Ok(())
    }

    async fn leave(&self, registry: &Registry) {
        let cx = self.seams.cx().within(LEAVE);
        if let Some(slots) = self.slots() {
            let _ = cx.run(slots.leave(&cx, self.member.instance)).await;
        }
        if let Err(error) = cx.run(registry.deregister(&cx, self.member.instance)).await {
            tracing::debug!(%error, "leaving the group failed; the record will be swept");
        }
    }
}
