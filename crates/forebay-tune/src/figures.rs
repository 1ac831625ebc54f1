//! Figures of a run.

use crate::stats::median;
use serde_json::{Value, json};

/// Figures of a run.
#[derive(Clone, Copy, Debug, Default)]
pub struct Figures {
    /// Requests a second.
    pub rate: f64,
    /// ns.
    pub p50: u64,
    /// ns.
    pub p99: u64,
    /// Server CPU time per request, microseconds.
    pub cpu: f64,
    /// Bytes of an answer, with its head.
    pub bytes: f64,
    /// Resident bytes of the server.
    pub memory: u64,
    /// Failures.
    pub errors: u64,
    /// Seconds of a page over the slow link; 0: not measured.
    pub page: f64,
}

impl Figures {
    /// Returns the median of each figure. Failures are added up.
    pub fn median(runs: &[Figures]) -> Figures {
        let mid = |f: &dyn Fn(&Figures) -> f64| median(&mut runs.iter().map(f).collect::<Vec<_>>());
        Figures {
            rate: mid(&|f| f.rate),
            p50: mid(&|f| f.p50 as f64) as u64,
            p99: mid(&|f| f.p99 as f64) as u64,
            cpu: mid(&|f| f.cpu),
            bytes: mid(&|f| f.bytes),
            memory: mid(&|f| f.memory as f64) as u64,
            errors: runs.iter().map(|f| f.errors).sum(),
            page: mid(&|f| f.page),
        }
    }

    /// Returns the value for `result.json`.
    pub fn json(&self) -> Value {
        json!({"rate": self.rate, "p50_ns": self.p50, "p99_ns": self.p99, "cpu_us": self.cpu, "bytes": self.bytes, "memory": self.memory,
               "page_s": (self.page > 0.0).then_some(self.page)})
    }

    /// Adds the figures to a line of the log.
    pub(crate) fn put_into(&self, line: &mut Value) {
        line["rate"] = json!(self.rate);
        line["p50"] = json!(self.p50);
        line["p99"] = json!(self.p99);
        line["cpu"] = json!(self.cpu);
        line["bytes"] = json!(self.bytes);
        line["memory"] = json!(self.memory);
        line["errors"] = json!(self.errors);
        line["page"] = json!(self.page);
    }

    /// Returns the figures of a line of the log.
    pub(crate) fn of_line(line: &Value) -> Option<Figures> {
        Some(Figures {
            rate: line["rate"].as_f64()?,
            p50: line["p50"].as_u64()?,
            p99: line["p99"].as_u64()?,
            cpu: line["cpu"].as_f64()?,
            bytes: line["bytes"].as_f64().unwrap_or_default(),
            memory: line["memory"].as_u64()?,
            errors: line["errors"].as_u64()?,
            page: line["page"].as_f64().unwrap_or_default(),
        })
    }
}
