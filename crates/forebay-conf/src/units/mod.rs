//! Sizes, offsets, times, rates and numbers as nginx writes them. The only place that reads units.
//!
//! All functions return `None` for text that nginx calls invalid. The largest number is 2^63-1, after the unit
//! is applied, as on nginx's 64-bit builds.

use std::time::Duration;

/// The largest value nginx holds, in bytes, seconds or milliseconds.
const MAX: u64 = i64::MAX as u64;

/// Parses a plain number: decimal digits only, no sign, at most 2^63-1.
pub fn number(text: &[u8]) -> Option<u64> {
    if text.is_empty() {
        return None;
    }
    text.iter().try_fold(0u64, |value, &byte| push_digit(value, byte))
}

/// Parses a size in bytes: a number with an optional `k` (KiB) or `m` (MiB), either case. nginx takes no `g` here.
pub fn size(text: &[u8]) -> Option<u64> {
    scaled(text, &[(b'k', 10), (b'm', 20)])
}

/// Parses an offset in bytes: a [`size`] that also takes `g` (GiB), as in `client_max_body_size`.
pub fn offset(text: &[u8]) -> Option<u64> {
    scaled(text, &[(b'k', 10), (b'm', 20), (b'g', 30)])
}

/// Parses a time in milliseconds, for directives whose resolution is the millisecond (most timeouts).
///
/// Units `w d h m s ms`, largest first, each at most once, spaces between the parts; a part without a
/// unit is seconds. Years and months are invalid here, as in nginx. Like nginx, this takes a unit without
/// digits as none of it (`h30m`), as long as there is a digit somewhere.
pub fn time_ms(text: &[u8]) -> Option<u64> {
    time(text, true)
}

/// Parses a time in seconds, for directives whose resolution is the second (`open_file_cache_valid`, `expires`).
///
/// Units `y M w d h m s` (a year is 365 days, a month 30). Milliseconds are invalid here, as in nginx.
pub fn time_secs(text: &[u8]) -> Option<u64> {
    time(text, false)
}

/// Parses a time like [`time_ms`].
pub fn duration_ms(text: &[u8]) -> Option<Duration> {
    time_ms(text).map(Duration::from_millis)
}

/// Parses a time like [`time_secs`].
pub fn duration_secs(text: &[u8]) -> Option<Duration> {
    time_secs(text).map(Duration::from_secs)
}

/// A rate of requests: `count` in each `per`.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Rate {
    /// Requests, at least 1.
    pub count: u64,
    /// One second or one minute.
    pub per: Duration,
}

/// Parses a rate: `10r/s`, `30r/m`, or a bare number (requests a second). nginx: `limit_req_zone`.
pub fn rate(text: &[u8]) -> Option<Rate> {
    let minute = text.strip_suffix(b"r/m");
    let secs = if minute.is_some() { 60 } else { 1 };
    let digits = minute.or(text.strip_suffix(b"r/s")).unwrap_or(text);
    let count = number(digits).filter(|&n| n > 0)?;
    Some(Rate { count, per: Duration::from_secs(secs) })
}

/// Parses `on` or `off`, in either case. nginx: every flag directive.
pub fn flag(text: &[u8]) -> Option<bool> {
    if text.eq_ignore_ascii_case(b"on") {
        Some(true)
    } else if text.eq_ignore_ascii_case(b"off") {
        Some(false)
    } else {
        None
    }
}

fn push_digit(value: u64, byte: u8) -> Option<u64> {
    if !byte.is_ascii_digit() {
        return None;
    }
    value.checked_mul(10)?.checked_add(u64::from(byte - b'0')).filter(|&v| v <= MAX)
}

fn scaled(text: &[u8], units: &[(u8, u32)]) -> Option<u64> {
    let last = text.last()?.to_ascii_lowercase();
    let (digits, shift) = match units.iter().find(|(unit, _)| *unit == last) {
        Some((_, shift)) => (text.split_last()?.1, *shift),
        None => (text, 0),
    };
    number(digits)?.checked_mul(1 << shift).filter(|&v| v <= MAX)
}

/// Rank of a unit: parts must come in rising rank. A bare number that is not the last part takes `BARE`.
const MONTH: u8 = 2;
const SECOND: u8 = 7;
const MILLISECOND: u8 = 8;
const BARE: u8 = 9;

/// Returns rank, scale and length of the unit at the start of `text`. Times in milliseconds have no months and years, those in
/// seconds no milliseconds.
fn time_unit(text: &[u8], millis: bool) -> Option<(u8, u64, usize)> {
    if text.starts_with(b"ms") {
        return millis.then_some((MILLISECOND, 1, 2));
    }
    let &(_, rank, seconds) = TIME_UNITS.iter().find(|(unit, ..)| Some(unit) == text.first())?;
    let fits = !millis || rank > MONTH;
    fits.then_some((rank, if millis { seconds * 1000 } else { seconds }, 1))
}

/// Units of time with rank and seconds. A bare number before a space is seconds.
const TIME_UNITS: [(u8, u8, u64); 8] = [
    (b'y', 1, 365 * 86400),
    (b'M', MONTH, 30 * 86400),
    (b'w', 3, 7 * 86400),
    (b'd', 4, 86400),
    (b'h', 5, 3600),
    (b'm', 6, 60),
    (b's', SECOND, 1),
    (b' ', BARE, 1),
];

fn time(text: &[u8], millis: bool) -> Option<u64> {
    let (mut total, mut value, mut digits, mut rank) = (0u64, 0u64, false, 0u8);
    let mut rest = text;
    while let Some((&byte, tail)) = rest.split_first() {
        if byte.is_ascii_digit() {
            rest = tail;
            value = push_digit(value, byte)?;
            digits = true;
            continue;
        }
        let (next, scale, len) = time_unit(rest, millis)?;
        // Nothing with a unit may follow a bare number, and no bare number seconds.
        if next <= rank || (next == BARE && rank >= SECOND) {
            return None;
        }
        rank = next;
        total = add(total, value, scale)?;
        value = 0;
        rest = rest.get(len..).unwrap_or_default();
        while let Some((b' ', tail)) = rest.split_first() {
            rest = tail;
        }
    }
    if digits { add(total, value, if millis { 1000 } else { 1 }) } else { None }
}

/// Returns `total + value * scale`, if that is in bounds.
fn add(total: u64, value: u64, scale: u64) -> Option<u64> {
    let more = value.checked_mul(scale)?;
    total.checked_add(more).filter(|&sum| sum <= MAX)
}

#[cfg(test)]
mod tests;
