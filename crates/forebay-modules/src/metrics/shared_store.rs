//! The store that replicas share, for `prometheus`.

use super::prometheus::Exposition;
use forebay_core::shared_store::Link;
use serde_json::{Value, json};
use std::sync::atomic::Ordering::Relaxed;

/// Returns whether the store answers, for the API and the dashboard; null if the configuration has none.
pub(super) fn state() -> Value {
    let link = Link::of_process();
    if !link.is_used() {
        return Value::Null;
    }
    json!({
        "up": link.is_up(),
        "replicas": link.replicas(),
        "errors": link.counts.errors.load(Relaxed),
    })
}

/// Writes the series, if the configuration has a store.
pub(super) fn series(page: &mut Exposition) {
    let link = Link::of_process();
    if !link.is_used() {
        return;
    }
    let degraded = u64::from(!link.is_up());
    let help = "Whether limits are kept by the share of each replica, since the shared store does not answer";
    page.one("forebay_shared_limit_degraded", "gauge", help, degraded);
    let help = "Replicas that share limits, as last known";
    page.one("forebay_shared_limit_replicas", "gauge", help, u64::from(link.replicas()));
    let counts = &link.counts;
    for (name, help, count) in [
        ("limit_cells_asked", "Requests to admit that the shared store was asked for", &counts.asked),
        ("limit_cells_granted", "Requests to admit that the shared store has granted", &counts.granted),
        ("limit_cells_reported", "Requests admitted before the shared store was told", &counts.reported),
        ("limit_cells_returned", "Requests granted by the shared store and not used", &counts.returned),
        ("sessions_told", "Servers of sessions that other replicas were told", &counts.sessions_told),
        ("sessions_heard", "Servers of sessions that replicas have told", &counts.sessions_heard),
        ("sessions_asked", "Sessions that the shared store was asked for", &counts.sessions_asked),
        ("purges_told", "Purges of caches that other replicas were told", &counts.purges_told),
        ("purges_heard", "Purges of caches that other replicas have told", &counts.purges_heard),
        ("purges_lost", "Purges of caches that other replicas could not be told", &counts.purges_lost),
        ("messages_ignored", "Messages for no zone of this replica, or in no right form", &counts.ignored),
        ("messages_missed", "Times at which messages may have been missed", &counts.missed),
        ("store_errors", "Failures of the shared store", &counts.errors),
    ] {
        page.one(&format!("forebay_shared_{name}_total"), "counter", help, count.load(Relaxed));
    }
    let help = "Times from questions to the shared store to their answers";
    page.one_histogram("forebay_shared_store_latency_seconds", help, &counts.times());
}
