//! Numbers of the command line.

use std::time::Duration;

/// Units of time in seconds.
const UNITS: [(&str, f64); 6] =
    [("", 1.0), ("s", 1.0), ("ms", 1e-3), ("us", 1e-6), ("m", 60.0), ("h", 3600.0)];

/// Parses a time: `10` (seconds), `500ms`, `10s`, `2m`, `1h`, `100us`.
///
/// # Errors
/// The text has another form.
pub fn duration(text: &str) -> Result<Duration, String> {
    let split = text.find(|c: char| !c.is_ascii_digit() && c != '.').unwrap_or(text.len());
    let (number, unit) = text.split_at(split);
    let bad = || format!("\"{text}\": expected a time such as 500ms, 10s or 2m");
    let (_, factor) = UNITS.iter().find(|(name, _)| *name == unit).ok_or_else(bad)?;
    let number: f64 = number.parse().map_err(|_| bad())?;
    Duration::try_from_secs_f64(number * factor)
        .ok()
        .filter(|d| *d <= Duration::from_secs(7 * 86_400))
        .ok_or_else(|| format!("\"{text}\": longer than a week"))
}

/// Parses a number: `500`, `10k`, `1.5M`.
///
/// # Errors
/// The text has another form.
pub fn number(text: &str) -> Result<f64, String> {
    let bad = || format!("\"{text}\": expected a number such as 500 or 10k");
    let (digits, factor) = match text.as_bytes().last() {
        Some(b'k' | b'K') => (&text[..text.len() - 1], 1e3),
        Some(b'm' | b'M') => (&text[..text.len() - 1], 1e6),
        Some(b'g' | b'G') => (&text[..text.len() - 1], 1e9),
        _ => (text, 1.0),
    };
    let plain = digits.bytes().all(|b| b.is_ascii_digit() || b == b'.');
    digits.parse::<f64>().ok().filter(|n| plain && n.is_finite()).map(|n| n * factor).ok_or_else(bad)
}

/// Parses a whole number above 0.
///
/// # Errors
/// The text has another form.
pub fn count(text: &str) -> Result<u64, String> {
    let n = number(text)?;
    if n >= 1.0 && n.fract() == 0.0 && n < 1e15 {
        Ok(n as u64)
    } else {
        Err(format!("\"{text}\": expected a whole number above 0"))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn good_and_bad() {
        assert_eq!(duration("500ms"), Ok(Duration::from_millis(500)));
        assert_eq!(duration("2m"), Ok(Duration::from_secs(120)));
        assert_eq!(duration("1.5"), Ok(Duration::from_millis(1500)));
        for bad in ["", "s", "1d", "-1s", "1e9h", "99999h"] {
            assert!(duration(bad).is_err(), "{bad}");
        }
        assert_eq!((number("10k"), count("2M")), (Ok(10_000.0), Ok(2_000_000)));
        for bad in ["", "k", "x", "0", "1.5", "-3", "inf", "nan"] {
            assert!(count(bad).is_err(), "{bad}");
        }
    }
}
