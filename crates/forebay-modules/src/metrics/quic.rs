//! QUIC, for `api` and `prometheus`.

use super::prometheus::Exposition;
use super::total;
use forebay_core::counters::{Counter, Counters};
use forebay_net::quic::Count;
use forebay_server::request::Request;
use serde_json::{Map, Value};

/// A count, its name in the API, the name of its series, and the help text of the series.
type Row = (Count, &'static str, &'static str, &'static str);

const ROWS: &[Row] = &[
    (Count::Early, "early", "early_connections_total", "Connections with requests in the handshake (0-RTT)"),
    (Count::Received, "received", "received_datagrams_total", "Datagrams received"),
    (Count::Sent, "sent", "sent_datagrams_total", "Datagrams sent"),
    (
        Count::Dropped,
        "dropped",
        "dropped_datagrams_total",
        "Datagrams that the kernel dropped because the receive buffer was full",
    ),
    (
        Count::HandedOver,
        "handed_over",
        "handed_over_datagrams_total",
        "Datagrams passed on to the thread or process of their connection",
    ),
    (Count::Retries, "retries", "retries_total", "Retry packets sent"),
    (Count::Resets, "stateless_resets", "stateless_resets_total", "Stateless resets sent"),
    (
        Count::Negotiations,
        "version_negotiations",
        "version_negotiations_total",
        "Version Negotiation packets sent",
    ),
    (Count::Refused, "refused", "refused_connections_total", "Connections refused because there was no room"),
    (
        Count::Floods,
        "floods",
        "floods_total",
        "Connections ended because the client sent too much without progress",
    ),
];

/// A counter of QUIC connections to upstreams, its name in the API, the name of its series, and the help text
/// of the series.
type UpstreamRow = (fn(&Counters) -> &Counter, &'static str, &'static str, &'static str);

const UPSTREAM_ROWS: &[UpstreamRow] = &[
    (|c| &c.upstream_quic_open, "upstream_open", "connections", "QUIC connections to upstreams"),
    (
        |c| &c.upstream_quic_connections,
        "upstream_connections",
        "connections_total",
        "QUIC connections to upstreams that were begun",
    ),
    (
        |c| &c.upstream_quic_failed,
        "upstream_failed",
        "failed_connections_total",
        "QUIC connections to upstreams that were not established or broke the rules",
    ),
    (
        |c| &c.upstream_quic_requests,
        "upstream_requests",
        "requests_total",
        "Requests to upstreams over HTTP/3",
    ),
    (
        |c| &c.upstream_quic_fallbacks,
        "upstream_fallbacks",
        "fallbacks_total",
        "Requests to upstreams over TCP because there was no connection over QUIC",
    ),
];

static NEVER: Counter = Counter::new();

fn count(req: &Request, what: Count) -> u64 {
    total(req, |c| c.quic.get(what as usize).unwrap_or(&NEVER))
}

/// Returns the value of `/forebay/quic` of the API.
pub(super) fn value(req: &Request) -> Value {
    let first = [
        ("connections", total(req, |c| &c.quic_open)),
        ("handshaking", total(req, |c| &c.quic_half_open)),
        ("version1", count(req, Count::Version1)),
        ("version2", count(req, Count::Version2)),
    ];
    let rest = ROWS.iter().map(|(what, name, ..)| (*name, count(req, *what)));
    let upstreams = UPSTREAM_ROWS.iter().map(|(counter, name, ..)| (*name, total(req, counter)));
    first
        .into_iter()
        .chain(rest)
        .chain(upstreams)
        .map(|(name, n)| (name.to_owned(), n.into()))
        .collect::<Map<_, _>>()
        .into()
}

/// Appends the series.
pub(super) fn expose(page: &mut Exposition, req: &Request) {
    let (open, half_open) = (total(req, |c| &c.quic_open), total(req, |c| &c.quic_half_open));
    page.one("forebay_quic_connections", "gauge", "Connections", open);
    page.one("forebay_quic_handshaking", "gauge", "Connections whose handshake is not complete", half_open);
    let versions = [("1", Count::Version1), ("2", Count::Version2)]
        .map(|(version, what)| (format!("version=\"{version}\""), count(req, what)));
    page.many("forebay_quic_connections_total", "counter", "Connections by version of QUIC", versions);
    for (what, _, end, help) in ROWS {
        page.one(&format!("forebay_quic_{end}"), "counter", help, count(req, *what));
    }
    for (counter, _, end, help) in UPSTREAM_ROWS {
        let kind = if end.ends_with("_total") { "counter" } else { "gauge" };
        page.one(&format!("forebay_upstream_quic_{end}"), kind, help, total(req, counter));
    }
}
