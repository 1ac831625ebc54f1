//! Values of the ConfigMap that are suspected of a refusal, none of which is found to be its cause.

use forebay_k8s::objects::{ConfigMap, Kind};
use forebay_k8s::options::RefusedValue;
use forebay_k8s::{Key, Problem};
use std::collections::BTreeMap;
use std::time::{Duration, Instant};

/// Time after which a configuration that was refused without a known cause is tried again.
const TRY_AGAIN: Duration = Duration::from_secs(60);

/// Suspected values, while the last configuration that worked stays in use.
#[derive(Debug, Default)]
pub(crate) struct Suspects {
    values: BTreeMap<&'static str, RefusedValue>,
    /// Words of the server; empty: nothing is held.
    reason: String,
    /// Time of the last refusal, until the configuration is tried again.
    refused: Option<Instant>,
}

impl Suspects {
    /// Takes the values that were set aside in vain.
    pub(crate) fn hold(&mut self, values: &mut BTreeMap<&'static str, RefusedValue>, reason: String) {
        self.values.append(values);
        self.reason = reason;
        self.refused = Some(Instant::now());
    }

    /// Adds a value that must not be set aside, since it decides on access and has worked.
    pub(crate) fn add(&mut self, key: &'static str, value: RefusedValue) {
        self.values.insert(key, value);
    }

    /// Forgets all: a configuration is applied.
    pub(crate) fn clear(&mut self) {
        *self = Suspects::default();
    }

    /// Returns `true` if guesses have failed for a ConfigMap. With other values they may succeed.
    pub(crate) fn in_vain(&mut self, map: &ConfigMap) -> bool {
        if self.values.iter().any(|(key, suspect)| map.data.get(*key) != Some(&suspect.value)) {
            self.values.clear();
        }
        !self.values.is_empty()
    }

    /// Returns `true` once each time that the configuration is to be tried again.
    pub(crate) fn due(&mut self) -> bool {
        self.refused.take_if(|at| at.elapsed() >= TRY_AGAIN).is_some()
    }

    /// Makes the problem of each value, or that of the ConfigMap as a whole.
    pub(crate) fn problems(&self, name: Option<&Key>, map: Option<&ConfigMap>) -> Vec<Problem> {
        let mut metadata = map.map(|map| map.metadata.clone()).unwrap_or_default();
        if let Some(name) = name {
            (metadata.namespace, metadata.name) = (name.namespace.clone(), name.name.clone());
        }
        let problem = |field: String, what: &str, reason: &str| {
            let text = format!(
                "the server refuses the configuration{what}, the last one that worked stays: {reason}"
            );
            Problem::new(Kind::ConfigMap, &metadata, field, text).reason("NotBuilt")
        };
        let either = " with this value and without it";
        let of_values = self.values.iter().map(|(key, v)| problem(format!("data[{key}]"), either, &v.reason));
        let whole = self.values.is_empty() && name.is_some() && !self.reason.is_empty();
        of_values.chain(whole.then(|| problem("data".to_owned(), "", &self.reason))).collect()
    }

    #[cfg(test)]
    pub(crate) fn make_due(&mut self) {
        self.refused = self.refused.and_then(|at| at.checked_sub(TRY_AGAIN * 2));
    }
}
