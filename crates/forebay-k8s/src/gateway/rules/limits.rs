//! Time limits and repetitions of rules.

use super::backends::Protocol;
use super::node;
use crate::gateway::objects::{Retry, Rule};
use forebay_conf::Node;
use std::time::Duration;

/// Statuses that may be repeated (HTTPRouteRetryStatusCode).
const STATUSES: std::ops::RangeInclusive<u16> = 400..=599;

/// Most repetitions.
const MOST_ATTEMPTS: u32 = 100;

/// Longest pause before a repetition. A request that waits holds its connection.
const LONGEST_BACKOFF: Duration = Duration::from_secs(60);

/// Returns the time limits and repetitions of a rule.
pub(super) fn limits(rule: &Rule, protocol: Protocol) -> Vec<Node> {
    let family = if protocol == Protocol::Grpc { "grpc" } else { "proxy" };
    let mut nodes = Vec::new();
    let time = |text: &Option<String>| text.as_deref().and_then(duration).filter(|d| !d.is_zero());
    let (whole, attempt) = (time(&rule.timeouts.request), time(&rule.timeouts.backend_request));
    if let Some(limit) = attempt.or(whole) {
        let text = format!("{}ms", limit.as_millis());
        for what in ["connect", "send", "read"] {
            nodes.push(node(&format!("{family}_{what}_timeout"), [text.clone()]));
        }
    }
    if let Some(limit) = whole {
        let text = format!("{}ms", limit.as_millis());
        nodes.push(node(&format!("{family}_next_upstream_timeout"), [text.clone()]));
        nodes.push(node(&format!("{family}_response_timeout"), [text]));
    }
    nodes.extend(rule.retry.iter().flat_map(|retry| repetitions(retry, family)));
    nodes
}

/// Returns the repetitions of a rule. A request that may change something is only repeated if no server has got it: to repeat others
/// needs `non_idempotent`, which is never said.
fn repetitions(retry: &Retry, family: &str) -> Vec<Node> {
    let attempts = retry.attempts.unwrap_or(1);
    if attempts == 0 {
        return vec![node(&format!("{family}_next_upstream"), ["off"])];
    }
    let mut words = vec!["error".to_owned(), "timeout".to_owned()];
    words.extend(retry.codes.iter().map(|code| format!("http_{code}")));
    let mut nodes = vec![
        node(&format!("{family}_next_upstream"), words),
        node(&format!("{family}_next_upstream_tries"), [(attempts + 1).to_string()]),
        node(&format!("{family}_next_upstream_again"), ["on"]),
    ];
    let backoff = retry.backoff.as_deref().and_then(duration).filter(|pause| !pause.is_zero());
    nodes.extend(
        backoff.map(|pause| {
            node(&format!("{family}_next_upstream_delay"), [format!("{}ms", pause.as_millis())])
        }),
    );
    nodes
}

/// Returns what cannot be done of the time limits and repetitions of a rule.
pub(super) fn faults(rule: &Rule) -> Vec<String> {
    let mut faults = Vec::new();
    let times = [
        ("timeouts.request", &rule.timeouts.request),
        ("timeouts.backendRequest", &rule.timeouts.backend_request),
    ];
    for (field, text) in times {
        if text.as_deref().is_some_and(|text| duration(text).is_none()) {
            faults.push(format!("{field} is no duration"));
        }
    }
    let Some(retry) = &rule.retry else { return faults };
    if let Some(code) = retry.codes.iter().find(|code| !STATUSES.contains(code)) {
        faults.push(format!("retry.codes: {code} is no status of an error"));
    }
    if retry.attempts.is_some_and(|n| n > MOST_ATTEMPTS) {
        faults.push(format!("retry.attempts is more than {MOST_ATTEMPTS}"));
    }
    match retry.backoff.as_deref().map(duration) {
        Some(None) => faults.push("retry.backoff is no duration".into()),
        Some(Some(pause)) if pause > LONGEST_BACKOFF => {
            faults.push(format!("retry.backoff is longer than {} seconds", LONGEST_BACKOFF.as_secs()));
        }
        _ => {}
    }
    faults
}

/// Reads a duration of the Gateway API (GEP-2257), such as `1h30m` or `500ms`.
pub(crate) fn duration(text: &str) -> Option<Duration> {
    let (mut total, mut rest) = (Duration::ZERO, text);
    if text.is_empty() {
        return None;
    }
    while !rest.is_empty() {
        let digits = rest.find(|c: char| !c.is_ascii_digit())?;
        let number: u64 = rest.get(..digits)?.parse().ok()?;
        rest = rest.get(digits..)?;
        let (unit, length) = if rest.starts_with("ms") {
            (1, 2)
        } else {
            (
                match rest.as_bytes().first()? {
                    b's' => 1000,
                    b'm' => 60_000,
                    b'h' => 3_600_000,
                    _ => return None,
                },
                1,
            )
        };
        total = total.checked_add(Duration::from_millis(number.checked_mul(unit)?))?;
        rest = rest.get(length..)?;
    }
    Some(total)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn durations() {
        let ms = |text: &str| duration(text).map(|d| d.as_millis());
        assert_eq!(ms("500ms"), Some(500));
        assert_eq!(ms("1h30m5s"), Some(5_405_000));
        assert_eq!(ms("0s"), Some(0));
        for wrong in ["", "5", "s", "5x", "1.5s", "99999999999999999999h"] {
            assert_eq!(ms(wrong), None, "{wrong}");
        }
    }

    fn text(retry: Retry) -> String {
        let nodes = limits(&Rule { retry: Some(retry), ..Rule::default() }, Protocol::Http);
        String::from_utf8(forebay_conf::print(&nodes).expect("words")).expect("UTF-8")
    }

    #[test]
    fn all_statuses_are_repeated_and_nothing_unsafe() {
        let text = text(Retry { codes: vec![408, 425, 503], attempts: Some(2), backoff: None });
        assert!(text.contains("proxy_next_upstream error timeout http_408 http_425 http_503;"), "{text}");
        assert!(text.contains("proxy_next_upstream_tries 3;"), "{text}");
        assert!(!text.contains("non_idempotent"), "{text}");
    }

    #[test]
    fn zero_attempts_are_none() {
        assert_eq!(
            text(Retry { codes: vec![500], attempts: Some(0), backoff: None }),
            "proxy_next_upstream off;\n"
        );
    }

    #[test]
    fn repetitions_wait() {
        let of = |backoff: &str| {
            text(Retry { codes: Vec::new(), attempts: Some(1), backoff: Some(backoff.into()) })
        };
        assert!(of("1s500ms").contains("proxy_next_upstream_delay 1500ms;"));
        assert!(!of("0s").contains("delay"));
    }

    #[test]
    fn limits_that_do_not_work_are_faults() {
        let of = |retry: Retry, request: Option<&str>| {
            let mut rule = Rule { retry: Some(retry), ..Rule::default() };
            rule.timeouts.request = request.map(str::to_owned);
            faults(&rule).len()
        };
        assert_eq!(of(Retry::default(), Some("1s")), 0);
        assert_eq!(of(Retry::default(), Some("soon")), 1);
        assert_eq!(of(Retry { codes: vec![200], ..Retry::default() }, None), 1);
        for (backoff, count) in [("1s", 1), ("soon", 2), ("2m", 2)] {
            let retry = Retry { backoff: Some(backoff.into()), attempts: Some(1000), ..Retry::default() };
            assert_eq!(of(retry, None), count, "{backoff}");
        }
    }
}
