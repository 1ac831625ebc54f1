//! `time_format`: the time in a format of one's own. A format is read once, when the configuration is.

use super::{Evaluate, VarError};
use crate::strftime::{Moment, conversion};
use std::fmt::Write;
use std::time::Duration;

/// Letters of the conversions, without `L` and `Z`, which differ from strftime's.
const CONVERSIONS: &[u8] = b"YymdeHIMSpPaAbhBznt%";

/// Format of `time_format`.
#[derive(Debug)]
pub struct TimeFormat {
    parts: Vec<Part>,
    /// Milliseconds are in the format, so each use reads the clock.
    has_milliseconds: bool,
}

#[derive(Debug, PartialEq, Eq)]
enum Part {
    Text(Vec<u8>),
    /// Conversion of strftime, by its letter.
    Conversion(u8),
    /// Milliseconds, three digits.
    Milliseconds,
    /// Offset from UTC as in ISO 8601: `+03:00`.
    Offset,
}

/// A percent sign with a byte behind it that is no conversion; `None` if nothing is behind it.
#[derive(Debug, PartialEq, Eq)]
pub struct UnknownConversion(pub Option<u8>);

impl TimeFormat {
    /// Reads a format.
    ///
    /// # Errors
    /// If a conversion is not known.
    pub fn new(format: &[u8]) -> Result<TimeFormat, UnknownConversion> {
        let mut parts = Vec::new();
        let mut rest = format.iter();
        while let Some(b) = rest.next() {
            let part = match (b, parts.last_mut()) {
                (b'%', _) => match rest.next() {
                    Some(b'L') => Part::Milliseconds,
                    Some(b'Z') => Part::Offset,
                    Some(letter) if CONVERSIONS.contains(letter) => Part::Conversion(*letter),
                    other => return Err(UnknownConversion(other.copied())),
                },
                (b, Some(Part::Text(text))) => {
                    text.push(*b);
                    continue;
                }
                (b, _) => Part::Text(vec![*b]),
            };
            parts.push(part);
        }
        let has_milliseconds = parts.contains(&Part::Milliseconds);
        Ok(TimeFormat { parts, has_milliseconds })
    }

    /// Appends the time of a request's clock.
    ///
    /// # Errors
    /// If the time is out of range.
    pub fn compute<E: Evaluate>(&self, req: &E, out: &mut Vec<u8>) -> Result<bool, VarError> {
        let clock = req.clock();
        let time = if self.has_milliseconds {
            clock.msec()
        } else {
            Duration::from_secs(clock.unix().unsigned_abs())
        };
        let offset = clock.offset(i64::try_from(time.as_secs()).unwrap_or(i64::MAX));
        self.push(time, offset, out).ok_or_else(|| VarError("the time is out of range".into()))?;
        Ok(true)
    }

    /// Appends a time since the epoch, in a time zone with an offset in seconds. Returns `None` if the time is out of range.
    fn push(&self, time: Duration, offset: i32, out: &mut Vec<u8>) -> Option<()> {
        // No conversion that is accepted writes the abbreviation of the zone.
        let moment = Moment { unix: i64::try_from(time.as_secs()).ok()?, offset, zone: "" };
        let civil = moment.civil()?;
        let mut text = String::new();
        for part in &self.parts {
            match part {
                Part::Text(bytes) => {
                    out.extend_from_slice(bytes);
                    continue;
                }
                Part::Conversion(letter) => {
                    conversion(*letter, &moment, &civil, &mut text);
                }
                // Writing to a string cannot fail.
                Part::Milliseconds => drop(write!(text, "{:03}", time.subsec_millis())),
                Part::Offset => {
                    let (sign, minutes) = (if offset < 0 { '-' } else { '+' }, offset.unsigned_abs() / 60);
                    let _ = write!(text, "{sign}{:02}:{:02}", minutes / 60, minutes % 60);
                }
            }
            out.extend_from_slice(text.as_bytes());
            text.clear();
        }
        Some(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn at(format: &str, offset: i32) -> String {
        let mut out = Vec::new();
        let time = Duration::from_millis(784_111_777_042);
        let format = TimeFormat::new(format.as_bytes()).expect("a format");
        format.push(time, offset, &mut out).expect("a time");
        String::from_utf8(out).expect("text")
    }

    #[test]
    fn every_conversion() {
        for (format, offset, want) in [
            ("%Y-%m-%dT%H:%M:%S.%L%Z", 10_800, "1994-11-06T11:49:37.042+03:00"),
            ("%y|%e|%I|%p|%P", 0, "94| 6|08|AM|am"),
            ("%a %A %b %h %B", 0, "Sun Sunday Nov Nov November"),
            ("%z %Z", -12_600, "-0330 -03:30"),
            ("%n%t%%", 0, "\n\t%"),
            ("no conversion", 0, "no conversion"),
            ("", 0, ""),
        ] {
            assert_eq!(at(format, offset), want, "{format}");
        }
    }

    #[test]
    fn unknown_conversions_are_refused() {
        for (format, letter) in [("%q", Some(b'q')), ("%s", Some(b's')), ("100%", None), ("%Y%", None)] {
            assert_eq!(TimeFormat::new(format.as_bytes()).err(), Some(UnknownConversion(letter)), "{format}");
        }
    }
}
