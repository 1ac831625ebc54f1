//! Unidirectional streams of the server.

use super::Session;
use crate::upstream::pooled::{Problem, ProblemKind, Session as _};
use forebay_http::h3::Fatal;
use forebay_http::h3::connection::Event;
use std::rc::Rc;

impl Session {
    /// Reads a unidirectional stream.
    pub(super) fn read_uni(self: &Rc<Self>, id: u64) -> Result<(), Fatal> {
        loop {
            // A statement of its own, which ends the borrow: the handlers use the state.
            let event = self.state.borrow_mut().connection.receive(self.link.as_ref(), id)?;
            match event {
                Some(Event::GoAway(first)) => self.go_away(first),
                Some(Event::Inserted(inserted)) => self.unblock(inserted),
                // Only clients give priorities (RFC 9218, section 7.2), so this client has no use for them.
                Some(Event::Priority { .. }) => {}
                None => return Ok(()),
            }
        }
    }

    /// Takes no further requests. Requests that the server will not serve are sent elsewhere (RFC 9114, section 5.2).
    fn go_away(&self, first: u64) {
        let unserved: Vec<_> = {
            let s = self.state.borrow();
            let later = s.streams.iter().filter(|(id, _)| id.0 >= first);
            later.filter_map(|(_, stream)| stream.upgrade()).collect()
        };
        for stream in unserved {
            let text = "sent GOAWAY frame instead of a response".into();
            stream.break_off(Problem { text, kind: ProblemKind::Unsent });
        }
        self.retire();
    }

    /// Wakes requests that have waited for insertions. `inserted`: their number.
    fn unblock(&self, inserted: u64) {
        let s = self.state.borrow();
        let streams: Vec<_> = s.streams.iter().filter_map(|(_, stream)| stream.upgrade()).collect();
        drop(s);
        streams.iter().for_each(|stream| stream.unblock(inserted));
    }
}
