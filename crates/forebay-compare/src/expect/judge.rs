//! Judges what a request has led to.

use super::file::{Case, Response, Text, Upstream, UpstreamRequest};
use crate::message::{Answer, Field, Received};
use serde_saphyr::{Location, Spanned};
use std::collections::BTreeMap;

/// Result of a request: response, requests to upstreams, log lines.
#[derive(Clone, Debug, Default)]
pub(crate) struct Outcome {
    pub(crate) answer: Answer,
    /// Requests that upstreams have received.
    pub(crate) received: Vec<Received>,
    /// Lines of access logs.
    pub(crate) lines: Vec<String>,
}

/// An expectation that does not hold.
#[derive(Clone, Debug)]
pub(crate) struct Failure {
    /// Place of the expectation in its file.
    pub(crate) at: Location,
    /// Thing that differs: `status`, `field Location`.
    pub(crate) what: String,
    pub(crate) wanted: String,
    pub(crate) got: String,
    /// The expectation is this word of the file, and the value that would hold in its place; `None`: it is no plain word.
    pub(crate) update: Option<String>,
}

/// Returns the expectations of a case that do not hold.
pub(crate) fn failures(case: &Case, outcome: &Outcome) -> Vec<Failure> {
    let mut judge = Judge::default();
    if let Some(response) = &case.response {
        judge.response(response, &outcome.answer);
    }
    match &case.upstream {
        None => {}
        Some(Spanned { value: Upstream::None, referenced, .. }) => {
            judge.no_upstream(*referenced, &outcome.received);
        }
        Some(Spanned { value: Upstream::Request(wanted), .. }) => {
            judge.upstream(wanted, case, &outcome.received);
        }
    }
    if let Some(wanted) = &case.log {
        judge.log(wanted, &outcome.lines);
    }
    judge.failures
}

#[derive(Default)]
struct Judge {
    failures: Vec<Failure>,
}

impl Judge {
    fn response(&mut self, wanted: &Response, answer: &Answer) {
        if let Some(status) = &wanted.status
            && status.value != answer.status
        {
            let got = match &answer.failure {
                Some(why) if answer.status == 0 => format!("no response: {why}"),
                _ => answer.status.to_string(),
            };
            let update = Some(answer.status.to_string());
            let (at, wanted) = (status.referenced, status.value.to_string());
            self.failures.push(Failure { at, what: "status".into(), wanted, got, update });
        }
        self.fields("field", &wanted.fields, &answer.fields);
        if let Some(body) = &wanted.body {
            self.text("body", body, &crate::message::text(&answer.body));
        }
    }

    fn no_upstream(&mut self, at: Location, received: &[Received]) {
        if let Some(first) = received.first() {
            self.failures.push(Failure {
                at,
                what: "upstream".into(),
                wanted: "no request".into(),
                got: first.line.clone(),
                update: None,
            });
        }
    }

    fn upstream(&mut self, wanted: &UpstreamRequest, case: &Case, received: &[Received]) {
        // Of several requests, the one that is expected: `auth_request` and `mirror` have their own.
        let fits =
            |r: &&Received| wanted.request.as_ref().is_some_and(|w| w.value.holds(&r.line) == Ok(true));
        let Some(request) = received.iter().find(fits).or_else(|| received.last()) else {
            let at = wanted.request.as_ref().map_or(case.request.referenced, |r| r.referenced);
            let wanted = wanted.request.as_ref().map_or("a request".to_owned(), |r| r.value.to_string());
            self.failures.push(Failure {
                at,
                what: "upstream".into(),
                wanted,
                got: "no request".into(),
                update: None,
            });
            return;
        };
        if let Some(line) = &wanted.request {
            self.text("upstream request", line, &request.line);
        }
        self.fields("upstream field", &wanted.fields, &request.fields);
        if let Some(body) = &wanted.body {
            self.text("upstream body", body, &crate::message::text(&request.body));
        }
    }

    fn fields(&mut self, what: &str, wanted: &BTreeMap<String, Spanned<Option<Text>>>, fields: &[Field]) {
        for (name, expected) in wanted {
            let values: Vec<&str> = fields
                .iter()
                .filter(|(n, _)| n.eq_ignore_ascii_case(name))
                .map(|(_, v)| v.as_str())
                .collect();
            let what = format!("{what} {name}");
            match (&expected.value, values.as_slice()) {
                (None, []) => {}
                (None, [first, ..]) => {
                    self.push(expected.referenced, what, "no such field".into(), format!("{first:?}"), None)
                }
                (Some(text), []) => {
                    self.push(expected.referenced, what, text.to_string(), "no such field".into(), None)
                }
                (Some(text), values) => self.any_of(expected.referenced, what, text, values),
            }
        }
    }

    /// Judges a field with several lines: one of them has to be as expected.
    fn any_of(&mut self, at: Location, what: String, text: &Text, values: &[&str]) {
        let held = values.iter().map(|v| text.holds(v)).collect::<Result<Vec<bool>, String>>();
        match held {
            Ok(held) if held.contains(&true) => {}
            Ok(_) => {
                let got = values.iter().map(|v| format!("{v:?}")).collect::<Vec<_>>().join(", ");
                let update = match (text, values) {
                    (Text::Equal(_), [only]) => Some((*only).to_owned()),
                    _ => None,
                };
                self.push(at, what, text.to_string(), got, update);
            }
            Err(why) => self.push(at, what, text.to_string(), why, None),
        }
    }

    fn text(&mut self, what: &str, wanted: &Spanned<Text>, got: &str) {
        self.any_of(wanted.referenced, what.to_owned(), &wanted.value, &[got]);
    }

    fn log(&mut self, wanted: &Spanned<Text>, lines: &[String]) {
        if lines.is_empty() {
            let got = "no line of an access log".to_owned();
            return self.push(wanted.referenced, "log".into(), wanted.value.to_string(), got, None);
        }
        let lines: Vec<&str> = lines.iter().map(String::as_str).collect();
        self.any_of(wanted.referenced, "log".into(), &wanted.value, &lines);
    }

    fn push(&mut self, at: Location, what: String, wanted: String, got: String, update: Option<String>) {
        self.failures.push(Failure { at, what, wanted, got, update });
    }
}
