//! The report for programs.

use super::{Group, Report};
use crate::known::Known;
use crate::pair::ADDRESSES;
use serde_json::{Value, json};

impl Report {
    /// Returns the report as JSON.
    pub(crate) fn json(&self) -> Value {
        let unreached: Vec<Value> = self
            .coverage
            .unreached
            .iter()
            .map(|u| json!({"place": u.place, "block": u.block, "lines": u.lines, "why": u.why}))
            .collect();
        json!({
            "servers": self.names,
            "configuration": self.configuration,
            "with_configuration": self.with,
            "requests": self.requests,
            "planned": self.planned,
            "interrupted": self.interrupted,
            "seconds": self.elapsed.as_secs_f64(),
            "requests_per_second": self.rate(),
            "lines": {"all": self.coverage.lines, "reached": self.coverage.reached, "unreached": unreached},
            "unknown": self.unknown().map(group).collect::<Vec<_>>(),
            "not_again": self.passing().map(group).collect::<Vec<_>>(),
            "known": self.known().map(group).collect::<Vec<_>>(),
            "not_compared": self.left_out,
        })
    }
}

fn group(group: &Group) -> Value {
    let since = match group.known {
        Some(Known::Since(version, _)) => Some(version.to_string()),
        _ => None,
    };
    json!({
        "part": group.difference.part.text(),
        "requests": group.requests,
        "place": group.place,
        "other_places": group.others,
        "values": [group.difference.first, group.difference.second],
        "since": since,
        "paragraph": group.known.map(Known::text),
        "curl": ADDRESSES.map(|address| group.ask.curl(address)),
    })
}
