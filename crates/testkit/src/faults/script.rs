use std::collections::{BTreeMap, VecDeque};
use std::future::Future;
use std::sync::{Arc, Mutex};
use std::time::Duration;

use tokio::sync::{oneshot, watch};
use watchkeeper_core::{Cx, Error, ErrorKind, FaultKind, Result, Spawn};

use crate::lock;

/// What goes wrong with one call.
#[derive(Debug, Clone)]
pub enum Fault {
    /// Nothing: this call is good.
    Good,
    /// It is refused with this kind of error, before it had an effect.
    Reject(ErrorKind),
    /// It takes effect, but the answer is lost: `Unknown`.
    Lose,
    /// It waits at the gate, then takes effect.
    Hold(Gate),
    /// It takes effect, then its answer waits at the gate.
    HoldAnswer(Gate),
    /// It takes effect after this time.
    Delay(Duration),
}

/// Where held calls wait; clones are the same gate. It starts closed.
#[derive(Debug, Clone)]
pub struct Gate {
    open: Arc<watch::Sender<bool>>,
    waiting: Arc<watch::Sender<usize>>,
}

impl Default for Gate {
    fn default() -> Self {
        Self { open: Arc::new(watch::Sender::new(false)), waiting: Arc::new(watch::Sender::new(0)) }
    }
}

impl Gate {
    /// Lets all pass, now and later.
    pub fn open(&self) {
        self.open.send_replace(true);
    }

    /// How many calls have come to the gate so far.
    pub fn arrived(&self) -> usize {
        *self.waiting.borrow()
    }

    /// Waits until a call has come to the gate.
    pub async fn reached(&self) {
        // The sender is held by this very gate, so there is always an answer.
        let _ = self.waiting.subscribe().wait_for(|waiting| *waiting > 0).await;
    }

    async fn pass(&self) {
        self.waiting.send_modify(|waiting| *waiting += 1);
        let _ = self.open.subscribe().wait_for(|open| *open).await;
    }
}

/// What shall go wrong; clones are the same script.
#[derive(Debug, Clone, Default)]
pub struct Script {
    state: Arc<Mutex<State>>,
    server: Option<Arc<dyn Spawn>>,
}

#[derive(Debug, Default)]
struct State {
    coming: BTreeMap<&'static str, VecDeque<Fault>>,
    standing: BTreeMap<&'static str, Fault>,
    rows: BTreeMap<String, (FaultKind, u64)>,
    calls: BTreeMap<&'static str, u64>,
}

impl Script {
    /// A script without faults.
    pub fn new() -> Self {
        Self::default()
    }

    /// The same script, in which held and delayed calls are tasks of `server` and so take effect even
    /// when their caller has given up or died.
    #[must_use]
    pub fn served_by(mut self, server: Arc<dyn Spawn>) -> Self {
        self.server = Some(server);
        self
    }

    /// The next call of `operation` for which nothing is planned yet goes wrong like this.
    pub fn next(&self, operation: &'static str, fault: Fault) {
        lock(&self.state).coming.entry(operation).or_default().push_back(fault);
    }

    /// The next `times` calls of `operation` go wrong like this.
    pub fn times(&self, operation: &'static str, times: usize, fault: &Fault) {
        (0..times).for_each(|_| self.next(operation, fault.clone()));
    }

    /// All calls of `operation` for which nothing else is planned go wrong like this.
    pub fn always(&self, operation: &'static str, fault: Fault) {
        lock(&self.state).standing.insert(operation, fault);
    }

    /// Nothing goes wrong with `operation` any more.
    pub fn heal(&self, operation: &'static str) {
        let mut state = lock(&self.state);
        state.standing.remove(operation);
        state.coming.remove(operation);
    }

    /// The target answers so to the change with this id, the next `times` times it is written.
    pub fn refuse_row(&self, id: impl Into<String>, kind: FaultKind, times: u64) {
        lock(&self.state).rows.insert(id.into(), (kind, times));
    }

    /// How often `operation` was called.
    pub fn calls(&self, operation: &'static str) -> u64 {
        lock(&self.state).calls.get(operation).copied().unwrap_or(0)
    }

    /// What is planned for `operation` and did not happen yet.
    pub fn pending(&self, operation: &'static str) -> usize {
        lock(&self.state).coming.get(operation).map_or(0, VecDeque::len)
    }

    pub(super) fn row_fault(&self, id: &str) -> Option<FaultKind> {
        let mut state = lock(&self.state);
        let (kind, times) = state.rows.get_mut(id)?;
        let kind = *kind;
        *times = times.checked_sub(1)?;
        Some(kind)
    }

    pub(super) fn take(&self, operation: &'static str) -> Fault {
        let mut state = lock(&self.state);
        *state.calls.entry(operation).or_default() += 1;
        let coming = state.coming.get_mut(operation).and_then(VecDeque::pop_front);
        coming.or_else(|| state.standing.get(operation).cloned()).unwrap_or(Fault::Good)
    }

    /// Makes a call of `operation` as the script says.
    pub(super) async fn play<T, F>(&self, cx: &Cx, operation: &'static str, effect: F) -> Result<T>
    where
        T: Send + 'static,
        F: Future<Output = Result<T>> + Send + 'static,
    {
        match self.take(operation) {
            Fault::Good => effect.await,
            Fault::Reject(kind) => Err(rejected(operation, kind)),
            Fault::Lose => {
                drop(effect.await);
                Err(lost(operation))
            }
            Fault::Hold(gate) => {
                self.serve(async move {
                    gate.pass().await;
                    effect.await
                })
                .await
            }
            Fault::HoldAnswer(gate) => {
                self.serve(async move {
                    let answer = effect.await;
                    gate.pass().await;
                    answer
                })
                .await
            }
            Fault::Delay(delay) => {
                let sleep = cx.clock().sleep_until(cx.now() + delay);
                self.serve(async move {
                    sleep.await;
                    effect.await
                })
                .await
            }
        }
    }

    /// The part of the script that comes before the effect, for calls that cannot be served apart.
    /// The answer says whether the effect's answer is to be lost.
    pub(super) async fn before(&self, cx: &Cx, operation: &'static str) -> Result<bool> {
        match self.take(operation) {
            Fault::Good => {}
            Fault::Reject(kind) => return Err(rejected(operation, kind)),
            Fault::Lose => return Ok(true),
            Fault::Hold(gate) | Fault::HoldAnswer(gate) => gate.pass().await,
            Fault::Delay(delay) => cx.clock().sleep_until(cx.now() + delay).await,
        }
        Ok(false)
    }

    async fn serve<T: Send + 'static>(&self, call: impl Future<Output = Result<T>> + Send + 'static) -> Result<T> {
        let Some(server) = &self.server else { return call.await };
        let (sender, receiver) = oneshot::channel();
        let job = async move {
            let answer = call.await;
            // The caller may have given up.
            drop(sender.send(answer));
        };
        server.launch("served", Box::pin(job));
        receiver.await.unwrap_or_else(|_| Err(Error::unknown("the server died before it answered")))
    }
}

pub(super) fn rejected(operation: &str, kind: ErrorKind) -> Error {
    Error::new(kind, format!("scripted: {operation} is refused"))
}

pub(super) fn lost(operation: &str) -> Error {
    Error::unknown(format!("scripted: the answer to {operation} is lost"))
}
