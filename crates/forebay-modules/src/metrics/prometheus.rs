//! `prometheus`: the counters as Prometheus reads them, the names of nginx-prometheus-exporter first.

use super::{Block, Totals, total, usage};
use crate::prometheus_labels::label_name;
use forebay_conf::error::Error;
use forebay_conf::tree::Directive;
use forebay_core::histogram::{BUCKETS, Histogram};
use forebay_core::limit::outcomes::{Limited, Outcomes};
use forebay_core::status_zone::sessions::{CLASSES, SessionTotals};
use forebay_core::status_zone::zones;
use forebay_core::upstream::peer::{PeerStatus, State};
use forebay_http::request::Method;
use forebay_proxy::cache::counts;
use forebay_server::config::Scope;
use forebay_server::counting::{self, LOCATION, life};
use forebay_server::module::{Handler, Needs, Step, Verdict};
use forebay_server::request::Request;
use std::fmt::Write;
use std::sync::Arc;
use std::time::Duration;

/// `prometheus`: the names under which figures are shown, and labels that each series of ingress-nginx has, as text.
#[derive(Clone, Debug, Default)]
pub struct Page {
    /// The names of nginx-prometheus-exporter, and our own names.
    forebay: bool,
    ingress_nginx: bool,
    labels: String,
}

impl Page {
    /// Reads the parameters `names=forebay|ingress-nginx`, which may stand twice, and `label=NAME:VALUE`.
    ///
    /// # Errors
    /// `invalid parameter "..."`.
    pub fn parse(d: &Directive, cx: &Scope<'_>) -> Result<Page, Error> {
        let mut page = Page::default();
        for w in &d.args {
            let invalid = || cx.error_at(d, w, format!("invalid parameter \"{}\"", w.as_str()));
            let text = w.text.as_slice();
            if let Some(text) = text.strip_prefix(b"label=") {
                let at = text.iter().position(|b| *b == b':').ok_or_else(invalid)?;
                let (name, value) = text.split_at(at);
                let name = label_name(name).ok_or_else(invalid)?;
                let comma = if page.labels.is_empty() { "" } else { "," };
                let _ =
                    write!(page.labels, "{comma}{name}=\"{}\"", label(value.get(1..).unwrap_or_default()));
                continue;
            }
            match text {
                b"names=forebay" => page.forebay = true,
                b"names=ingress-nginx" => page.ingress_nginx = true,
                _ => return Err(invalid()),
            }
        }
        // Without `names`, a page shows our own names.
        page.forebay |= !page.ingress_nginx;
        if !page.ingress_nginx && !page.labels.is_empty() {
            return Err(cx.error(d, "\"label\" needs \"names=ingress-nginx\""));
        }
        Ok(page)
    }
}

impl Handler for Page {
    fn handle<'r>(&'r self, req: &'r mut Request) -> Step<'r> {
        handle(req, self).into()
    }

    fn needs(&self) -> Needs {
        Needs { certificates: self.ingress_nginx, ..Needs::default() }
    }
}

/// Answers a request to `prometheus`.
fn handle(req: &mut Request, wanted: &Page) -> Verdict {
    if !matches!(req.method, Method::Get | Method::Head) {
        return Verdict::Status(405);
    }
    let mut page = Exposition::default();
    if wanted.forebay {
        page.all(req);
    }
    match wanted.ingress_nginx {
        true => super::ingress_nginx::expose(&mut page, req, &wanted.labels),
        // The names of ingress-nginx show the same series, so a page with both would have them twice.
        false => super::labelled::series(&mut page),
    }
    req.resp.status = 200;
    req.resp.content_type = b"text/plain; version=0.0.4".to_vec();
    req.resp.charset = b"utf-8".to_vec();
    req.resp.set_body(page.0);
    Verdict::Done
}
/// Series of values of a `T`: the end of their name, their type, help text, and the value.
type Series<T> = (&'static str, &'static str, &'static str, fn(&T) -> u64);

const HTTP_PEER_SERIES: &[Series<PeerStatus>] = &[
    ("active", "gauge", "Requests under way", |p| p.active),
    ("requests_total", "counter", "Requests", |p| p.requests),
];

const STREAM_PEER_SERIES: &[Series<PeerStatus>] = &[
    ("active", "gauge", "Sessions under way", |p| p.active),
    ("connections_total", "counter", "Sessions that it was chosen for", |p| p.requests),
];

/// Series of servers of all blocks.
const PEER_SERIES: &[Series<PeerStatus>] = &[
    ("up", "gauge", "Whether the server is asked", |p| {
        u64::from(matches!(p.state, State::Up | State::Draining))
    }),
    ("sent_bytes_total", "counter", "Bytes sent to it", |p| p.sent),
    ("received_bytes_total", "counter", "Bytes received from it", |p| p.received),
    ("fails_total", "counter", "Attempts that failed", |p| p.fails),
    ("unavail_total", "counter", "Times it became unavailable", |p| p.unavail),
    ("health_checks_total", "counter", "Health checks", |p| p.checks),
    ("health_checks_failed_total", "counter", "Failed checks", |p| p.check_fails),
];

const SESSION_SERIES: &[Series<SessionTotals>] = &[
    ("processing", "gauge", "Sessions under way", |t| t.processing),
    ("connections_total", "counter", "Connections", |t| t.connections),
    ("discarded_total", "counter", "Connections without a session", |t| t.discarded),
    ("received_bytes_total", "counter", "Bytes received", |t| t.received),
    ("sent_bytes_total", "counter", "Bytes sent", |t| t.sent),
];

/// Escapes the value of a label, which is text between quotes.
pub(super) fn label(value: &[u8]) -> String {
    String::from_utf8_lossy(value).replace('\\', "\\\\").replace('"', "\\\"").replace('\n', "\\n")
}

/// The text so far. Writing to a string cannot fail.
#[derive(Default)]
pub(super) struct Exposition(String);

impl Exposition {
    /// Adds the series of all parts.
    fn all(&mut self, req: &Request) {
        self.connections(req);
        self.process(req);
        self.protocols(req);
        super::quic::expose(self, req);
        self.zones("server", super::servers(&req.http()));
        let locations = zones(LOCATION);
        self.zones("location", locations.iter().map(|z| (z.name.clone(), Totals::of(z))).collect());
        self.session_zones();
        self.upstreams(req, Block::Http);
        self.upstreams(req, Block::Stream);
        self.caches(req);
        super::acme::series(self);
        super::shared_store::series(self);
        self.limits("limit_req", "Requests", Outcomes::all(Block::Http.name(), Limited::Requests));
        self.limits("limit_conn", "Requests", Outcomes::all(Block::Http.name(), Limited::Connections));
        let sessions = Outcomes::all(Block::Stream.name(), Limited::Connections);
        self.limits("stream_limit_conn", "Sessions", sessions);
    }

    fn about(&mut self, name: &str, kind: &str, help: &str) {
        let _ = writeln!(self.0, "# HELP {name} {help}\n# TYPE {name} {kind}");
    }

    /// Series of one value.
    pub(super) fn one(&mut self, name: &str, kind: &str, help: &str, value: u64) {
        self.about(name, kind, help);
        let _ = writeln!(self.0, "{name} {value}");
    }

    fn value(&mut self, name: &str, labels: &str, value: u64) {
        let braced = if labels.is_empty() { String::new() } else { format!("{{{labels}}}") };
        let _ = writeln!(self.0, "{name}{braced} {value}");
    }

    /// Series of one name: labels and values.
    pub(super) fn many(
        &mut self,
        name: &str,
        kind: &str,
        help: &str,
        all: impl IntoIterator<Item = (String, u64)>,
    ) {
        self.about(name, kind, help);
        for (labels, value) in all {
            self.value(name, &labels, value);
        }
    }

    /// Series of one value with a fraction.
    pub(super) fn float(&mut self, name: &str, kind: &str, help: &str, labels: &str, value: f64) {
        self.about(name, kind, help);
        let braced = if labels.is_empty() { String::new() } else { format!("{{{labels}}}") };
        let _ = writeln!(self.0, "{name}{braced} {value}");
    }

    /// Histograms of times of one name: labels and counts.
    pub(super) fn histograms<'a>(
        &mut self,
        name: &str,
        help: &str,
        all: impl Iterator<Item = (&'a str, &'a Histogram)>,
    ) {
        self.about(name, "histogram", help);
        for (labels, h) in all {
            self.histogram(name, labels, h);
        }
    }

    /// Summaries without quantiles of one name: labels and counts.
    pub(super) fn summaries<'a>(
        &mut self,
        name: &str,
        help: &str,
        all: impl Iterator<Item = (&'a String, &'a Histogram)>,
    ) {
        self.about(name, "summary", help);
        for (labels, h) in all {
            let _ = writeln!(self.0, "{name}_sum{{{labels}}} {}", h.sum.as_secs_f64());
            let _ = writeln!(self.0, "{name}_count{{{labels}}} {}", h.counts.iter().sum::<u64>());
        }
    }

    /// Histograms of one name: labels, buckets with their upper ends, and the sum of the values.
    pub(super) fn buckets<'a>(
        &mut self,
        name: &str,
        help: &str,
        all: impl Iterator<Item = (&'a str, Vec<(String, u64)>, f64)>,
    ) {
        self.about(name, "histogram", help);
        for (labels, buckets, sum) in all {
            let comma = if labels.is_empty() { "" } else { "," };
            let mut count = 0;
            for (end, n) in buckets {
                // Buckets of Prometheus are cumulative: each one includes all smaller values.
                count += n;
                let _ = writeln!(self.0, "{name}_bucket{{{labels}{comma}le=\"{end}\"}} {count}");
            }
            let _ = writeln!(self.0, "{name}_sum{{{labels}}} {sum}");
            let _ = writeln!(self.0, "{name}_count{{{labels}}} {count}");
        }
    }

    /// Series of one histogram.
    pub(super) fn one_histogram(&mut self, name: &str, help: &str, h: &Histogram) {
        self.about(name, "histogram", help);
        self.histogram(name, "", h);
    }

    fn histogram(&mut self, name: &str, labels: &str, h: &Histogram) {
        let comma = if labels.is_empty() { "" } else { "," };
        let braced = if labels.is_empty() { String::new() } else { format!("{{{labels}}}") };
        let mut sum = 0;
        for (n, count) in h.counts.iter().enumerate() {
            // Buckets of Prometheus are cumulative: each one includes all shorter times.
            sum += count;
            let end = match BUCKETS.get(n) {
                Some(end) => format!("{}", *end as f64 / 1e6),
                None => "+Inf".to_owned(),
            };
            let _ = writeln!(self.0, "{name}_bucket{{{labels}{comma}le=\"{end}\"}} {sum}");
        }
        let _ = writeln!(self.0, "{name}_sum{braced} {}", h.sum.as_secs_f64());
        let _ = writeln!(self.0, "{name}_count{braced} {sum}");
    }

    fn connections(&mut self, req: &Request) {
        let [active, accepted, handled, requests, reading, writing, waiting] = counting::totals(req);
        self.one("nginx_up", "gauge", "Status of the last metric scrape", 1);
        self.one("nginx_connections_accepted", "counter", "Accepted client connections", accepted);
        self.one("nginx_connections_active", "gauge", "Active client connections", active);
        self.one("nginx_connections_handled", "counter", "Handled client connections", handled);
        let help = "Connections where the request header is being read";
        self.one("nginx_connections_reading", "gauge", help, reading);
        self.one("nginx_connections_waiting", "gauge", "Idle client connections", waiting);
        let help = "Connections where the response is being written";
        self.one("nginx_connections_writing", "gauge", help, writing);
        self.one("nginx_http_requests_total", "counter", "Total http requests", requests);
    }

    fn process(&mut self, req: &Request) {
        let loaded = u64::try_from(life().loaded / 1000).unwrap_or(0);
        let started = u64::try_from(life().started / 1000).unwrap_or(0);
        let counter = "counter";
        let reloads = life().reloads;
        self.one("forebay_reloads_total", counter, "Configurations loaded after the first", reloads);
        let help = "Worker processes that ended unasked and were replaced";
        self.one("forebay_worker_restarts_total", counter, help, life().respawned);
        let help = "When the worker process started, Unix seconds";
        self.one("forebay_start_time_seconds", "gauge", help, started);
        let help = "When the configuration in effect was loaded, Unix seconds";
        self.one("forebay_config_load_time_seconds", "gauge", help, loaded);
        let panics = total(req, |c| &c.panics);
        self.one("forebay_panics_total", counter, "Panics, each of which cost one connection", panics);
        let long = total(req, |c| &c.long_turns);
        let help = "Turns of threads that took longer than a second, in which their connections waited";
        self.one("forebay_long_turns_total", counter, help, long);
        let displaced = total(req, |c| &c.displaced);
        let help = "UDP sessions ended for others when worker_connections ran short";
        self.one("forebay_stream_displaced_sessions_total", counter, help, displaced);
        let evicted = total(req, |c| &c.evicted);
        let help = "Idle connections closed to make room for others";
        self.one("forebay_evicted_connections_total", counter, help, evicted);
        let lost = total(req, |c| &c.log_lines_lost);
        self.one("forebay_log_lines_lost_total", counter, "Log lines that could not be written", lost);
        let threads = req.thread.all_counters.len() as u64;
        self.one("forebay_threads", "gauge", "Threads that serve connections", threads);
        // These names are the same in the clients of Prometheus for all languages, and dashboards expect
        // them.
        let name = "process_cpu_seconds_total";
        self.about(name, counter, "Time of CPUs that the worker process took, seconds");
        let _ = writeln!(self.0, "{name} {}", Duration::from_micros(usage::cpu_micros()).as_secs_f64());
        if let Some(memory) = usage::memory() {
            let help = "Memory of the machine that the worker process takes";
            self.one("process_resident_memory_bytes", "gauge", help, memory);
        }
    }

    /// Handshakes of TLS, and requests by version of HTTP.
    fn protocols(&mut self, req: &Request) {
        let counter = "counter";
        let versions = [("1.2", total(req, |c| &c.tls12)), ("1.3", total(req, |c| &c.tls13))];
        let versions = versions.map(|(version, n)| (format!("version=\"{version}\""), n));
        self.many("forebay_tls_handshakes_total", counter, "Complete TLS handshakes with clients", versions);
        let resumed = total(req, |c| &c.tls_resumed);
        let help = "TLS handshakes with clients that resumed a session";
        self.one("forebay_tls_resumed_handshakes_total", counter, help, resumed);
        let failed = total(req, |c| &c.tls_failed);
        self.one(
            "forebay_tls_failed_handshakes_total",
            counter,
            "TLS handshakes with clients that failed",
            failed,
        );
        let (http2, http3) = (total(req, |c| &c.http2), total(req, |c| &c.http3));
        // The counters of threads are read while they run, so the parts may exceed the sum for a moment.
        let http1 = total(req, |c| &c.requests).saturating_sub(http2 + http3);
        let versions = [("1", http1), ("2", http2), ("3", http3)]
            .map(|(version, n)| (format!("version=\"{version}\""), n));
        self.many("forebay_http_requests_total", counter, "Requests by version of HTTP", versions);
    }

    fn zones(&mut self, what: &str, all: Vec<(Vec<u8>, Totals)>) {
        let all: Vec<(String, Totals)> =
            all.into_iter().map(|(name, t)| (format!("zone=\"{}\"", label(&name)), t)).collect();
        if all.is_empty() {
            return;
        }
        let each = |f: fn(&Totals) -> u64| all.iter().map(move |(l, t)| (l.clone(), f(t)));
        let name = |rest: &str| format!("forebay_{what}_{rest}");
        let zones = || all.iter().filter(|(_, t)| t.classes_only.is_none());
        // Requests under way are counted in zones of `status_zone` only, not by name.
        if what == "server" && zones().next().is_some() {
            let under_way = zones().map(|(l, t)| (l.clone(), t.processing));
            self.many(&name("processing"), "gauge", "Requests under way", under_way);
        }
        let counter = "counter";
        self.many(&name("requests_total"), counter, "Requests", each(|t| t.requests));
        self.many(&name("discarded_total"), counter, "Requests without an answer", each(|t| t.discarded));
        self.many(&name("received_bytes_total"), counter, "Bytes received", each(|t| t.received));
        self.many(&name("sent_bytes_total"), counter, "Bytes sent", each(|t| t.sent));
        let classes = all.iter().flat_map(|(l, t)| {
            let classes = t.classes();
            (1..).zip(classes).map(move |(c, n)| (format!("{l},class=\"{c}xx\""), n))
        });
        self.many(&name("responses_total"), counter, "Responses by class", classes);
        let name = name("request_duration_seconds");
        self.about(&name, "histogram", "Time from the first byte of a request to the last of its response");
        for (l, t) in &all {
            self.histogram(&name, l, &t.times);
        }
    }

    /// Zones of servers of stream.
    fn session_zones(&mut self) {
        let all: Vec<_> = SessionTotals::all()
            .into_iter()
            .map(|(zone, t)| (format!("zone=\"{}\"", label(&zone.name)), t))
            .collect();
        if all.is_empty() {
            return;
        }
        for (end, kind, help, value) in SESSION_SERIES {
            let each = all.iter().map(|(l, t)| (l.clone(), value(t)));
            self.many(&format!("forebay_stream_server_{end}"), kind, help, each);
        }
        let classes = all.iter().flat_map(|(l, t)| {
            let each = CLASSES.iter().zip(t.sessions);
            each.map(move |(class, n)| (format!("{l},class=\"{class}\""), n))
        });
        self.many("forebay_stream_server_sessions_total", "counter", "Sessions by class", classes);
    }

    fn upstreams(&mut self, req: &Request, block: Block) {
        let now = req.thread.io.poller.now();
        let mut all = Vec::new();
        for g in req.conf.config.upstreams(block.name()) {
            for p in g.status(now) {
                let labels = format!("upstream=\"{}\",peer=\"{}\"", label(&g.name), label(&p.name));
                all.push((labels, p));
            }
        }
        if all.is_empty() {
            return;
        }
        let (start, own) = match block {
            Block::Http => ("forebay_upstream_peer", HTTP_PEER_SERIES),
            Block::Stream => ("forebay_stream_upstream_peer", STREAM_PEER_SERIES),
        };
        for (end, kind, help, value) in own.iter().chain(PEER_SERIES) {
            self.many(&format!("{start}_{end}"), kind, help, all.iter().map(|(l, p)| (l.clone(), value(p))));
        }
        if block == Block::Http {
            let classes = all.iter().flat_map(|(l, p)| {
                (1..).zip(p.responses).map(move |(c, n)| (format!("{l},class=\"{c}xx\""), n))
            });
            self.many(&format!("{start}_responses_total"), "counter", "Responses by class", classes);
        }
        let name = format!("{start}_response_duration_seconds");
        self.about(&name, "histogram", "Time from the choice of the server to the end of its response");
        for (l, p) in &all {
            self.histogram(&name, l, &p.times);
        }
    }

    fn caches(&mut self, req: &Request) {
        let caches = forebay_proxy::cache::all(&req.conf.http);
        if caches.is_empty() {
            return;
        }
        let zone = |name: &[u8]| format!("zone=\"{}\"", label(name));
        let sizes = caches.iter().map(|c| (zone(&c.name), c.index.size()));
        self.many("forebay_cache_size_bytes", "gauge", "Bytes on disk", sizes);
        let entries = caches.iter().map(|c| (zone(&c.name), c.index.count() as u64));
        self.many("forebay_cache_entries", "gauge", "Entries", entries);
        let counts = caches.iter().flat_map(|c| {
            let all = counts::CACHE_STATUSES.iter().zip(counts::cache_totals(&c.counts));
            let l = zone(&c.name);
            all.map(move |(s, (n, bytes))| (format!("{l},status=\"{s}\""), n, bytes))
        });
        let counts: Vec<_> = counts.collect();
        let name = "forebay_cache_responses_total";
        self.many(name, "counter", "Responses", counts.iter().map(|(l, n, _)| (l.clone(), *n)));
        let name = "forebay_cache_bytes_total";
        self.many(name, "counter", "Bytes of bodies", counts.iter().map(|(l, _, b)| (l.clone(), *b)));
    }

    /// Outcomes of the zones of a limit. `directive`: its name; `what`: what it limits.
    fn limits(&mut self, directive: &str, what: &str, limits: Vec<Arc<Outcomes>>) {
        if limits.is_empty() {
            return;
        }
        let all = limits.iter().flat_map(|l| {
            let zone = label(&l.zone);
            l.counts().map(move |(o, n)| (format!("zone=\"{zone}\",outcome=\"{o}\""), n))
        });
        let all: Vec<_> = all.collect();
        let help = format!("{what} by the outcome of the limit");
        self.many(&format!("forebay_{directive}_total"), "counter", &help, all);
    }
}
