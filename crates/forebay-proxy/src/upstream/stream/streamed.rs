//! The body of an upstream's response as a [`Streamed`]. Hot path.

use super::Body;
use forebay_net::pipe::Pipe;
use forebay_server::body::Done;
use forebay_server::request::Request;
use forebay_server::response::streamed::{Awaited, Pulled, Relay, Streamed};
use forebay_sys::pooled::Pooled;
use rustix::io::Errno;
use std::time::Instant;

impl Streamed for Body {
    fn pull(&mut self, req: &mut Request, out: &mut Vec<u8>) -> Pulled {
        Body::pull(self, req, out)
    }

    fn wait<'a>(&'a mut self, req: &'a mut Request) -> Pooled<'a, Done> {
        Pooled::new(Body::wait(self, req))
    }

    fn read_ahead<'a>(
        &'a mut self,
        req: &'a mut Request,
        client: bool,
        until: Instant,
    ) -> Pooled<'a, Awaited> {
        Pooled::new(Body::read_ahead(self, req, client, until))
    }

    fn wants_save(&self) -> bool {
        Body::wants_save(self)
    }

    fn save<'a>(&'a mut self, req: &'a mut Request) -> Pooled<'a, ()> {
        Pooled::new(Body::save(self, req))
    }

    fn load<'a>(&'a mut self, req: &'a mut Request, out: &'a mut Vec<u8>) -> Pooled<'a, Pulled> {
        Pooled::new(Body::load(self, req, out))
    }

    fn keeps(&self) -> bool {
        Body::keeps(self)
    }

    fn drain<'a>(&'a mut self, req: &'a mut Request) -> Pooled<'a, ()> {
        Pooled::new(Body::drain(self, req))
    }

    fn abandon(&mut self, req: &mut Request) {
        Body::abandon(self, req);
    }

    fn is_unbuffered(&self) -> bool {
        self.ahead.is_none() && self.contact.is_some()
    }

    fn uploads(&self) -> bool {
        Body::uploads(self)
    }

    fn can_pass(&mut self) -> bool {
        Body::can_pass(self)
    }

    fn pass(&mut self, req: &mut Request, pipe: &mut Pipe) -> Option<Pulled> {
        Body::pass(self, req, pipe)
    }

    fn hold_back(&mut self, req: &Request, pipe: &mut Pipe) -> Option<Result<(), Errno>> {
        Body::hold_back(self, req, pipe)
    }

    fn is_switched(&self) -> bool {
        self.switched.is_some()
    }

    fn relay<'a>(&'a mut self, req: &'a mut Request) -> Pooled<'a, bool> {
        Pooled::new(Body::relay(self, req))
    }

    fn is_suspendable(&self) -> bool {
        self.switched.is_some() && self.contact.as_ref().is_some_and(|c| c.is_sent() && !c.is_sticky())
    }

    fn suspend(self: Box<Self>, req: &mut Request) -> Option<Relay> {
        let (mut contact, switched) = self.contact.zip(self.switched)?;
        let upstream = contact.disconnect()?;
        let (pair, rules) = switched.pair(req, &upstream);
        Some(Relay { pair, rules, upstream, contact: Box::new(contact) })
    }
}
