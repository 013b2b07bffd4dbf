//! What both ends of a feed share: changes lie on a counter until they are taken and answered.

use std::collections::VecDeque;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::task::{Context, Poll, Waker};

use tokio::sync::Notify;
use tokio::sync::futures::Notified;
use watchkeeper_core::{Batch, Change, Cx, Error, FaultKind, Grant, Result};

use super::changes::Interrupted;

/// The counter of one feed.
#[derive(Debug)]
pub(super) struct Counter {
    in_hand_max: usize,
    state: Mutex<State>,
    /// Told to writers: there is room, or something was answered.
    news: Notify,
}

#[derive(Debug, Default)]
struct State {
    opening: Option<Opening>,
    openings: u64,
    interrupted: Option<Interrupted>,
    /// The caller, when it waits.
    caller: Option<Waker>,
    /// The caller is gone.
    deserted: bool,
    /// The feed is gone.
    ended: bool,
}

#[derive(Debug)]
struct Opening {
    number: u64,
    grant: Arc<Grant>,
    /// That of the last write. What it says of the lease is asked just before a change is given out.
    cx: Option<Cx>,
    queue: VecDeque<Ticket>,
    lanes: Vec<Lane>,
    next_number: u64,
    /// How many are on the counter or in the caller's hands without an answer.
    open: usize,
    /// Whether the caller has had anything of it.
    had: bool,
}

/// Which change is meant. Numbers are never used twice, so an answer to a withdrawn change finds nothing.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct Ticket {
    opening: u64,
    lane: usize,
    number: u64,
}

#[derive(Debug, Default)]
struct Lane {
    /// In the order of their rows.
    handed: VecDeque<HandedOut>,
    /// How many of them have no answer.
    open: usize,
    /// What was said of the row after all that are handed out.
    fault: Option<Fault>,
    /// Whether the writer wants to hear of the first acknowledgement, and not only of the last.
    eager: bool,
}

#[derive(Debug)]
struct HandedOut {
    number: u64,
    batch: Arc<Batch>,
    row: u32,
    taken: bool,
    acknowledged: bool,
}

/// A row that the caller could not deal with.
#[derive(Debug)]
struct Fault {
    batch: Arc<Batch>,
    row: u32,
    kind: FaultKind,
    error: Error,
}

/// What a caller takes.
#[derive(Debug)]
pub(super) struct TakenChange {
    pub(super) change: Change,
    pub(super) grant: Arc<Grant>,
    pub(super) ticket: Ticket,
}

/// How far a lane is.
#[derive(Debug)]
pub(super) struct QueueView {
    /// How many rows are acknowledged, without a gap.
    pub(super) done: usize,
    /// What was said of the row after those.
    pub(super) fault: Option<(FaultKind, Error)>,
    /// Why there will be nothing more.
    pub(super) deserted: Option<Error>,
}

impl Counter {
    pub(super) fn new(in_hand_max: usize) -> Self {
        Self { in_hand_max, state: Mutex::default(), news: Notify::new() }
    }

    fn lock(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Completes at the next news.
    pub(super) fn notified(&self) -> Notified<'_> {
        self.news.notified()
    }

    /// An error when the caller is gone.
    pub(super) fn require_caller(&self) -> Result<()> {
        self.lock().require_caller()
    }

    /// The caller is gone.
    pub(super) fn mark_caller_gone(&self) {
        self.lock().deserted = true;
        self.news.notify_waiters();
    }

    /// The feed is gone.
    pub(super) fn end_feed(&self) {
        let mut state = self.lock();
        state.ended = true;
        wake_after(state);
    }

    /// Begins an opening, and ends an earlier one that is still there.
    pub(super) fn open(&self, grant: &Grant, lanes: usize) -> Result<u64> {
        let mut state = self.lock();
        state.require_caller()?;
        state.end(false);
        state.openings += 1;
        let number = state.openings;
        state.opening = Some(Opening {
            number,
            grant: Arc::new(grant.clone()),
            cx: None,
            queue: VecDeque::new(),
            lanes: std::iter::repeat_with(Lane::default).take(lanes).collect(),
            next_number: 0,
            open: 0,
            had: false,
        });
        wake_after(state);
        Ok(number)
    }

    /// Ends opening `number`, in order or because the watch was lost.
    pub(super) fn end(&self, number: u64, in_order: bool) {
        let mut state = self.lock();
        if state.current(number).is_ok() {
            state.end(in_order);
        }
        wake_after(state);
    }

    /// Begins a write: what is handed out already and is not asked for any more is withdrawn.
    pub(super) fn resume(&self, number: u64, cx: &Cx, lane: usize, batch: &Arc<Batch>, rows: &[u32]) -> Result<()> {
        let mut state = self.lock();
        let opening = state.current(number)?;
        opening.cx = Some(cx.clone());
        let same = |of: &Arc<Batch>, row: u32, asked: Option<&u32>| Arc::ptr_eq(of, batch) && asked == Some(&row);
        let handed = opening.lanes[lane].handed.iter().enumerate();
        let kept = handed.take_while(|(at, handed)| same(&handed.batch, handed.row, rows.get(*at))).count();
        opening.withdraw(lane, kept);
        let lane = &mut opening.lanes[lane];
        lane.fault.take_if(|fault| !same(&fault.batch, fault.row, rows.get(kept)));
        lane.eager = false;
        wake_after(state);
        Ok(())
    }

    /// Hands out as many of the rows as there is room for, and says how far the lane is.
    pub(super) fn inspect(
        &self,
        number: u64,
        lane: usize,
        batch: &Arc<Batch>,
        rows: &[u32],
        eager: bool,
    ) -> Result<QueueView> {
        let mut state = self.lock();
        // What was acknowledged before counts, all the same.
        let deserted = state.require_caller().err();
        let opening = state.current(number)?;
        let is_news = opening.hand_out(lane, batch, rows, self.in_hand_max);
        let lane = &mut opening.lanes[lane];
        lane.eager = eager;
        let done = lane.handed.iter().take_while(|handed| handed.acknowledged).count();
        let fault = if done == lane.handed.len() { lane.fault.take() } else { None };
        let fault = fault.map(|fault| (fault.kind, fault.error));
        if is_news {
            wake_after(state);
        }
        Ok(QueueView { done, fault, deserted })
    }

    /// The writer has been told of the first `done` rows of a lane.
    pub(super) fn settle(&self, number: u64, lane: usize, done: usize) {
        if let Ok(opening) = self.lock().current(number) {
            let handed = &mut opening.lanes[lane].handed;
            // A rejected row is done, too, but was taken off the counter when it was rejected.
            handed.drain(..done.min(handed.len()));
        }
    }

    /// The next change for the caller.
    pub(super) fn poll_take(&self, context: &Context<'_>) -> Poll<Option<Result<TakenChange, Interrupted>>> {
        let mut state = self.lock();
        if let Some(interrupted) = state.interrupted.take() {
            return Poll::Ready(Some(Err(interrupted)));
        }
        if let Some(taken) = state.opening.as_mut().and_then(Opening::take) {
            return Poll::Ready(Some(Ok(taken)));
        }
        if state.ended && state.opening.is_none() {
            return Poll::Ready(None);
        }
        state.caller = Some(context.waker().clone());
        Poll::Pending
    }

    pub(super) fn acknowledge(&self, ticket: Ticket) {
        let mut state = self.lock();
        let Some((opening, at)) = state.find(ticket) else { return };
        opening.open -= 1;
        let has_room = opening.open == self.in_hand_max / 2;
        let lane = &mut opening.lanes[ticket.lane];
        lane.handed[at].acknowledged = true;
        lane.open -= 1;
        if lane.open == 0 || has_room || (lane.eager && at == 0) {
            drop(state);
            self.news.notify_waiters();
        }
    }

    pub(super) fn fail(&self, ticket: Ticket, kind: FaultKind, error: Error) {
        let mut state = self.lock();
        let Some((opening, at)) = state.find(ticket) else { return };
        // What follows waits until it is known what becomes of this one.
        let handed = &opening.lanes[ticket.lane].handed[at];
        let fault = Fault { batch: Arc::clone(&handed.batch), row: handed.row, kind, error };
        opening.withdraw(ticket.lane, at);
        opening.lanes[ticket.lane].fault = Some(fault);
        drop(state);
        self.news.notify_waiters();
    }
}

/// Wakes the caller outside the lock: what it does then may need it.
fn wake_after(mut state: MutexGuard<'_, State>) {
    let caller = state.caller.take();
    drop(state);
    if let Some(caller) = caller {
        caller.wake();
    }
}

impl State {
    fn require_caller(&self) -> Result<()> {
        if self.deserted {
            return Err(Error::config("nobody takes the changes of this feed any more")
                .remedy("keep `Changes` for as long as the stream runs"));
        }
        Ok(())
    }

    fn current(&mut self, number: u64) -> Result<&mut Opening> {
        match self.opening.as_mut() {
            Some(opening) if opening.number == number => Ok(opening),
            Some(_) => Err(Error::fenced("a newer opening of the feed has relieved this one")),
            None => Err(Error::unavailable("this opening of the feed has ended")),
        }
    }

    fn end(&mut self, in_order: bool) {
        let Some(opening) = self.opening.take() else { return };
        if opening.had && !(in_order && opening.is_answered()) {
            self.interrupted = Some(Interrupted { epoch: opening.grant.epoch });
        }
    }

    fn find(&mut self, ticket: Ticket) -> Option<(&mut Opening, usize)> {
        let opening = self.current(ticket.opening).ok()?;
        let handed = &opening.lanes[ticket.lane].handed;
        let at = handed.binary_search_by_key(&ticket.number, |handed| handed.number).ok()?;
        Some((opening, at))
    }
}

impl Opening {
    /// Whether nothing is in the caller's hands without an answer.
    fn is_answered(&self) -> bool {
        self.lanes.iter().flat_map(|lane| &lane.handed).all(|handed| handed.acknowledged || !handed.taken)
    }

    /// Takes back what a lane was handed after the first `kept`.
    fn withdraw(&mut self, lane: usize, kept: usize) {
        let withdrawn = self.lanes[lane].handed.split_off(kept);
        let open = withdrawn.iter().filter(|handed| !handed.acknowledged).count();
        self.open -= open;
        self.lanes[lane].open -= open;
        if let Some(first) = withdrawn.front() {
            self.queue.retain(|ticket| ticket.lane != lane || ticket.number < first.number);
        }
    }

    /// Puts rows on the counter while there is room; true when there were any.
    fn hand_out(&mut self, at: usize, batch: &Arc<Batch>, rows: &[u32], open_max: usize) -> bool {
        let lane = &mut self.lanes[at];
        let before = lane.handed.len();
        if lane.fault.is_some() {
            return false;
        }
        for row in &rows[before..] {
            if self.open >= open_max {
                break;
            }
            let number = self.next_number;
            let batch = Arc::clone(batch);
            lane.handed.push_back(HandedOut { number, batch, row: *row, taken: false, acknowledged: false });
            self.queue.push_back(Ticket { opening: self.number, lane: at, number });
            self.next_number += 1;
            self.open += 1;
            lane.open += 1;
        }
        lane.handed.len() > before
    }

    /// The next change, if the lease still lasts.
    fn take(&mut self) -> Option<TakenChange> {
        self.cx.as_ref().filter(|cx| cx.check().is_ok())?;
        let ticket = self.queue.pop_front()?;
        let handed = &mut self.lanes[ticket.lane].handed;
        // What is withdrawn leaves the queue as well, so it is there.
        let at = handed.binary_search_by_key(&ticket.number, |handed| handed.number).ok()?;
        let handed = &mut handed[at];
        handed.taken = true;
        self.had = true;
        let change = Change::new(Arc::clone(&handed.batch), handed.row);
        Some(TakenChange { change, grant: Arc::clone(&self.grant), ticket })
    }
}
