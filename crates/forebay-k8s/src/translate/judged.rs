//! Hosts with snippets, and snippets of the stream block, judged before they join the configuration.

use super::hosts::{self, HostPart, Hosts};
use super::{files, probe};
use crate::annotations::Annotations;
use crate::blame::{self, Bounds, Verdict, directive_at};
use crate::ingress::{Globals, Members, Names, Parsed};
use crate::judge::{Files, Refusal};
use crate::objects::{Key, Objects};
use crate::problem::Problem;
use crate::snippet::stream_names;
use crate::view::View;
use forebay_conf::Node;
use forebay_conf::grammar::Contexts;
use std::collections::{BTreeMap, BTreeSet};
use std::path::Path;
use std::sync::Arc;

/// Snippets of an Ingress that become parts of its hosts.
const OF_INGRESS: [(&str, Contexts); 3] = [
    ("server-snippet", Contexts::SERVER),
    ("configuration-snippet", Contexts::LOCATION),
    ("auth-snippet", Contexts::LOCATION),
];

/// An Ingress of a host, with the index of its rules for the host.
type Member = (Arc<Parsed>, usize);

/// Hosts that are made and not yet taken over.
pub(super) type MadeHosts = Vec<(Arc<str>, Option<HostPart>)>;

/// What hosts are judged with.
pub(super) struct Judging<'a> {
    pub(super) objects: &'a Objects,
    pub(super) globals: &'a Globals,
    pub(super) hosts: &'a Hosts,
    pub(super) names: &'a super::names::All,
    /// Ingresses with snippets, as they last worked.
    pub(super) good: &'a mut BTreeMap<Key, Arc<Parsed>>,
    /// Bounds of the search among the hosts.
    pub(super) bounds: Bounds,
}

impl Judging<'_> {
    /// Judges the hosts with snippets. Makes those that no server accepts anew, without what is to blame. Returns those that there was
    /// no time for: they stay closed, or as they last worked, until they are judged.
    pub(super) fn hosts(&mut self, made: &mut MadeHosts) -> BTreeSet<Arc<str>> {
        let units = self.unknown(made);
        if units.is_empty() {
            return BTreeSet::new();
        }
        let found = self.search(&units, made);
        for unit in found.good {
            let Some((name, Some(part))) = units.get(unit).and_then(|i| made.get(*i)) else { continue };
            self.judge().remember("host", &[&part.bytes], None);
            let members = self.hosts.members(name).into_iter().flatten();
            let new = members.filter(|(p, _)| has_snippet(p)).map(|(p, _)| (p.key.clone(), p.clone()));
            self.good.extend(new);
        }
        for (unit, refusal) in found.guilty {
            let Some((name, part)) = units.get(unit).and_then(|i| made.get_mut(*i)) else { continue };
            *part = self.without_guilty(name, &refusal);
        }
        let mut unjudged = BTreeSet::new();
        for unit in found.undecided {
            let Some((name, part)) = units.get(unit).and_then(|i| made.get_mut(*i)) else { continue };
            match &found.base {
                // The same error is reported where it comes from.
                Some(base) => self.not_judged(name, part, base),
                None => {
                    *part = self.without_unjudged(name);
                    unjudged.insert(name.clone());
                }
            }
        }
        unjudged
    }

    /// Returns the indices of the hosts with snippets that have not been judged.
    fn unknown(&self, made: &MadeHosts) -> Vec<usize> {
        let has_snippets =
            |name: &str| self.hosts.members(name).is_some_and(|m| m.iter().any(|(p, _)| has_snippet(p)));
        let is_new = |part: &HostPart| self.judge().remembered("host", &[&part.bytes]).is_none();
        let all = made.iter().enumerate().filter(|_| self.judge().judges());
        all.filter(|(_, (name, part))| part.as_ref().is_some_and(is_new) && has_snippets(name))
            .map(|(index, _)| index)
            .collect()
    }

    /// Finds the hosts that no server accepts.
    fn search(&self, units: &[usize], made: &MadeHosts) -> blame::Found {
        let parts: Vec<&HostPart> =
            units.iter().filter_map(|i| made.get(*i).and_then(|(_, part)| part.as_ref())).collect();
        let zones = self.zones(units, made);
        let base = self.base(parts.iter().copied());
        blame::find(parts.len(), self.bounds, |some| {
            let chosen: Vec<&HostPart> = some.iter().filter_map(|i| parts.get(*i).copied()).collect();
            self.verdict(&base, &chosen, &zones, |path| {
                let at = parts.iter().position(|part| part.path == *path)?;
                some.contains(&at).then_some(at)
            })
        })
    }

    /// Adds the problem of each Ingress of a host whose snippets cannot be judged, since no configuration can be made without them.
    fn not_judged(&self, name: &Arc<str>, part: &mut Option<HostPart>, base: &Refusal) {
        let text = format!(
            "the snippet cannot be judged, since no configuration works without it: {}",
            base.message
        );
        let members = self.hosts.members(name).into_iter().flatten().filter(|(p, _)| has_snippet(p));
        let Some(part) = part else { return };
        part.problems.extend(members.map(|(parsed, _)| at_snippet(parsed, &text, None)));
    }

    /// Makes a host that there was no time for: each Ingress with a snippet counts as it was when it last worked, or is closed.
    fn without_unjudged(&self, name: &Arc<str>) -> Option<HostPart> {
        let members = self.hosts.members(name)?.clone();
        let worked = |p: &Parsed| self.good.get(&p.key).is_some_and(|good| good.revision == p.revision);
        let used = each(&members, |_, m| match has_snippet(&m.0) && !worked(&m.0) {
            true => self.last(name, m).unwrap_or_else(|| closed(m)),
            false => m.clone(),
        });
        let mut part = hosts::make(self.objects, self.globals, name, &used, self.names.of(name));
        for ((parsed, _), (used, _)) in members.iter().zip(&used).filter(|((p, _), _)| has_snippet(p)) {
            let text = format!("the snippet waits, {}: {LATE}", follows(!used.annotations.closed));
            part.problems.push(at_snippet(parsed, &text, None));
        }
        Some(part)
    }

    fn judge(&self) -> &crate::judge::Judge {
        &self.globals.options.judge
    }

    /// Makes the files that some hosts need beside their own.
    fn base<'p>(&self, parts: impl Iterator<Item = &'p HostPart>) -> Files {
        let certificate =
            files::default_certificate(&View::new(self.objects, self.judge()), &self.globals.options);
        let specs = parts.flat_map(|part| part.uses.iter().map(|used| used.spec.clone()));
        let default = self.globals.default_backend.clone().map(Arc::new);
        let mut base = vec![probe::groups_of(specs.chain(default), self.globals)];
        base.extend(files::of_certificate(certificate.as_ref()));
        base.push(probe::main(self.globals, certificate, &[], &[], None));
        base.extend(files::of_tickets(self.globals));
        base
    }

    /// Finds the files of other hosts that define zones of the limits of some hosts.
    fn zones(&self, units: &[usize], made: &MadeHosts) -> Files {
        let own: BTreeSet<&str> =
            units.iter().filter_map(|i| made.get(*i)).map(|(name, _)| &**name).collect();
        let mut found = BTreeMap::new();
        for name in &own {
            for (parsed, _) in self.hosts.members(name).into_iter().flatten() {
                let first = parsed.rules.first().map(|rules| rules.host.as_deref().unwrap_or(hosts::ANY));
                let Some(first) = first.filter(|f| !own.contains(f)) else { continue };
                let new = made.iter().find(|(name, _)| **name == *first).and_then(|(_, part)| part.as_ref());
                if let Some(part) = new.or_else(|| self.hosts.part(first)) {
                    found.insert(part.path.clone(), part.bytes.clone());
                    found.extend(part.files.iter().cloned());
                }
            }
        }
        found.into_iter().collect()
    }

    fn verdict(
        &self,
        base: &Files,
        parts: &[&HostPart],
        zones: &Files,
        unit: impl Fn(&Arc<Path>) -> Option<usize>,
    ) -> Verdict {
        let mut all = base.clone();
        for part in parts {
            all.push((part.path.clone(), part.bytes.clone()));
            all.extend(part.files.iter().cloned());
        }
        all.extend(zones.iter().cloned());
        // Locations define variables that the main file refers to, and this server is always there.
        let any = hosts::make(self.objects, self.globals, hosts::ANY, &Members::new(), &Names::default());
        if !all.iter().any(|(path, _)| *path == any.path) {
            all.push((any.path, any.bytes));
        }
        let mut verdict = Verdict::default();
        for refusal in self.judge().errors(&all) {
            match refusal.path.as_ref().and_then(&unit) {
                Some(unit) => verdict.placed.push((unit, refusal)),
                None => verdict.other = verdict.other.or(Some(refusal)),
            }
        }
        verdict
    }

    /// Makes a host whose snippets are refused: each Ingress that is to blame counts as it was when it last worked, or is closed.
    fn without_guilty(&mut self, name: &Arc<str>, refusal: &Refusal) -> Option<HostPart> {
        let members = self.hosts.members(name)?.clone();
        let names = self.names.of(name).clone();
        let guilty = self.guilty(name, &members, &names, refusal);
        let mut used = each(&members, |i, m| match guilty.get(&i) {
            Some(_) => self.last(name, m).unwrap_or_else(|| closed(m)),
            None => m.clone(),
        });
        if !self.alone(name, &used, &names).is_fine() {
            used = each(&members, |i, m| if guilty.contains_key(&i) { closed(m) } else { m.clone() });
            if !self.alone(name, &used, &names).is_fine() {
                used = each(&members, |_, m| bare(m));
            }
        }
        let mut part = hosts::make(self.objects, self.globals, name, &used, &names);
        for (i, reason) in &guilty {
            let Some((parsed, _)) = members.get(*i) else { continue };
            let stays = used.get(*i).is_some_and(|(p, _)| !p.annotations.closed);
            part.problems.push(problem(parsed, reason, stays));
        }
        Some(part)
    }

    /// Finds the Ingresses of a host whose snippets are to blame; all with snippets if none can be found.
    fn guilty(
        &self,
        name: &Arc<str>,
        members: &Members,
        names: &Names,
        refusal: &Refusal,
    ) -> BTreeMap<usize, Refusal> {
        let suspects: Vec<usize> =
            (0..members.len()).filter(|i| members.get(*i).is_some_and(|(p, _)| has_snippet(p))).collect();
        let found = blame::find(suspects.len(), Bounds::default(), |open| {
            let kept = |i: usize| suspects.iter().position(|s| *s == i).is_none_or(|at| open.contains(&at));
            let some = each(members, |i, m| if kept(i) { m.clone() } else { closed(m) });
            self.alone(name, &some, names)
        });
        let named = |(at, reason)| suspects.get(at).map(|i| (*i, reason));
        let guilty: BTreeMap<usize, Refusal> = found.guilty.into_iter().filter_map(named).collect();
        match guilty.is_empty() {
            true => suspects.iter().map(|i| (*i, refusal.clone())).collect(),
            false => guilty,
        }
    }

    /// Judges a host by itself.
    fn alone(&self, name: &Arc<str>, members: &Members, names: &Names) -> Verdict {
        let part = hosts::make(self.objects, self.globals, name, members, names);
        let mut zones = BTreeMap::new();
        for (parsed, _) in members {
            let first = parsed.rules.first().map(|rules| rules.host.as_deref().unwrap_or(hosts::ANY));
            if let Some(other) = first.filter(|f| **f != **name).and_then(|f| self.hosts.part(f)) {
                zones.insert(other.path.clone(), other.bytes.clone());
                zones.extend(other.files.iter().cloned());
            }
        }
        let base = self.base(std::iter::once(&part));
        self.verdict(&base, &[&part], &zones.into_iter().collect(), |_| None)
    }

    /// Returns an Ingress of a host as it was when it last worked.
    fn last(&self, host: &str, member: &Member) -> Option<Member> {
        let parsed = &member.0;
        let good = self.good.get(&parsed.key).filter(|good| good.revision != parsed.revision)?;
        let index = good.rules.iter().position(|r| r.host.as_deref().unwrap_or(hosts::ANY) == host)?;
        Some((good.clone(), index))
    }
}

fn each(members: &Members, mut make: impl FnMut(usize, &Member) -> Member) -> Members {
    members.iter().enumerate().map(|(i, m)| make(i, m)).collect()
}

fn has_snippet(parsed: &Parsed) -> bool {
    OF_INGRESS.iter().any(|(name, _)| parsed.annotations.raw(name).is_some())
}

/// Returns an Ingress without its snippets, whose paths answer 503.
fn closed(member: &Member) -> Member {
    let mut annotations = member.0.annotations.clone();
    OF_INGRESS.iter().for_each(|(name, _)| annotations.remove(name));
    annotations.closed = true;
    (Arc::new(member.0.with(annotations)), member.1)
}

/// Returns an Ingress without any annotation, whose paths answer 503.
fn bare(member: &Member) -> Member {
    let mut annotations = Annotations::default();
    annotations.closed = true;
    (Arc::new(member.0.with(annotations)), member.1)
}

/// Reason why a snippet is not judged yet.
const LATE: &str = "too many others are refused to judge it in time";

/// Returns what is served in place of a snippet. `stays`: there is a version that worked.
fn follows(stays: bool) -> &'static str {
    if stays { "the last version that worked stays" } else { "the paths of the Ingress answer 503" }
}

fn problem(parsed: &Parsed, refusal: &Refusal, stays: bool) -> Problem {
    let text = format!("the snippet is refused, {}: {}", follows(stays), refusal.message);
    at_snippet(parsed, &text, Some(refusal))
}

/// Makes a problem at the place in the snippets of an Ingress that an error is about, or at the first one.
fn at_snippet(parsed: &Parsed, text: &str, refusal: Option<&Refusal>) -> Problem {
    let snippets = OF_INGRESS
        .iter()
        .filter_map(|(name, context)| Some((*name, parsed.annotations.raw(name)?, *context)));
    let mut snippets = snippets.peekable();
    let first = snippets.peek().copied();
    let place =
        snippets.find_map(|(name, text, context)| Some((name, text, blame::place(text, context, refusal?)?)));
    let place = place.or(first.map(|(name, text, _)| (name, text, 0)));
    match place {
        Some((name, value, at)) => {
            parsed.annotation_problem(name, text).reason("SnippetRefused").at(value, at)
        }
        None => parsed.problem("metadata.annotations", text).reason("SnippetRefused"),
    }
}

/// Finds the snippets of Ingresses for the stream block that work, also with each other.
pub(super) fn stream_snippets<'p>(
    globals: &Globals,
    ours: impl Iterator<Item = &'p Arc<Parsed>>,
    problems: &mut Vec<Problem>,
) -> Vec<Node> {
    let some = with_own_names(globals, ours.filter(|p| !p.stream_snippet.is_empty()), problems);
    let judge = &globals.options.judge;
    let all = stream_nodes(&some, 0..some.len());
    if all.is_empty() || !judge.judges() {
        return all;
    }
    let text = forebay_conf::print(&all).unwrap_or_default();
    let (_, main) = probe::main(globals, None, &[], &[], None);
    if judge.remembered("stream", &[&text, &main]).is_some() {
        return all;
    }
    let found = search_streams(globals, &some);
    if found.guilty.is_empty() && found.undecided.is_empty() {
        judge.remember("stream", &[&text, &main], None);
    }
    report_streams(&found, &some, problems);
    stream_nodes(&some, found.good)
}

/// Returns the directives of some snippets of the stream block.
fn stream_nodes(all: &[&Arc<Parsed>], units: impl IntoIterator<Item = usize>) -> Vec<Node> {
    let some = units.into_iter().filter_map(|i| all.get(i));
    some.flat_map(|p| p.stream_snippet.iter().cloned()).collect()
}

/// Finds the snippets of the stream block that no server accepts.
fn search_streams(globals: &Globals, all: &[&Arc<Parsed>]) -> blame::Found {
    let tickets: Files = files::of_tickets(globals).collect();
    blame::find(all.len(), Bounds::default(), |units| {
        let nodes = stream_nodes(all, units.iter().copied());
        let mut verdict = Verdict::default();
        let mut files = tickets.clone();
        files.push(probe::main(globals, None, &[], &nodes, None));
        for refusal in globals.options.judge.errors(&files) {
            let is_of = |i: &&usize| all.get(**i).is_some_and(|p| stream_offset(p, &refusal.text).is_some());
            match units.iter().find(is_of) {
                Some(unit) => verdict.placed.push((*unit, refusal)),
                None => verdict.other = verdict.other.or(Some(refusal)),
            }
        }
        verdict
    })
}

/// Reports the snippets of the stream block that are left out.
fn report_streams(found: &blame::Found, all: &[&Arc<Parsed>], problems: &mut Vec<Problem>) {
    let left_out = |parsed: &Parsed, why: &str| {
        let text = format!("the snippet is left out: {why}");
        parsed.annotation_problem("stream-snippet", text).reason("SnippetRefused")
    };
    for (unit, refusal) in &found.guilty {
        let Some(parsed) = all.get(*unit) else { continue };
        let value = parsed.annotations.raw("stream-snippet").unwrap_or_default();
        let at = stream_offset(parsed, &refusal.text).unwrap_or(0);
        problems.push(left_out(parsed, &refusal.message).at(value, at));
    }
    let why = match &found.base {
        Some(base) => format!("no configuration can be made, even without it: {}", base.message),
        None => LATE.to_owned(),
    };
    for parsed in found.undecided.iter().filter_map(|unit| all.get(*unit)) {
        problems.push(left_out(parsed, &why));
    }
}

/// Leaves out snippets of the stream block that define a name which an older Ingress, or the operator, has: the later definition would
/// hold for both.
fn with_own_names<'p>(
    globals: &Globals,
    ours: impl Iterator<Item = &'p Arc<Parsed>>,
    problems: &mut Vec<Problem>,
) -> Vec<&'p Arc<Parsed>> {
    let operator = globals.settings.set("stream-snippet").map(stream_names).unwrap_or_default();
    let mut owners: BTreeMap<String, &Key> = BTreeMap::new();
    let mut some = Vec::new();
    for parsed in ours {
        let text = parsed.annotations.raw("stream-snippet").unwrap_or_default();
        let names = stream_names(text);
        let owned = |name: &&String| operator.contains(*name) || owners.contains_key(*name);
        if let Some(name) = names.iter().find(owned) {
            let owner = match owners.get(name) {
                Some(key) => format!("the older Ingress {key}"),
                None => "the ConfigMap".to_owned(),
            };
            let why = format!("the snippet is left out: {owner} defines \"{name}\"");
            let at = text.to_ascii_lowercase().find(name.as_str()).unwrap_or(0);
            problems
                .push(parsed.annotation_problem("stream-snippet", why).reason("NameConflict").at(text, at));
            continue;
        }
        owners.extend(names.into_iter().map(|name| (name, &parsed.key)));
        some.push(parsed);
    }
    some
}

fn stream_offset(parsed: &Parsed, line: &str) -> Option<usize> {
    directive_at(parsed.annotations.raw("stream-snippet")?, Contexts::STREAM, line)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::value::Value;

    #[test]
    fn all_snippets_have_a_context() {
        let all = crate::annotations::ROWS.iter().filter(|row| row.value == Value::Snippet);
        let names: BTreeSet<&str> = all
            .map(|row| row.name)
            .filter(|n| !n.starts_with("modsecurity") && *n != "stream-snippet")
            .collect();
        assert_eq!(names, OF_INGRESS.iter().map(|(name, _)| *name).collect());
    }
}
