//! Access logs: their destinations, and the escaping of values in their lines (nginx: access_log, log_format). Hot path.

use super::syslog::Syslog;
use crate::vars::{Evaluate, Part, Template, VarError};
use std::sync::Arc;
use std::time::Duration;

/// Destination of an `access_log`.
#[derive(Clone, Debug)]
pub enum Target {
    /// Log file by its number in `Config::log_files`.
    File(usize),
    /// A path with variables, opened by the worker.
    Path(Template),
    /// `syslog:...`.
    Syslog(Arc<Syslog>),
}

/// One `access_log`.
#[derive(Clone, Debug)]
pub struct AccessLog {
    /// Target.
    pub target: Target,
    /// Index of the format.
    pub format: usize,
    /// `buffer=`, bytes; 0 = lines are written at the end of the turn of the loop.
    pub buffer: usize,
    /// `flush=`.
    pub flush: Option<Duration>,
    /// `gzip=` level.
    pub gzip: Option<u32>,
    /// `if=`.
    pub condition: Option<Template>,
}

impl AccessLog {
    /// Creates a log in the first format, without parameters.
    pub fn new(target: Target) -> AccessLog {
        AccessLog { target, format: 0, buffer: 0, flush: None, gzip: None, condition: None }
    }
}

/// Escaping of variable text (nginx: log_format, escape=).
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Escape {
    /// `"`, `\`, and bytes below 32 or above 126 as `\xXX`; no value as `-`.
    #[default]
    Default,
    /// As in JSON strings.
    Json,
    /// No escaping.
    None,
}

/// Appends a line in a format, without a newline.
///
/// # Errors
/// As [`Evaluate::var`].
pub fn write_line<E: Evaluate>(
    format: &Template,
    escape: Escape,
    e: &mut E,
    out: &mut Vec<u8>,
) -> Result<(), VarError> {
    for part in format.parts() {
        let start = out.len();
        let found = match part {
            Part::Text(t) => {
                out.extend_from_slice(t);
                continue;
            }
            Part::Var(v) => e.var(*v, out)?,
            Part::Capture(n) => {
                e.captures().push(*n, out);
                true
            }
        };
        match escape {
            Escape::Default if !found => out.push(b'-'),
            escape => escape.apply(out, start),
        }
    }
    Ok(())
}

/// Returns `true` if a byte needs escaping in the default format.
fn is_unsafe(b: u8) -> bool {
    b.wrapping_sub(32) > 94 || b == b'"' || b == b'\\'
}

/// Returns `true` if any byte needs escaping. Checks eight at a time, since nearly all text is clean.
#[inline]
pub fn is_dirty(text: &[u8]) -> bool {
    const ONES: u64 = 0x0101_0101_0101_0101;
    const HIGH: u64 = ONES << 7;
    // The high bit of a byte is set where the byte is too low, too high, or one of the two; above such a byte, others
    // may be marked, too.
    let marks = |x: u64| {
        let zero = |y: u64| y.wrapping_sub(ONES) & !y;
        let low = x.wrapping_sub(ONES * 32) & !x;
        (low | x | x.wrapping_add(ONES) | zero(x ^ (ONES * 0x22)) | zero(x ^ (ONES * 0x5c))) & HIGH
    };
    let (words, rest) = text.as_chunks::<8>();
    let mut any = 0;
    for w in words {
        any |= marks(u64::from_le_bytes(*w));
    }
    match text.last_chunk::<8>() {
        Some(w) if !rest.is_empty() => any |= marks(u64::from_le_bytes(*w)),
        Some(_) => {}
        None => return rest.iter().any(|b| is_unsafe(*b)),
    }
    any != 0
}

impl Escape {
    /// Escapes the bytes of `out` from `start`.
    pub fn apply(self, out: &mut Vec<u8>, start: usize) {
        match self {
            Escape::Default if is_dirty(out.get(start..).unwrap_or_default()) => {
                escape_from(out, start, is_unsafe, push_hex);
            }
            Escape::Json => escape_from(out, start, |b| b < 32 || b == b'"' || b == b'\\', push_json),
            Escape::Default | Escape::None => {}
        }
    }
}

/// Escapes the bytes of `out` from `start`, where there is anything to escape.
fn escape_from(out: &mut Vec<u8>, start: usize, unsafe_byte: fn(u8) -> bool, push: fn(&mut Vec<u8>, u8)) {
    let Some(first) = out[start..].iter().position(|b| unsafe_byte(*b)) else { return };
    let tail = out.split_off(start + first);
    for b in tail {
        if unsafe_byte(b) { push(out, b) } else { out.push(b) }
    }
}

fn push_hex(out: &mut Vec<u8>, b: u8) {
    const HEX: &[u8; 16] = b"0123456789ABCDEF";
    out.extend_from_slice(&[b'\\', b'x', HEX[usize::from(b >> 4)], HEX[usize::from(b & 15)]]);
}

fn push_json(out: &mut Vec<u8>, b: u8) {
    const HEX: &[u8; 16] = b"0123456789ABCDEF";
    match b {
        b'"' | b'\\' => out.extend_from_slice(&[b'\\', b]),
        b'\n' => out.extend_from_slice(b"\\n"),
        b'\r' => out.extend_from_slice(b"\\r"),
        b'\t' => out.extend_from_slice(b"\\t"),
        0x08 => out.extend_from_slice(b"\\b"),
        0x0c => out.extend_from_slice(b"\\f"),
        _ => out.extend_from_slice(&[
            b'\\',
            b'u',
            b'0',
            b'0',
            HEX[usize::from(b >> 4)],
            HEX[usize::from(b & 15)],
        ]),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_byte_that_needs_escaping_is_seen_wherever_it_stands() {
        for len in 0..27 {
            assert!(!is_dirty(&vec![b' '; len]) && !is_dirty(&vec![b'~'; len]));
            for at in 0..len {
                for b in 0..=255 {
                    let mut text = vec![b'x'; len];
                    text[at] = b;
                    assert_eq!(is_dirty(&text), is_unsafe(b), "{b} at {at} of {len}");
                }
            }
        }
    }
}
