//! How much of the log a slot holds, and how long it may.

use std::time::Duration;

use async_trait::async_trait;
use serde_json::{Value, json};
use watchkeeper_core::source::ACCEPT_GAP;
use watchkeeper_core::{Argument, Cx, Error, Finding, Options, Report, Result, Severity, Takes, Tool};

use super::connect::Endpoint;
use super::failure::to_error;
use super::position::Lsn;
use super::settings::literal;
use super::wire::Wire;
use crate::config::Config;

/// The rate of the log is measured over so long.
const MEASURED_FOR: Duration = Duration::from_secs(1);

/// Room for less than this is worth a warning.
const LEFT_MIN: Duration = Duration::from_secs(60 * 60);

/// A slot that holds more than this is worth a warning, even where nothing limits it: the disk does.
const HELD_MAX: u64 = 10 << 30;

/// A slot as it stands.
#[derive(Debug, Clone, Default, PartialEq)]
pub(super) struct SlotStatus {
    name: String,
    is_active: bool,
    /// The server's word for it: reserved, extended, unreserved, lost.
    status: String,
    /// Bytes of log that the server keeps for it.
    held: u64,
    /// Bytes of log that were not yet confirmed.
    behind: u64,
    /// Bytes that may still be written before the slot is in danger; `None` where nothing limits it.
    safe: Option<u64>,
    failover: Option<bool>,
}

impl SlotStatus {
    fn read(slot: &Value, now: Lsn) -> Self {
        let text = |name: &str| slot.get(name).and_then(Value::as_str).unwrap_or_default();
        let since = |name: &str| Lsn::parse(text(name)).map_or(0, |lsn| now.0.saturating_sub(lsn.0));
        Self {
            name: text("slot_name").to_owned(),
            is_active: slot.get("active").and_then(Value::as_bool).unwrap_or_default(),
            status: text("wal_status").to_owned(),
            held: since("restart_lsn"),
            behind: since("confirmed_flush_lsn"),
            safe: slot.get("safe_wal_size").and_then(Value::as_i64).map(|bytes| bytes.max(0).cast_unsigned()),
            failover: slot.get("failover").and_then(Value::as_bool),
        }
    }

    pub(super) fn is_lost(&self) -> bool {
        self.status == "lost"
    }

    /// How long the slot is safe if the log grows on like this.
    fn left(&self, bytes_per_second: f64) -> Option<Duration> {
        let safe = self.safe? as f64;
        Duration::try_from_secs_f64(safe / bytes_per_second.max(1.0)).ok()
    }

    pub(super) fn findings(&self, bytes_per_second: f64) -> Vec<Finding> {
        let mut findings = Vec::new();
        let name = &self.name;
        let mut add = |severity, what: String, remedy: &str| {
            findings.push(Finding { severity, what, remedy: Some(remedy.to_owned()) });
        };
        match self.status.as_str() {
            "lost" => {
                let remedy = format!("a new slot is needed: {ACCEPT_GAP}");
                add(Severity::Error, format!("slot {name} was invalidated: the log that it needs is gone"), &remedy);
            }
            "unreserved" => {
                let remedy = "let the stream catch up now, or raise max_slot_wal_keep_size";
                add(Severity::Warning, format!("slot {name} will be invalidated at the next checkpoint"), remedy);
            }
            _ => {}
        }
        let left = self.left(bytes_per_second).filter(|_| !self.is_lost());
        // A quarter is left, or an hour.
        let is_tight = self.safe.is_some_and(|safe| safe.saturating_mul(3) <= self.held);
        if let Some(left) = left.filter(|left| is_tight || *left < LEFT_MIN) {
            let room = mib(self.safe.unwrap_or(0));
            let what = format!("slot {name} has room for {room} more, at this rate for {}", shown(left));
            add(Severity::Warning, what, "let the stream catch up, or raise max_slot_wal_keep_size");
        }
        if self.held > HELD_MAX && !self.is_lost() {
            let what = format!("slot {name} makes the server keep {} of log", mib(self.held));
            add(Severity::Warning, what, "let the stream catch up, or drop the slot if nobody needs it");
        }
        findings
    }

    fn line(&self, bytes_per_second: f64) -> String {
        let active = if self.is_active { "active" } else { "idle" };
        let (held, behind) = (mib(self.held), mib(self.behind));
        let left = match (self.safe, self.left(bytes_per_second)) {
            (Some(safe), Some(left)) if !self.is_lost() => {
                format!("{} of headroom, at this rate for {}", mib(safe), shown(left))
            }
            _ if self.is_lost() => "what it needs is gone".to_owned(),
            _ => "no limit but the disk".to_owned(),
        };
        let failover = if self.failover == Some(true) { ", kept on standbys" } else { "" };
        format!("{}: {active}, {}, {behind} behind, {held} held, {left}{failover}", self.name, self.status)
    }

    fn data(&self, bytes_per_second: f64) -> Value {
        let findings = self.findings(bytes_per_second);
        json!({
            "slot": self.name,
            "active": self.is_active,
            "wal_status": self.status,
            "behind_bytes": self.behind,
            "held_bytes": self.held,
            "safe_bytes": self.safe,
            "seconds_to_loss": self.left(bytes_per_second).map(|left| left.as_secs()),
            "failover": self.failover,
            "warnings": findings.into_iter().map(|finding| finding.what).collect::<Vec<_>>(),
        })
    }
}

/// The logical slots of this database (or the one of this name), and how fast the log grows.
pub(super) async fn standings(
    cx: &Cx,
    wire: &mut Wire,
    place: &str,
    name: Option<&str>,
) -> Result<(Vec<SlotStatus>, f64)> {
    let before = now(cx, wire, place).await?;
    let begun = cx.now();
    cx.sleep(MEASURED_FOR).await;
    let after = now(cx, wire, place).await?;
    let rate = after.0.saturating_sub(before.0) as f64 / cx.now().since(begun).as_secs_f64().max(0.001);
    let only = name.map(|name| format!(" AND slot_name = {}", literal(name))).unwrap_or_default();
    let sql = format!(
        "SELECT pg_catalog.to_jsonb(s) FROM pg_catalog.pg_replication_slots s
        WHERE slot_type = 'logical' AND database = pg_catalog.current_database(){only} ORDER BY slot_name"
    );
    let rows = cx.run(async { wire.query(&sql).await.map_err(|failure| to_error(place, failure)) }).await?;
    let slot = |text: String| serde_json::from_str(&text).map(|slot: Value| SlotStatus::read(&slot, after));
    let standings = rows.into_iter().flatten().flatten().map(slot).collect::<Result<_, _>>();
    Ok((standings.map_err(|error| Error::corrupt("a slot is not what it should be").caused_by(error))?, rate))
}

async fn now(cx: &Cx, wire: &mut Wire, place: &str) -> Result<Lsn> {
    let sql = "SELECT CASE WHEN pg_catalog.pg_is_in_recovery() THEN pg_catalog.pg_last_wal_replay_lsn()
        ELSE pg_catalog.pg_current_wal_insert_lsn() END";
    let rows = cx.run(async { wire.query(sql).await.map_err(|failure| to_error(place, failure)) }).await?;
    Ok(rows.first().and_then(|row| Lsn::parse(row.first()?.as_deref()?)).unwrap_or_default())
}

/// A rate says nothing of what will be in years.
const FORESEEN: Duration = Duration::from_secs(365 * 24 * 60 * 60);

fn shown(duration: Duration) -> String {
    if duration > FORESEEN {
        return "more than a year".to_owned();
    }
    humantime::format_duration(Duration::from_secs(duration.as_secs())).to_string()
}

fn mib(bytes: u64) -> String {
    format!("{:.1} MiB", bytes as f64 / 1_048_576.0)
}

const ARGUMENTS: &[Argument] =
    &[Argument { name: "url", takes: Takes::Required, help: "postgres://USER@HOST/DATABASE" }];

/// `watchkeeper postgres slots`: how far each slot is behind, and how long it has before it loses its place.
#[derive(Debug, Clone, Copy, Default)]
pub struct Slots;

#[async_trait]
impl Tool for Slots {
    fn name(&self) -> &'static str {
        "slots"
    }

    fn about(&self) -> &'static str {
        "Tell how far each replication slot is behind, and how much of the log it has left"
    }

    fn arguments(&self) -> &'static [Argument] {
        ARGUMENTS
    }

    async fn run(&self, cx: &Cx, arguments: &mut Options) -> Result<Report> {
        let config = Config::from_options(arguments)?;
        let place = config.place();
        let mut wire = Endpoint::new(config, None).connect(cx).await?;
        let (slots, rate) = standings(cx, &mut wire, &place, None).await?;
        let mut lines = vec![format!("the log grows by {:.1} KiB/s", rate / 1_024.0)];
        lines.extend(slots.iter().map(|slot| slot.line(rate)));
        for finding in slots.iter().flat_map(|slot| slot.findings(rate)) {
            lines.push(format!("warning: {}; {}", finding.what, finding.remedy.unwrap_or_default()));
        }
        if slots.is_empty() {
            lines.push("this database has no logical slots".to_owned());
        }
        let slots: Vec<_> = slots.iter().map(|slot| slot.data(rate)).collect();
        Ok(Report { lines, data: json!({ "bytes_per_second": rate, "slots": slots }) })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn standing(status: &str, safe: Option<u64>) -> SlotStatus {
        SlotStatus { name: "s".to_owned(), status: status.to_owned(), safe, ..SlotStatus::default() }
    }

    #[test]
    fn what_is_left_follows_from_the_rate() {
        assert_eq!(standing("reserved", Some(7_200)).left(2.0), Some(Duration::from_secs(3_600)));
        assert_eq!(standing("reserved", None).left(2.0), None);
    }

    #[test]
    fn a_lost_slot_is_not_said_to_be_without_limit() {
        let line = |status: &str, safe| standing(status, safe).line(1.0);
        assert!(line("reserved", None).ends_with("no limit but the disk"));
        assert!(line("reserved", Some(7_200)).ends_with("at this rate for 2h"));
        assert!(line("reserved", Some(1 << 30)).ends_with("at this rate for more than a year"));
        assert!(line("lost", None).ends_with("lost, 0.0 MiB behind, 0.0 MiB held, what it needs is gone"));
        assert!(line("lost", Some(0)).ends_with("what it needs is gone"));
    }

    #[test]
    fn danger_is_reported_before_the_loss() {
        let worst = |standing: SlotStatus| standing.findings(1.0).into_iter().map(|finding| finding.severity).max();
        assert_eq!(worst(standing("reserved", None)), None);
        assert_eq!(worst(standing("reserved", Some(3_601))), None);
        assert_eq!(worst(standing("extended", Some(3_599))), Some(Severity::Warning));
        let tight = SlotStatus { held: 30_000, ..standing("extended", Some(10_000)) };
        assert_eq!(worst(tight), Some(Severity::Warning));
        assert_eq!(worst(standing("unreserved", None)), Some(Severity::Warning));
        assert_eq!(worst(standing("lost", None)), Some(Severity::Error));
        let hoarder = SlotStatus { held: HELD_MAX + 1, ..standing("extended", None) };
        assert_eq!(worst(hoarder), Some(Severity::Warning));
    }
}
