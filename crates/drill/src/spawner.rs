use std::io;
use std::process::{Child, Command};
use std::sync::mpsc::{SyncSender, sync_channel};

type SpawnRequest = (Command, SyncSender<io::Result<Child>>);

/// A thread that starts processes and lives as long as they may.
///
/// The kernel tells a child of the end of the *thread* that started it, so that one has to be permanent.
#[derive(Debug)]
pub(crate) struct Spawner(SyncSender<SpawnRequest>);

impl Spawner {
    pub(crate) fn start() -> io::Result<Self> {
        let (requests, queue) = sync_channel::<SpawnRequest>(1);
        let serve = move || {
            for (mut command, answer) in queue {
                // Whoever asked may be gone; then the child ends at the end of its input.
                let _ = answer.send(command.spawn());
            }
        };
        std::thread::Builder::new().name("spawner".to_owned()).spawn(serve)?;
        Ok(Self(requests))
    }

    pub(crate) fn spawn(&self, command: Command) -> io::Result<Child> {
        let gone = || io::Error::other("the thread that starts processes has ended");
        let (answer, answered) = sync_channel(1);
        self.0.send((command, answer)).map_err(|_| gone())?;
        answered.recv().map_err(|_| gone())?
    }
}
