//! Groups of a configuration that is being read: those that `upstream` blocks define, and those that a directive implies by
//! naming an address or a host. `X` is what the front end adds to a group.

use super::block::Block;
use super::fallback::{Fallback, Written};
use super::server::plain_server;
use crate::upstream::group::{Group, Keepalive};
use crate::upstream::servers::{Discovery, Server};
use forebay_conf::error::Error;
use forebay_net::addr::Place;
use forebay_net::resolver::Resolver;
use std::collections::{HashMap, HashSet};
use std::sync::{Arc, OnceLock};

/// Group with the settings that its front end adds.
#[derive(Debug)]
pub struct Upstream<X> {
    /// The group.
    pub group: Arc<Group>,
    /// Properties for the front end.
    pub extras: X,
    /// `fallback`.
    pub(super) fallback: Option<Fallback<X>>,
}

/// A group that a directive names. The block that defines it may come later in the file.
#[derive(Debug)]
pub struct Named<X> {
    group: Arc<OnceLock<Arc<Upstream<X>>>>,
    /// Index in the list of groups under construction.
    at: usize,
}

impl<X> Named<X> {
    fn new(at: usize) -> Named<X> {
        Named { group: Arc::new(OnceLock::new()), at }
    }

    /// Returns the group, once the configuration has been read.
    pub fn get(&self) -> Option<&Arc<Upstream<X>>> {
        self.group.get()
    }
}

impl<X> Clone for Named<X> {
    fn clone(&self) -> Named<X> {
        Named { group: self.group.clone(), at: self.at }
    }
}

/// A group that is being built.
#[derive(Debug)]
struct Entry<X> {
    group: Group,
    extras: X,
    named: Named<X>,
    place: Place,
    default_port: u16,
    servers: Vec<Server>,
    fallback: Option<Written>,
    /// An error at the directive that first named it, with an empty text.
    at: Error,
}

/// Groups of a configuration under construction.
#[derive(Debug)]
pub struct Groups<X> {
    entries: Vec<Entry<X>>,
    /// Indices of the entries of each name. There may be tens of thousands of names.
    by_name: HashMap<Vec<u8>, Vec<usize>>,
    /// Names of `zone`s, and whether a size is given.
    zones: Vec<(Vec<u8>, bool)>,
}

impl<X> Default for Groups<X> {
    fn default() -> Groups<X> {
        Groups { entries: Vec::new(), by_name: HashMap::new(), zones: Vec::new() }
    }
}

/// Returns the port of a place; 0 for a unix socket.
fn port(place: &Place, default: u16) -> u16 {
    match place {
        Place::Host(_, port) => port.unwrap_or(default),
        Place::Unix(_) => 0,
    }
}

fn has_no_port(place: &Place) -> bool {
    matches!(place, Place::Host(_, None))
}

impl<X> Entry<X> {
    /// Returns `true` if a directive that names `place` means this group.
    fn is_at(&self, place: &Place, default_port: u16) -> bool {
        if self.group.explicit {
            return has_no_port(place);
        }
        port(&self.place, self.default_port) == port(place, default_port)
            && has_no_port(place) == has_no_port(&self.place)
    }

    fn name(&self) -> String {
        String::from_utf8_lossy(&self.group.name).into_owned()
    }

    fn error(&self, message: String) -> Error {
        Error { message, ..self.at.clone() }
    }

    /// Adds the server of a group that no block defines.
    fn imply_server(&mut self, explicit: &HashSet<Vec<u8>>, start_unresolved: bool) -> Result<(), Error> {
        let text = self.name();
        if let Place::Host(_, Some(port)) = &self.place
            && explicit.contains(&self.group.name)
        {
            return Err(self.error(format!("upstream \"{text}\" may not have port {port}")));
        }
        if self.default_port == 0 && has_no_port(&self.place) {
            return Err(self.error(format!("no port in upstream \"{text}\"")));
        }
        let mut server = plain_server(self.place.clone(), self.default_port);
        if server.found.is_empty() {
            if !start_unresolved {
                return Err(self.error(format!("host not found in upstream \"{text}\"")));
            }
            server.source = Discovery::Later;
        }
        self.servers.push(server);
        Ok(())
    }

    /// Sets the resolver of the level above if the group has none.
    fn set_resolver(&mut self, resolver: Option<&Arc<Resolver>>) -> Result<(), Error> {
        if self.group.resolver.is_none() {
            self.group.resolver = resolver.cloned();
        }
        let at_run_time = self.servers.iter().any(|s| matches!(s.source, Discovery::Resolve(_)));
        if at_run_time && self.group.resolver.is_none() {
            let text = self.name();
            let message = format!("no resolver defined to resolve names at run time in upstream \"{text}\"");
            return Err(self.error(message));
        }
        Ok(())
    }
}

impl<X> Groups<X> {
    /// Returns the entries of a name in the order in which they were added.
    fn with_name(&self, name: &[u8]) -> impl Iterator<Item = &Entry<X>> {
        self.by_name.get(name).into_iter().flatten().filter_map(|at| self.entries.get(*at))
    }

    fn add(&mut self, entry: Entry<X>) {
        self.by_name.entry(entry.group.name.clone()).or_default().push(self.entries.len());
        self.entries.push(entry);
    }
}

impl<X: Default> Groups<X> {
    /// Returns the group of a place that a directive names. Adds one if there is none.
    pub fn reference(&mut self, place: &Place, default_port: u16, at: Error) -> Named<X> {
        let name = place.host();
        let same = |e: &&Entry<X>| e.is_at(place, default_port);
        if let Some(known) = self.with_name(&name).find(same) {
            return known.named.clone();
        }
        let named = Named::new(self.entries.len());
        self.add(Entry {
            group: Group::new(name, false, Keepalive::implied()),
            extras: X::default(),
            named: named.clone(),
            place: place.clone(),
            default_port,
            servers: Vec::new(),
            fallback: None,
            at,
        });
        named
    }

    /// Returns a group for changes.
    pub fn entry(&mut self, named: &Named<X>) -> Option<(&mut Group, &mut X)> {
        let e = self.entries.get_mut(named.at)?;
        Some((&mut e.group, &mut e.extras))
    }

    /// Adds the group of a block. `at`: an error at its directive, with an empty text.
    ///
    /// # Errors
    /// `duplicate upstream "x"`.
    pub fn define(&mut self, block: Block, extras: X, at: Error) -> Result<(), String> {
        let Block { group, servers, fallback, zones, .. } = block;
        self.zones.extend(zones);
        let same = |e: &&Entry<X>| has_no_port(&e.place);
        let known = self.with_name(&group.name).find(same).map(|e| e.named.at);
        match known.and_then(|at| self.entries.get_mut(at)) {
            Some(e) if e.group.explicit => {
                return Err(format!("duplicate upstream \"{}\"", e.name()));
            }
            Some(e) => (e.group, e.extras, e.servers, e.fallback) = (group, extras, servers, fallback),
            None => {
                let place = Place::Host(group.name.clone(), None);
                let named = Named::new(self.entries.len());
                self.add(Entry { group, extras, named, place, default_port: 80, servers, fallback, at });
            }
        }
        Ok(())
    }

    /// Completes the groups; `complete` does so with what the front end has added to one. Also returns the errors.
    pub fn finish(
        self,
        resolver: Option<&Arc<Resolver>>,
        start_unresolved: bool,
        mut complete: impl FnMut(&mut X, &mut Vec<Error>),
    ) -> (Vec<Arc<Upstream<X>>>, Vec<Error>) {
        let mut errors = self.zones_without_size();
        let explicit: HashSet<Vec<u8>> =
            self.entries.iter().filter(|e| e.group.explicit).map(|e| e.group.name.clone()).collect();
        let mut fallbacks = self.fallbacks(&mut errors).into_iter();
        let mut done = Vec::new();
        for (mut e, number) in self.entries.into_iter().zip(0..) {
            if !e.group.explicit {
                errors.extend(e.imply_server(&explicit, start_unresolved).err());
            }
            errors.extend(e.set_resolver(resolver).err());
            complete(&mut e.extras, &mut errors);
            e.group.number = number;
            e.group.set_servers(e.servers);
            let fallback = fallbacks.next().flatten();
            let upstream = Arc::new(Upstream { group: Arc::new(e.group), extras: e.extras, fallback });
            let _ = e.named.group.set(upstream.clone());
            done.push(upstream);
        }
        (done, errors)
    }

    /// Finds the `fallback` of each group.
    fn fallbacks(&self, errors: &mut Vec<Error>) -> Vec<Option<Fallback<X>>> {
        let defined = |name: &[u8]| self.with_name(name).find(|e| e.group.explicit);
        let named = |name: &[u8]| defined(name).map(|e| e.named.clone());
        let next = |name: &[u8]| defined(name)?.fallback.as_ref()?.group();
        let mut found = Vec::new();
        for e in &self.entries {
            let fallback = e.fallback.as_ref().map(|f| f.find(&e.group.name, named, next)).transpose();
            found.push(fallback.unwrap_or_else(|e| {
                errors.push(e);
                None
            }));
        }
        found
    }

    fn zones_without_size(&self) -> Vec<Error> {
        let with_size: HashSet<&[u8]> =
            self.zones.iter().filter(|(_, sized)| *sized).map(|(zone, _)| zone.as_slice()).collect();
        let unsized_zones = self.zones.iter().filter(|(zone, _)| !with_size.contains(zone.as_slice()));
        let error = |zone: &[u8]| {
            let text = String::from_utf8_lossy(zone);
            crate::config::plain(&format!("zero size shared memory zone \"{text}\""))
        };
        unsized_zones.map(|(zone, _)| error(zone)).collect()
    }
}
