//! Certificates from authorities of ACME, for `api` and `prometheus`.

use super::prometheus::{Exposition, label};
use forebay_acme::{Phase, Report, reports};
use serde_json::{Value, json};

/// Returns a time as `2026-01-02T03:04:05Z`.
fn time(seconds: i64) -> Value {
    jiff::Timestamp::from_second(seconds).map_or(Value::Null, |t| json!(t.to_string()))
}

/// Returns the value of `/acme` of the API.
pub(super) fn value() -> Value {
    reports().iter().map(certificate).collect()
}

fn certificate(r: &Report) -> Value {
    let names: Vec<&str> = r.names.split(',').collect();
    // After a refusal, or if the issuer is disabled, there is no next attempt.
    let ends = matches!(r.phase, Phase::Refused | Phase::Disabled);
    let next = if ends { Value::Null } else { time(r.next) };
    json!({
        "names": names,
        "issuer": r.issuer,
        "state": r.phase.text(),
        "certificate": validity(r.validity, forebay_net::tls::verify::now()),
        "valid_from": r.validity.map(|v| time(v.0)),
        "expires": r.validity.map(|v| time(v.1)),
        "next_attempt": next,
        "failures_in_a_row": r.failures,
        "failures": r.total_failures,
        "issued": r.total_issued,
        "last_error": if r.error.is_empty() { Value::Null } else { json!(r.error) },
    })
}

/// Returns the word for the validity of a certificate, as Angie's API has it.
fn validity(times: Option<(i64, i64)>, now: i64) -> &'static str {
    match times {
        None => "missing",
        Some((_, until)) if until <= now => "expired",
        Some(_) => "valid",
    }
}

/// Value of a series; `None` leaves the certificate out.
type Get = fn(&Report) -> Option<u64>;

/// Series: name, type, help text, and value.
const SERIES: [(&str, &str, &str, Get); 3] = [
    (
        "forebay_acme_certificate_expiry_seconds",
        "gauge",
        "Time at which the certificate expires, seconds since 1970",
        |r| r.validity.and_then(|v| u64::try_from(v.1).ok()),
    ),
    ("forebay_acme_failures_total", "counter", "Requests for the certificate that failed", |r| {
        Some(r.total_failures)
    }),
    ("forebay_acme_issued_total", "counter", "Certificates that were got", |r| Some(r.total_issued)),
];

/// Writes the series of all certificates, if there are any.
pub(super) fn series(page: &mut Exposition) {
    let all = reports();
    if all.is_empty() {
        return;
    }
    for (name, kind, help, get) in SERIES {
        let labels = |r: &Report| {
            format!("issuer=\"{}\",names=\"{}\"", label(r.issuer.as_bytes()), label(r.names.as_bytes()))
        };
        page.many(name, kind, help, all.iter().filter_map(|r| Some((labels(r), get(r)?))));
    }
}
