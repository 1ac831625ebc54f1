//! Any field values for ranges, conditions, dates, hosts and the small parsers.
#![no_main]

use forebay_http::conditional::{Conditions, IfModifiedSince, Validators, evaluate, if_range};
use forebay_http::range::{Ranges, parse};
use forebay_http::{date, host, params};
use libfuzzer_sys::fuzz_target;

/// Reads a quoted string (RFC 9110, section 5.6.4).
fn unquote(text: &[u8]) -> Option<Vec<u8>> {
    let mut rest = text.strip_prefix(b"\"")?.strip_suffix(b"\"")?.iter();
    let mut out = Vec::new();
    while let Some(b) = rest.next() {
        match b {
            b'\\' => out.push(*rest.next()?),
            b'"' => return None,
            _ => out.push(*b),
        }
    }
    Some(out)
}

fuzz_target!(|data: &[u8]| {
    let Some((&[len, max], value)) = data.split_first_chunk::<2>() else { return };
    let len = if len == 255 { u64::MAX } else { u64::from(len) };
    let mut ranges = Vec::new();
    let with_unit = [b"bytes=", value].concat();
    let outcome = parse(&with_unit, len, max as usize, &mut ranges);
    if outcome == Ranges::Partial {
        assert!(!ranges.is_empty() && ranges.len() <= max as usize);
        assert!(ranges.iter().all(|r| r.start < r.end && r.end <= len));
        assert!(ranges.iter().map(|r| u128::from(r.len())).sum::<u128>() <= u128::from(len));
    }
    if let Some(unix) = date::parse(value) {
        assert_eq!(date::parse(&date::imf(unix)), Some(unix));
    }
    let now = Validators { last_modified: Some(1_577_934_245), etag: Some(b"\"a\"") };
    let conditions = Conditions {
        if_match: Some(value),
        if_none_match: Some(value),
        if_modified_since: Some(value),
        if_unmodified_since: Some(value),
    };
    evaluate(&conditions, now, IfModifiedSince::Before);
    if_range(value, now);
    let mut out = Vec::new();
    if host::parse(value, &mut out).is_ok() {
        let mut again = Vec::new();
        // A name with two final dots is refused, so stripping one leaves a host that stays as it is.
        host::parse(&out, &mut again).expect("a host");
        assert_eq!(out, again);
    }
    params::cookie([value].into_iter(), b"a");
    params::arg(value, b"a");
    params::list(value).for_each(|element| assert!(!element.is_empty()));
    out.clear();
    params::quote(value, &mut out);
    assert_eq!(unquote(&out), Some(value.to_vec()));
});
