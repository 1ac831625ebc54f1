//! The search for the objects of the Gateway API that make the server refuse a configuration.
//!
//! All Gateways share a file, so that the file tells little. First Gateways and routes are tried without any RoutePolicy, then the
//! policies: the directives of a policy stand in the locations of routes, which would be blamed otherwise.

use super::{Shared, Source, Translator, files, gateways, hosts, probe};
use crate::blame::{self, Bounds, Verdict};
use crate::gateway::{AllAside, Aside, GatewayKind, GatewayObjects, GatewayPart, Place};
use crate::ingress::{Globals, Members, Names};
use crate::judge::{Files, Refusal};
use crate::objects::{Key, Objects};
use crate::view::View;
use std::collections::BTreeMap;
use std::path::Path;
use std::sync::Arc;
use std::time::Duration;

/// Bounds of each of the two searches. No configuration has effect meanwhile.
const BOUNDS: Bounds = Bounds { builds: 400, time: Duration::from_secs(20) };

impl Translator {
    /// Finds the Gateways, routes and RoutePolicies that make the server refuse a configuration, each with the reason. Those that are
    /// set aside already are not among them. Empty: none, or too many to find them in time.
    pub fn guilty_gateways(&self, objects: &Objects) -> Vec<(Place, String)> {
        let Some(Shared { globals, .. }) = self.globals.as_ref().filter(|_| self.options.judge.judges())
        else {
            return Vec::new();
        };
        let all = &objects.gateway;
        let policies: Vec<Place> = places(GatewayKind::RoutePolicy, &all.route_policies).collect();
        let is_new = |place: &Place| !all.aside.contains_key(place);
        let mut units = gateways_and_routes(all);
        units.retain(is_new);
        let search = Search { translator: self, objects, globals };
        let absent = policies.iter().map(|place| (place.clone(), Aside::Absent));
        let mut aside: AllAside = all.aside.clone().into_iter().chain(absent).collect();
        let Some(mut guilty) = search.among(&units, &aside) else { return Vec::new() };
        aside.extend(guilty.iter().map(|(place, why)| (place.clone(), Aside::Closed(why.clone()))));
        let policies: Vec<Place> = policies.into_iter().filter(is_new).collect();
        match search.among(&policies, &aside) {
            Some(more) => guilty.extend(more),
            None => return Vec::new(),
        }
        guilty
    }
}

/// Returns the Gateways and then the routes, the oldest of each first: of two that do not work together, the younger one is to blame.
fn gateways_and_routes(all: &GatewayObjects) -> Vec<Place> {
    let mut units: Vec<Place> = places(GatewayKind::Gateway, &all.gateways).collect();
    units.extend(places(GatewayKind::HttpRoute, &all.http_routes));
    units.extend(places(GatewayKind::GrpcRoute, &all.grpc_routes));
    units.extend(places(GatewayKind::TlsRoute, &all.tls_routes));
    units.extend(places(GatewayKind::TcpRoute, &all.tcp_routes));
    units.extend(places(GatewayKind::UdpRoute, &all.udp_routes));
    units.sort_by_key(|place| {
        (place.0 != GatewayKind::Gateway, all.metadata(place).map(|m| m.creation_timestamp.clone()))
    });
    units
}

fn places<T>(kind: GatewayKind, all: &BTreeMap<Key, T>) -> impl Iterator<Item = Place> {
    all.keys().map(move |key| (kind, key.clone()))
}

struct Search<'a> {
    translator: &'a Translator,
    objects: &'a Objects,
    globals: &'a Globals,
}

impl Search<'_> {
    /// Finds the guilty ones of some objects. `aside`: what is set aside whatever comes out. `None`: there was no time for all, or others
    /// are to blame. To close those that are left would take away what works.
    fn among(&self, units: &[Place], aside: &AllAside) -> Option<Vec<(Place, String)>> {
        let found = blame::find(units.len(), BOUNDS, |open| {
            let mut aside = aside.clone();
            for (index, place) in units.iter().enumerate() {
                let is_route = !matches!(place.0, GatewayKind::Gateway | GatewayKind::RoutePolicy);
                let closed = if is_route { Aside::Closed(String::new()) } else { Aside::Absent };
                match open.contains(&index) {
                    true => drop(aside.remove(place)),
                    false => drop(aside.insert(place.clone(), closed)),
                }
            }
            self.verdict(units, open, &aside)
        });
        let named = |(unit, refusal): (usize, Refusal)| Some((units.get(unit)?.clone(), refusal.message));
        let all = found.undecided.is_empty() && found.base.is_none();
        all.then(|| found.guilty.into_iter().filter_map(named).collect())
    }

    /// Builds a configuration without the objects that are set aside.
    fn verdict(&self, units: &[Place], open: &[usize], aside: &AllAside) -> Verdict {
        let taken = gateways::Taken { hosts: &self.translator.hosts, names: &self.translator.names };
        let has_name = |name: &str| taken.has(name);
        let source = Source { objects: self.objects, globals: self.globals };
        let others = gateways::others(source, &has_name, taken.has_rest(), aside);
        let mut gateways = self.translator.gateways.gateways().clone();
        let part = gateways.translate(self.objects, &others);
        let (files, text) = self.files(&part);
        let mut verdict = Verdict::default();
        for refusal in self.globals.options.judge.errors(&files) {
            let of_route = route_of(&part, &text, &refusal);
            let unit = of_route.and_then(|place| units.iter().position(|unit| unit == place));
            match unit.filter(|unit| open.contains(unit)) {
                Some(unit) => verdict.placed.push((unit, refusal)),
                None => verdict.other = verdict.other.or(Some(refusal)),
            }
        }
        verdict
    }

    /// Makes the files of Gateways, and those that they need. Returns the text of the servers, too.
    fn files(&self, part: &GatewayPart) -> (Files, Arc<[u8]>) {
        let Search { objects, globals, .. } = self;
        let certificate =
            files::default_certificate(&View::new(objects, &globals.options.judge), &globals.options);
        let text: Arc<[u8]> = forebay_conf::print(&part.http).unwrap_or_default().into();
        let stream = gateways::stream_file(part, objects, globals);
        let stream_path = (!stream.is_empty()).then_some(gateways::STREAM_FILE);
        let mut all = files::of_certificate(certificate.as_ref());
        all.push(probe::main(globals, certificate, &[], &[], stream_path));
        let any = hosts::make(objects, globals, hosts::ANY, &Members::new(), &Names::default());
        all.push((any.path, any.bytes));
        all.extend(any.files);
        let default = globals.default_backend.clone().map(Arc::new);
        all.push(probe::groups_of(part.specs.iter().cloned().chain(default), globals));
        all.extend(files::of_tickets(globals));
        all.extend(stream_path.map(|path| (Path::new(path).into(), stream.into())));
        all.push((Path::new(gateways::FILE).into(), text.clone()));
        let own: BTreeMap<&str, &Arc<[u8]>> = part.files.iter().map(|f| (&*f.path, &f.bytes)).collect();
        all.extend(own.into_iter().map(|(path, bytes)| (Path::new(path).into(), bytes.clone())));
        (all, text)
    }
}

/// Returns the route whose location an error is in.
fn route_of<'p>(part: &'p GatewayPart, text: &[u8], refusal: &Refusal) -> Option<&'p Place> {
    refusal.path.as_ref().filter(|path| ***path == *Path::new(gateways::FILE))?;
    let before: Vec<&[u8]> = text.split(|b| *b == b'\n').take(refusal.line).collect();
    let in_server = before.iter().rev().take_while(|line| !line.starts_with(b"server"));
    let name = in_server.into_iter().find_map(|line| {
        let line = std::str::from_utf8(line).ok()?;
        let words = line.strip_prefix("    location ").or_else(|| line.strip_prefix("    route "))?;
        words.split(' ').find_map(|word| word.strip_prefix('@'))
    })?;
    part.places.get(name.split('_').next().unwrap_or_default())
}
