//! Times after which a session is over, in the value that its client keeps (`sticky cookie` and `sticky header`).
//!
//! The value is the name of the server, followed by a dot and the time at which the session began, and a dot and the time
//! of the last answer. A time is there only if there is a limit for it, in hexadecimal Unix seconds. A client can change
//! the times. It gains nothing by this that it could not have by sending the value of another client.

/// Seconds by which the clocks of replicas may differ.
const SKEW: i64 = 60;

/// Limits of a session.
#[derive(Clone, Copy, Debug, Default)]
pub(super) struct Times {
    /// `lifetime`: seconds after its beginning.
    pub lifetime: Option<u64>,
    /// `idle`: seconds after its last answer.
    pub idle: Option<u64>,
}

impl Times {
    /// Returns `true` if a session ends at all.
    pub(super) fn is_limited(&self) -> bool {
        self.lifetime.is_some() || self.idle.is_some()
    }

    /// Splits a value into the name of the server and the time at which the session began. Returns `None` if the session is over.
    pub(super) fn read<'v>(&self, value: &'v [u8], now: i64) -> Option<(&'v [u8], i64)> {
        let mut rest = value;
        if let Some(limit) = self.idle {
            let (before, at) = split(rest)?;
            is_within(at, limit, now).then_some(())?;
            rest = before;
        }
        let mut begun = now;
        if let Some(limit) = self.lifetime {
            let (before, at) = split(rest)?;
            is_within(at, limit, now).then_some(())?;
            (rest, begun) = (before, at);
        }
        Some((rest, begun))
    }

    /// Appends the times after the name of a server.
    pub(super) fn write(&self, begun: i64, now: i64, out: &mut Vec<u8>) {
        for at in [self.lifetime.map(|_| begun), self.idle.map(|_| now)].into_iter().flatten() {
            out.extend_from_slice(format!(".{:x}", at.max(0)).as_bytes());
        }
    }

    /// Returns the seconds that are left of a lifetime.
    pub(super) fn left(&self, begun: i64, now: i64) -> Option<u64> {
        let gone = u64::try_from(now.saturating_sub(begun)).unwrap_or(0);
        self.lifetime.map(|lifetime| lifetime.saturating_sub(gone))
    }
}

fn is_within(at: i64, limit: u64, now: i64) -> bool {
    // A time in the future would make a session endless.
    at <= now.saturating_add(SKEW) && now < at.saturating_add_unsigned(limit)
}

/// Splits the last time off.
fn split(value: &[u8]) -> Option<(&[u8], i64)> {
    // Names of servers may have dots in them, so the times are taken off from the end.
    let dot = value.iter().rposition(|b| *b == b'.')?;
    let (before, text) = (value.get(..dot)?, value.get(dot + 1..)?);
    let digits = (1..=12).contains(&text.len()) && text.iter().all(u8::is_ascii_hexdigit);
    let number = std::str::from_utf8(text).ok().filter(|_| digits)?;
    Some((before, i64::from_str_radix(number, 16).ok()?))
}

#[cfg(test)]
mod tests {
    use super::*;

    const NOW: i64 = 1_800_000_000;

    fn value(times: Times, begun: i64, last: i64) -> Vec<u8> {
        let mut value = b"a.b".to_vec();
        times.write(begun, last, &mut value);
        value
    }

    #[test]
    fn sessions_end() {
        let of = |lifetime, idle| Times { lifetime, idle };
        for (times, begun, last, lives) in [
            (of(None, None), 0, 0, true),
            (of(Some(100), None), NOW - 99, 0, true),
            (of(Some(100), None), NOW - 100, NOW, false),
            (of(None, Some(10)), 0, NOW - 9, true),
            (of(None, Some(10)), NOW, NOW - 10, false),
            (of(Some(100), Some(10)), NOW - 99, NOW - 9, true),
            (of(Some(100), Some(10)), NOW - 100, NOW - 9, false),
            (of(Some(100), Some(10)), NOW - 99, NOW - 10, false),
            // A clock that goes ahead, and a time that was made up.
            (of(Some(100), None), NOW + 5, 0, true),
            (of(Some(100), None), NOW + 5000, 0, false),
        ] {
            let value = value(times, begun, last);
            let found = times.read(&value, NOW);
            assert_eq!(found.map(|(sid, _)| sid), lives.then_some(&b"a.b"[..]), "{times:?} {begun} {last}");
            if let (Some((_, at)), Some(_)) = (found, times.lifetime) {
                assert_eq!(at, begun);
            }
        }
        assert_eq!(of(Some(100), None).left(NOW - 30, NOW), Some(70));
        assert_eq!(of(Some(100), None).left(NOW - 300, NOW), Some(0));
    }

    #[test]
    fn values_of_another_form_begin_no_session() {
        let times = Times { lifetime: Some(100), idle: None };
        for wrong in ["", "a", "a.", ".", "a.+1", "a.xyz", "a.0x1", "a.fffffffffffffffffff"] {
            assert_eq!(times.read(wrong.as_bytes(), NOW), None, "{wrong}");
        }
    }
}
