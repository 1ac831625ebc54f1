//! The log of earlier processes of a tuning, for `--resume`.

use serde_json::Value;
use std::collections::VecDeque;
use std::fs::File;
use std::io::{BufRead, BufReader};
use std::path::Path;

/// Runs of earlier processes.
#[derive(Default)]
pub(crate) struct ResumeLog {
    /// Requests a second of the original in a closed loop.
    pub(crate) capacity: Option<f64>,
    /// Runs of the search.
    pub(crate) runs: VecDeque<Value>,
    /// Runs of the check at half of the load; a search that goes on has others after them.
    pub(crate) half: VecDeque<Value>,
}

impl ResumeLog {
    fn of(lines: impl Iterator<Item = Value>) -> ResumeLog {
        let mut past = ResumeLog::default();
        for line in lines {
            match (line["capacity"].as_f64(), &line["half_load"]) {
                (Some(capacity), _) => past.capacity = Some(capacity),
                (None, Value::Null) => past.runs.push_back(line),
                _ => past.half.push_back(line),
            }
        }
        past
    }

    /// Writes the plan of a new tuning into `out` and removes the log of the last one.
    ///
    /// # Errors
    /// The plan cannot be written.
    pub(crate) fn start(out: &Path, log: &Path, plan: &Value) -> Result<ResumeLog, String> {
        let path = out.join("plan.json");
        let _ = std::fs::remove_file(log);
        std::fs::write(&path, format!("{plan:#}\n")).map_err(|e| format!("{}: {e}", path.display()))?;
        Ok(ResumeLog::default())
    }

    /// Reads the log of a tuning that goes on.
    ///
    /// # Errors
    /// The plan in `out` is of another tuning, or there is no log.
    pub(crate) fn resume(out: &Path, log: &Path, plan: &Value) -> Result<ResumeLog, String> {
        let path = out.join("plan.json");
        let old: Value =
            std::fs::read(&path).ok().and_then(|b| serde_json::from_slice(&b).ok()).unwrap_or_default();
        if old != *plan {
            return Err(format!("--resume: {} is of another tuning", path.display()));
        }
        let file = File::open(log).map_err(|e| format!("{}: {e}", log.display()))?;
        let lines = BufReader::new(file).lines().map_while(Result::ok);
        Ok(ResumeLog::of(lines.map_while(|l| serde_json::from_str(&l).ok())))
    }

    /// Checks that each run was scored in the same way as those to come: by its page, or without one.
    ///
    /// # Errors
    /// One was scored in the other way.
    pub(crate) fn check_pages(&self, with_pages: bool) -> Result<(), String> {
        let of_page = |line: &Value| line["page"].as_f64().is_some_and(|page| page > 0.0);
        let scored = |line: &&Value| line["rate"].is_number();
        if self.runs.iter().filter(scored).all(|line| of_page(line) == with_pages) {
            return Ok(());
        }
        Err(match with_pages {
            true => "--resume: runs of the log have no time of a page, by which --for transfer scores now; start anew",
            false => "--resume: runs of the log were scored by pages, which are not measured with --http3; start anew",
        }
        .into())
    }

    /// Returns how many of the planned runs have been done. Runs of the original in addition to them do not count.
    pub(crate) fn done(&self) -> usize {
        self.runs.iter().filter(|l| l["beside"] != true).count()
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::json;

    #[test]
    fn runs_with_and_without_a_page_do_not_mix() {
        let (old, new) = (json!({"rate": 1.0, "score": 1.0}), json!({"rate": 1.0, "page": 0.5}));
        let refused = json!({"point": [1], "why": "refused"});
        let check =
            |lines: &[&Value], with| ResumeLog::of(lines.iter().map(|l| (*l).clone())).check_pages(with);
        assert!(check(&[&new, &old], true).is_err_and(|why| why.contains("no time of a page")));
        assert_eq!(check(&[&new, &refused], true), Ok(()));
        assert_eq!(check(&[&old, &refused], false), Ok(()));
        assert!(check(&[&new], false).is_err());
    }

    #[test]
    fn a_log_has_the_capacity_the_search_and_the_check() {
        let (a, b) = (json!({"point": [0], "score": 1.0}), json!({"point": [1], "why": "refused"}));
        let half = json!({"half_load": 50.0, "point": [0], "p99": 7});
        let past =
            ResumeLog::of([json!({"capacity": 100.0}), a.clone(), half.clone(), b.clone()].into_iter());
        assert_eq!((past.capacity, past.runs, past.half), (Some(100.0), [a, b].into(), [half].into()));
    }
}
