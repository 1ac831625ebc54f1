//! The steps, and the state of each.

use super::Facts;
use super::nginx::{Nginx, Origin};
use super::running::Server;
use super::swap::Way;
use forebay_copy::record::{Compared, Record, Tested};
use forebay_http::date;
use forebay_sys::printable::printable;
use std::path::Path;

/// State of a step.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum State {
    Done,
    /// The first one that is not done.
    Next,
    /// Not done, and another one comes first.
    Later,
    Failed,
    /// Done for another configuration or another program.
    Stale,
}

impl State {
    pub(super) fn name(self) -> &'static str {
        match self {
            State::Done => "done",
            State::Next => "next",
            State::Later => "later",
            State::Failed => "failed",
            State::Stale => "stale",
        }
    }
}

/// A step.
#[derive(Debug)]
pub(super) struct Step {
    pub name: &'static str,
    pub state: State,
    /// One line of facts.
    pub fact: String,
    /// Commands that do it, or do it again.
    pub commands: Vec<String>,
    /// Mistakes with their places.
    pub errors: Vec<String>,
}

impl Step {
    fn new(name: &'static str, state: State, fact: String) -> Step {
        Step { name, state, fact, commands: Vec::new(), errors: Vec::new() }
    }

    fn with(self, commands: Vec<String>) -> Step {
        Step { commands, ..self }
    }
}

/// Makes the list of steps.
pub(super) fn of(facts: &Facts) -> Vec<Step> {
    let is_swapped = is_swapped(facts);
    let mut steps = vec![found(facts), accepted(facts), compared(facts), tested(facts), swap(facts)];
    // The command is that of the first step that is not done. What was left out before a swap stays left out.
    let mut is_first = !is_swapped;
    for step in &mut steps {
        if step.state == State::Later && is_first {
            step.state = State::Next;
        }
        is_first &= leads_on(step);
    }
    steps.push(back(facts));
    steps
}

/// Returns the steps whose commands come next; none if there is nothing left to do.
pub(super) fn next(steps: &[Step]) -> Vec<&Step> {
    let is_swapped = steps.iter().any(|step| step.name == SWAP && step.state == State::Done);
    let end = steps.iter().position(|step| !leads_on(step)).filter(|_| !is_swapped);
    let next = steps.iter().take(end.map_or(0, |end| end.saturating_add(1)));
    next.filter(|step| step.state != State::Done).collect()
}

/// Returns `true` if the step after this one may come next. Differences may be fine with people, and no program can know that.
fn leads_on(step: &Step) -> bool {
    step.state == State::Done || (step.name == COMPARED && step.state == State::Failed)
}

/// Name of the step of the comparison.
const COMPARED: &str = "compared";

/// Name of the step of the swap.
const SWAP: &str = "swap";

fn is_swapped(facts: &Facts) -> bool {
    facts.running.as_ref().is_some_and(|running| running.server == Server::Forebay)
}

fn found(facts: &Facts) -> Step {
    const NAME: &str = "nginx";
    let Some(nginx) = &facts.nginx else {
        let state = if is_swapped(facts) { State::Done } else { State::Failed };
        let fact = if is_swapped(facts) { "none beside Forebay" } else { "there is none in the path" };
        return Step::new(NAME, state, fact.into()).with(vec!["forebay move --nginx PROGRAM".into()]);
    };
    let origin = match &facts.origin {
        Origin::Debian(package) | Origin::Rpm(package) => format!("of the package {package}"),
        Origin::Image => "of an image".into(),
        Origin::ProxyManager => "of Nginx Proxy Manager".into(),
        Origin::ByHand => format!("at {}", nginx.program.display()),
    };
    let runs = match &facts.running {
        None => "not running".into(),
        Some(running) if running.server == Server::Forebay => "not running".into(),
        Some(running) => format!("running as process {}", running.pid),
    };
    let faults = match facts.configuration.faults {
        0 => "no CVE concerns it".into(),
        1 => "1 CVE concerns it".into(),
        n => format!("{n} CVEs concern it"),
    };
    Step::new(NAME, State::Done, format!("{} {origin}, {runs}; {faults}", nginx.version))
}

fn accepted(facts: &Facts) -> Step {
    const NAME: &str = "configuration";
    let configuration = &facts.configuration;
    if configuration.errors.is_empty() {
        let files = count(configuration.files as u64, "file");
        let warnings = count(configuration.warnings as u64, "warning");
        return Step::new(NAME, State::Done, format!("accepted: {files}, {warnings}"));
    }
    let fact = count(configuration.errors.len() as u64, "error");
    let check = format!("forebay check {}", word(&configuration.path));
    Step { errors: configuration.errors.clone(), ..Step::new(NAME, State::Failed, fact) }.with(vec![check])
}

fn compared(facts: &Facts) -> Step {
    const NAME: &str = COMPARED;
    let again = vec![compare(facts, "")];
    let Some(record) = &facts.compared else {
        let none = "not yet";
        return Step::new(NAME, State::Later, none.into()).with(again);
    };
    if let Some(step) = stale(NAME, facts, record) {
        return step.with(again);
    }
    let Compared { requests, unknown, known, lines, reached, .. } = record.result;
    let fact = format!(
        "{}, {}, {known} known, {reached} of {lines} lines reached, {}",
        count(requests, "request"),
        count(unknown, "unknown difference"),
        day(record.time)
    );
    let state = if unknown == 0 { State::Done } else { State::Failed };
    Step::new(NAME, state, fact).with(again)
}

fn tested(facts: &Facts) -> Step {
    const NAME: &str = "tests";
    let written = facts.compared.as_ref().and_then(|record| record.result.tests.as_deref());
    let written = written.filter(|path| path.is_file());
    let Some(record) = &facts.tested else {
        return match written {
            Some(path) => Step::new(NAME, State::Later, format!("{} has not run", printable(word(path))))
                .with(vec![test(facts, &[path])]),
            None => Step::new(NAME, State::Later, "none".into())
                .with(vec![compare(facts, " --write-tests tests.yaml")]),
        };
    };
    let files: Vec<&Path> = record.result.files.paths().collect();
    let again = vec![test(facts, &files)];
    if let Some(step) = stale(NAME, facts, record) {
        return step.with(again);
    }
    if let Some(change) = record.result.files.change(&facts.tests) {
        return Step::new(NAME, State::Stale, format!("{change} since {}", day(record.time))).with(again);
    }
    let Tested { tests, failed, .. } = record.result;
    let names = files.iter().map(|path| printable(word(path))).collect::<Vec<_>>().join(", ");
    let (state, fact) = match failed {
        0 if tests > 0 => {
            (State::Done, format!("{} of {names} pass, {}", count(tests, "test"), day(record.time)))
        }
        0 => (State::Later, format!("{names} has no test")),
        n => {
            (State::Failed, format!("{n} of {} of {names} fail, {}", count(tests, "test"), day(record.time)))
        }
    };
    Step::new(NAME, state, fact).with(again)
}

/// Returns the step for a record that is about another configuration or another program.
fn stale<T: forebay_copy::record::Recorded>(
    name: &'static str,
    facts: &Facts,
    record: &Record<T>,
) -> Option<Step> {
    let why = record.staleness(&facts.configuration.digest, &facts.versions)?;
    Some(Step::new(name, State::Stale, format!("{why} since {}", day(record.time))))
}

fn swap(facts: &Facts) -> Step {
    let way = Way::of(facts);
    let Some(running) = facts.running.as_ref() else {
        let fact = format!("{}; nothing runs now", way.name());
        return Step::new(SWAP, State::Later, fact).with(way.commands(facts));
    };
    match running.server {
        Server::Forebay => Step::new(SWAP, State::Done, format!("Forebay runs as process {}", running.pid)),
        _ if facts.nginx.as_ref().is_some_and(|nginx| nginx.is_aside) => {
            let fact = format!("Forebay is at {}, and nginx still runs", place(facts));
            Step::new(SWAP, State::Later, fact).with(vec!["systemctl restart nginx".into()])
        }
        _ => Step::new(SWAP, State::Later, way.name().into()).with(way.commands(facts)),
    }
}

fn back(facts: &Facts) -> Step {
    const NAME: &str = "way back";
    let way = Way::of(facts);
    let commands = way.back(facts);
    if !is_swapped(facts) {
        return Step::new(NAME, State::Later, commands.join(", then ")).with(commands);
    }
    let former = facts.running.as_ref().is_some_and(|running| running.has_former);
    let is_kept = facts.nginx.is_some() || former || matches!(way, Way::Image | Way::ProxyManager);
    if !is_kept {
        return Step::new(NAME, State::Failed, "there is no nginx to go back to: install it first".into());
    }
    Step::new(NAME, State::Done, commands.join(", then ")).with(commands)
}

fn place(facts: &Facts) -> String {
    facts.nginx.as_ref().map(Nginx::place).unwrap_or_default().display().to_string()
}

/// Returns the command that compares. `more`: further options.
fn compare(facts: &Facts, more: &str) -> String {
    let log = facts.log.as_deref().map(|log| format!(" --log {}", word(log))).unwrap_or_default();
    // The comparison finds an nginx in the path itself, unless Forebay has its place.
    let nginx = facts.nginx.as_ref().filter(|nginx| nginx.is_aside || !is_in_path(&nginx.program));
    let nginx = nginx.map(|nginx| format!(" --nginx {}", word(&nginx.program))).unwrap_or_default();
    format!("forebay compare -c {}{}{nginx}{log}{more}", word(&facts.configuration.path), prefix(facts))
}

/// Returns the command that runs tests.
fn test(facts: &Facts, files: &[&Path]) -> String {
    let names: Vec<String> = files.iter().map(|path| word(path)).collect();
    format!("forebay test {} -c {}{}", names.join(" "), word(&facts.configuration.path), prefix(facts))
}

fn prefix(facts: &Facts) -> String {
    facts.prefix.as_deref().map(|prefix| format!(" -p {}", word(Path::new(prefix)))).unwrap_or_default()
}

fn is_in_path(program: &Path) -> bool {
    program.parent() == Some(Path::new("/usr/sbin")) && program.ends_with("nginx")
}

/// Returns a path as a word of a shell.
pub(super) fn word(path: &Path) -> String {
    let text = path.display().to_string();
    let is_plain = |c: char| c.is_ascii_alphanumeric() || "/._-+@:,=".contains(c);
    if text.chars().all(is_plain) { text } else { format!("'{}'", text.replace('\'', "'\\''")) }
}

fn count(n: u64, what: &str) -> String {
    match n {
        0 => format!("no {what}s"),
        1 => format!("1 {what}"),
        _ => format!("{n} {what}s"),
    }
}

/// Returns a time as a date: `2026-11-30 10:12 UTC`.
fn day(time: i64) -> String {
    let text = date::iso8601(time, 0);
    let text = String::from_utf8_lossy(&text).replace('T', " ");
    format!("{} UTC", text.get(..16).unwrap_or_default())
}

#[cfg(test)]
mod tests;
