//! Unidirectional streams of the client.

use super::{Fatal, Session};
use crate::h3::Stream;
use crate::thread::Thread;
use forebay_http::h3::connection::Event;
use forebay_net::quic::{Link, StreamId};
use std::rc::Rc;

impl Session {
    /// Reads a unidirectional stream.
    pub(super) fn read_uni(self: &Rc<Self>, thread: &Rc<Thread>, link: &Link, id: u64) -> Result<(), Fatal> {
        loop {
            // The borrow ends with this statement, because the handlers use the state.
            let event = self.state.borrow_mut().connection.receive(link, id)?;
            match event {
                Some(Event::Inserted(inserted)) => self.unblock(thread, inserted)?,
                Some(Event::Priority { stream, priority }) => {
                    if let Some(stream) = self.stream(StreamId(stream)) {
                        stream.update_priority(priority);
                    }
                }
                // GOAWAY of a client names a push, and this server makes none (RFC 9114, section 5.2).
                Some(Event::GoAway(_)) => {}
                None => return Ok(()),
            }
        }
    }

    /// Goes on with the field sections that have waited for insertions. `inserted` is the number of insertions so far.
    fn unblock(self: &Rc<Self>, thread: &Rc<Thread>, inserted: u64) -> Result<(), Fatal> {
        let is_due = |stream: &Rc<Stream>| {
            stream.blocked_section.borrow().as_ref().is_some_and(|(required, _)| *required <= inserted)
        };
        let due: Vec<Rc<Stream>> = {
            let s = self.state.borrow();
            s.streams.iter().map(|(_, stream)| stream).filter(|stream| is_due(stream)).cloned().collect()
        };
        for stream in due {
            let section = stream.blocked_section.take();
            match section {
                Some((_, section)) if stream.has_begun() => stream.end_by_trailers(&section)?,
                Some((_, section)) => self.begin(thread, &stream, section, self.limits(thread))?,
                None => {}
            }
        }
        Ok(())
    }
}
