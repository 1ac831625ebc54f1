//! Facts about the running configuration that the program finds out outside this crate and the pages show: the changes of
//! reloads, the certificates of files, and the warnings of `forebay doctor`. All lists have a limited length.

use super::{generation, time};
use forebay_server::counting::now_ms;
use forebay_sys::sync::lock;
use serde_json::{Value, json};
use std::collections::VecDeque;
use std::sync::Mutex;

/// Largest number of reloads that are remembered.
const MOST_RELOADS: usize = 8;

/// Warning about the configuration or the machine.
#[derive(Clone, Debug)]
pub struct Warning {
    /// Name of the rule.
    pub rule: String,
    /// Severity, as `forebay doctor` writes it.
    pub severity: &'static str,
    /// The problem.
    pub message: String,
    /// File and line; empty for the machine.
    pub place: String,
}

/// Certificate of a file.
#[derive(Clone, Debug)]
pub struct FileCertificate {
    /// The file.
    pub file: String,
    /// Names that it is for.
    pub names: Vec<String>,
    /// Time from which it is valid, seconds since 1970.
    pub from: i64,
    /// Time at which it expires.
    pub until: i64,
}

/// Differences between two configurations.
#[derive(Clone, Debug, Default)]
pub struct Changes {
    /// Files that differ, that are new, or that are gone, with a word for it.
    pub files: Vec<(String, &'static str)>,
    /// The first few new directives, with their places.
    pub added: Vec<String>,
    /// The first few directives that are gone, with their places.
    pub removed: Vec<String>,
    /// Number of files, and of new and gone directives.
    pub counts: [usize; 3],
}

/// A reload.
struct Reload {
    at: i64,
    generation: u64,
    /// The changes, or the reason why the configuration was refused.
    outcome: Result<Changes, String>,
}

struct Facts {
    reloads: VecDeque<Reload>,
    /// Number of configurations that were refused.
    refused: u64,
    certificates: Vec<FileCertificate>,
    warnings: Vec<Warning>,
    /// Number of warnings for which there was no room.
    left_out: usize,
}

static FACTS: Mutex<Facts> = Mutex::new(Facts {
    reloads: VecDeque::new(),
    refused: 0,
    certificates: Vec::new(),
    warnings: Vec::new(),
    left_out: 0,
});

/// Sets the certificates of the configuration in effect.
pub fn set_certificates(certificates: Vec<FileCertificate>) {
    lock(&FACTS).certificates = certificates;
}

/// Sets the warnings about the configuration in effect, the worst first. `left_out` is the number of others.
pub fn set_warnings(warnings: Vec<Warning>, left_out: usize) {
    let mut facts = lock(&FACTS);
    (facts.warnings, facts.left_out) = (warnings, left_out);
}

/// Returns the number of the configuration in effect, from 1 on.
pub fn number() -> u64 {
    generation().0
}

/// Notes a reload: the changes of the configuration of this number, or the reason why it stays in effect.
pub fn note_reload(generation: u64, outcome: Result<Changes, String>) {
    let mut facts = lock(&FACTS);
    facts.refused += u64::from(outcome.is_err());
    facts.reloads.push_front(Reload { at: now_ms(), generation, outcome });
    // The number of refused configurations goes on, but only the last reloads keep their changes.
    facts.reloads.truncate(MOST_RELOADS);
}

/// Returns `true` if the last reload was refused.
pub(super) fn last_reload_failed() -> bool {
    lock(&FACTS).reloads.front().is_some_and(|r| r.outcome.is_err())
}

/// Returns the number of configurations that were refused.
pub(super) fn failed_reloads() -> u64 {
    lock(&FACTS).refused
}

/// Returns the certificates of the configuration in effect.
pub(super) fn file_certificates() -> Vec<FileCertificate> {
    lock(&FACTS).certificates.clone()
}

/// Returns the configuration in effect and the last reloads, the last one first.
pub(super) fn reloads() -> Value {
    let (generation, loaded) = generation();
    let facts = lock(&FACTS);
    let events: Vec<Value> = facts.reloads.iter().map(reload).collect();
    let last_failed = facts.reloads.front().is_some_and(|r| r.outcome.is_err());
    json!({"generation": generation, "loaded": time(loaded), "last_failed": last_failed, "events": events})
}

fn reload(reload: &Reload) -> Value {
    let mut value = json!({"time": time(reload.at), "generation": reload.generation});
    match &reload.outcome {
        Err(reason) => value["error"] = reason.as_str().into(),
        Ok(changes) => {
            let file = |(name, what): &(String, &str)| json!({"file": name, "change": what});
            value["files"] = changes.files.iter().map(file).collect();
            value["added"] = changes.added.clone().into();
            value["removed"] = changes.removed.clone().into();
            let [files, added, removed] = changes.counts;
            value["counts"] = json!({"files": files, "added": added, "removed": removed});
        }
    }
    value
}

/// Returns the certificates: those of files, then those that are got by ACME.
pub(super) fn certificates() -> Value {
    let of_files = lock(&FACTS).certificates.clone();
    let of_files = of_files.into_iter().map(|c| {
        let mut value = validity(Some((c.from, c.until)));
        value["source"] = "file".into();
        value["file"] = c.file.into();
        value["names"] = c.names.into();
        value
    });
    let by_acme = forebay_acme::reports();
    let by_acme = by_acme.iter().map(|r| {
        let mut value = validity(r.validity);
        value["source"] = "acme".into();
        value["issuer"] = r.issuer.as_str().into();
        value["state"] = r.phase.text().into();
        value["names"] = r.names.split(',').collect::<Vec<_>>().into();
        if !r.error.is_empty() {
            value["last_error"] = r.error.as_str().into();
        }
        value
    });
    of_files.chain(by_acme).collect()
}

/// Returns the times of a certificate, and the whole days that it has left.
fn validity(times: Option<(i64, i64)>) -> Value {
    let Some((from, until)) = times else { return json!({"expires": null, "days_left": null}) };
    let left = until.saturating_sub(now_ms() / 1000).div_euclid(86_400);
    json!({"valid_from": time(from.saturating_mul(1000)), "expires": time(until.saturating_mul(1000)), "days_left": left})
}

/// Returns the warnings of `forebay doctor`.
pub(super) fn warnings() -> Value {
    let facts = lock(&FACTS);
    let warning =
        |w: &Warning| json!({"rule": w.rule, "severity": w.severity, "message": w.message, "place": w.place});
    json!({"warnings": facts.warnings.iter().map(warning).collect::<Vec<_>>(), "left_out": facts.left_out})
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_days_of_a_certificate_are_counted_down() {
        let now = now_ms() / 1000;
        let days = |until| validity(Some((0, until)))["days_left"].clone();
        assert_eq!((days(now + 3 * 86_400 + 60), days(now - 60)), (3.into(), (-1).into()));
        assert_eq!(validity(None)["days_left"], Value::Null);
    }

    #[test]
    fn the_last_reloads_are_remembered() {
        for n in 0..MOST_RELOADS + 2 {
            note_reload(1, Err(format!("reason {n}")));
        }
        note_reload(
            2,
            Ok(Changes {
                files: vec![("a.conf".into(), "changed")],
                counts: [1, 0, 2],
                ..Changes::default()
            }),
        );
        let value = reloads();
        let events = value["events"].as_array().expect("a list");
        assert_eq!((events.len(), &value["last_failed"]), (MOST_RELOADS, &false.into()));
        assert_eq!(events[0]["files"], json!([{"file": "a.conf", "change": "changed"}]));
        assert_eq!((&events[0]["counts"]["removed"], &events[1]["error"]), (&2.into(), &json!("reason 9")));
    }
}
