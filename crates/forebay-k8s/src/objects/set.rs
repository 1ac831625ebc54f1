//! The set of objects that a translation is made of.

use super::kinds::{ConfigMap, EndpointSlice, Ingress, IngressClass, Metadata, Namespace, Service};
use super::secret::Secret;
use serde::Deserialize;
use std::collections::{BTreeMap, HashMap, VecDeque};
use std::fmt;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

/// Kinds of objects that are read.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
#[allow(missing_docs)]
pub enum Kind {
    Ingress,
    IngressClass,
    Service,
    Secret,
    ConfigMap,
    Namespace,
    EndpointSlice,
}

impl Kind {
    /// All kinds.
    pub const ALL: [Kind; 7] = [
        Kind::Ingress,
        Kind::IngressClass,
        Kind::Service,
        Kind::Secret,
        Kind::ConfigMap,
        Kind::Namespace,
        Kind::EndpointSlice,
    ];

    /// Returns the name in `kind:`.
    pub fn name(self) -> &'static str {
        match self {
            Kind::Ingress => "Ingress",
            Kind::IngressClass => "IngressClass",
            Kind::Service => "Service",
            Kind::Secret => "Secret",
            Kind::ConfigMap => "ConfigMap",
            Kind::Namespace => "Namespace",
            Kind::EndpointSlice => "EndpointSlice",
        }
    }

    /// Returns the text of `apiVersion:`.
    pub fn api_version(self) -> &'static str {
        match self {
            Kind::Ingress | Kind::IngressClass => "networking.k8s.io/v1",
            Kind::EndpointSlice => "discovery.k8s.io/v1",
            _ => "v1",
        }
    }

    /// Returns `true` if objects of the kind belong to a namespace.
    pub fn namespaced(self) -> bool {
        !matches!(self, Kind::IngressClass | Kind::Namespace)
    }

    /// Finds a kind by its `apiVersion` and `kind`.
    pub fn find(api_version: &str, kind: &str) -> Option<Kind> {
        Kind::ALL.into_iter().find(|k| k.name() == kind && k.api_version() == api_version)
    }
}

/// Namespace and name of an object. The namespace is empty for kinds without one.
#[derive(Clone, Debug, Default, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct Key {
    /// Namespace.
    pub namespace: String,
    /// Name.
    pub name: String,
}

impl Key {
    /// Makes a key.
    pub fn new(namespace: impl Into<String>, name: impl Into<String>) -> Key {
        Key { namespace: namespace.into(), name: name.into() }
    }

    /// Reads `NAMESPACE/NAME`.
    pub fn parse(text: &str) -> Option<Key> {
        let (namespace, name) = text.split_once('/')?;
        let valid = |s: &str| !s.is_empty() && !s.contains('/');
        (valid(namespace) && valid(name)).then(|| Key::new(namespace, name))
    }
}

impl fmt::Display for Key {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        if self.namespace.is_empty() {
            return f.write_str(&self.name);
        }
        write!(f, "{}/{}", self.namespace, self.name)
    }
}

/// An object of any kind.
#[derive(Clone, Debug)]
#[allow(missing_docs)]
pub enum Object {
    Ingress(Arc<Ingress>),
    IngressClass(Arc<IngressClass>),
    Service(Arc<Service>),
    Secret(Arc<Secret>),
    ConfigMap(Arc<ConfigMap>),
    Namespace(Arc<Namespace>),
    EndpointSlice(Arc<EndpointSlice>),
}

impl Object {
    /// Reads an object of a kind.
    ///
    /// # Errors
    /// If a field that is read has another type than in the API.
    pub fn of(kind: Kind, value: serde_json::Value) -> Result<Object, String> {
        fn read<T: for<'de> Deserialize<'de>>(value: serde_json::Value) -> Result<Arc<T>, String> {
            serde_json::from_value(value).map(Arc::new).map_err(|e| e.to_string())
        }
        Ok(match kind {
            Kind::Ingress => Object::Ingress(read(value)?),
            Kind::IngressClass => Object::IngressClass(read(value)?),
            Kind::Service => Object::Service(read(value)?),
            Kind::Secret => Object::Secret(read(value)?),
            Kind::ConfigMap => Object::ConfigMap(read(value)?),
            Kind::Namespace => Object::Namespace(read(value)?),
            Kind::EndpointSlice => Object::EndpointSlice(read(value)?),
        })
    }

    /// Returns the kind.
    pub fn kind(&self) -> Kind {
        match self {
            Object::Ingress(_) => Kind::Ingress,
            Object::IngressClass(_) => Kind::IngressClass,
            Object::Service(_) => Kind::Service,
            Object::Secret(_) => Kind::Secret,
            Object::ConfigMap(_) => Kind::ConfigMap,
            Object::Namespace(_) => Kind::Namespace,
            Object::EndpointSlice(_) => Kind::EndpointSlice,
        }
    }

    /// Returns `metadata`.
    pub fn metadata(&self) -> &Metadata {
        match self {
            Object::Ingress(o) => &o.metadata,
            Object::IngressClass(o) => &o.metadata,
            Object::Service(o) => &o.metadata,
            Object::Secret(o) => &o.metadata,
            Object::ConfigMap(o) => &o.metadata,
            Object::Namespace(o) => &o.metadata,
            Object::EndpointSlice(o) => &o.metadata,
        }
    }

    /// Returns the key in the set.
    pub fn key(&self) -> Key {
        let metadata = self.metadata();
        let namespace = if self.kind().namespaced() { metadata.namespace.as_str() } else { "" };
        Key::new(namespace, metadata.name.as_str())
    }
}

/// An object with the revision at which the set took it.
#[derive(Clone, Debug)]
pub struct Stored<T> {
    /// The object.
    pub object: Arc<T>,
    /// Number that no other version of any object in the set has.
    pub revision: u64,
}

type Store<T> = BTreeMap<Key, Stored<T>>;

/// Changes that are remembered.
const REMEMBERED: usize = 20_000;

/// The set of objects by kind, namespace and name.
#[derive(Debug, Default)]
pub struct Objects {
    /// Number that no other set has.
    id: u64,
    revision: u64,
    /// The last changes: revision, kind and key. For an EndpointSlice it is the key of its Service.
    changes: VecDeque<(u64, Kind, Key)>,
    /// Revision of the last change that is no longer remembered.
    forgotten: u64,
    ingresses: Store<Ingress>,
    classes: Store<IngressClass>,
    services: Store<Service>,
    secrets: Store<Secret>,
    config_maps: Store<ConfigMap>,
    namespaces: Store<Namespace>,
    slices: Store<EndpointSlice>,
    /// Objects of the Gateway API.
    pub gateway: crate::gateway::GatewayObjects,
    /// Slices of each Service by their names.
    of_service: HashMap<Key, BTreeMap<String, Stored<EndpointSlice>>>,
}

impl Objects {
    /// Makes an empty set.
    pub fn new() -> Objects {
        static NEXT: AtomicU64 = AtomicU64::new(1);
        Objects { id: NEXT.fetch_add(1, Ordering::Relaxed), ..Objects::default() }
    }

    /// Returns the number of this set and that of its last change.
    pub(crate) fn version(&self) -> (u64, u64) {
        (self.id, self.revision)
    }

    /// Returns the kinds and keys that have changed since a version. `None`: it is of another set, or too long ago.
    pub(crate) fn changes_since(
        &self,
        (id, revision): (u64, u64),
    ) -> Option<impl Iterator<Item = (Kind, &Key)>> {
        if id != self.id || id == 0 || revision < self.forgotten {
            return None;
        }
        let recent = self.changes.iter().rev().take_while(move |(at, ..)| *at > revision);
        Some(recent.map(|(_, kind, key)| (*kind, key)))
    }

    fn note(&mut self, kind: Kind, key: Key) {
        if self.changes.len() >= REMEMBERED
            && let Some((revision, ..)) = self.changes.pop_front()
        {
            self.forgotten = revision;
        }
        self.changes.push_back((self.revision, kind, key));
    }

    /// Adds an object, in place of the one with its kind, namespace and name. Returns `false` if the two are equal: nothing changes then.
    /// Statuses and versions are no part of an object here.
    pub fn apply(&mut self, object: Object) -> bool {
        self.revision += 1;
        let (kind, key, revision) = (object.kind(), object.key(), self.revision);
        let changed = match object {
            Object::Ingress(o) => put(&mut self.ingresses, &key, o, revision),
            Object::IngressClass(o) => put(&mut self.classes, &key, o, revision),
            Object::Service(o) => put(&mut self.services, &key, o, revision),
            Object::Secret(o) => put(&mut self.secrets, &key, o, revision),
            Object::ConfigMap(o) => put(&mut self.config_maps, &key, o, revision),
            Object::Namespace(o) => put(&mut self.namespaces, &key, o, revision),
            Object::EndpointSlice(o) => return self.put_slice(key, o, revision),
        };
        if changed {
            self.note(kind, key);
        }
        changed
    }

    fn put_slice(&mut self, key: Key, object: Arc<EndpointSlice>, revision: u64) -> bool {
        let before = self.slices.get(&key);
        if before.is_some_and(|old| old.object == object) {
            return false;
        }
        self.drop_slice(&key);
        let stored = Stored { object, revision };
        if let Some(service) = stored.object.service_name() {
            let service = Key::new(key.namespace.as_str(), service);
            self.of_service.entry(service.clone()).or_default().insert(key.name.clone(), stored.clone());
            self.note(Kind::EndpointSlice, service);
        }
        self.slices.insert(key, stored);
        true
    }

    fn drop_slice(&mut self, key: &Key) {
        let Some(old) = self.slices.remove(key) else { return };
        let Some(service) = old.object.service_name() else { return };
        let service = Key::new(key.namespace.as_str(), service);
        if let Some(slices) = self.of_service.get_mut(&service) {
            slices.remove(&key.name);
            if slices.is_empty() {
                self.of_service.remove(&service);
            }
        }
        self.note(Kind::EndpointSlice, service);
    }

    /// Removes an object.
    pub fn delete(&mut self, kind: Kind, key: &Key) {
        self.revision += 1;
        let removed = match kind {
            Kind::Ingress => self.ingresses.remove(key).is_some(),
            Kind::IngressClass => self.classes.remove(key).is_some(),
            Kind::Service => self.services.remove(key).is_some(),
            Kind::Secret => self.secrets.remove(key).is_some(),
            Kind::ConfigMap => self.config_maps.remove(key).is_some(),
            Kind::Namespace => self.namespaces.remove(key).is_some(),
            Kind::EndpointSlice => return self.drop_slice(key),
        };
        if removed {
            self.note(kind, key.clone());
        }
    }

    /// Returns the Ingresses by key.
    pub fn ingresses(&self) -> impl Iterator<Item = (&Key, &Stored<Ingress>)> {
        self.ingresses.iter()
    }

    /// Returns the classes by key.
    pub fn classes(&self) -> impl Iterator<Item = (&Key, &Stored<IngressClass>)> {
        self.classes.iter()
    }

    /// Returns an Ingress.
    pub fn ingress(&self, key: &Key) -> Option<&Stored<Ingress>> {
        self.ingresses.get(key)
    }

    /// Returns a Service.
    pub fn service(&self, key: &Key) -> Option<&Stored<Service>> {
        self.services.get(key)
    }

    /// Returns a Secret.
    pub fn secret(&self, key: &Key) -> Option<&Stored<Secret>> {
        self.secrets.get(key)
    }

    /// Returns a ConfigMap.
    pub fn config_map(&self, key: &Key) -> Option<&Stored<ConfigMap>> {
        self.config_maps.get(key)
    }

    /// Returns a Namespace.
    pub fn namespace(&self, name: &str) -> Option<&Stored<Namespace>> {
        self.namespaces.get(&Key::new("", name))
    }

    /// Returns the slices of a Service by their names.
    pub fn slices(&self, service: &Key) -> impl Iterator<Item = &Stored<EndpointSlice>> {
        self.of_service.get(service).into_iter().flat_map(BTreeMap::values)
    }

    /// Returns the number of objects of a kind.
    pub fn count(&self, kind: Kind) -> usize {
        match kind {
            Kind::Ingress => self.ingresses.len(),
            Kind::IngressClass => self.classes.len(),
            Kind::Service => self.services.len(),
            Kind::Secret => self.secrets.len(),
            Kind::ConfigMap => self.config_maps.len(),
            Kind::Namespace => self.namespaces.len(),
            Kind::EndpointSlice => self.slices.len(),
        }
    }
}

/// Keeps an object, unless it equals the one that is there: then its revision stays, too. Returns `true` if it is kept.
fn put<T: PartialEq>(store: &mut Store<T>, key: &Key, object: Arc<T>, revision: u64) -> bool {
    let changed = store.get(key).is_none_or(|old| old.object != object);
    if changed {
        store.insert(key.clone(), Stored { object, revision });
    }
    changed
}
