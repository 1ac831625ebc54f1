//! Objects as a part of a translation sees them: what it looks at is written down, so that the part is made anew when that changes.

use crate::judge::Judge;
use crate::objects::{ConfigMap, Key, Kind, Objects, Secret, Service, Stored};
use std::cell::RefCell;
use std::sync::Arc;

/// An object that a part depends on, and the revision that it had; 0: it did not exist.
pub(crate) type Dependency = (Kind, Key, u64);

/// Objects, with a record of those looked at.
pub(crate) struct View<'a> {
    objects: &'a Objects,
    judge: &'a Judge,
    seen: RefCell<Vec<Dependency>>,
}

impl<'a> View<'a> {
    pub(crate) fn new(objects: &'a Objects, judge: &'a Judge) -> View<'a> {
        View { objects, judge, seen: RefCell::default() }
    }

    pub(crate) fn service(&self, key: &Key) -> Option<Arc<Service>> {
        self.note(Kind::Service, key, self.objects.service(key))
    }

    /// Returns a Secret without the certificates and keys that no server can use.
    pub(crate) fn secret(&self, key: &Key) -> Option<Arc<Secret>> {
        self.note(Kind::Secret, key, self.objects.secret(key)).map(|secret| self.judge.secret(secret))
    }

    pub(crate) fn config_map(&self, key: &Key) -> Option<Arc<ConfigMap>> {
        self.note(Kind::ConfigMap, key, self.objects.config_map(key))
    }

    fn note<T>(&self, kind: Kind, key: &Key, found: Option<&Stored<T>>) -> Option<Arc<T>> {
        let mut seen = self.seen.borrow_mut();
        if !seen.iter().any(|(k, at, _)| *k == kind && at == key) {
            seen.push((kind, key.clone(), found.map_or(0, |s| s.revision)));
        }
        found.map(|s| s.object.clone())
    }

    pub(crate) fn into_dependencies(self) -> Vec<Dependency> {
        self.seen.into_inner()
    }
}

/// Returns the revision of an object; 0: it does not exist.
pub(crate) fn revision(objects: &Objects, kind: Kind, key: &Key) -> u64 {
    fn of<T>(found: Option<&Stored<T>>) -> u64 {
        found.map_or(0, |s| s.revision)
    }
    match kind {
        Kind::Ingress => of(objects.ingress(key)),
        Kind::Service => of(objects.service(key)),
        Kind::Secret => of(objects.secret(key)),
        Kind::ConfigMap => of(objects.config_map(key)),
        Kind::IngressClass | Kind::Namespace | Kind::EndpointSlice => 0,
    }
}

/// Returns `true` if nothing that a part depends on has changed.
pub(crate) fn current(objects: &Objects, dependencies: &[Dependency]) -> bool {
    dependencies.iter().all(|(kind, key, then)| revision(objects, *kind, key) == *then)
}
