//! `match` blocks: conditions for the response to a health check.

use forebay_conf::error::Error;
use forebay_conf::tree::Directive;
use forebay_conf::units;
use forebay_core::pattern::{LimitExceeded, Pattern};
use forebay_core::upstream::health::invalid_line;
use forebay_core::vars::VarId;
use forebay_http::h1::client::ResponseHead;
use forebay_server::config::Scope;

/// A `match` block. All conditions must hold.
#[derive(Debug, Default)]
pub struct Match {
    status: Option<Statuses>,
    headers: Vec<(Vec<u8>, Test)>,
    /// Pattern, and whether the body must match it.
    body: Option<(bool, Pattern)>,
    /// `require`: variables that must be neither empty nor 0.
    pub(super) required: Vec<VarId>,
}

#[derive(Debug)]
struct Statuses {
    negated: bool,
    ranges: Vec<(u16, u16)>,
}

/// Condition for a field; the flag tells whether it must hold or must not.
#[derive(Debug)]
enum Test {
    Present(bool),
    Is(bool, Vec<u8>),
    Like(bool, Pattern),
}

impl Match {
    /// Reads `match NAME { ... }`.
    ///
    /// # Errors
    /// With the place of what is not understood.
    pub fn parse(d: &Directive, cx: &mut Scope<'_>) -> Result<Match, Error> {
        let mut m = Match::default();
        for line in d.block.iter().flatten() {
            m.line(line, cx)?;
        }
        Ok(m)
    }

    fn line(&mut self, line: &Directive, cx: &mut Scope<'_>) -> Result<(), Error> {
        let words: Vec<&[u8]> = line.args.iter().map(|w| w.text.as_slice()).collect();
        match (line.name.text.as_slice(), words.as_slice()) {
            (b"status", [_, ..]) if self.status.is_none() => {
                self.status = Some(Statuses::parse(&words).ok_or_else(|| invalid_line(line, cx))?);
            }
            (b"header", [b"!", name]) => self.headers.push((name.to_vec(), Test::Present(false))),
            (b"header", [name, test @ ..]) => {
                self.headers.push((name.to_vec(), Test::parse(test, line, cx)?));
            }
            (b"body", [op @ (b"~" | b"!~"), value]) if self.body.is_none() => {
                self.body = Some((*op == b"~", cx.pattern(line, value, false)?));
            }
            (b"require", [_, ..]) => self.require(line, cx)?,
            _ => return Err(invalid_line(line, cx)),
        }
        Ok(())
    }

    fn require(&mut self, line: &Directive, cx: &mut Scope<'_>) -> Result<(), Error> {
        for w in &line.args {
            let variable = cx.template(line, w)?.as_var();
            let invalid = || cx.error_at(line, w, format!("invalid variable name \"{}\"", w.as_str()));
            self.required.push(variable.ok_or_else(invalid)?);
        }
        Ok(())
    }

    /// Returns the first condition that does not hold.
    pub(super) fn fault(&self, head: &ResponseHead, body: &[u8]) -> Option<&'static str> {
        if self.status.as_ref().is_some_and(|s| !s.holds(head.status)) {
            return Some("status");
        }
        if self.headers.iter().any(|(name, test)| !test.holds(head, name)) {
            return Some("header");
        }
        match &self.body {
            // A pattern that exceeds its limits fails the check, negated or not.
            Some((want, p)) if p.is_match(body) != Ok(*want) => Some("body"),
            _ => None,
        }
    }
}

impl Statuses {
    fn parse(words: &[&[u8]]) -> Option<Statuses> {
        let (negated, ranges) = match words {
            [b"!", ranges @ ..] if !ranges.is_empty() => (true, ranges),
            ranges => (false, ranges),
        };
        Some(Statuses { negated, ranges: ranges.iter().map(|w| range(w)).collect::<Option<_>>()? })
    }

    fn holds(&self, status: u16) -> bool {
        self.ranges.iter().any(|(a, b)| (*a..=*b).contains(&status)) != self.negated
    }
}

/// Reads `200` or `200-399`.
fn range(text: &[u8]) -> Option<(u16, u16)> {
    let code =
        |t: &[u8]| units::number(t).and_then(|n| u16::try_from(n).ok()).filter(|n| (100..600).contains(n));
    match memchr::memchr(b'-', text) {
        Some(at) => Some((code(&text[..at])?, code(&text[at + 1..])?)),
        None => code(text).map(|n| (n, n)),
    }
}

impl Test {
    fn parse(words: &[&[u8]], line: &Directive, cx: &mut Scope<'_>) -> Result<Test, Error> {
        match words {
            [] => Ok(Test::Present(true)),
            [op @ (b"=" | b"!="), value] => Ok(Test::Is(*op == b"=", value.to_vec())),
            [op @ (b"~" | b"!~"), value] => Ok(Test::Like(*op == b"~", cx.pattern(line, value, false)?)),
            _ => Err(invalid_line(line, cx)),
        }
    }

    fn holds(&self, head: &ResponseHead, name: &[u8]) -> bool {
        let named = head.fields.iter().filter(|f| f.name.of(&head.buf).eq_ignore_ascii_case(name));
        let mut values = named.map(|f| f.value.of(&head.buf));
        match self {
            Test::Present(want) => values.next().is_some() == *want,
            Test::Is(want, v) => values.any(|x| x == v) == *want,
            // A pattern that exceeds its limits neither matches nor fails to match.
            Test::Like(want, p) => any_matches(p, values) == Ok(*want),
        }
    }
}

fn any_matches<'a>(p: &Pattern, mut values: impl Iterator<Item = &'a [u8]>) -> Result<bool, LimitExceeded> {
    values.try_fold(false, |found, value| Ok(found || p.is_match(value)?))
}
