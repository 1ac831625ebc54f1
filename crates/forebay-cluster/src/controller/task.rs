//! The task that owns all state: what a change, a report and the time bring about.

use super::mirror::{Effect, Mirror, Place};
use super::outbox::{Files, Handed, Outbox};
use super::refusals::{Aside, Refusal, Refusals, is_of_gateways, place};
use super::schedule::{Chores, Schedule};
use super::watched::Watched;
use super::{Delivery, Report, Settings};
use crate::api::{Api, Error};
use crate::events::{self, Events};
use crate::status::{self, GatewayServices, Statuses};
use crate::watch::Change;
use crate::{guilty, health, lease, ports, webhook};
use forebay_k8s::objects::Kind;
use forebay_k8s::options::RefusedValue;
use forebay_k8s::settings::{OnFailure, on_failure};
use forebay_k8s::{Accepted, Problem, Translation, Translator};
use forebay_sys::errno::errno;
use forebay_sys::files;
use std::path::Path;
use std::rc::Rc;
use std::sync::Arc;
use std::time::{Duration, Instant};
use tokio::signal::unix::{SignalKind, signal};
use tokio::sync::mpsc::{Receiver, UnboundedReceiver, UnboundedSender};
use tokio::sync::watch as flag;

/// Events that are created in a second.
const EVENTS_A_SECOND: usize = 10;
/// Time for the last request of a replica that ends.
const PARTING: Duration = Duration::from_secs(2);
/// Pause between two looks at statuses and Events.
const TICK: Duration = Duration::from_secs(1);

async fn sleep_until(at: Option<Instant>) {
    if let Some(at) = at {
        tokio::time::sleep_until(at.into()).await;
    }
}

/// Channels that the controller reads.
pub(super) struct Inputs {
    /// Changes of the objects of the cluster.
    pub(super) changes: Receiver<(Place, Change)>,
    /// Answers of the process that serves.
    pub(super) reports: UnboundedReceiver<Report>,
    /// Whether this replica leads.
    pub(super) leads: flag::Receiver<bool>,
}

/// State of the controller.
pub(super) struct Controller {
    pub(super) settings: Settings,
    pub(super) mirror: Mirror,
    translator: Translator,
    pub(super) schedule: Schedule,
    chores: Chores,
    outbox: Outbox,
    pub(super) refusals: Refusals,
    gateway_services: GatewayServices,
    pub(super) events: Events,
    pub(super) health: health::Shared,
    accepted: Arc<[Arc<Accepted>]>,
    /// Problems of the last translation.
    pub(super) problems: Vec<Problem>,
    log: Box<dyn Fn(&str)>,
}

impl Controller {
    pub(super) fn new(
        settings: Settings,
        deliveries: UnboundedSender<Delivery>,
        judged: webhook::Settings,
        log: Box<dyn Fn(&str)>,
    ) -> Controller {
        let statuses = Statuses::new(settings.publish.clone().unwrap_or_default());
        Controller {
            mirror: Mirror::new(settings.options.config_map.clone(), statuses, judged),
            settings,
            translator: Translator::default(),
            schedule: Schedule::new(),
            chores: Chores::new(),
            outbox: Outbox::new(deliveries),
            refusals: Refusals::default(),
            gateway_services: GatewayServices::default(),
            events: Events::default(),
            health: Rc::default(),
            accepted: Arc::default(),
            problems: Vec::new(),
            log,
        }
    }

    /// Takes changes and reports, and delivers what follows from them.
    pub(super) async fn follow(
        &mut self,
        api: &Api,
        inputs: Inputs,
        log: &(impl Fn(&str) + Clone + 'static),
    ) -> Result<(), Error> {
        let Inputs { mut changes, mut reports, leads } = inputs;
        let mut tick = tokio::time::interval(TICK);
        let failed = |e: std::io::Error| Error::plain(format!("no signals: {e}"));
        let mut term = signal(SignalKind::terminate()).map_err(failed)?;
        loop {
            let due = self.due();
            tokio::select! {
                change = changes.recv() => match change {
                    Some((place, change)) => self.change(place, change),
                    None => return Ok(()),
                },
                report = reports.recv() => match report {
                    Some(report) => {
                        self.report(report);
                        self.publish_as_leader(*leads.borrow(), api, log);
                    }
                    None => return Ok(()),
                },
                () = sleep_until(due), if due.is_some() => self.sync(),
                _ = term.recv() => {
                    let leading = *leads.borrow();
                    self.leave(api, leading).await;
                    return Ok(());
                }
                _ = tick.tick() => {
                    self.look_again();
                    self.try_ports();
                    self.chores.trim();
                    self.publish_as_leader(*leads.borrow(), api, log);
                }
            }
        }
    }

    /// Takes a change of the objects of a kind.
    fn change(&mut self, place: Place, change: Change) {
        let kind = place.0;
        if self.mirror.change(place, change, &self.log) == Effect::Nothing {
            return;
        }
        self.chores.note_change();
        match kind {
            Watched::Core(Kind::EndpointSlice) => self.schedule.want_endpoints(),
            _ => self.schedule.want_configuration(),
        }
    }

    /// Returns the time of the next [`Controller::sync`].
    fn due(&self) -> Option<Instant> {
        self.schedule.due(self.outbox.is_waiting()).filter(|_| self.mirror.is_complete())
    }

    /// Translates the objects and delivers what has changed.
    pub(super) fn sync(&mut self) {
        let due = self.schedule.configuration_due(self.outbox.is_waiting());
        // The first configuration is complete: it would drop endpoints that came before it.
        if self.outbox.has_begun() && due.is_none_or(|at| at > Instant::now()) {
            self.schedule.endpoints = None;
            self.deliver_endpoints();
            return;
        }
        self.schedule.begin();
        let translation = self.translator.translate(&self.mirror.objects, &self.settings.options);
        self.deliver(translation);
    }

    /// Delivers the endpoints that have changed.
    fn deliver_endpoints(&mut self) {
        let (objects, options) = (&self.mirror.objects, &self.settings.options);
        match self.translator.endpoints(objects, options) {
            Some(some) => self.outbox.send_some(some),
            None => self.outbox.send_groups(self.translator.translate(objects, options).groups),
        }
    }

    fn deliver(&mut self, translation: Translation) {
        let Translation { files, groups, problems, accepted, statuses, services, deciding, unjudged } =
            translation;
        self.schedule.judged(!unjudged);
        self.gateway_services.want(services);
        self.mirror.gateway_statuses.want(statuses);
        self.accepted = accepted;
        self.problems = problems;
        self.note_health();
        let own = self.settings.files.iter();
        let own = own.map(|(path, from)| (Arc::from(path.as_path()), self.read(path, from)));
        let mut files: Files = files.into_iter().chain(own).collect();
        self.refusals.quarantined.replace(&mut files);
        if self.outbox.send(files, groups, deciding) == Handed::Configuration {
            self.schedule.delivered();
        }
    }

    /// Reads a file of this machine. One that cannot be read keeps its former content.
    fn read(&self, path: &Path, from: &Path) -> Arc<[u8]> {
        match files::read_file(from, files::MAX_WHOLE) {
            Ok(bytes) => bytes.into(),
            Err(error) => {
                (self.log)(&format!("{}: {}", from.display(), errno(&error)));
                self.outbox.file(path).cloned().unwrap_or_default()
            }
        }
    }

    pub(super) fn report(&mut self, report: Report) {
        self.schedule.answered();
        match report {
            Report::Applied(number) => {
                let Some(deciding) = self.outbox.take_applied(number) else { return };
                self.translator.worked(&deciding);
                self.refusals.applied();
                self.health.borrow_mut().refused = None;
                self.note_health();
            }
            Report::Refused(number, reason) => {
                let Some(files) = self.outbox.take_refused(number) else { return };
                self.refused(&files, reason);
            }
        }
    }

    /// Sets aside what made the process refuse a configuration, so that all else has effect.
    fn refused(&mut self, files: &Files, reason: String) {
        (self.log)(&format!("a configuration was refused: {reason}"));
        if ports::set_all_aside(&mut self.mirror.objects.gateway, &reason) {
            self.schedule.want_configuration();
            return;
        }
        self.health.borrow_mut().refusals += 1;
        match self.blame(Refusal { files, reason: &reason }) {
            Aside::Found => self.schedule.want_configuration(),
            Aside::Nothing => self.hold(reason),
        }
    }

    /// Finds what is to blame for a refusal, and sets it aside.
    fn blame(&mut self, refusal: Refusal<'_>) -> Aside {
        let Refusal { files, reason } = refusal;
        let applied = self.outbox.applied();
        let mut guilty = guilty::find(&self.settings.options.judge, files.iter(), |path| applied.get(path));
        if guilty.is_empty() {
            if self.set_key_aside(refusal) == Aside::Found {
                return Aside::Found;
            }
            let named = place(reason).and_then(|(path, _)| files.get_key_value(path));
            guilty.extend(named.map(|(path, _)| (path.clone(), reason.to_owned())));
        }
        let mut aside = Aside::Nothing;
        if guilty.iter().any(|(path, _)| is_of_gateways(path)) && self.set_objects_aside() == Aside::Found {
            aside = Aside::Found;
            guilty.retain(|(path, _)| !is_of_gateways(path));
        }
        for (path, reason) in guilty {
            let refusal = Refusal { files, reason: &reason };
            if self.refusals.quarantined.add(&path, refusal, &applied, &self.log) == Aside::Found {
                aside = Aside::Found;
            }
        }
        aside
    }

    /// Sets the value of the ConfigMap aside that made the process refuse a configuration.
    fn set_key_aside(&mut self, refusal: Refusal<'_>) -> Aside {
        let Some(map) = self.mirror.config_map() else { return Aside::Nothing };
        let options = &mut self.settings.options;
        let Some(key) = self.refusals.suspect(map, refusal, options) else { return Aside::Nothing };
        let value = map.data.get(key).cloned().unwrap_or_default();
        // There is no other one to return to, so to set it aside would close all paths.
        let worked = self.translator.last(key) == Some(value.as_str());
        let decides = on_failure(key, &value) == OnFailure::Close;
        let refused = RefusedValue { value, reason: refusal.reason.to_owned() };
        if worked && decides {
            self.refusals.suspects.add(key, refused);
            return Aside::Nothing;
        }
        (self.log)(&format!("the value of {key} in the ConfigMap is set aside: {}", refusal.reason));
        options.refused.insert(key, refused);
        self.refusals.key_refused = Some(Instant::now());
        Aside::Found
    }

    /// Closes the Gateways, routes and policies that made the process refuse a configuration.
    fn set_objects_aside(&mut self) -> Aside {
        let mut aside = Aside::Nothing;
        for ((kind, key), reason) in self.translator.guilty_gateways(&self.mirror.objects) {
            (self.log)(&format!("{} {key} is closed, as the server refuses it: {reason}", kind.name()));
            if self.mirror.objects.gateway.set_aside((kind, key), reason) {
                aside = Aside::Found;
                self.refusals.objects_refused = Some(Instant::now());
            }
        }
        aside
    }

    /// Leaves the last configuration that worked in use: no file and no value is known to be the cause of a refusal. The next one has
    /// all values again, so that nothing is opened or closed by guesses that did not help.
    fn hold(&mut self, reason: String) {
        self.refusals.suspects.hold(&mut self.settings.options.refused, reason.clone());
        self.refusals.key_refused = None;
        self.health.borrow_mut().refused = Some(reason);
        self.note_health();
    }

    /// Returns all problems: those of the translation, of files that were refused and of suspected values.
    pub(super) fn all_problems(&self) -> Vec<Problem> {
        let files = self.refusals.quarantined.reasons();
        let files = files.flat_map(|(path, reason)| self.of_file(path, reason));
        let name = self.settings.options.config_map.as_ref();
        let suspected = self.refusals.suspects.problems(name, self.mirror.config_map());
        self.problems.iter().cloned().chain(files).chain(suspected).collect()
    }

    /// Notes what is set aside, for probes and metrics.
    fn note_health(&self) {
        self.health.borrow_mut().note(&self.all_problems());
    }

    /// Writes statuses and Events that are due, if this replica leads.
    fn publish_as_leader(&mut self, leads: bool, api: &Api, log: &(impl Fn(&str) + Clone + 'static)) {
        if !leads {
            return;
        }
        let mut statuses = if self.settings.publish.is_some() {
            self.mirror.statuses.due(self.accepted.iter().map(|accepted| &accepted.key))
        } else {
            Vec::new()
        };
        let events = self.events.due(&self.all_problems(), &self.settings.identity, EVENTS_A_SECOND);
        // Statuses wait until the configuration that they describe is applied.
        if !self.outbox.is_waiting() {
            statuses.extend(self.mirror.gateway_statuses.due());
        }
        let services = self.gateway_services.due(|key| self.mirror.objects.service(key).is_some());
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
    pub(super) fn look_again(&mut self) {
        if self.refusals.values_are_due() {
            self.settings.options.refused.clear();
            self.schedule.want_configuration();
        }
        if self.refusals.objects_are_due() && self.mirror.objects.gateway.take_back() {
            self.schedule.want_configuration();
        }
        if self.refusals.suspects.due() {
            self.outbox.repeat();
            self.schedule.want_configuration();
        }
        if !self.settings.files.is_empty() && self.chores.files_are_due() {
            self.schedule.want_configuration();
        }
    }

    /// Takes ports back that are free again, when it is time to look.
    fn try_ports(&mut self) {
        if self.chores.ports_are_due() && ports::take_back(&mut self.mirror.objects.gateway) {
            self.schedule.want_configuration();
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
        let ingresses = ingresses.into_iter().filter_map(|key| self.mirror.objects.ingress(&key));
        let problem = |ingress: &forebay_k8s::objects::Ingress| {
            let text = format!("its host keeps the last configuration that worked: {reason}");
            Problem::new(Kind::Ingress, &ingress.metadata, "spec", text).reason("HostRefused")
        };
        ingresses.map(|stored| problem(&stored.object)).collect()
    }
}
