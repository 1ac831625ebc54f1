//! The objects of the cluster, as watches show them.

use super::watched::{Watched, key_of};
use crate::status::{GatewayStatuses, Statuses};
use crate::watch::Change;
use crate::webhook;
use forebay_k8s::objects::{ConfigMap, Kind, Object};
use forebay_k8s::{Key, Objects};
use serde_json::Value;
use std::collections::{HashMap, HashSet};

/// A list of objects: their kind, and the namespace if it is one of several.
pub(super) type Place = (Watched, Option<String>);

/// Effect of a change that a watch shows.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Effect {
    /// The translation stays the same.
    Nothing,
    /// Objects of the kind say something else, or are known now.
    Changed,
}

/// Objects of the cluster and their statuses.
#[derive(Default)]
pub(super) struct Mirror {
    pub(super) objects: Objects,
    /// Objects of each kind, so that a list tells which are gone.
    known: HashMap<Watched, HashSet<Key>>,
    /// Objects of those that lists under way have not shown.
    unseen: HashMap<Place, HashSet<Key>>,
    /// Kinds that have not been listed yet: nothing is delivered before, since it would withdraw what is not known yet.
    unlisted: HashSet<Place>,
    pub(super) statuses: Statuses,
    pub(super) gateway_statuses: GatewayStatuses,
    /// Objects that the webhook judges with.
    judged: webhook::Settings,
    /// The ConfigMap of the controller.
    config_map: Option<Key>,
}

impl Mirror {
    pub(super) fn new(config_map: Option<Key>, statuses: Statuses, judged: webhook::Settings) -> Mirror {
        Mirror { statuses, judged, config_map, ..Mirror::default() }
    }

    /// Waits for the lists of some kinds.
    pub(super) fn expect(&mut self, unlisted: HashSet<Place>) {
        self.unlisted = unlisted;
    }

    /// Returns `true` if all kinds have been listed.
    pub(super) fn is_complete(&self) -> bool {
        self.unlisted.is_empty()
    }

    /// Returns the ConfigMap of the controller.
    pub(super) fn config_map(&self) -> Option<&ConfigMap> {
        let key = self.config_map.as_ref()?;
        self.objects.config_map(key).map(|map| &*map.object)
    }

    /// Takes a change of the objects of a kind.
    pub(super) fn change(&mut self, place: Place, change: Change, log: &dyn Fn(&str)) -> Effect {
        let kind = place.0;
        match change {
            Change::Listing => {
                let here = |key: &&Key| place.1.as_ref().is_none_or(|n| key.namespace == *n);
                let known = self.known.entry(kind).or_default().iter().filter(here).cloned().collect();
                self.unseen.insert(place, known);
                return Effect::Nothing;
            }
            Change::Page(page) => return self.page(&place, page, log),
            // Most changes are those of statuses, many of them our own.
            Change::Set(value) => return self.set(kind, value, log).1,
            Change::Listed => {
                let gone = self.unseen.remove(&place).unwrap_or_default();
                gone.iter().for_each(|key| self.gone(kind, key));
                self.unlisted.remove(&place);
            }
            Change::Gone(value) => self.gone(kind, &key_of(&value)),
            Change::Unknown => drop(self.unlisted.remove(&place)),
        }
        Effect::Changed
    }

    /// Takes objects of a list.
    fn page(&mut self, place: &Place, page: Vec<Value>, log: &dyn Fn(&str)) -> Effect {
        let mut all = Effect::Nothing;
        for value in page {
            let (key, effect) = self.set(place.0, value, log);
            if effect == Effect::Changed {
                all = effect;
            }
            if let Some(unseen) = self.unseen.get_mut(place) {
                unseen.remove(&key);
            }
        }
        all
    }

    /// Adds an object, or replaces it. Returns its name too. An object that cannot be read keeps its former content.
    pub(super) fn set(&mut self, kind: Watched, value: Value, log: &dyn Fn(&str)) -> (Key, Effect) {
        let key = key_of(&value);
        let applied = match kind {
            Watched::Core(kind) => {
                self.statuses.note(kind, &key, Some(&value));
                Object::of(kind, value).map(|object| {
                    if self.is_for_webhook(kind, &key) {
                        self.judged.borrow_mut().insert((kind, key.clone()), object.clone());
                    }
                    self.objects.apply(object)
                })
            }
            Watched::Gateway(kind) => {
                self.gateway_statuses.note(kind, &key, value.get("status"));
                self.objects.gateway.apply(kind, key.clone(), value)
            }
        };
        if let Err(error) = &applied {
            log(&format!("{} {key} cannot be read: {error}", kind.name()));
        }
        self.known.entry(kind).or_default().insert(key.clone());
        let effect = if applied.unwrap_or(false) { Effect::Changed } else { Effect::Nothing };
        (key, effect)
    }

    /// Returns `true` for the ConfigMap, the classes, namespaces and Ingresses.
    fn is_for_webhook(&self, kind: Kind, key: &Key) -> bool {
        matches!(kind, Kind::IngressClass | Kind::Ingress | Kind::Namespace)
            || kind == Kind::ConfigMap && self.config_map.as_ref() == Some(key)
    }

    fn gone(&mut self, kind: Watched, key: &Key) {
        match kind {
            Watched::Core(kind) => {
                self.objects.delete(kind, key);
                self.judged.borrow_mut().remove(&(kind, key.clone()));
                self.statuses.note(kind, key, None);
            }
            Watched::Gateway(kind) => {
                self.objects.gateway.delete(kind, key);
                self.gateway_statuses.gone(kind, key);
            }
        }
        if let Some(known) = self.known.get_mut(&kind) {
            known.remove(key);
        }
    }
}
