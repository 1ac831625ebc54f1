//! The controller: follows the objects of a cluster and delivers configurations and servers of groups.
//!
//! One task owns all state. Changes of endpoints become the servers of groups, which need no new configuration, and overtake one
//! that waits. All other changes are gathered for a moment and become one. The next one is delivered when the last is applied, after
//! a pause.

use crate::api::{Api, Error};
use crate::events::{self, Events};
use crate::lease::{self, Candidate};
use crate::ports;
use crate::status::{self, GatewayServices, GatewayStatuses, Publish, Statuses};
use crate::suspects::Suspects;
use crate::watch::{self, Change, Resource};
use crate::{guilty, health, tickets, webhook};
use forebay_k8s::blame::line_of;
use forebay_k8s::closed;
use forebay_k8s::gateway::GatewayKind;
use forebay_k8s::objects::{ConfigMap, Kind, Object};
use forebay_k8s::options::RefusedValue;
use forebay_k8s::settings::{OnFailure, on_failure};
use forebay_k8s::translate::{Deciding, Group, Groups, MAIN, suspect};
use forebay_k8s::{Accepted, Key, Objects, Options, Problem, Translation, Translator};
use forebay_sys::errno::errno;
use forebay_sys::files;
use serde_json::Value;
use std::cell::RefCell;
use std::collections::{HashMap, HashSet};
use std::path::{Path, PathBuf};
use std::rc::Rc;
use std::sync::Arc;
use std::time::{Duration, Instant};
use tokio::net::TcpListener;
use tokio::signal::unix::{SignalKind, signal};
use tokio::sync::mpsc::{self, UnboundedReceiver, UnboundedSender};
use tokio::sync::watch as flag;

/// Time for which changes are gathered: of endpoints, and of anything else.
const GATHER_ENDPOINTS: Duration = Duration::from_millis(10);
const GATHER: Duration = Duration::from_millis(50);
/// Pause after a configuration, as a multiple of the time that it took, and the longest one. Many changes in a row then take a
/// fifth of the time of all processes, and endpoints seldom wait for a configuration.
const REST: u32 = 4;
const LONGEST_REST: Duration = Duration::from_millis(500);
/// Changes that wait for the controller; a watch that has more waits itself.
const CHANGES: usize = 1024;
/// Events that are created in a second.
const EVENTS_A_SECOND: usize = 10;
/// Time after which files of this machine are read again.
const LOOK_AGAIN: Duration = Duration::from_secs(60);
/// Time for the last request of a replica that ends.
const PARTING: Duration = Duration::from_secs(2);
/// Time after which values that the process refused are tried again: a name may have an address by then.
const TRY_AGAIN: Duration = Duration::from_secs(600);
/// Time after which hosts are judged that there was no time for, at first and at most. Each judgement that leaves some doubles it, since
/// nothing else is done meanwhile.
const JUDGE_AGAIN: Duration = Duration::from_secs(2);
const LONGEST_JUDGE_AGAIN: Duration = Duration::from_secs(600);
/// Pause between two looks at statuses and Events.
const TICK: Duration = Duration::from_secs(1);
/// Time after which memory is given back to the system.
const TRIM: Duration = Duration::from_secs(15);

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
    mut reports: UnboundedReceiver<Report>,
    log: impl Fn(&str) + Clone + 'static,
) -> Result<(), Error> {
    let (sender, mut changes) = mpsc::channel(CHANGES);
    let mut unlisted = HashSet::new();
    for (kind, resource) in resources(&settings.options) {
        unlisted.insert((kind, resource.namespace.clone()));
        let kind = (kind, resource.namespace.clone());
        let (api, sender, log) = (api.clone(), sender.clone(), log.clone());
        tokio::task::spawn_local(async move { watch::watch(api, kind, resource, sender, log).await });
    }
    drop(sender);
    let leads = elect(&api, &settings, log.clone());
    if let Some(secret) = settings.options.session_tickets.clone() {
        tokio::task::spawn_local(tickets::keep(api.clone(), secret, leads.clone(), log.clone()));
    }
    let judged = webhook::Settings::default();
    if let Some(listener) = settings.webhook.take() {
        let failed = |e: std::io::Error| Error::plain(format!("webhook: {e}"));
        listener.set_nonblocking(true).map_err(failed)?;
        let listener = TcpListener::from_std(listener).map_err(failed)?;
        let options = Rc::new(settings.options.clone());
        tokio::task::spawn_local(webhook::serve(listener, judged.clone(), options));
    }
    let health = health::Shared::default();
    if let Some(listener) = settings.health.take() {
        let failed = |e: std::io::Error| Error::plain(format!("health: {e}"));
        listener.set_nonblocking(true).map_err(failed)?;
        let listener = TcpListener::from_std(listener).map_err(failed)?;
        tokio::task::spawn_local(health::serve(listener, health.clone()));
    }
    let mut controller = Controller::new(settings, deliveries, Box::new(log.clone()));
    controller.unlisted = unlisted;
    controller.judged = judged;
    controller.health = health;
    let mut tick = tokio::time::interval(TICK);
    let failed = |e: std::io::Error| Error::plain(format!("no signals: {e}"));
    let mut term = signal(SignalKind::terminate()).map_err(failed)?;
    loop {
        let due = controller.due();
        tokio::select! {
            change = changes.recv() => {
                let Some(((kind, namespace), change)) = change else { return Ok(()) };
                controller.change(kind, namespace, change);
            }
            report = reports.recv() => match report {
                Some(report) => {
                    controller.report(report);
                    if *leads.borrow() {
                        controller.publish(&api, &log);
                    }
                }
                None => return Ok(()),
            },
            () = sleep_until(due), if due.is_some() => controller.sync(),
            _ = term.recv() => {
                let leading = *leads.borrow();
                controller.leave(&api, leading).await;
                return Ok(());
            }
            _ = tick.tick() => {
                controller.look_again();
                controller.try_ports();
                controller.trim();
                if *leads.borrow() {
                    controller.publish(&api, &log);
                }
            }
        }
    }
}

async fn sleep_until(at: Option<Instant>) {
    if let Some(at) = at {
        tokio::time::sleep_until(at.into()).await;
    }
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

/// Kind of objects that are watched.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
enum Watched {
    /// Of Kubernetes itself.
    Core(Kind),
    /// Of the Gateway API, which a cluster may lack.
    Gateway(GatewayKind),
}

impl Watched {
    fn name(self) -> &'static str {
        match self {
            Watched::Core(kind) => kind.name(),
            Watched::Gateway(kind) => kind.name(),
        }
    }
}

/// Returns what is watched.
fn resources(options: &Options) -> Vec<(Watched, Resource)> {
    let kind = |kind: Watched, group: String, plural, selector: &str, namespaces: &[String]| {
        let optional =
            matches!(kind, Watched::Gateway(GatewayKind::TelemetryPolicy | GatewayKind::ClusterTrustBundle));
        let resource = |namespace| Resource {
            group: group.clone(),
            plural,
            namespace,
            optional,
            selector: selector.to_owned(),
        };
        match namespaces {
            [] => vec![(kind, resource(None))],
            some => some.iter().map(|n| (kind, resource(Some(n.clone())))).collect(),
        }
    };
    // Objects of these kinds are large, and no Ingress refers to them.
    let secrets = "&fieldSelector=type!%3Dhelm.sh/release.v1,type!%3Dkubernetes.io/service-account-token";
    let config_maps = "&fieldSelector=metadata.name!%3Dkube-root-ca.crt";
    // The objects that options name may be in namespaces that are not watched.
    let mut wide = options.watch_namespaces.clone();
    if !wide.is_empty() {
        let named = [&options.config_map, &options.default_backend_service, &options.default_ssl_certificate];
        let named = named
            .into_iter()
            .chain([&options.tcp_services, &options.udp_services])
            .chain([&options.session_tickets])
            .flatten();
        wide.extend(named.map(|key| key.namespace.clone()));
        wide.sort();
        wide.dedup();
    }
    let own = options.watch_namespaces.as_slice();
    let core = |of, group: &str, plural, selector, namespaces| {
        kind(Watched::Core(of), group.to_owned(), plural, selector, namespaces)
    };
    let networking = "/apis/networking.k8s.io/v1";
    let mut all = [
        core(Kind::Ingress, networking, "ingresses", "", own),
        core(Kind::IngressClass, networking, "ingressclasses", "", &[]),
        core(Kind::Service, "/api/v1", "services", "", &wide),
        core(Kind::EndpointSlice, "/apis/discovery.k8s.io/v1", "endpointslices", "", &wide),
        core(Kind::Secret, "/api/v1", "secrets", secrets, &wide),
        core(Kind::ConfigMap, "/api/v1", "configmaps", config_maps, &wide),
    ]
    .concat();
    // Labels of namespaces decide which routes may attach, and which Ingresses are served.
    if !options.gateway.controller.is_empty() || !options.namespace_selector.is_empty() {
        all.extend(core(Kind::Namespace, "/api/v1", "namespaces", "", &[]));
    }
    if !options.gateway.controller.is_empty() {
        for of in GatewayKind::ALL {
            let group = format!("/apis/{}/{}", of.group(), of.version());
            let namespaces = if of.namespaced() { own } else { &[] };
            all.extend(kind(Watched::Gateway(of), group, of.plural(), "", namespaces));
        }
    }
    all
}

/// Objects of a cluster at one time, for tools that look and go.
#[derive(Debug, Default)]
pub struct Seen {
    /// Objects that Ingresses and the Gateway API consist of.
    pub objects: Objects,
    /// Kinds and objects that could not be read, with the reasons.
    pub unread: Vec<String>,
}

/// Reads the objects that Ingresses consist of, once. A kind that must not be read is noted, except Ingresses.
///
/// # Errors
/// The API server cannot be reached, or refuses the list of Ingresses.
pub async fn look(api: &Api, options: &Options) -> Result<Seen, Error> {
    let mut seen = Seen::default();
    for (kind, resource) in resources(options) {
        let values = RefCell::new(Vec::new());
        let take = async |change| {
            if let Change::Page(page) = change {
                values.borrow_mut().extend(page);
            }
            true
        };
        match watch::list(api, &resource, &take).await {
            Ok(_) => {}
            Err(error) if kind == Watched::Core(Kind::Ingress) => return Err(error),
            // Not all clusters have the Gateway API.
            Err(error) if matches!(kind, Watched::Gateway(_)) && error.is_not_found() => continue,
            Err(error) => {
                seen.unread.push(format!("{}: {error}", resource.plural));
                continue;
            }
        }
        for value in values.into_inner() {
            let key = key_of(&value);
            let applied = match kind {
                Watched::Core(kind) => Object::of(kind, value).map(|object| seen.objects.apply(object)),
                Watched::Gateway(kind) => seen.objects.gateway.apply(kind, key.clone(), value),
            };
            if let Err(error) = applied {
                seen.unread.push(format!("{} {key}: {error}", kind.name()));
            }
        }
    }
    Ok(seen)
}

/// Kinds of changes that wait, with the time of the first of them.
#[derive(Debug, Default)]
struct Waiting {
    endpoints: Option<Instant>,
    others: Option<Instant>,
}

/// A file that was refused, which is replaced by the last one that was applied.
#[derive(Debug)]
struct Quarantined {
    refused: Arc<[u8]>,
    instead: Option<Arc<[u8]>>,
    reason: String,
}

/// Files by their paths. To compare paths takes long, so they are not sorted.
type Files = HashMap<Arc<Path>, Arc<[u8]>, foldhash::fast::RandomState>;

/// Configuration that the process has not answered yet.
struct InFlight {
    number: u64,
    files: Rc<Files>,
    deciding: Arc<Deciding>,
}

struct Controller {
    settings: Settings,
    objects: Objects,
    translator: Translator,
    /// Objects of each kind, so that a list tells which are gone.
    known: HashMap<Watched, HashSet<Key>>,
    /// Objects of those that lists under way have not shown.
    unseen: HashMap<(Watched, Option<String>), HashSet<Key>>,
    /// Kinds that have not been listed yet: nothing is delivered before, since it would withdraw what is not known yet.
    unlisted: HashSet<(Watched, Option<String>)>,
    waiting: Waiting,
    /// Files and groups that were delivered last.
    files: Rc<Files>,
    groups: Groups,
    /// Files that were applied last.
    applied: Rc<Files>,
    quarantined: HashMap<Arc<Path>, Quarantined>,
    number: u64,
    /// Configuration that is not applied yet.
    in_flight: Option<InFlight>,
    /// Time of the last delivery of a configuration.
    delivered: Instant,
    /// Time before which no other one is delivered.
    rests_until: Instant,
    statuses: Statuses,
    gateway_statuses: GatewayStatuses,
    gateway_services: GatewayServices,
    events: Events,
    /// Time at which the files of this machine were read last.
    looked: Instant,
    /// Time of the last look at ports that were taken.
    ports_tried: Instant,
    /// Time at which memory was given back last, and whether anything has changed since.
    trimmed: Instant,
    changed: bool,
    /// Time at which the process refused a value of the ConfigMap last, until it is tried again.
    key_refused: Option<Instant>,
    /// The same for objects of the Gateway API.
    objects_refused: Option<Instant>,
    suspects: Suspects,
    /// Time after which hosts are judged that there was no time for.
    judge_again: Duration,
    /// Objects that the webhook judges with.
    judged: webhook::Settings,
    health: health::Shared,
    accepted: Arc<[Arc<Accepted>]>,
    problems: Vec<Problem>,
    deliveries: UnboundedSender<Delivery>,
    log: Box<dyn Fn(&str)>,
}

impl Controller {
    fn new(settings: Settings, deliveries: UnboundedSender<Delivery>, log: Box<dyn Fn(&str)>) -> Controller {
        let statuses = Statuses::new(settings.publish.clone().unwrap_or_default());
        Controller {
            settings,
            objects: Objects::new(),
            translator: Translator::default(),
            known: HashMap::new(),
            unseen: HashMap::new(),
            unlisted: HashSet::new(),
            waiting: Waiting::default(),
            files: Rc::default(),
            groups: Groups::default(),
            applied: Rc::default(),
            quarantined: HashMap::new(),
            number: 0,
            in_flight: None,
            delivered: Instant::now(),
            rests_until: Instant::now(),
            statuses,
            gateway_statuses: GatewayStatuses::default(),
            gateway_services: GatewayServices::default(),
            events: Events::default(),
            looked: Instant::now(),
            ports_tried: Instant::now(),
            trimmed: Instant::now(),
            changed: false,
            key_refused: None,
            objects_refused: None,
            suspects: Suspects::default(),
            judge_again: JUDGE_AGAIN,
            judged: Rc::default(),
            health: Rc::default(),
            accepted: Arc::default(),
            problems: Vec::new(),
            deliveries,
            log,
        }
    }

    /// Takes a change of the objects of a kind.
    fn change(&mut self, kind: Watched, namespace: Option<String>, change: Change) {
        match change {
            Change::Listing => {
                let here = |key: &&Key| namespace.as_ref().is_none_or(|n| key.namespace == *n);
                let known = self.known.entry(kind).or_default().iter().filter(here).cloned().collect();
                self.unseen.insert((kind, namespace), known);
                return;
            }
            Change::Page(page) => {
                let place = (kind, namespace);
                let mut changed = false;
                for value in page {
                    let (key, is_other) = self.set(kind, value);
                    changed |= is_other;
                    if let Some(unseen) = self.unseen.get_mut(&place) {
                        unseen.remove(&key);
                    }
                }
                if !changed {
                    return;
                }
            }
            Change::Listed => {
                let place = (kind, namespace);
                let gone = self.unseen.remove(&place).unwrap_or_default();
                gone.iter().for_each(|key| self.gone(kind, key));
                self.unlisted.remove(&place);
            }
            Change::Set(value) => {
                // Most changes are those of statuses, many of them our own.
                if !self.set(kind, value).1 {
                    return;
                }
            }
            Change::Gone(value) => self.gone(kind, &key_of(&value)),
            Change::Unknown => {
                self.unlisted.remove(&(kind, namespace));
            }
        }
        self.note_change(kind);
    }

    fn note_change(&mut self, kind: Watched) {
        self.changed = true;
        let now = Instant::now();
        match kind {
            Watched::Core(Kind::EndpointSlice) => self.waiting.endpoints.get_or_insert(now),
            _ => self.waiting.others.get_or_insert(now),
        };
    }

    /// Adds an object, or replaces it. Returns its name, and whether it differs from the former one in what it says. An object that
    /// cannot be read keeps its former content.
    fn set(&mut self, kind: Watched, value: Value) -> (Key, bool) {
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
            (self.log)(&format!("{} {key} cannot be read: {error}", kind.name()));
        }
        self.known.entry(kind).or_default().insert(key.clone());
        (key, applied.unwrap_or(false))
    }

    /// Returns `true` for the ConfigMap, the classes, namespaces and Ingresses.
    fn is_for_webhook(&self, kind: Kind, key: &Key) -> bool {
        matches!(kind, Kind::IngressClass | Kind::Ingress | Kind::Namespace)
            || kind == Kind::ConfigMap && self.settings.options.config_map.as_ref() == Some(key)
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

    /// Returns the time of the next [`Controller::sync`]. A configuration under way delays the next one, not endpoints.
    fn due(&self) -> Option<Instant> {
        if !self.unlisted.is_empty() {
            return None;
        }
        let others = self.configuration_due();
        let endpoints = self.waiting.endpoints.map(|at| at + GATHER_ENDPOINTS);
        [others, endpoints].into_iter().flatten().min()
    }

    /// Returns the time of the next configuration.
    fn configuration_due(&self) -> Option<Instant> {
        let waiting = self.waiting.others.filter(|_| self.in_flight.is_none())?;
        Some((waiting + GATHER).max(self.rests_until))
    }

    /// Translates the objects and delivers what has changed.
    fn sync(&mut self) {
        // The first configuration is complete: it would drop endpoints that came before it.
        if self.number > 0 && self.configuration_due().is_none_or(|at| at > Instant::now()) {
            self.waiting.endpoints = None;
            self.deliver_endpoints();
            return;
        }
        self.waiting = Waiting::default();
        let translation = self.translator.translate(&self.objects, &self.settings.options);
        self.deliver(translation);
    }

    /// Delivers the endpoints that have changed. Groups that the process does not know yet come with the configuration that has them.
    fn deliver_endpoints(&mut self) {
        let changed = match self.translator.endpoints(&self.objects, &self.settings.options) {
            Some(mut some) => {
                some.retain(|(name, servers)| self.groups.get(name).is_none_or(|before| before != servers));
                if !some.is_empty() {
                    Arc::make_mut(&mut self.groups).extend(some.iter().cloned());
                }
                some
            }
            None => {
                let groups = self.translator.translate(&self.objects, &self.settings.options).groups;
                let changed = changed(&self.groups, &groups);
                self.groups = groups;
                changed
            }
        };
        if !changed.is_empty() {
            let _ = self.deliveries.send(Delivery::Endpoints(changed));
        }
    }

    fn deliver(&mut self, translation: Translation) {
        let Translation { files, groups, problems, accepted, statuses, services, deciding, unjudged } =
            translation;
        if unjudged {
            self.waiting.others.get_or_insert(Instant::now() + self.judge_again);
        }
        let next = (self.judge_again * 2).min(LONGEST_JUDGE_AGAIN);
        self.judge_again = if unjudged { next } else { JUDGE_AGAIN };
        self.gateway_services.want(services);
        self.gateway_statuses.want(statuses);
        self.accepted = accepted;
        self.problems = problems;
        self.note_health();
        let own =
            self.settings.files.iter().map(|(path, from)| (Arc::from(path.as_path()), self.read(path, from)));
        let files = files.into_iter().chain(own).collect();
        let files = Rc::new(self.without_refused(files));
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
        let configuration = Configuration {
            number: self.number + 1,
            complete: self.number == 0,
            removed: self.files.keys().filter(gone).cloned().collect(),
            files: others,
            endpoints: changed(&self.groups, &groups),
        };
        self.groups = groups;
        if !configuration.complete && configuration.removed.is_empty() && configuration.files.is_empty() {
            if !configuration.endpoints.is_empty() {
                let _ = self.deliveries.send(Delivery::Endpoints(configuration.endpoints));
            }
            return;
        }
        self.number += 1;
        self.delivered = Instant::now();
        self.in_flight = Some(InFlight { number: self.number, files: files.clone(), deciding });
        self.files = files;
        let _ = self.deliveries.send(Delivery::Configuration(configuration));
    }

    /// Reads a file of this machine. One that cannot be read keeps its former content.
    fn read(&self, path: &Path, from: &Path) -> Arc<[u8]> {
        match files::read_file(from, files::MAX_WHOLE) {
            Ok(bytes) => bytes.into(),
            Err(error) => {
                (self.log)(&format!("{}: {}", from.display(), errno(&error)));
                self.files.get(path).cloned().unwrap_or_default()
            }
        }
    }

    /// Replaces files that were refused by the last ones that were applied, as long as they are the same as those refused.
    fn without_refused(&mut self, mut files: Files) -> Files {
        self.quarantined.retain(|path, q| files.get(path) == Some(&q.refused));
        for (path, q) in &self.quarantined {
            match &q.instead {
                Some(instead) => files.insert(path.clone(), instead.clone()),
                // The file that includes it names it: it has to be there.
                None => files.insert(path.clone(), Arc::from(&b""[..])),
            };
        }
        files
    }

    fn report(&mut self, report: Report) {
        let now = Instant::now();
        self.rests_until = now + ((now - self.delivered) * REST).min(LONGEST_REST);
        match report {
            Report::Applied(number) => {
                if let Some(applied) = self.in_flight.take_if(|c| c.number <= number) {
                    self.applied = applied.files;
                    self.translator.worked(&applied.deciding);
                    self.suspects.clear();
                    self.health.borrow_mut().refused = None;
                    self.note_health();
                }
            }
            Report::Refused(number, reason) => {
                let Some(refused) = self.in_flight.take_if(|c| c.number == number) else { return };
                self.refused(&refused.files, reason);
            }
        }
    }

    /// Sets the files aside that made the process refuse a configuration, so that all others have effect.
    fn refused(&mut self, files: &Files, reason: String) {
        (self.log)(&format!("a configuration was refused: {reason}"));
        if ports::set_all_aside(&mut self.objects.gateway, &reason) {
            self.waiting.others.get_or_insert(Instant::now());
            return;
        }
        self.health.borrow_mut().refusals += 1;
        let applied = self.applied.clone();
        let mut guilty = guilty::find(&self.settings.options.judge, files.iter(), |path| applied.get(path));
        if guilty.is_empty() && self.set_key_aside(files, &reason) {
            self.waiting.others.get_or_insert(Instant::now());
            return;
        }
        if guilty.is_empty() {
            let named = place(&reason).and_then(|(path, _)| files.get_key_value(path));
            guilty.extend(named.map(|(path, _)| (path.clone(), reason.clone())));
        }
        let mut changed = false;
        if guilty.iter().any(|(path, _)| is_of_gateways(path)) && self.set_objects_aside() {
            changed = true;
            guilty.retain(|(path, _)| !is_of_gateways(path));
        }
        for (path, reason) in guilty {
            changed |= self.set_aside(files, &path, reason);
        }
        if changed {
            self.waiting.others.get_or_insert(Instant::now());
        } else {
            self.hold(reason);
        }
    }

    /// Leaves the last configuration that worked in use: no file and no value is known to be the cause of a refusal. The next one has
    /// all values again, so that nothing is opened or closed by guesses that did not help.
    fn hold(&mut self, reason: String) {
        self.suspects.hold(&mut self.settings.options.refused, reason.clone());
        self.key_refused = None;
        self.health.borrow_mut().refused = Some(reason);
        self.note_health();
    }

    /// Sets the value of the ConfigMap aside that made the process refuse a configuration. Returns `false` if none is to blame.
    fn set_key_aside(&mut self, files: &Files, reason: &str) -> bool {
        let Some(map) = self.config_map().cloned() else { return false };
        let place = place(reason).and_then(|(path, line)| Some((path, line_of(files.get(path)?, line))));
        let shared = place.as_ref().is_none_or(|(path, _)| is_main(path) || path.ends_with("hosts/_.conf"));
        let line = place.map(|(_, line)| line).unwrap_or_default();
        let guess = shared && !self.suspects.in_vain(&map);
        let Some(key) = suspect(&map, &self.settings.options, &line, reason, guess) else { return false };
        let value = map.data.get(key).cloned().unwrap_or_default();
        // There is no other one to return to, so to set it aside would close all paths.
        let worked = self.translator.last(key) == Some(value.as_str());
        let decides = on_failure(key, &value) == OnFailure::Close;
        let refused = RefusedValue { value, reason: reason.to_owned() };
        if worked && decides {
            self.suspects.add(key, refused);
            return false;
        }
        (self.log)(&format!("the value of {key} in the ConfigMap is set aside: {reason}"));
        self.settings.options.refused.insert(key, refused);
        self.key_refused = Some(Instant::now());
        true
    }

    /// Closes the Gateways, routes and policies that made the process refuse a configuration. Returns `false` if none is to blame.
    fn set_objects_aside(&mut self) -> bool {
        let found = self.translator.guilty_gateways(&self.objects);
        for ((kind, key), reason) in &found {
            (self.log)(&format!("{} {key} is closed, as the server refuses it: {reason}", kind.name()));
        }
        let closed = found
            .into_iter()
            .fold(false, |any, (place, reason)| self.objects.gateway.set_aside(place, reason) | any);
        if closed {
            self.objects_refused = Some(Instant::now());
        }
        closed
    }

    /// Sets a file aside in favour of the last one that was applied. Returns `false` if it is already.
    fn set_aside(&mut self, files: &Files, path: &Arc<Path>, reason: String) -> bool {
        let Some(refused) = files.get(path).filter(|_| !is_main(path)) else { return false };
        (self.log)(&format!("{} is set aside: {reason}", path.display()));
        // The process has the content that it refused: the next delivery has to differ from it. Requests for a host that never worked
        // must not reach the server of a wildcard or of all hosts.
        let instead = self.applied.get(path).filter(|applied| *applied != refused).cloned();
        let instead = instead.or_else(|| closed::closed(path, refused).filter(|closed| closed != refused));
        match self.quarantined.get_mut(path) {
            // The server refused the stand-in of the file, too.
            Some(aside) if aside.instead.as_ref() == Some(refused) => aside.instead = None,
            Some(_) => return false,
            None => {
                let aside = Quarantined { refused: refused.clone(), instead, reason };
                self.quarantined.insert(path.clone(), aside);
            }
        }
        true
    }

    /// Returns the ConfigMap of the controller.
    fn config_map(&self) -> Option<&ConfigMap> {
        let key = self.settings.options.config_map.as_ref()?;
        self.objects.config_map(key).map(|map| &*map.object)
    }

    /// Returns all problems: those of the translation, of files that were refused and of suspected values.
    fn all_problems(&self) -> Vec<Problem> {
        let files = self.quarantined.iter().flat_map(|(path, q)| self.of_file(path, &q.reason));
        let suspected = self.suspects.problems(self.settings.options.config_map.as_ref(), self.config_map());
        self.problems.iter().cloned().chain(files).chain(suspected).collect()
    }

    /// Notes what is set aside, for probes and metrics.
    fn note_health(&self) {
        self.health.borrow_mut().note(&self.all_problems());
    }

    /// Writes statuses and Events that are due. The leader does.
    fn publish(&mut self, api: &Api, log: &(impl Fn(&str) + Clone + 'static)) {
        let mut statuses = if self.settings.publish.is_some() {
            self.statuses.due(self.accepted.iter().map(|accepted| &accepted.key))
        } else {
            Vec::new()
        };
        let events = self.events.due(&self.all_problems(), &self.settings.identity, EVENTS_A_SECOND);
        // Statuses wait until the configuration that they describe is applied.
        if self.in_flight.is_none() {
            statuses.extend(self.gateway_statuses.due());
        }
        let services = self.gateway_services.due(|key| self.objects.service(key).is_some());
        if statuses.is_empty() && events.is_empty() && services.is_empty() {
            return;
        }
        let (api, log) = (api.clone(), log.clone());
        tokio::task::spawn_local(async move {
            status::write(&api, statuses, &log).await;
            status::write_services(&api, services, &log).await;
            events::send(&api, events, &log).await;
        });
    }

    /// Has the files of this machine read again when it is time to, and values of the ConfigMap tried again.
    fn look_again(&mut self) {
        if self.key_refused.take_if(|at| at.elapsed() >= TRY_AGAIN).is_some() {
            self.settings.options.refused.clear();
            self.waiting.others.get_or_insert(Instant::now());
        }
        let due = self.objects_refused.take_if(|at| at.elapsed() >= TRY_AGAIN).is_some();
        if due && self.objects.gateway.take_back() {
            self.waiting.others.get_or_insert(Instant::now());
        }
        if self.suspects.due() {
            // It is delivered although nothing has changed.
            Rc::make_mut(&mut self.files).remove(Path::new(MAIN));
            self.waiting.others.get_or_insert(Instant::now());
        }
        if !self.settings.files.is_empty() && self.looked.elapsed() >= LOOK_AGAIN {
            self.looked = Instant::now();
            self.waiting.others.get_or_insert(self.looked);
        }
    }

    /// Takes ports back that are free again, when it is time to look.
    fn try_ports(&mut self) {
        let now = Instant::now();
        if self.ports_tried + ports::PAUSE <= now {
            self.ports_tried = now;
            if ports::take_back(&mut self.objects.gateway) {
                self.waiting.others.get_or_insert(now);
            }
        }
    }

    /// Gives memory back to the system when it is time to. Lists, and the answers to statuses, leave pages that are mostly free.
    fn trim(&mut self) {
        if self.changed && self.trimmed.elapsed() >= TRIM {
            forebay_sys::heap::trim();
            (self.changed, self.trimmed) = (false, Instant::now());
        }
    }

    /// Has another replica lead at once.
    async fn leave(&self, api: &Api, leads: bool) {
        if let Some(candidate) = self.settings.election.as_ref().filter(|_| leads) {
            // A replica that cannot be told waits for the end of the lease.
            let _ = tokio::time::timeout(PARTING, lease::release(api, candidate)).await;
        }
    }

    /// Returns the problem of each Ingress that has a part in a file that was refused.
    fn of_file(&self, path: &Path, reason: &str) -> Vec<Problem> {
        let ingresses = self.translator.ingresses_of(path);
        let ingresses = ingresses.into_iter().filter_map(|key| self.objects.ingress(&key));
        let problem = |ingress: &forebay_k8s::objects::Ingress| {
            let text = format!("its host keeps the last configuration that worked: {reason}");
            Problem::new(Kind::Ingress, &ingress.metadata, "spec", text).reason("HostRefused")
        };
        ingresses.map(|stored| problem(&stored.object)).collect()
    }
}

/// Returns `true` for the file that includes all others, which cannot be left out.
fn is_main(path: &Path) -> bool {
    path == Path::new(MAIN)
}

/// Returns `true` for a file that all Gateways share.
fn is_of_gateways(path: &Path) -> bool {
    path.starts_with("gateways")
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

fn key_of(value: &Value) -> Key {
    let text = |pointer| value.pointer(pointer).and_then(Value::as_str).unwrap_or_default();
    Key::new(text("/metadata/namespace"), text("/metadata/name"))
}

/// Returns the file and the line that an error of the configuration names at its end: `TEXT in PATH:LINE`.
fn place(reason: &str) -> Option<(&Path, usize)> {
    let (_, place) = reason.trim_end().rsplit_once(" in ")?;
    let (path, line) = place.rsplit_once(':')?;
    Some((Path::new(path), line.parse().ok()?))
}

#[cfg(test)]
mod tests;
