//! Calls to the store, as they go into a pipeline.

use super::messages::{self, Note, Tells};
use super::{Ask, Client, Shares, script};
use std::sync::Arc;

/// Zones of a configuration that use the store.
#[derive(Clone, Default)]
pub(super) struct Zones {
    /// Zones with limits.
    pub limits: Vec<Arc<dyn Shares>>,
    /// Zones whose replicas tell each other what they know.
    pub telling: Vec<Arc<dyn Tells>>,
}

/// A call, with the index of its zone among those of its kind.
pub(super) enum Call {
    /// Question about a limit.
    Ask(usize, Ask),
    /// Note of a zone.
    Note(usize, Note),
}

impl Call {
    /// Returns whether it is sent at once: a request waits for the answer, or may come to another replica next.
    pub(super) fn is_urgent(&self) -> bool {
        match self {
            Call::Ask(_, ask) => matches!(ask.client, Client::Request(_)),
            Call::Note(_, note) => matches!(note, Note::Look { .. } | Note::Bind { moves: true, .. }),
        }
    }
}

impl Zones {
    /// Notes that the store may have forgotten everything. Drops questions about limits, which are out of date.
    pub(super) fn renew(&self) {
        let mut dropped = Vec::new();
        self.limits.iter().for_each(|zone| zone.take_asks(&mut dropped));
        self.limits.iter().for_each(|zone| zone.renew());
        self.telling.iter().for_each(|zone| zone.renew());
    }

    /// Takes the calls that wait.
    pub(super) fn take_calls(&self) -> Vec<Call> {
        let mut calls = Vec::new();
        let (mut asks, mut notes) = (Vec::new(), Vec::new());
        for (index, zone) in self.limits.iter().enumerate() {
            zone.take_asks(&mut asks);
            calls.extend(asks.drain(..).map(|ask| Call::Ask(index, ask)));
        }
        for (index, zone) in self.telling.iter().enumerate() {
            zone.take_notes(&mut notes);
            calls.extend(notes.drain(..).map(|note| Call::Note(index, note)));
        }
        calls
    }

    /// Appends a call. `whole`: with the text of its script.
    pub(super) fn write(&self, out: &mut Vec<u8>, whole: bool, prefix: &[u8], replica: &str, call: &Call) {
        match call {
            Call::Ask(index, ask) => {
                let name = self.limits.get(*index).map(|zone| zone.name()).unwrap_or_default();
                script::ask(out, whole, prefix, name, replica, ask);
            }
            Call::Note(index, note) => {
                let name = self.telling.get(*index).map(|zone| zone.name()).unwrap_or_default();
                messages::note(out, whole, prefix, name, replica, note);
            }
        }
    }
}
