//! What `check` prints: lines for people, and JSON for programs.

use serde_json::{Value, json};
use watchkeeper::core::{Finding, Severity};

use super::{Answer, Part};
use crate::commands::history::History;
use crate::config::Config;

/// All that was found out.
pub(super) struct Found<'c> {
    pub(super) config: &'c Config,
    pub(super) stores: Vec<Part>,
    pub(super) streams: Vec<Answer>,
    /// The code to end with.
    pub(super) worst: u8,
    /// Whether nothing was connected to.
    pub(super) offline: bool,
}

impl Found<'_> {
    pub(super) fn lines(&self) -> Vec<String> {
        let mut lines = vec![format!("group {}", self.config.group.settings.group)];
        self.stores.iter().for_each(|part| lines.extend(lines_of(part)));
        for stream in &self.streams {
            lines.push(format!("stream {}", stream.name));
            stream.parts.iter().for_each(|part| lines.extend(lines_of(part)));
            lines.extend(stream.troubles.iter().map(|trouble| line_of("instance", trouble)));
            if !stream.is_sound() {
                continue;
            }
            if let (Some(grade), Some(can_see)) = (stream.grade(), stream.can_see()) {
                lines.push(format!("  grade: {}: {can_see}", format!("{grade:?}").to_lowercase()));
            }
            lines.push(format!("  takeover after a crash: {}", stream.takeover(self.config)));
        }
        let verdict = match (self.worst, self.offline) {
            (0, false) if self.streams.iter().any(|stream| !stream.troubles.is_empty()) => {
                "the file is well, but an instance is in trouble"
            }
            (0, false) => "all is well",
            (0, true) => "the file is well; nothing was connected to",
            _ => "there are errors",
        };
        lines.push(verdict.to_owned());
        lines
    }

    pub(super) fn json(&self) -> Value {
        let of_stream = |stream: &Answer| {
            let findings = [findings_of(&stream.parts), data_of("instance", &stream.troubles)].concat();
            json!({
                "name": stream.name,
                "grade": stream.grade().filter(|_| stream.is_sound()),
                "can_see": stream.can_see().filter(|_| stream.is_sound()),
                "takeover": stream.is_sound().then(|| stream.takeover(self.config)),
                "history": stream.history.as_ref().map(History::data),
                "findings": findings,
            })
        };
        json!({
            "ok": self.worst == 0,
            "offline": self.offline,
            "group": { "name": self.config.group.settings.group, "store_file": self.config.group.store.store_file(), "findings": findings_of(&self.stores) },
            "streams": self.streams.iter().map(of_stream).collect::<Vec<_>>(),
        })
    }
}

fn lines_of(part: &Part) -> Vec<String> {
    if part.findings.is_empty() {
        let file = part.file.as_ref().map(|file| format!(": {}", file.display())).unwrap_or_default();
        return vec![format!("  ok: {}{file}", part.name)];
    }
    part.findings.iter().map(|finding| line_of(&part.name, finding)).collect()
}

fn line_of(part: &str, finding: &Finding) -> String {
    let remedy = finding.remedy.as_ref().map(|remedy| format!("; {remedy}")).unwrap_or_default();
    format!("  {}: {part}: {}{remedy}", word(finding.severity), finding.what)
}

fn findings_of(parts: &[Part]) -> Vec<Value> {
    parts.iter().flat_map(|part| data_of(&part.name, &part.findings)).collect()
}

fn data_of(part: &str, findings: &[Finding]) -> Vec<Value> {
    let one = |finding: &Finding| {
        let (severity, what, remedy) = (word(finding.severity), &finding.what, &finding.remedy);
        json!({ "part": part, "severity": severity, "what": what, "remedy": remedy })
    };
    findings.iter().map(one).collect()
}

fn word(severity: Severity) -> &'static str {
    match severity {
        Severity::Note => "note",
        Severity::Warning => "warning",
        // Also one that is not known here: it is not to be overlooked.
        _ => "error",
    }
}
