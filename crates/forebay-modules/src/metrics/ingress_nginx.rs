//! `prometheus names=ingress-nginx`: figures under the names of ingress-nginx's exporter, for dashboards, alerts and canary analyses
//! that were made for it (ingress-nginx: user guide, "Prometheus and Grafana").

use super::labelled::{self, Pairs, SIZES, Series, Sizes, text};
use super::prometheus::{Exposition, label};
use super::{facts, usage};
use forebay_core::histogram::Histogram;
use forebay_server::counting::{self, life};
use forebay_server::request::Request;
use std::collections::BTreeMap;

/// Beginning of all names.
const START: &str = "nginx_ingress_controller_";
/// Labels of `ingress_upstream_latency_seconds`.
const LATENCY_LABELS: [&str; 4] = ["ingress", "namespace", "service", "canary"];

/// Histogram of times: the end of its name, help text, and the value.
type Times = (&'static str, &'static str, fn(&Series) -> &Histogram);
/// Histogram of sizes.
type Bytes = (&'static str, &'static str, fn(&Series) -> &Sizes);

const TIMES: [Times; 4] = [
    ("request_duration_seconds", "Time from the first byte of a request to the last of its response", |s| {
        &s.duration
    }),
    ("response_duration_seconds", "Time until the end of the upstream's response", |s| &s.response),
    ("header_duration_seconds", "Time until the head of the upstream's response", |s| &s.header),
    ("connect_duration_seconds", "Time until the connection to the upstream", |s| &s.connect),
];

const BYTES: [Bytes; 3] = [
    ("request_size", "Sizes of requests", |s| &s.received),
    ("response_size", "Sizes of responses", |s| &s.sent),
    ("bytes_sent", "Bytes sent to clients", |s| &s.sent),
];

/// Adds all series. `constant` has labels for every series, as text.
pub(super) fn expose(page: &mut Exposition, req: &Request, constant: &str) {
    let with = |more: &str| match (constant.is_empty(), more.is_empty()) {
        (true, _) => more.to_owned(),
        (false, true) => constant.to_owned(),
        (false, false) => format!("{constant},{more}"),
    };
    let all = labelled::all();
    latencies(page, &all, &with);
    let all: Vec<(String, Series)> =
        all.into_iter().map(|(pairs, series)| (with(&text(&pairs, |_| true)), series)).collect();
    let requests = all.iter().map(|(labels, series)| (labels.clone(), series.requests));
    page.many(&name("requests"), "counter", "Requests of clients", requests);
    for (end, help, value) in TIMES {
        page.histograms(
            &name(end),
            help,
            all.iter().map(|(labels, series)| (labels.as_str(), value(series))),
        );
    }
    for (end, help, value) in BYTES {
        sizes(page, &name(end), help, all.iter().map(|(labels, series)| (labels.as_str(), value(series))));
    }
    configuration(page, &with);
    process(page, req, &with);
}

fn name(end: &str) -> String {
    format!("{START}{end}")
}

fn sizes<'a>(page: &mut Exposition, name: &str, help: &str, all: impl Iterator<Item = (&'a str, &'a Sizes)>) {
    let rows = all.map(|(labels, sizes)| {
        let ends = SIZES.iter().map(ToString::to_string).chain(["+Inf".to_owned()]);
        (labels, ends.zip(sizes.counts).collect::<Vec<_>>(), sizes.sum as f64)
    });
    page.buckets(name, help, rows);
}

/// Adds the sums and counts of the times of upstreams, without quantiles.
fn latencies(page: &mut Exposition, all: &[(Pairs, Series)], with: &dyn Fn(&str) -> String) {
    let mut sums: BTreeMap<String, Histogram> = BTreeMap::new();
    for (pairs, series) in all {
        let labels = with(&text(pairs, |name| LATENCY_LABELS.contains(&name)));
        labelled::join(sums.entry(labels).or_default(), &series.response);
    }
    // Requests without an upstream have no such times, and their summaries would be empty.
    let rows = sums.iter().filter(|(_, h)| h.counts.iter().any(|n| *n > 0));
    page.summaries(
        &name("ingress_upstream_latency_seconds"),
        "Time until the end of the upstream's response",
        rows,
    );
}

/// Adds the state of the configuration and the certificates.
fn configuration(page: &mut Exposition, with: &dyn Fn(&str) -> String) {
    let (failed, loaded) = (facts::last_reload_failed(), life().loaded / 1000);
    let mut one = |end: &str, kind: &str, help: &str, value: u64| {
        page.many(&name(end), kind, help, [(with(""), value)]);
    };
    one(
        "config_last_reload_successful",
        "gauge",
        "Whether the last configuration is in effect",
        u64::from(!failed),
    );
    let help = "When the configuration in effect was loaded, Unix seconds";
    let loaded = u64::try_from(loaded).unwrap_or(0);
    one("config_last_reload_successful_timestamp_seconds", "gauge", help, loaded);
    let reloads = life().reloads;
    one("success", "counter", "Configurations loaded after the first", reloads);
    one("errors", "counter", "Configurations that were refused", facts::failed_reloads());
    let expiry = facts::file_certificates().into_iter().flat_map(|c| {
        // A file of a Secret has the names of its namespace and the Secret, with `_` between them (see
        // `forebay ingress render`).
        let stem =
            c.file.rsplit('/').next().and_then(|file| file.rsplit_once('.')).map_or("", |(stem, _)| stem);
        let (namespace, secret) = stem.split_once('_').unwrap_or(("", stem));
        let secret = format!(
            "namespace=\"{}\",secret_name=\"{}\"",
            label(namespace.as_bytes()),
            label(secret.as_bytes())
        );
        let until = u64::try_from(c.until).unwrap_or(0);
        let row = |name: &String| (with(&format!("host=\"{}\",{secret}", label(name.as_bytes()))), until);
        c.names.iter().map(row).collect::<Vec<_>>()
    });
    // Two files may have certificates for the same host, but a series may stand in the page only once.
    let expiry: BTreeMap<String, u64> = expiry.collect();
    page.many(
        &name("ssl_expire_time_seconds"),
        "gauge",
        "When the certificate expires, Unix seconds",
        expiry,
    );
}

/// Adds the figures of the process and its connections.
fn process(page: &mut Exposition, req: &Request, with: &dyn Fn(&str) -> String) {
    let [active, accepted, handled, requests, reading, writing, waiting] = counting::totals(req);
    let state = |state: &str, value: u64| (with(&format!("state=\"{state}\"")), value);
    let now = [("active", active), ("reading", reading), ("waiting", waiting), ("writing", writing)];
    let now = now.map(|(name, value)| state(name, value));
    page.many(&name("nginx_process_connections"), "gauge", "Connections of clients by state", now);
    let sums = [("accepted", accepted), ("handled", handled)].map(|(name, value)| state(name, value));
    page.many(&name("nginx_process_connections_total"), "counter", "Connections of clients", sums);
    let help = "Requests of clients";
    page.many(&name("nginx_process_requests_total"), "counter", help, [(with(""), requests)]);
    let cpu = usage::cpu_micros() as f64 / 1e6;
    page.float(&name("nginx_process_cpu_seconds_total"), "counter", "Time of CPUs, seconds", &with(""), cpu);
    if let Some(memory) = usage::memory() {
        let help = "Memory of the machine that the worker process takes, bytes";
        page.many(&name("nginx_process_resident_memory_bytes"), "gauge", help, [(with(""), memory)]);
    }
    let started = u64::try_from(life().started / 1000).unwrap_or(0);
    let help = "When the worker process started, Unix seconds";
    page.many(&name("nginx_process_oldest_start_time_seconds"), "gauge", help, [(with(""), started)]);
    page.many(&name("nginx_process_num_procs"), "gauge", "Processes", [(with(""), 1)]);
}
