//! The result of a comparison, and its forms.

mod html;
mod json;
mod text;

pub(crate) use text::{count, thousands};

use crate::coverage::Coverage;
use crate::differ::{Difference, Part};
use crate::known::{Knowledge, Known};
use crate::observe::Finding;
use crate::requests::Ask;
use std::collections::{BTreeMap, BTreeSet};
use std::time::Duration;

/// Differences with one cause.
#[derive(Clone, Debug)]
pub(crate) struct Group {
    /// Its explanation.
    pub(crate) known: Option<Known>,
    /// It came again when the requests were sent once more.
    pub(crate) repeated: bool,
    /// Number of requests that have it.
    pub(crate) requests: usize,
    /// One of the differences.
    pub(crate) difference: Difference,
    /// Its request.
    pub(crate) ask: Ask,
    /// The block that answered it.
    pub(crate) place: String,
    /// Number of other blocks that have it.
    pub(crate) others: usize,
}

/// The result of a comparison.
#[derive(Debug)]
pub(crate) struct Report {
    pub(crate) names: [String; 2],
    pub(crate) configuration: String,
    /// The configuration of the second server, if it is another one.
    pub(crate) with: Option<String>,
    pub(crate) requests: u64,
    pub(crate) planned: usize,
    pub(crate) elapsed: Duration,
    pub(crate) coverage: Coverage,
    pub(crate) groups: Vec<Group>,
    pub(crate) left_out: Vec<String>,
    pub(crate) interrupted: bool,
}

impl Report {
    /// Returns the groups without an explanation that came again.
    pub(crate) fn unknown(&self) -> impl Iterator<Item = &Group> {
        self.groups.iter().filter(|g| g.known.is_none() && g.repeated)
    }

    /// Returns the groups that have an explanation.
    pub(crate) fn known(&self) -> impl Iterator<Item = &Group> {
        self.groups.iter().filter(|g| g.known.is_some())
    }

    /// Returns the groups that did not come again.
    pub(crate) fn passing(&self) -> impl Iterator<Item = &Group> {
        self.groups.iter().filter(|g| g.known.is_none() && !g.repeated)
    }

    /// Returns the number of requests a second.
    pub(crate) fn rate(&self) -> f64 {
        self.requests as f64 / self.elapsed.as_secs_f64().max(0.001)
    }
}

/// Longest value that a report has.
const LONGEST: usize = 2000;

/// Returns a value that is not too long for a report.
fn cut(value: &Option<String>) -> Option<String> {
    let value = value.as_ref()?;
    match value.char_indices().nth(LONGEST) {
        Some((end, _)) => Some(format!("{}...", value.get(..end)?)),
        None => Some(value.clone()),
    }
}

/// Returns a value without what makes it different from request to request.
fn shape(value: Option<&str>) -> String {
    let Some(value) = value else { return "-".into() };
    let short: String = value.chars().take(40).collect();
    let mut shape = String::new();
    for c in short.chars() {
        let c = if c.is_ascii_digit() { '0' } else { c };
        if !(c == '0' && shape.ends_with('0')) {
            shape.push(c);
        }
    }
    shape
}

/// Groups differences by cause: their explanation, or the part, the values and the block.
pub(crate) fn groups(
    knowledge: Knowledge,
    asks: &[Ask],
    findings: Vec<Finding>,
    place: &dyn Fn(usize) -> String,
    repeated: &Option<BTreeSet<(usize, String)>>,
) -> Vec<Group> {
    let mut groups: BTreeMap<(String, String), Seen> = BTreeMap::new();
    for Finding { at, difference } in findings {
        let Some(ask) = asks.get(at) else { continue };
        let known = knowledge.explained(ask, &difference);
        let came = repeated.as_ref().is_none_or(|r| r.contains(&(at, difference.part.text())));
        let place = if known.is_some() { String::new() } else { place(at) };
        let key = match known {
            Some(known) => (known.key().to_owned(), String::new()),
            None => (difference.part.text(), values(&difference).unwrap_or_else(|| place.clone())),
        };
        let seen = groups.entry(key).or_insert_with(|| Seen::new(known, came, &difference, ask, &place));
        seen.requests.insert(at);
        seen.places.insert(place);
        let group = &mut seen.group;
        if came && !group.repeated {
            let difference =
                Difference { first: cut(&difference.first), second: cut(&difference.second), ..difference };
            (group.repeated, group.difference, group.ask) = (true, difference, ask.clone());
        }
    }
    let mut all: Vec<Group> = groups.into_values().map(Seen::counted).collect();
    all.sort_by_key(|g| (g.known.is_some(), std::cmp::Reverse(g.requests)));
    all
}

/// A group that grows.
struct Seen {
    group: Group,
    requests: BTreeSet<usize>,
    places: BTreeSet<String>,
}

impl Seen {
    fn new(known: Option<Known>, repeated: bool, d: &Difference, ask: &Ask, place: &str) -> Seen {
        let difference = Difference::new(d.part.clone(), cut(&d.first), cut(&d.second));
        let (ask, place) = (ask.clone(), place.to_owned());
        let group = Group { known, repeated, requests: 0, difference, ask, place, others: 0 };
        Seen { group, requests: BTreeSet::new(), places: BTreeSet::new() }
    }

    fn counted(self) -> Group {
        Group { requests: self.requests.len(), others: self.places.len().saturating_sub(1), ..self.group }
    }
}

/// Returns what tells differences of one part apart; `None`: the block does.
fn values(d: &Difference) -> Option<String> {
    match d.part {
        Part::Body
        | Part::UpstreamBody
        | Part::Log(_)
        | Part::UpstreamLine
        | Part::Upstreams
        | Part::Blocks => None,
        _ => Some(format!("{} {}", shape(d.first.as_deref()), shape(d.second.as_deref()))),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn differences_are_grouped_by_cause() {
        let find = |at: usize, part: &str, first: &str| Finding {
            at,
            difference: Difference::new(Part::Field(part.into()), Some(first.into()), None),
        };
        let asks = vec![Ask::default(); 3];
        let findings = vec![find(0, "x", "1"), find(1, "x", "22"), find(2, "y", "1"), find(2, "x", "a")];
        let place = |at: usize| if at == 2 { "b".to_owned() } else { "a".to_owned() };
        let again = Some(BTreeSet::from([(1, "field x".to_owned())]));
        let groups = groups(Knowledge::default(), &asks, findings, &place, &again);
        assert_eq!(
            groups.iter().map(|g| (g.requests, g.repeated)).collect::<Vec<_>>(),
            [(2, true), (1, false), (1, false)]
        );
        assert_eq!(groups[0].difference.first.as_deref(), Some("22"), "one that came again");
    }
}
