//! Groups of a configuration that is being read: those that `upstream` blocks define, and those that a directive implies by
//! naming an address or a host. `X` is what the front end adds to a group.
//!
//! Groups have numbers, which name the same group in one configuration after the other ([`Numbers`]). So a server that is taken over from
//! the configuration before finds its groups, whether these are new or not.

use super::block::Block;
use super::fallback::{Fallback, Written};
use super::server::plain_server;
use crate::upstream::group::{Group, Keepalive};
use crate::upstream::servers::{Discovery, Server};
use foldhash::fast::RandomState;
use forebay_conf::error::Error;
use forebay_net::addr::Place;
use forebay_net::resolver::Resolver;
use forebay_sys::sync::lock;
use std::collections::{HashMap, HashSet};
use std::marker::PhantomData;
use std::sync::{Arc, Mutex, OnceLock};

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

impl<X> Upstream<X> {
    /// Returns `true` if a later configuration may have the same group without reading its block: nothing in it depends on other
    /// groups.
    pub fn is_self_contained(&self) -> bool {
        !matches!(self.fallback, Some(Fallback::Group(_)))
    }
}

/// A group that a directive names. The block that defines it may come later in the file. [`Table::get`] finds it.
#[derive(Debug)]
pub struct Named<X> {
    number: u32,
    of: PhantomData<fn() -> X>,
}

impl<X> Clone for Named<X> {
    fn clone(&self) -> Named<X> {
        *self
    }
}

impl<X> Copy for Named<X> {}

/// Identity of a group over several configurations.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
struct Key {
    name: Vec<u8>,
    /// For a place that a directive names: its port, and whether the port is written. `None`: the group of a block.
    named: Option<(u16, bool)>,
}

/// Numbers of the groups of one configuration after another.
#[derive(Clone, Debug, Default)]
pub struct Numbers(Arc<Mutex<HashMap<Key, u32>>>);

impl Numbers {
    fn of(&self, key: Key) -> u32 {
        let mut all = lock(&self.0);
        let next = u32::try_from(all.len()).unwrap_or(u32::MAX);
        *all.entry(key).or_insert(next)
    }

    /// Returns how many groups have had numbers.
    pub fn count(&self) -> usize {
        lock(&self.0).len()
    }
}

/// The groups of a configuration that has been read.
pub struct Table<X> {
    /// Groups in file order.
    all: Vec<Arc<Upstream<X>>>,
    by_number: Vec<Option<Arc<Upstream<X>>>>,
    /// Indices by name, made when they are first needed.
    by_name: OnceLock<HashMap<Vec<u8>, Vec<usize>>>,
}

impl<X: std::fmt::Debug> std::fmt::Debug for Table<X> {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_list().entries(&self.all).finish()
    }
}

impl<X> Default for Table<X> {
    fn default() -> Table<X> {
        Table { all: Vec::new(), by_number: Vec::new(), by_name: OnceLock::new() }
    }
}

impl<X> Table<X> {
    /// Returns the group that a directive names.
    #[inline]
    pub fn get(&self, named: Named<X>) -> Option<&Arc<Upstream<X>>> {
        self.by_number.get(named.number as usize)?.as_ref()
    }

    /// Returns the group of a number.
    pub fn at(&self, number: u32) -> Option<&Arc<Upstream<X>>> {
        self.by_number.get(number as usize)?.as_ref()
    }

    /// Returns all groups in file order.
    pub fn iter(&self) -> std::slice::Iter<'_, Arc<Upstream<X>>> {
        self.all.iter()
    }

    /// Returns the groups with a name, in file order.
    pub fn with_name(&self, name: &[u8]) -> impl Iterator<Item = &Arc<Upstream<X>>> {
        let by_name = self.by_name.get_or_init(|| {
            let mut by_name: HashMap<Vec<u8>, Vec<usize>> = HashMap::new();
            for (at, upstream) in self.all.iter().enumerate() {
                by_name.entry(upstream.group.name.clone()).or_default().push(at);
            }
            by_name
        });
        by_name.get(name).into_iter().flatten().filter_map(|at| self.all.get(*at))
    }
}

impl<'t, X> IntoIterator for &'t Table<X> {
    type Item = &'t Arc<Upstream<X>>;
    type IntoIter = std::slice::Iter<'t, Arc<Upstream<X>>>;
    fn into_iter(self) -> Self::IntoIter {
        self.iter()
    }
}

/// A group that is being built.
#[derive(Debug)]
struct Entry<X> {
    group: Group,
    extras: X,
    place: Place,
    default_port: u16,
    servers: Vec<Server>,
    fallback: Option<Written>,
    /// An error at the directive that first named it, with an empty text.
    at: Error,
}

/// A place that a directive names.
#[derive(Debug)]
struct Mention {
    number: u32,
    name: Vec<u8>,
    place: Place,
    default_port: u16,
    at: Error,
}

/// A group of a configuration under construction.
#[derive(Debug)]
enum Item<X> {
    New(Box<Entry<X>>),
    /// It is that of a block, or has one server.
    Mentioned(Box<Mention>),
    /// Taken over from the configuration before.
    Kept(Arc<Upstream<X>>),
}

impl<X> Item<X> {
    fn number(&self) -> u32 {
        match self {
            Item::New(entry) => entry.group.number,
            Item::Mentioned(mention) => mention.number,
            Item::Kept(upstream) => upstream.group.number,
        }
    }

    fn name(&self) -> &[u8] {
        match self {
            Item::New(entry) => &entry.group.name,
            Item::Mentioned(mention) => &mention.name,
            Item::Kept(upstream) => &upstream.group.name,
        }
    }

    fn entry(&self) -> Option<&Entry<X>> {
        match self {
            Item::New(entry) => Some(entry),
            Item::Mentioned(_) | Item::Kept(_) => None,
        }
    }

    /// Returns `true` if a directive named it by a name without a port, which a block may define.
    fn is_bare_name(&self) -> bool {
        match self {
            Item::New(entry) => !entry.group.explicit && has_no_port(&entry.place),
            Item::Mentioned(mention) => has_no_port(&mention.place),
            Item::Kept(_) => false,
        }
    }
}

impl Mention {
    /// Makes the group that it implies.
    fn entry<X: Default>(self) -> Entry<X> {
        let mut group = Group::new(self.name, false, Keepalive::implied());
        group.number = self.number;
        Entry {
            group,
            extras: X::default(),
            place: self.place,
            default_port: self.default_port,
            servers: Vec::new(),
            fallback: None,
            at: self.at,
        }
    }
}

/// Groups of a configuration under construction.
#[derive(Debug)]
pub struct Groups<X> {
    items: Vec<Item<X>>,
    /// Indices of the items by number.
    by_number: Vec<Option<usize>>,
    /// Indices of the groups of blocks by name.
    defined: HashMap<Vec<u8>, usize, RandomState>,
    numbers: Numbers,
    /// Names of `zone`s, and whether a size is given.
    zones: Vec<(Vec<u8>, bool)>,
    /// Places that directives have named since [`Groups::begin_uses`].
    uses: Option<Uses>,
}

/// Places that a part of a configuration names, with their numbers and default ports.
#[derive(Clone, Debug, Default)]
pub struct Uses {
    places: Vec<(u32, Place, u16)>,
    zones: Vec<(Vec<u8>, bool)>,
}

impl Uses {
    /// Adds those of another part.
    pub fn append(&mut self, mut other: Uses) {
        self.places.append(&mut other.places);
        self.zones.append(&mut other.zones);
    }
}

impl<X> Default for Groups<X> {
    fn default() -> Groups<X> {
        Groups {
            items: Vec::new(),
            by_number: Vec::new(),
            defined: HashMap::default(),
            numbers: Numbers::default(),
            zones: Vec::new(),
            uses: None,
        }
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
    fn name(&self) -> String {
        String::from_utf8_lossy(&self.group.name).into_owned()
    }

    fn error(&self, message: String) -> Error {
        Error { message, ..self.at.clone() }
    }

    /// Adds the server of a group that no block defines; `defined`: a block has its name.
    fn imply_server(&mut self, defined: bool, start_unresolved: bool) -> Result<(), Error> {
        let text = self.name();
        if let Place::Host(_, Some(port)) = &self.place
            && defined
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
        let at_run_time =
            self.servers.iter().any(|s| matches!(s.source, Discovery::Resolve(_) | Discovery::Search(_)));
        if at_run_time && self.group.resolver.is_none() {
            let text = self.name();
            let message = format!("no resolver defined to resolve names at run time in upstream \"{text}\"");
            return Err(self.error(message));
        }
        Ok(())
    }
}

impl<X> Groups<X> {
    /// Has groups keep the numbers that they had in former configurations.
    pub fn number_by(&mut self, numbers: Numbers) {
        self.numbers = numbers;
    }

    /// Adds a group; `defined`: a block defines it.
    fn add(&mut self, item: Item<X>, defined: bool) {
        self.set_number(item.number(), self.items.len());
        if defined {
            self.defined.insert(item.name().to_vec(), self.items.len());
        }
        self.items.push(item);
    }

    /// Has a number stand for the group of a block, if one that has been read defines the name.
    fn is_of_block(&mut self, number: u32, place: &Place) -> bool {
        let Place::Host(name, None) = place else { return false };
        let Some(at) = self.defined.get(name.as_slice()).copied() else { return false };
        self.set_number(number, at);
        true
    }

    fn set_number(&mut self, number: u32, at: usize) {
        let number = number as usize;
        if self.by_number.len() <= number {
            self.by_number.resize(number + 1, None);
        }
        if let Some(place) = self.by_number.get_mut(number) {
            *place = Some(at);
        }
    }

    fn at_number(&self, number: u32) -> Option<usize> {
        self.by_number.get(number as usize).copied().flatten()
    }

    /// Returns the group of a block.
    pub fn defined(&self, name: &[u8]) -> Option<Named<X>> {
        let item = self.items.get(*self.defined.get(name)?)?;
        Some(Named { number: item.number(), of: PhantomData })
    }

    /// Begins to note which groups directives name.
    pub fn begin_uses(&mut self) {
        self.uses = Some(Uses::default());
    }

    /// Returns what was noted, and notes no more.
    pub fn end_uses(&mut self) -> Uses {
        self.uses.take().unwrap_or_default()
    }

    /// Adds a group of the configuration before.
    ///
    /// # Errors
    /// `duplicate upstream "x"`.
    pub fn keep(&mut self, upstream: Arc<Upstream<X>>) -> Result<(), String> {
        self.check_new(&upstream.group.name)?;
        self.add(Item::Kept(upstream), true);
        Ok(())
    }

    fn check_new(&self, name: &[u8]) -> Result<(), String> {
        match self.defined.contains_key(name) {
            true => Err(format!("duplicate upstream \"{}\"", String::from_utf8_lossy(name))),
            false => Ok(()),
        }
    }
}

impl<X: Default> Groups<X> {
    /// Returns the group of a place that a directive names. Adds one if there is none.
    pub fn reference(&mut self, place: &Place, default_port: u16, at: Error) -> Named<X> {
        let name = place.host();
        let named = Some((port(place, default_port), !has_no_port(place)));
        let number = self.numbers.of(Key { name: name.clone(), named });
        if let Some(uses) = &mut self.uses {
            uses.places.push((number, place.clone(), default_port));
        }
        if self.at_number(number).is_none() && !self.is_of_block(number, place) {
            let mention = Mention { number, name, place: place.clone(), default_port, at };
            self.add(Item::Mentioned(Box::new(mention)), false);
        }
        Named { number, of: PhantomData }
    }

    /// Names groups again as a part of a former configuration did.
    pub fn use_again(&mut self, uses: &Uses) {
        for (number, place, default_port) in &uses.places {
            if self.at_number(*number).is_none() && !self.is_of_block(*number, place) {
                let (number, name, at) = (*number, place.host(), crate::config::plain(""));
                let mention = Mention { number, name, place: place.clone(), default_port: *default_port, at };
                self.add(Item::Mentioned(Box::new(mention)), false);
            }
        }
        self.zones.extend(uses.zones.iter().cloned());
    }

    /// Returns a group for changes, once all blocks have been read.
    pub fn entry(&mut self, named: Named<X>) -> Option<(&mut Group, &mut X)> {
        let at = self.index_of(named.number)?;
        let item = self.items.get_mut(at)?;
        if let Item::Mentioned(mention) = item {
            let Mention { number, name, place, default_port, at } = &**mention;
            let (name, place, at) = (name.clone(), place.clone(), at.clone());
            let mention = Mention { number: *number, name, place, default_port: *default_port, at };
            *item = Item::New(Box::new(mention.entry()));
        }
        match item {
            Item::New(entry) => Some((&mut entry.group, &mut entry.extras)),
            Item::Mentioned(_) | Item::Kept(_) => None,
        }
    }

    /// Returns the index of the group that a number means: that of a block, if one defines the bare name.
    fn index_of(&self, number: u32) -> Option<usize> {
        let at = self.at_number(number)?;
        let item = self.items.get(at)?;
        let defined = item.is_bare_name().then(|| self.defined.get(item.name())).flatten();
        Some(defined.copied().unwrap_or(at))
    }

    /// Adds the group of a block. `at`: an error at its directive, with an empty text.
    ///
    /// # Errors
    /// `duplicate upstream "x"`.
    pub fn define(&mut self, block: Block, extras: X, at: Error) -> Result<(), String> {
        let Block { group, servers, fallback, zones, .. } = block;
        if let Some(uses) = &mut self.uses {
            uses.zones.extend(zones.iter().cloned());
        }
        self.zones.extend(zones);
        self.check_new(&group.name)?;
        let place = Place::Host(group.name.clone(), None);
        let mut group = group;
        group.number = self.numbers.of(Key { name: group.name.clone(), named: None });
        let entry = Entry { group, extras, place, default_port: 80, servers, fallback, at };
        self.add(Item::New(Box::new(entry)), true);
        Ok(())
    }

    /// Completes the groups; `complete` does so with what the front end has added to one. Also returns the errors.
    pub fn finish(
        self,
        resolver: Option<&Arc<Resolver>>,
        start_unresolved: bool,
        mut complete: impl FnMut(&mut X, &mut Vec<Error>),
    ) -> (Table<X>, Vec<Error>) {
        let mut errors = self.zones_without_size();
        let mut fallbacks = self.fallbacks(&mut errors).into_iter();
        let numbers = 0..u32::try_from(self.by_number.len()).unwrap_or(u32::MAX);
        let means: Vec<Option<usize>> = numbers.map(|number| self.index_of(number)).collect();
        // Groups that stand for nothing, since a block defines their name, are left out.
        let mut done: Vec<Option<Arc<Upstream<X>>>> = Vec::with_capacity(self.items.len());
        for item in self.items {
            let fallback = fallbacks.next().flatten();
            if let Item::Kept(upstream) = item {
                done.push(Some(upstream));
                continue;
            }
            let defined = self.defined.contains_key(item.name());
            if defined && item.is_bare_name() {
                done.push(None);
                continue;
            }
            let mut e = match item {
                Item::New(entry) => *entry,
                Item::Mentioned(mention) => mention.entry(),
                Item::Kept(_) => continue,
            };
            if !e.group.explicit {
                errors.extend(e.imply_server(defined, start_unresolved).err());
            }
            errors.extend(e.set_resolver(resolver).err());
            complete(&mut e.extras, &mut errors);
            e.group.set_servers(e.servers);
            done.push(Some(Arc::new(Upstream { group: Arc::new(e.group), extras: e.extras, fallback })));
        }
        let by_number = means.into_iter().map(|at| done.get(at?).cloned().flatten()).collect();
        let all = done.into_iter().flatten().collect();
        (Table { all, by_number, by_name: OnceLock::new() }, errors)
    }

    /// Finds the `fallback` of each group.
    fn fallbacks(&self, errors: &mut Vec<Error>) -> Vec<Option<Fallback<X>>> {
        let defined = |name: &[u8]| self.items.get(*self.defined.get(name)?);
        let named = |name: &[u8]| defined(name).map(|i| Named { number: i.number(), of: PhantomData });
        // A group that was kept has no other as its fallback.
        let next = |name: &[u8]| defined(name)?.entry()?.fallback.as_ref()?.group();
        let mut found = Vec::new();
        for item in &self.items {
            let written = item.entry().and_then(|e| Some((e, e.fallback.as_ref()?)));
            let fallback = written.map(|(e, f)| f.find(&e.group.name, named, next)).transpose();
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
