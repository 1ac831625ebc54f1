//! The steps for people, and for programs (JSON).

use super::Facts;
use super::steps::{self, State, Step};
use forebay_sys::printable::printable;
use serde_json::{Value, json};
use std::fmt::Write;

/// Most mistakes that are printed.
const MOST_ERRORS: usize = 5;

/// Returns the steps as text.
pub(super) fn text(facts: &Facts, steps: &[Step]) -> String {
    let mut out = format!("{}\n\n", printable(facts.configuration.path.as_os_str().as_encoded_bytes()));
    for step in steps {
        let _ = writeln!(out, "{:<7} {:<13}  {}", step.state.name(), step.name, step.fact);
        for error in step.errors.iter().take(MOST_ERRORS) {
            let _ = writeln!(out, "{:24}{error}", "");
        }
        if let Some(more) = step.errors.len().checked_sub(MOST_ERRORS).filter(|more| *more > 0) {
            let _ = writeln!(out, "{:24}and {more} more", "");
        }
    }
    let next = steps::next(steps);
    if next.is_empty() {
        out.push_str("\nNothing is left to do.\n");
    }
    for step in next {
        let verb = if matches!(step.state, State::Failed | State::Stale) { "Again" } else { "Next" };
        let _ = writeln!(out, "\n{verb}:");
        for command in &step.commands {
            let _ = writeln!(out, "    {}", printable(command));
        }
    }
    out
}

/// Returns the steps as JSON.
pub(super) fn json(facts: &Facts, steps: &[Step]) -> String {
    let list: Vec<Value> = steps
        .iter()
        .map(|step| {
            json!({
                "name": step.name,
                "state": step.state.name(),
                "fact": step.fact,
                "commands": step.commands,
                "errors": step.errors,
            })
        })
        .collect();
    let value = json!({
        "configuration": facts.configuration.path.to_string_lossy(),
        "nginx": facts.nginx.as_ref().map(|nginx| {
            json!({"program": nginx.program.to_string_lossy(), "version": nginx.version})
        }),
        "forebay": facts.versions.forebay,
        "process": facts.running.as_ref().map(|running| running.pid),
        "faults": facts.configuration.faults,
        "steps": list,
        "next": steps::next(steps).iter().map(|step| step.name).collect::<Vec<_>>(),
    });
    format!("{value:#}\n")
}
