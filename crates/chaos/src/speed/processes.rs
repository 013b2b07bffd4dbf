//! What other processes use, by what the kernel tells of them.

use std::fs;

/// The kernel tells times to programs in hundredths of a second, whatever its own clock is.
const TICKS_PER_SECOND: f64 = 100.0;

/// The fields of a process's file `stat` that are used here, counted from the one after its name.
const PARENT: usize = 1;
/// In user and kernel mode.
const OWN: [usize; 2] = [11, 12];
/// The same of children that have ended.
const ENDED_CHILDREN: [usize; 2] = [13, 14];

/// The text after the name of the process, which may hold anything.
fn fields(stat: &str) -> Vec<&str> {
    stat.rsplit_once(')').map(|(_, rest)| rest.split_whitespace().collect()).unwrap_or_default()
}

fn sum(fields: &[&str], which: &[usize]) -> u64 {
    which.iter().filter_map(|at| fields.get(*at)?.parse::<u64>().ok()).sum()
}

fn seconds(ticks: u64) -> f64 {
    ticks as f64 / TICKS_PER_SECOND
}

fn stat(process: &str) -> String {
    fs::read_to_string(format!("/proc/{process}/stat")).unwrap_or_default()
}

/// CPU seconds that a server has used until now, with its processes, also those that have ended.
pub(crate) fn cpu_of_server(pid: u32) -> f64 {
    let root = pid.to_string();
    let text = stat(&root);
    let mut ticks = sum(&fields(&text), &[OWN, ENDED_CHILDREN].concat());
    for entry in fs::read_dir("/proc").into_iter().flatten().flatten() {
        let name = entry.file_name();
        let Some(name) = name.to_str().filter(|name| name.bytes().all(|byte| byte.is_ascii_digit())) else { continue };
        let text = stat(name);
        let fields = fields(&text);
        if fields.get(PARENT) == Some(&root.as_str()) {
            ticks += sum(&fields, &OWN);
        }
    }
    seconds(ticks)
}

/// CPU seconds of the children of this process that have ended.
pub(super) fn cpu_of_ended_children() -> f64 {
    seconds(sum(&fields(&stat("self")), &ENDED_CHILDREN))
}

#[cfg(test)]
mod tests {
    use std::process::Command;

    use super::*;

    #[test]
    fn a_name_may_hold_anything() {
        let stat = "7 (a) b (c)) S 3 1 1 0 -1 4194560 0 0 0 0 110 20 300 4000 20 0 1";
        assert_eq!(fields(stat)[PARENT], "3");
        assert_eq!(sum(&fields(stat), &[OWN, ENDED_CHILDREN].concat()), 4_430);
    }

    #[test]
    fn what_a_child_used_is_known_when_it_has_ended() {
        let before = (cpu_of_ended_children(), cpu_of_server(std::process::id()));
        let busy = "i=0; while [ $i -lt 300000 ]; do i=$((i+1)); done";
        assert!(Command::new("sh").args(["-c", busy]).status().expect("a shell starts").success());
        assert!(cpu_of_ended_children() > before.0);
        assert!(cpu_of_server(std::process::id()) > before.1);
    }
}
