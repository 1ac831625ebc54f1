//! Every case was put to nginx with `-t`.

use super::*;

const K: u64 = 1 << 10;
const M: u64 = 1 << 20;
const G: u64 = 1 << 30;

#[test]
fn numbers() {
    assert_eq!(number(b"0"), Some(0));
    assert_eq!(number(b"007"), Some(7));
    assert_eq!(number(b"9223372036854775807"), Some(i64::MAX as u64));
    for bad in ["", "-1", "+1", "1k", "1 ", " 1", "9223372036854775808", "99999999999999999999999"] {
        assert_eq!(number(bad.as_bytes()), None, "{bad}");
    }
}

#[test]
fn sizes_and_offsets() {
    for (text, value) in [("1", 1), ("00", 0), ("1k", K), ("1K", K), ("3m", 3 * M), ("3M", 3 * M)] {
        assert_eq!(size(text.as_bytes()), Some(value), "{text}");
        assert_eq!(offset(text.as_bytes()), Some(value), "{text}");
    }
    for (text, value) in [("1g", G), ("2G", 2 * G), ("8589934591g", 8589934591 * G)] {
        assert_eq!(size(text.as_bytes()), None, "{text}");
        assert_eq!(offset(text.as_bytes()), Some(value), "{text}");
    }
    assert_eq!(size(b"9007199254740991k"), Some(9007199254740991 * K));
    assert_eq!(size(b"8796093022207m"), Some(8796093022207 * M));
    for bad in [
        "",
        "k",
        "m",
        "g",
        "1kk",
        "-1",
        "+1",
        "1.5k",
        " 1",
        "1 ",
        "1 k",
        "0x1",
        "1b",
        "1t",
        "8589934592g",
        "9007199254740992k",
        "8796093022208m",
        "9223372036854775808",
    ] {
        assert_eq!(size(bad.as_bytes()), None, "{bad}");
        assert_eq!(offset(bad.as_bytes()), None, "{bad}");
    }
}

#[test]
fn times_in_milliseconds() {
    for (text, value) in [
        ("0", 0),
        ("1", 1000),
        ("1s", 1000),
        ("1ms", 1),
        ("1m", 60_000),
        ("1h", 3_600_000),
        ("1d", 86_400_000),
        ("1w", 604_800_000),
        ("1h30m", 5_400_000),
        ("1h 30m", 5_400_000),
        ("1h  30m", 5_400_000),
        ("1h ", 3_600_000),
        ("1s1ms", 1001),
        ("1s 1ms", 1001),
        ("1s1", 2000),
        ("1m1", 61_000),
        ("1ms1", 1001),
        ("1m1ms", 60_001),
        ("1m 1", 61_000),
        ("1 1", 2000),
        ("1 ", 1000),
        ("1h1 ", 3_601_000),
        ("1h 1 1", 3_602_000),
        ("h2", 2000),
        (" 1", 1000),
        ("1hs", 3_600_000),
        ("9223372036854775", 9223372036854775000),
        ("9223372036854775807ms", i64::MAX as u64),
        ("106751991167d", 106751991167 * 86_400_000),
    ] {
        assert_eq!(time_ms(text.as_bytes()), Some(value), "{text}");
    }
    for bad in [
        "",
        "s",
        "m",
        "1M",
        "1y",
        "30m1h",
        "1h1h",
        "1 h",
        " 1h",
        "1ms1s",
        "1S",
        "1H",
        "1.5s",
        "-1",
        "+1",
        "1 1s",
        "1 s",
        "9223372036854776",
        "9223372036854775808",
        "9223372036854775808ms",
        "1s1 ms",
        "1d1w",
        "1mm",
        "1msm",
        "1 1 1",
        "1s1 ",
        "1ms1 ",
        "1 1m",
        "1h 1 1ms",
        "1s\t",
        "1h-1",
        "1m 1 ms",
        "106751991168d",
        "153722867280913m",
    ] {
        assert_eq!(time_ms(bad.as_bytes()), None, "{bad}");
    }
}

#[test]
fn times_in_seconds() {
    for (text, value) in [
        ("1", 1),
        ("1s", 1),
        ("1m", 60),
        ("1h", 3600),
        ("1d", 86400),
        ("1w", 604800),
        ("1M", 2592000),
        ("1y", 31536000),
        ("1M1m", 2592060),
        ("1y1M1w1d1h1m1s", 34822861),
        ("1d 12h  5", 129605),
        ("9223372036854775807", i64::MAX as u64),
        ("292471208677y", 292471208677 * 31536000),
        ("3558399705576M", 3558399705576 * 2592000),
    ] {
        assert_eq!(time_secs(text.as_bytes()), Some(value), "{text}");
    }
    for bad in [
        "",
        "1ms",
        "1s1ms",
        "1ms1",
        "1m1M",
        "1M1y",
        "1 M",
        "292471208678y",
        "3558399705577M",
        "9223372036854775808",
        "9223372036854775807y",
        "1 1 1",
    ] {
        assert_eq!(time_secs(bad.as_bytes()), None, "{bad}");
    }
}

#[test]
fn rates() {
    let second = |count| Some(Rate { count, per: Duration::from_secs(1) });
    assert_eq!(rate(b"10r/s"), second(10));
    assert_eq!(rate(b"010r/s"), second(10));
    assert_eq!(rate(b"10"), second(10));
    assert_eq!(rate(b"30r/m"), Some(Rate { count: 30, per: Duration::from_secs(60) }));
    for bad in ["", "0r/s", "10r/h", "10r", "1.5r/s", "-1r/s", "r/s", "10R/s", "10r/S", "10r/ss", "10/s"] {
        assert_eq!(rate(bad.as_bytes()), None, "{bad}");
    }
}

#[test]
fn flags() {
    assert_eq!(flag(b"on"), Some(true));
    assert_eq!(flag(b"OFF"), Some(false));
    assert_eq!(flag(b""), None);
    assert_eq!(flag(b"yes"), None);
}
