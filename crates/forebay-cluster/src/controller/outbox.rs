//! Configurations on their way to the process that serves: the one that it has, and the next.

use super::{Configuration, Delivery};
use forebay_k8s::translate::{Deciding, Group, Groups, MAIN};
use std::collections::HashMap;
use std::path::Path;
use std::rc::Rc;
use std::sync::Arc;
use tokio::sync::mpsc::UnboundedSender;

/// Files by their paths. To compare paths takes long, so they are not sorted.
pub(super) type Files = HashMap<Arc<Path>, Arc<[u8]>, foldhash::fast::RandomState>;

/// Configuration that the process has not answered yet.
pub(super) struct InFlight {
    number: u64,
    pub(super) files: Rc<Files>,
    pub(super) deciding: Arc<Deciding>,
}

/// Result of handing out a configuration.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Handed {
    /// The files are as before: at most servers of groups were delivered.
    NoConfiguration,
    Configuration,
}

/// Deliveries to the process that serves.
pub(super) struct Outbox {
    /// Files and groups that were delivered last.
    files: Rc<Files>,
    groups: Groups,
    /// Files that were applied last.
    applied: Rc<Files>,
    number: u64,
    /// Configuration that is not applied yet.
    in_flight: Option<InFlight>,
    deliveries: UnboundedSender<Delivery>,
}

impl Outbox {
    pub(super) fn new(deliveries: UnboundedSender<Delivery>) -> Outbox {
        Outbox {
            files: Rc::default(),
            groups: Groups::default(),
            applied: Rc::default(),
            number: 0,
            in_flight: None,
            deliveries,
        }
    }

    /// Returns `true` if a configuration has been delivered.
    pub(super) fn has_begun(&self) -> bool {
        self.number > 0
    }

    /// Returns `true` while a configuration is not answered.
    pub(super) fn is_waiting(&self) -> bool {
        self.in_flight.is_some()
    }

    /// Returns a file that was delivered last.
    pub(super) fn file(&self, path: &Path) -> Option<&Arc<[u8]>> {
        self.files.get(path)
    }

    /// Returns the files that were applied last.
    pub(super) fn applied(&self) -> Rc<Files> {
        self.applied.clone()
    }

    /// Takes the configuration that the process has applied with all before it.
    pub(super) fn take_applied(&mut self, number: u64) -> Option<Arc<Deciding>> {
        let applied = self.in_flight.take_if(|c| c.number <= number)?;
        self.applied = applied.files;
        Some(applied.deciding)
    }

    /// Takes the files of the configuration that the process has refused.
    pub(super) fn take_refused(&mut self, number: u64) -> Option<Rc<Files>> {
        self.in_flight.take_if(|c| c.number == number).map(|refused| refused.files)
    }

    /// Has the main file delivered again although it has not changed.
    pub(super) fn repeat(&mut self) {
        Rc::make_mut(&mut self.files).remove(Path::new(MAIN));
    }

    /// Delivers the servers of some groups that have changed. Groups that the process does not know yet come with the configuration
    /// that has them.
    pub(super) fn send_some(&mut self, mut some: Vec<Group>) {
        some.retain(|(name, servers)| self.groups.get(name).is_none_or(|before| before != servers));
        if !some.is_empty() {
            Arc::make_mut(&mut self.groups).extend(some.iter().cloned());
        }
        self.send_endpoints(some);
    }

    /// Delivers the servers of groups that have changed.
    pub(super) fn send_groups(&mut self, groups: Groups) {
        let changed = changed(&self.groups, &groups);
        self.groups = groups;
        self.send_endpoints(changed);
    }

    fn send_endpoints(&self, groups: Vec<Group>) {
        if !groups.is_empty() {
            let _ = self.deliveries.send(Delivery::Endpoints(groups));
        }
    }

    /// Delivers what differs from the configuration before.
    pub(super) fn send(&mut self, files: Files, groups: Groups, deciding: Arc<Deciding>) -> Handed {
        let configuration = self.difference(&files, &groups);
        self.groups = groups;
        if !configuration.complete && configuration.removed.is_empty() && configuration.files.is_empty() {
            self.send_endpoints(configuration.endpoints);
            return Handed::NoConfiguration;
        }
        self.number += 1;
        self.files = Rc::new(files);
        self.in_flight = Some(InFlight { number: self.number, files: self.files.clone(), deciding });
        let _ = self.deliveries.send(Delivery::Configuration(configuration));
        Handed::Configuration
    }

    fn difference(&self, files: &Files, groups: &Groups) -> Configuration {
        let mut stay = 0;
        let mut same = |(path, bytes): &(&Arc<Path>, &Arc<[u8]>)| {
            let before = self.files.get(*path);
            stay += usize::from(before.is_some());
            before.is_some_and(|before| Arc::ptr_eq(before, bytes) || before == *bytes)
        };
        let others = files.iter().filter(|file| !same(file));
        let others = others.map(|(path, bytes)| (path.clone(), bytes.clone())).collect();
        // To look for each file takes long, and seldom is one gone.
        let gone = |path: &&Arc<Path>| stay < self.files.len() && !files.contains_key(*path);
        Configuration {
            number: self.number + 1,
            complete: self.number == 0,
            removed: self.files.keys().filter(gone).cloned().collect(),
            files: others,
            endpoints: changed(&self.groups, groups),
        }
    }
}

/// Returns the groups whose servers have changed. A group that is gone needs no change.
fn changed(before: &Groups, now: &Groups) -> Vec<Group> {
    if Arc::ptr_eq(before, now) {
        return Vec::new();
    }
    let is_new = |(name, servers): &(&Arc<str>, &Arc<[_]>)| {
        before.get(*name).is_none_or(|old| !Arc::ptr_eq(old, servers) && old != *servers)
    };
    now.iter().filter(is_new).map(|(name, servers)| (name.clone(), servers.clone())).collect()
}
