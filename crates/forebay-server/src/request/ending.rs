//! End of a request's connection. Hot path.

/// End of a connection of HTTP/1 after a request. While the request is served, the value only becomes stricter, beginning with
/// [`Keep`](Ending::Keep).
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Ending {
    /// It may serve another request.
    Keep,
    /// It is closed after the response.
    #[default]
    Close,
    /// It is closed right after the bytes of the response, without waiting for anything else.
    CloseAtOnce,
    /// It is closed without a response.
    Drop {
        /// `true` if it might have served another request. `$sent_http_connection` still says so in the log, as in nginx.
        kept: bool,
    },
}

impl Ending {
    /// Returns the end of a request whose client allows another one (`keeps`), or not.
    #[inline]
    pub fn begin(keeps: bool) -> Ending {
        if keeps { Ending::Keep } else { Ending::Close }
    }

    /// Returns `true` if the connection may serve another request, or might have before it was dropped.
    #[inline]
    pub fn keeps_alive(self) -> bool {
        matches!(self, Ending::Keep | Ending::Drop { kept: true })
    }

    /// Returns `true` if the connection is closed right after the bytes of the response.
    #[inline]
    pub fn closes_at_once(self) -> bool {
        self == Ending::CloseAtOnce
    }

    /// Returns `true` if no response is sent.
    #[inline]
    pub fn is_dropped(self) -> bool {
        matches!(self, Ending::Drop { .. })
    }

    /// Has the connection serve no other request.
    #[inline]
    pub fn close(&mut self) {
        *self = match *self {
            Ending::Keep => Ending::Close,
            Ending::Drop { .. } => Ending::Drop { kept: false },
            closed => closed,
        };
    }

    /// Has a connection that is closed after the response be closed right after its bytes.
    #[inline]
    pub fn close_at_once(&mut self) {
        if *self == Ending::Close {
            *self = Ending::CloseAtOnce;
        }
    }

    /// Has the connection be closed without a response.
    #[inline]
    pub fn drop_connection(&mut self) {
        *self = Ending::Drop { kept: self.keeps_alive() };
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_ending_only_becomes_stricter() {
        let mut ending = Ending::begin(true);
        ending.close_at_once();
        assert!(ending == Ending::Keep && ending.keeps_alive(), "a kept connection has no end to hurry");
        ending.close();
        assert!(ending == Ending::Close && !ending.keeps_alive() && !ending.closes_at_once());
        ending.close_at_once();
        ending.close();
        assert!(ending.closes_at_once() && !ending.is_dropped());
        ending.drop_connection();
        ending.close_at_once();
        assert!(ending.is_dropped() && !ending.closes_at_once());
    }

    #[test]
    fn a_dropped_connection_remembers_whether_it_was_kept() {
        let mut ending = Ending::begin(true);
        ending.drop_connection();
        ending.drop_connection();
        assert!(ending.is_dropped() && ending.keeps_alive());
        ending.close();
        assert!(ending.is_dropped() && !ending.keeps_alive());
        assert_eq!((Ending::begin(false), size_of::<Ending>()), (Ending::Close, 1));
    }
}
