//! The controller: follows the objects of a cluster and delivers configurations and servers of groups.
//!
//! One task owns all state. Changes of endpoints become the servers of groups, which need no new configuration, and overtake one
//! that waits. All other changes are gathered for a moment and become one. The next one is delivered when the last is applied, after
//! a pause.
//!
//! `mirror.rs` has the objects, `schedule.rs` the times, `outbox.rs` what the process that serves has, `refusals.rs` what that has
//! refused, and `task.rs` brings them together.

mod mirror;
mod outbox;
mod refusals;
mod schedule;
mod task;
#[cfg(test)]
mod tests;
mod watched;

pub use watched::{Seen, look};

use crate::api::{Api, Error};
use crate::lease::{self, Candidate};
use crate::status::Publish;
use crate::watch::{self, Change};
use crate::{health, tickets, webhook};
use forebay_k8s::Options;
use forebay_k8s::translate::Group;
use mirror::Place;
use std::collections::HashSet;
use std::path::{Path, PathBuf};
use std::rc::Rc;
use std::sync::Arc;
use task::{Controller, Inputs};
use tokio::net::TcpListener;
use tokio::sync::mpsc::{self, Receiver, UnboundedReceiver, UnboundedSender};
use tokio::sync::watch as flag;
use watched::resources;

/// Changes that wait for the controller; a watch that has more waits itself.
const CHANGES: usize = 1024;

/// Settings of the controller.
#[derive(Debug)]
pub struct Settings {
    /// Options of the translation.
    pub options: Options,
    /// Election of the replica that writes statuses and Events; `None`: this one does.
    pub election: Option<Candidate>,
    /// Addresses for statuses; `None`: no status is written.
    pub publish: Option<Publish>,
    /// Name of this replica in Events.
    pub identity: String,
    /// Listener of the admission webhook, to which the server passes its requests on.
    pub webhook: Option<std::net::TcpListener>,
    /// Listener for probes and metrics, to which the server passes their requests on.
    pub health: Option<std::net::TcpListener>,
    /// Files of this machine that the configuration names, by the paths that it has for them. They are read again every minute.
    pub files: Vec<(PathBuf, PathBuf)>,
}

/// Message to the process that serves.
#[derive(Clone, Debug)]
pub enum Delivery {
    /// New configuration.
    Configuration(Configuration),
    /// Servers of groups.
    Endpoints(Vec<Group>),
}

/// Configuration as a difference from the one before.
#[derive(Clone, Debug, Default)]
pub struct Configuration {
    /// Number that a [`Report`] names.
    pub number: u64,
    /// Everything that is not named is removed.
    pub complete: bool,
    /// Files that are removed.
    pub removed: Vec<Arc<Path>>,
    /// Files that are new or have changed.
    pub files: Vec<(Arc<Path>, Arc<[u8]>)>,
    /// Groups that are new or whose servers have changed.
    pub endpoints: Vec<Group>,
}

/// Answer of the process that serves.
#[derive(Clone, Debug)]
pub enum Report {
    /// The configuration of this number is in use.
    Applied(u64),
    /// The configuration of this number is not used, and why, with file and line.
    Refused(u64, String),
}

/// Runs the controller until it gets SIGTERM, or nobody takes its deliveries. It needs a `LocalSet`.
///
/// # Errors
/// The signal cannot be awaited. Failures of the API server are repeated.
pub async fn run(
    api: Api,
    mut settings: Settings,
    deliveries: UnboundedSender<Delivery>,
    reports: UnboundedReceiver<Report>,
    log: impl Fn(&str) + Clone + 'static,
) -> Result<(), Error> {
    let (unlisted, changes) = watch_all(&api, &settings.options, &log);
    let leads = elect(&api, &settings, log.clone());
    if let Some(secret) = settings.options.session_tickets.clone() {
        tokio::task::spawn_local(tickets::keep(api.clone(), secret, leads.clone(), log.clone()));
    }
    let judged = webhook::Settings::default();
    if let Some(listener) = settings.webhook.take() {
        let listener = to_tokio(listener, "webhook")?;
        let options = Rc::new(settings.options.clone());
        tokio::task::spawn_local(webhook::serve(listener, judged.clone(), options));
    }
    let health = health::Shared::default();
    if let Some(listener) = settings.health.take() {
        tokio::task::spawn_local(health::serve(to_tokio(listener, "health")?, health.clone()));
    }
    let mut controller = Controller::new(settings, deliveries, judged, Box::new(log.clone()));
    controller.mirror.expect(unlisted);
    controller.health = health;
    controller.follow(&api, Inputs { changes, reports, leads }, &log).await
}

/// Begins to watch all kinds of objects. Returns the lists that are to come, and the changes.
fn watch_all(
    api: &Api,
    options: &Options,
    log: &(impl Fn(&str) + Clone + 'static),
) -> (HashSet<Place>, Receiver<(Place, Change)>) {
    let (sender, changes) = mpsc::channel(CHANGES);
    let mut unlisted = HashSet::new();
    for (kind, resource) in resources(options) {
        let place = (kind, resource.namespace.clone());
        unlisted.insert(place.clone());
        let (api, sender, log) = (api.clone(), sender.clone(), log.clone());
        tokio::task::spawn_local(async move { watch::watch(api, place, resource, sender, log).await });
    }
    (unlisted, changes)
}

fn to_tokio(listener: std::net::TcpListener, purpose: &str) -> Result<TcpListener, Error> {
    let failed = |e: std::io::Error| Error::plain(format!("{purpose}: {e}"));
    listener.set_nonblocking(true).map_err(failed)?;
    TcpListener::from_std(listener).map_err(failed)
}

/// Returns whether this replica leads, now and later.
fn elect(api: &Api, settings: &Settings, log: impl Fn(&str) + 'static) -> flag::Receiver<bool> {
    let (sender, leads) = flag::channel(settings.election.is_none());
    if let Some(candidate) = settings.election.clone() {
        let api = api.clone();
        tokio::task::spawn_local(async move { lease::take_part(api, candidate, sender, log).await });
    }
    leads
}
