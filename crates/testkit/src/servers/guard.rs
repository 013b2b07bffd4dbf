//! Programs and folders that do not outlive the process that made them.

use std::io::{BufRead, BufReader};
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};

use rustix::process::{Pid, Signal, kill_process};

/// Starts the program, tells its number, and kills it when the pipe ends, however that happens. Signals from a
/// terminal are not its business: the test process gets them too, and its end is the end of the pipe.
const WATCH_PROGRAM: &str = r#"
trap '' HUP INT TERM
log="$1"; shift
"$@" </dev/null >>"$log" 2>&1 &
echo $!
exec 1>&-
read -r _
kill -9 $! 2>/dev/null
wait
"#;

/// Removes the folder when the pipe ends. Programs in it are being killed at the same time, so it may need some tries.
const WATCH_FOLDER: &str = r#"
trap '' HUP INT TERM
read -r _
for try in 1 2 3 4 5 6 7 8 9 10; do
    rm -rf "$1" 2>/dev/null && exit
    sleep 0.2
done
"#;

fn shell(script: &str) -> Command {
    let mut command = Command::new("sh");
    command.args(["-c", script, "watch"]).stdin(Stdio::piped()).stderr(Stdio::null());
    command
}

/// Ends the pipe to a shell and waits for what it does then.
fn end(shell: &mut Child) {
    drop(shell.stdin.take());
    let _ = shell.wait();
}

/// A program that is running.
#[derive(Debug)]
pub(crate) struct Program {
    shell: Child,
    pid: Pid,
}

impl Program {
    /// Starts `command` with its output appended to the file `log`.
    pub(crate) fn start(command: &[String], log: &Path) -> Self {
        let mut shell = shell(WATCH_PROGRAM).arg(log).args(command).stdout(Stdio::piped()).spawn().expect("sh starts");
        let mut line = String::new();
        let output = shell.stdout.take().expect("the shell's output is a pipe");
        BufReader::new(output).read_line(&mut line).expect("the shell tells a number");
        let pid = line.trim().parse().ok().and_then(Pid::from_raw).expect("the shell tells the program's number");
        Self { shell, pid }
    }

    /// The number of its process.
    pub(crate) fn pid(&self) -> u32 {
        self.pid.as_raw_nonzero().get().unsigned_abs()
    }

    /// Whether it has not ended by itself.
    pub(crate) fn runs(&self) -> bool {
        // A process that has ended, but was not waited for, has no program any more.
        std::fs::read_link(format!("/proc/{}/exe", self.pid())).is_ok()
    }

    /// Sends a signal.
    pub(crate) fn signal(&self, signal: Signal) {
        kill_process(self.pid, signal).expect("our own process can be signalled");
    }
}

impl Drop for Program {
    fn drop(&mut self) {
        end(&mut self.shell);
    }
}

/// A folder.
#[derive(Debug)]
pub(crate) struct Folder {
    shell: Child,
    path: PathBuf,
}

impl Folder {
    /// A new one among the temporary files.
    pub(crate) fn new(name: &str) -> Self {
        let unique = watchkeeper_core::Entropy::from_system().uuid();
        let path = std::env::temp_dir().join(format!("watchkeeper-{name}-{unique}"));
        std::fs::create_dir_all(&path).expect("a temporary folder can be made");
        let shell = shell(WATCH_FOLDER).arg(&path).stdout(Stdio::null()).spawn().expect("sh starts");
        Self { shell, path }
    }

    /// Where it is.
    pub(crate) fn path(&self) -> &Path {
        &self.path
    }
}

impl Drop for Folder {
    fn drop(&mut self) {
        end(&mut self.shell);
    }
}
