//! The way of a request as text and as JSON.

use super::engine::Trip;
use super::places::{Tree, siblings, words};
use super::{Asked, Form};
use forebay_compare::message::Received;
use forebay_conf::differences;
use forebay_conf::tree::{Directive, Place};
use forebay_core::trace::Step;
use serde_json::{Value, json};
use std::net::IpAddr;

/// A request with its way.
pub(super) struct Report<'r> {
    pub asked: &'r Asked,
    pub client: IpAddr,
    /// Address of the listener.
    pub listens: &'r str,
    pub trip: &'r Trip,
    pub tree: &'r Tree<'r>,
    pub form: Form,
}

/// A part of the way as it is shown.
#[derive(Debug, PartialEq, Eq)]
struct Line {
    /// Kind of the step; empty for a further line of the same step.
    kind: &'static str,
    text: String,
    /// `FILE:LINE`.
    place: Option<String>,
    /// Name of the directive.
    directive: Option<String>,
}

impl Line {
    fn new(kind: &'static str, text: impl Into<String>) -> Line {
        Line { kind, text: text.into(), place: None, directive: None }
    }
}

/// Characters between the beginning of a line and its text.
const MARGIN: usize = 12;

/// Columns of the text before the place.
const COLUMNS: usize = 60;

impl Report<'_> {
    /// Returns text for a terminal.
    pub(super) fn text(&self) -> String {
        let conf: std::path::PathBuf = self.tree.conf.components().collect();
        let conf = conf.display();
        let mut out = format!("{} {}, client {}, {conf}\n\n", self.asked.method, self.asked.url, self.client);
        for line in self.lines() {
            let text = format!("{:MARGIN$}{}", line.kind, line.text);
            match line.place {
                Some(place) => out.push_str(&format!("{text:COLUMNS$}  {place}\n")),
                None => out.push_str(&format!("{}\n", text.trim_end())),
            }
        }
        if self.form.nginx {
            out.push_str(&self.differences());
        }
        out
    }

    /// Returns one JSON object.
    pub(super) fn json(&self) -> String {
        let (response, failure) = match &self.trip.response {
            Ok(head) => (Some(response_lines(head)), None),
            Err(why) => (None, Some(why)),
        };
        let value = json!({
            "method": self.asked.method,
            "url": self.asked.url.to_string(),
            "client": self.client.to_string(),
            "listener": self.listens,
            "steps": self.trip.steps.iter().map(|step| self.step_json(step)).collect::<Vec<_>>(),
            "upstream_requests": self.trip.received.iter().map(|r| json!({ "protocol": r.protocol, "head": head(r), "content": r.body.len() })).collect::<Vec<_>>(),
            "response": { "head": response, "content": self.trip.content, "failure": failure },
            "differences": if self.form.nginx { Some(self.subjects()) } else { None },
        });
        format!("{value:#}\n")
    }

    fn step_json(&self, step: &Step) -> Value {
        let facts: serde_json::Map<_, _> =
            step.facts.iter().map(|(name, value)| ((*name).to_owned(), json!(value))).collect();
        let directives = self.directives(step);
        let shown: Vec<_> =
            directives.iter().map(|d| json!({ "text": words(d), "place": self.tree.text(d) })).collect();
        json!({ "kind": step.kind, "facts": facts, "directives": shown })
    }

    /// Returns the directives that a step is about.
    fn directives(&self, step: &Step) -> Vec<&Directive> {
        match (step.place, step.level) {
            (Some(place), _) => {
                let begin: &[&str] = match step.kind {
                    "server" => return self.tree.server(place),
                    "location" | "search" => &["location", "server"],
                    _ => &step.directives,
                };
                self.tree.at(place, begin).into_iter().collect()
            }
            (None, Some(level)) if !step.directives.is_empty() => {
                self.tree.in_effect(level, &step.directives)
            }
            _ => Vec::new(),
        }
    }

    fn lines(&self) -> Vec<Line> {
        let mut lines = vec![Line::new("listener", self.listens)];
        let mut received = self.trip.received.iter();
        let mut searched: Vec<&Step> = Vec::new();
        let (mut variables, mut locations): (Vec<&Step>, Vec<Place>) = Default::default();
        for step in &self.trip.steps {
            match step.kind {
                "search" => searched.push(step),
                "variable" if variables.iter().any(|known| known.facts == step.facts) => {}
                "variable" => {
                    variables.push(step);
                    lines.push(Line::new("variable", variable(step)));
                }
                "location" => {
                    let searched = std::mem::take(&mut searched);
                    match step.place.filter(|place| !locations.contains(place)) {
                        Some(place) => {
                            locations.push(place);
                            lines.extend(self.location(step, &searched));
                        }
                        // The others are listed once.
                        None => lines.extend(self.step(step)),
                    }
                }
                "upstream" => lines.extend(self.upstream(step, received.next())),
                _ => lines.extend(self.step(step)),
            }
        }
        lines.extend(self.response());
        lines
    }

    /// Returns the lines of a step: what it decided, then its directives.
    fn step(&self, step: &Step) -> Vec<Line> {
        let directives = self.directives(step);
        // A module without a directive at this level has nothing to say, and a limit has said what it decided.
        let is_said = directives.iter().all(|d| matches!(d.name.text.as_slice(), b"limit_req"));
        if step.kind == "module" && is_said && step.get("decision") == Some("goes on") {
            return Vec::new();
        }
        let kind = match step.kind {
            "module" => phase(step),
            kind => kind,
        };
        let result = result(step);
        let mut lines = Vec::new();
        for (n, d) in directives.iter().enumerate() {
            let line = Line::new(if n == 0 { kind } else { "" }, words(d));
            lines.push(Line {
                place: Some(self.tree.text(d)),
                directive: Some(d.name.as_str().into_owned()),
                ..line
            });
        }
        if lines.is_empty() {
            return vec![Line::new(kind, result)];
        }
        if !result.is_empty() {
            lines.push(Line::new("", format!("  {result}")));
        }
        lines
    }

    fn location(&self, step: &Step, searched: &[&Step]) -> Vec<Line> {
        let mut lines = self.step(step);
        let Some(place) = step.place.filter(|_| step.get("kind") != Some("named")) else { return lines };
        let others = siblings(self.tree, place);
        let uri = step.get("uri").unwrap_or_default();
        for other in others {
            let why = why_not(other, place, uri, searched);
            let line = Line::new("", format!("  not {}: {why}", words(other)));
            lines.push(Line { place: Some(self.tree.text(other)), ..line });
        }
        lines
    }

    fn upstream(&self, step: &Step, received: Option<&Received>) -> Vec<Line> {
        let mut lines = self.step(step);
        match received {
            None => lines.push(Line::new("", "  nothing was sent")),
            Some(received) => {
                let kind = |n| if n == 0 { "sent" } else { "" };
                lines
                    .extend(head(received).into_iter().enumerate().map(|(n, line)| Line::new(kind(n), line)));
                if !received.body.is_empty() {
                    lines.push(Line::new("", format!("({} bytes of content)", received.body.len())));
                }
            }
        }
        lines
    }

    fn response(&self) -> Vec<Line> {
        let mut lines: Vec<Line> = match &self.trip.response {
            Ok(head) => response_lines(head).into_iter().map(|line| Line::new("", line)).collect(),
            Err(why) => vec![Line::new("", format!("none: {why}"))],
        };
        if let Some(first) = lines.first_mut() {
            first.kind = "response";
        }
        lines
    }

    /// Returns the paragraphs of docs/differences.md about the directives on the way.
    fn subjects(&self) -> Vec<String> {
        let lines = self.lines();
        let mut subjects: Vec<String> = Vec::new();
        for name in lines.iter().filter_map(|line| line.directive.as_deref()) {
            for difference in differences::about(name) {
                let subject = difference.subject.replace('`', "").replace('\n', " ");
                if !subjects.contains(&subject) {
                    subjects.push(subject);
                }
            }
        }
        subjects
    }

    fn differences(&self) -> String {
        let subjects = self.subjects();
        if subjects.is_empty() {
            return "\nNo difference to nginx is known for the directives on this way.\n".to_owned();
        }
        let lines: String = subjects.iter().map(|subject| format!("  {subject}\n")).collect();
        format!("\nDifferences to nginx (docs/differences.md) about directives on this way:\n{lines}")
    }
}

/// Returns the name of a phase as the kind of a line.
fn phase(step: &Step) -> &'static str {
    match step.get("phase") {
        Some("POSTREAD") => "post read",
        Some("REWRITE") => "rewrite",
        Some("PREACCESS") => "pre-access",
        Some("ACCESS") => "access",
        Some("PRECONTENT") => "pre-content",
        _ => "content",
    }
}

fn variable(step: &Step) -> String {
    let name = step.get("name").unwrap_or_default();
    match step.get("value") {
        Some(value) => format!("${name} = \"{}\"", value.escape_debug()),
        None => format!("${name} has no value"),
    }
}

/// Returns the facts of a step as a phrase.
fn result(step: &Step) -> String {
    let fact = |name: &str| step.get(name).unwrap_or_default().to_owned();
    match step.kind {
        "server" => format!("{} for the host \"{}\"", fact("how"), fact("host")),
        "location" => String::new(),
        "if" => format!("is {}", fact("result")),
        "rewrite" if step.get("uri").is_some() => format!("the URI is \"{}\"", fact("uri")),
        "return" if step.get("location").is_some() => format!("to \"{}\"", fact("location")),
        "module" => fact("decision"),
        "limit" => format!("key \"{}\" in zone {}: {}", fact("key"), fact("zone"), fact("result")),
        "cache" => format!("{}: key \"{}\" in zone {}", fact("result"), fact("key"), fact("zone")),
        "upstream" => match step.get("group") {
            Some(group) => format!("group {group}, server {}", fact("server")),
            None => format!("server {}", fact("server")),
        },
        "error page" => format!("for the status {}", fact("status")),
        "file" if step.get("path").is_some() => format!("{}: {}", fact("path"), fact("result")),
        "message" => format!("[{}] {}", fact("level"), fact("text")),
        "log" => fact("line"),
        _ => step.facts.iter().map(|(_, value)| value.as_str()).collect::<Vec<_>>().join(", "),
    }
}

/// Returns why a location beside the chosen one was not chosen, from what the search has found.
fn why_not(other: &Directive, chosen: Place, uri: &str, searched: &[&Step]) -> String {
    let arg = |n: usize| other.args.get(n).map(|w| w.as_str().into_owned()).unwrap_or_default();
    let found = |how: &str| searched.iter().find(|s| s.get("how") == Some(how) && s.place.is_some());
    let exact = found("exact").is_some();
    let first = arg(0);
    let is_before = other.name.span.place().line < chosen.line;
    match first.as_str() {
        _ if first.starts_with('@') => "named, chosen by name only".to_owned(),
        "=" => "the path is another one".to_owned(),
        _ if first.starts_with('$') => why_not_variable(searched, is_before),
        "~" | "~*" if exact => "an exact location matches".to_owned(),
        "~" | "~*" if found("first regular expression that matches").is_none() => {
            let shielded = found("longest prefix").is_some_and(|s| s.get("kind") == Some("^~"));
            if shielded { "^~ keeps regular expressions from being tried" } else { "it does not match" }
                .to_owned()
        }
        "~" | "~*" if is_before => "it does not match".to_owned(),
        "~" | "~*" => "an earlier regular expression matches".to_owned(),
        prefix => {
            let prefix = if prefix == "^~" { arg(1) } else { prefix.to_owned() };
            match uri.starts_with(&prefix) {
                true if exact => "an exact location matches".to_owned(),
                true if found("first regular expression that matches").is_some() => {
                    "a regular expression matches".to_owned()
                }
                true if found("first variable that is true").is_some() => "a variable is true".to_owned(),
                true => "a longer prefix matches".to_owned(),
                false => "the path begins otherwise".to_owned(),
            }
        }
    }
}

/// Returns why a location that a variable decides on was not chosen.
fn why_not_variable(searched: &[&Step], is_before: bool) -> String {
    let found = |how: &str| searched.iter().any(|s| s.get("how") == Some(how));
    let by_variable = found("first variable that is true");
    let shielded =
        searched.iter().any(|s| s.get("how") == Some("longest prefix") && s.get("kind") == Some("^~"));
    let why = match () {
        () if found("exact") => "an exact location matches",
        () if found("first regular expression that matches") => "a regular expression matches",
        () if by_variable && !is_before => "an earlier variable is true",
        () if shielded && !by_variable => "^~ keeps variables from being tried",
        () => "the variable is empty or 0",
    };
    why.to_owned()
}

/// Splits a head into its lines.
fn response_lines(head: &[u8]) -> Vec<String> {
    let text = String::from_utf8_lossy(head);
    text.lines().filter(|line| !line.is_empty()).map(str::to_owned).collect()
}

/// Returns the lines of a request to an upstream: fields of HTTP, or the parameters of a gateway as their directives have them.
fn head(received: &Received) -> Vec<String> {
    let Received { protocol, line, fields, .. } = received;
    let (first, between) = match *protocol {
        "FastCGI" | "SCGI" | "uwsgi" => (format!("a request of {protocol}"), " "),
        _ => (line.clone(), ": "),
    };
    let fields = fields.iter().map(|(name, value)| format!("{name}{between}{value}"));
    std::iter::once(first).chain(fields).collect()
}
