//! Priorities of requests (RFC 9218), for HTTP/2 and HTTP/3.

/// Priority of a stream (RFC 9218, section 4).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Priority {
    /// 0 to 7, 0 is the most urgent.
    pub urgency: u8,
    /// Takes turns with other streams of the same urgency.
    pub incremental: bool,
}

impl Priority {
    /// Priority for clients that send none. Unlike RFC 9218's default it is incremental, so that their streams take
    /// turns.
    pub const DEFAULT: Priority = Priority { urgency: 3, incremental: true };

    /// Parses a `Priority` value such as `u=1, i`. Ignores other members of the structured field, and parameters.
    pub fn parse(text: &[u8]) -> Priority {
        let mut p = Priority { urgency: 3, incremental: false };
        for item in text.split(|b| *b == b',') {
            let value = item.split(|b| *b == b';').next().unwrap_or_default();
            match value.trim_ascii() {
                [b'u', b'=', d @ b'0'..=b'7'] => p.urgency = d - b'0',
                b"i" | b"i=?1" => p.incremental = true,
                b"i=?0" => p.incremental = false,
                _ => {}
            }
        }
        p
    }

    /// Returns the place of a stream among those that have something to send, the first one least. Incremental streams of the same
    /// urgency have the same place. `id`: identifier of the stream, which grows from request to request.
    pub fn order(self, id: u64) -> (u8, u64) {
        (self.urgency, if self.incremental { u64::MAX } else { id })
    }
}

/// Most priorities remembered for streams that have not begun.
const EARLY: usize = 16;

/// Priorities that came before their streams.
#[derive(Debug, Default)]
pub struct Early(Vec<(u64, Priority)>);

impl Early {
    /// Remembers a priority, in place of an earlier one of the same stream. Ignores it if there are too many.
    pub fn note(&mut self, id: u64, priority: Priority) {
        self.0.retain(|(known, _)| *known != id);
        if self.0.len() < EARLY {
            self.0.push((id, priority));
        }
    }

    /// Takes the priority of a stream that begins.
    pub fn take(&mut self, id: u64) -> Option<Priority> {
        let at = self.0.iter().position(|(known, _)| *known == id)?;
        Some(self.0.swap_remove(at).1)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn priorities_as_structured_fields() {
        let p = |urgency, incremental| Priority { urgency, incremental };
        assert_eq!(Priority::parse(b""), p(3, false));
        assert_eq!(Priority::parse(b"u=1, i"), p(1, true));
        assert_eq!(Priority::parse(b"i=?0,u=7;x=1, u=6"), p(6, false));
        assert_eq!(Priority::parse(b"u=5;x=1,i;y"), p(5, true));
        assert_eq!(Priority::parse(b"u=9"), p(3, false));
    }

    #[test]
    fn streams_follow_urgency_and_then_their_numbers() {
        let order = |text: &[u8], id| Priority::parse(text).order(id);
        assert!(order(b"u=1", 8) < order(b"u=2", 4));
        assert!(order(b"u=1", 4) < order(b"u=1", 8));
        assert!(order(b"u=1", 8) < order(b"u=1, i", 4));
        assert_eq!(order(b"u=1, i", 8), order(b"u=1, i", 4));
    }

    #[test]
    fn early_priorities_are_bounded() {
        let mut early = Early::default();
        let p = |urgency| Priority { urgency, incremental: false };
        (0..20).for_each(|id| early.note(id, p(1)));
        early.note(3, p(2));
        assert_eq!((early.take(3), early.take(3), early.take(19)), (Some(p(2)), None, None));
        assert_eq!(early.0.len(), EARLY - 1);
    }
}
