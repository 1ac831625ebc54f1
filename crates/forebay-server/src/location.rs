//! Choice of a location (nginx: location). Hot path.

use crate::config::http::{Http, Kind, Location, LocationBuild, LocationId, ROOT};
use crate::modules::route;
use crate::request::Request;
use crate::way;
use forebay_core::pattern::LimitExceeded;
use forebay_core::pattern::set::Patterns;
use forebay_core::vars::{VarError, VarId};
use std::collections::HashMap;

/// Locations of one level.
#[derive(Debug, Default)]
pub struct LocationTree {
    exact: HashMap<Vec<u8>, LocationId, foldhash::fast::RandomState>,
    /// Prefix locations, sorted by name.
    prefixes: Vec<PrefixLocation>,
    /// Locations with regular expressions, in file order.
    regexes: Vec<LocationId>,
    /// Regular expressions of these locations.
    patterns: Patterns,
    /// Locations that variables decide on, in file order.
    predicates: Vec<(VarId, LocationId)>,
    /// Exact and prefix locations that answer from an upstream and whose names end in a slash, by their names without it. A path that
    /// equals such a name is redirected.
    slashed: HashMap<Vec<u8>, LocationId, foldhash::fast::RandomState>,
}

#[derive(Debug)]
struct PrefixLocation {
    name: Vec<u8>,
    location: LocationId,
    /// Index of the longest other name that is a prefix of this one.
    shorter: Option<usize>,
}

/// Kind of a match. `Exact` and `Regex` end the search at outer levels.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum LocationMatch {
    Nothing,
    Prefix(LocationId),
    Final(LocationId),
}

impl LocationTree {
    /// Sorts the locations of a level.
    pub fn build(children: &[LocationId], all: &[LocationBuild]) -> LocationTree {
        let mut t = LocationTree::default();
        for id in children {
            let l = &all[*id];
            match &l.kind {
                Kind::Exact => drop(t.exact.insert(l.name.clone(), *id)),
                Kind::Prefix | Kind::PrefixOnly => {
                    t.prefixes.push(PrefixLocation { name: l.name.clone(), location: *id, shorter: None });
                }
                Kind::Regex(pattern) => {
                    t.regexes.push(*id);
                    t.patterns.push(pattern.clone());
                }
                Kind::Predicate(var) => t.predicates.push((*var, *id)),
                _ => {}
            }
            if l.redirects()
                && let Some(path) = l.name.strip_suffix(b"/")
            {
                t.slashed.insert(path.to_vec(), *id);
            }
        }
        t.patterns.prepare();
        // The search for a prefix is a binary search.
        t.prefixes.sort_by(|a, b| a.name.cmp(&b.name));
        t.link();
        t
    }

    /// Sets `shorter` of each prefix.
    fn link(&mut self) {
        for i in 1..self.prefixes.len() {
            self.prefixes[i].shorter = self.longest(Some(i - 1), &self.prefixes[i].name);
        }
    }

    /// Finds the longest prefix of a path: the name at index `at`, or a name that is a prefix of this one.
    fn longest(&self, mut at: Option<usize>, uri: &[u8]) -> Option<usize> {
        while let Some(p) = at.and_then(|i| self.prefixes.get(i)) {
            if uri.starts_with(&p.name) {
                return at;
            }
            at = p.shorter;
        }
        None
    }

    fn prefix(&self, uri: &[u8]) -> Option<LocationId> {
        // The last name that sorts at or before the path begins with every name that is a prefix of the path: strings
        // that sort between a prefix of the path and the path all begin with that prefix.
        let after = self.prefixes.partition_point(|p| p.name.as_slice() <= uri);
        let found = self.longest(after.checked_sub(1), uri)?;
        self.prefixes.get(found).map(|p| p.location)
    }

    /// Finds the location of the request's path at this level and below.
    ///
    /// # Errors
    /// If a pattern exceeded its limits, or a variable cannot be evaluated: its location might be the one that denies access.
    fn find(&self, all: &[Location], req: &mut Request) -> Result<LocationMatch, VarError> {
        // As in nginx, an exact location ends the search at once.
        if let Some(id) = self.exact.get(req.uri.path.as_slice()) {
            way::found(&all[*id], "exact");
            return Ok(LocationMatch::Final(*id));
        }
        let (mut best, mut others) = (LocationMatch::Nothing, true);
        if let Some(id) = self.prefix(&req.uri.path) {
            way::found(&all[id], "longest prefix");
            // `^~` disables the regular expressions and variables of its own level, whatever matches inside of it.
            others = !matches!(all[id].kind, Kind::PrefixOnly);
            // Inner locations go first, as in nginx: a regular expression inside of a prefix ends the search.
            best = match all[id].tree.find(all, req)? {
                LocationMatch::Nothing => LocationMatch::Prefix(id),
                LocationMatch::Final(inner) => return Ok(LocationMatch::Final(inner)),
                inner => inner,
            };
        }
        if !others || self.regexes.is_empty() && self.predicates.is_empty() {
            return Ok(best);
        }
        let found = match self.regex(req)? {
            Some(id) => Some((id, "first regular expression that matches")),
            None => self.predicate(req)?.map(|id| (id, "first variable that is true")),
        };
        let Some((id, how)) = found else { return Ok(best) };
        way::found(&all[id], how);
        Ok(match all[id].tree.find(all, req)? {
            LocationMatch::Final(inner) | LocationMatch::Prefix(inner) => LocationMatch::Final(inner),
            LocationMatch::Nothing => LocationMatch::Final(id),
        })
    }

    /// Finds the first location whose regular expression matches.
    fn regex(&self, req: &mut Request) -> Result<Option<LocationId>, LimitExceeded> {
        if self.regexes.is_empty() {
            return Ok(None);
        }
        // The path leaves the request for a moment, because a pattern stores its captures in the request.
        let uri = std::mem::take(&mut req.uri.path);
        let first = self.patterns.first(&uri, |pattern| pattern.exec(req, &uri));
        req.uri.path = uri;
        Ok(first?.and_then(|i| self.regexes.get(i).copied()))
    }

    /// Finds the first location whose variable is true.
    fn predicate(&self, req: &mut Request) -> Result<Option<LocationId>, VarError> {
        for (var, id) in &self.predicates {
            if req.is_true(*var)? {
                return Ok(Some(*id));
            }
        }
        Ok(None)
    }
}

/// Chooses the location of a request by its path, and by variables.
///
/// # Errors
/// A pattern exceeded its limits, or a variable cannot be evaluated. The request must not be served.
pub fn choose(http: &Http, req: &mut Request) -> Result<(), VarError> {
    let server = http.server(req);
    req.uri.valid_location = true;
    // A subrequest names its location. A route for all paths would take it over and answer it, even the request with which `auth_request`
    // asks for permission.
    if !req.is_subrequest()
        && let Some(location) = route::choose(&server.routes, req)?
    {
        req.location = location;
        return Ok(());
    }
    let Some(tree) = server.tree() else { return Ok(()) };
    req.location = match tree.find(&server.locations, req)? {
        LocationMatch::Nothing => ROOT,
        LocationMatch::Prefix(id) | LocationMatch::Final(id) => id,
    };
    Ok(())
}

/// Finds a location, at any depth, that answers from an upstream and whose name is the request's path plus a slash. A prefix location
/// with the path itself as its name goes before it, a regular expression does not. The caller knows that no exact location matches.
pub fn with_slash(http: &Http, req: &Request) -> Option<LocationId> {
    let server = http.server(req);
    let mut tree = server.tree()?;
    loop {
        let inner = tree.prefix(&req.uri.path);
        let is_named = inner.and_then(|id| server.locations.get(id)).is_some_and(|l| l.name == req.uri.path);
        if let Some(id) = tree.slashed.get(req.uri.path.as_slice())
            && !is_named
        {
            return Some(*id);
        }
        tree = &server.locations.get(inner?)?.tree;
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Compares the search with one over all locations.
    #[test]
    fn the_longest_prefix_is_found() {
        let mut seed = 3u32;
        let mut word = |longest: u32| {
            seed = seed.wrapping_mul(1_103_515_245).wrapping_add(12345);
            let len = (seed >> 16) % longest;
            let letter = |i: u32| if seed >> (i % 20) & 1 == 0 { b'a' } else { b'/' };
            (0..len).map(letter).collect::<Vec<u8>>()
        };
        for size in [0, 1, 2, 5, 30] {
            let mut names: Vec<Vec<u8>> = (0..size).map(|_| word(9)).collect();
            names.sort();
            names.dedup();
            let mut tree = LocationTree::default();
            for (location, name) in names.iter().enumerate() {
                tree.prefixes.push(PrefixLocation { name: name.clone(), location, shorter: None });
            }
            tree.link();
            for _ in 0..500 {
                let uri = word(if size > 5 { 14 } else { 5 });
                let wanted =
                    (0..names.len()).filter(|i| uri.starts_with(&names[*i])).max_by_key(|i| names[*i].len());
                assert_eq!(tree.prefix(&uri), wanted, "{} of {names:?}", uri.escape_ascii());
            }
        }
    }
}
