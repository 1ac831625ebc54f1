//! The choice of a location (nginx: location). Hot path.

use crate::config::http::{Kind, Location, LocationBuild, LocationId};
use crate::request::{HttpRef, Request};
use std::collections::HashMap;

/// Locations of one level.
#[derive(Debug, Default)]
pub struct LocationTree {
    exact: HashMap<Vec<u8>, LocationId, foldhash::fast::RandomState>,
    prefixes: HashMap<Vec<u8>, LocationId, foldhash::fast::RandomState>,
    /// Lengths of the prefixes, longest first.
    lengths: Vec<usize>,
    /// Regular expressions in file order.
    regexes: Vec<LocationId>,
}

/// How a location was found; `Exact` and `Regex` end the search at outer levels.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Found {
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
            match l.kind {
                Kind::Exact => drop(t.exact.insert(l.name.clone(), *id)),
                Kind::Prefix | Kind::PrefixOnly => drop(t.prefixes.insert(l.name.clone(), *id)),
                Kind::Regex(_) => t.regexes.push(*id),
                _ => {}
            }
        }
        t.lengths = t.prefixes.keys().map(Vec::len).collect();
        t.lengths.sort_unstable_by(|a, b| b.cmp(a));
        t.lengths.dedup();
        t
    }

    fn prefix(&self, uri: &[u8]) -> Option<LocationId> {
        self.lengths.iter().filter_map(|n| self.prefixes.get(uri.get(..*n)?)).next().copied()
    }

    /// A prefix location that is the path plus a slash.
    pub fn with_slash(&self, uri: &[u8]) -> Option<LocationId> {
        self.prefixes.iter().find(|(n, _)| n.split_last() == Some((&b'/', uri))).map(|(_, id)| *id)
    }

    fn find(&self, all: &[Location], req: &mut Request) -> Found {
        if let Some(id) = self.exact.get(req.uri.as_slice()) {
            return Found::Final(*id);
        }
        let mut best = Found::Nothing;
        if let Some(id) = self.prefix(&req.uri) {
            best = match all[id].tree.find(all, req) {
                Found::Nothing => Found::Prefix(id),
                Found::Final(inner) => return Found::Final(inner),
                inner => inner,
            };
        }
        if let Found::Prefix(id) = best
            && matches!(all[id].kind, Kind::PrefixOnly)
        {
            return best;
        }
        if !self.regexes.is_empty() {
            let uri = std::mem::take(&mut req.uri);
            let hit = self.regexes.iter().find(|id| match &all[**id].kind {
                Kind::Regex(p) => p.exec(req, &uri),
                _ => false,
            });
            req.uri = uri;
            if let Some(id) = hit {
                return match all[*id].tree.find(all, req) {
                    Found::Final(inner) | Found::Prefix(inner) => Found::Final(inner),
                    Found::Nothing => Found::Final(*id),
                };
            }
        }
        best
    }
}

/// Chooses the location of a request by its path.
pub fn choose(http: &HttpRef, req: &mut Request) {
    let server = http.server(req);
    req.valid_location = true;
    req.location = match server.tree.find(&http.locations, req) {
        Found::Nothing => server.root,
        Found::Prefix(id) | Found::Final(id) => id,
    };
}

/// A prefix location, at any depth, that is the request's path plus a slash.
pub fn with_slash(http: &HttpRef, req: &Request) -> Option<LocationId> {
    let mut tree = &http.server(req).tree;
    loop {
        if let Some(id) = tree.with_slash(&req.uri) {
            return Some(id);
        }
        let inner = tree.prefix(&req.uri)?;
        tree = &http.locations.get(inner)?.tree;
    }
}
