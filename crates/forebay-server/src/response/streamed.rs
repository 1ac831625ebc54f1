//! Content that comes while a response is sent: the body of an upstream's response. Hot path.

use crate::body::Done;
use crate::request::Request;
use forebay_core::upstream::conn::Conn;
use forebay_net::pipe::Pipe;
use forebay_net::relay::{Pair, Rules};
use forebay_sys::pooled::Pooled;
use rustix::io::Errno;
use std::fmt::Debug;
use std::time::Instant;

/// Content that comes over time, after the parts of a response.
pub type Body = Box<dyn Streamed>;

/// Result of [`Streamed::pull`].
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Pulled {
    /// Bytes were appended; more may follow.
    Data,
    /// Bytes are in a file; [`Streamed::load`] reads them.
    Stored,
    /// No bytes have come.
    Blocked,
    /// The content is over; bytes may have been appended.
    End,
    /// The content breaks off.
    Failed,
}

/// End of a wait for a client that has to take more.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Awaited {
    /// It takes more.
    Writable,
    /// The time is over.
    TimeOver,
}

/// Source of content that comes over time. The provided methods suit content that is made in memory on demand.
pub trait Streamed: Debug {
    /// Appends content that has come, without waiting.
    fn pull(&mut self, req: &mut Request, out: &mut Vec<u8>) -> Pulled;

    /// Waits until there may be more. Fails if the content breaks off.
    fn wait<'a>(&'a mut self, req: &'a mut Request) -> Pooled<'a, Done>;

    /// Waits until the client takes more (`client`), or until a time, and reads ahead meanwhile.
    fn read_ahead<'a>(
        &'a mut self,
        req: &'a mut Request,
        client: bool,
        until: Instant,
    ) -> Pooled<'a, Awaited> {
        Pooled::new(async move {
            // The wait borrows the request, so the thread is held by itself.
            let thread = req.thread.clone();
            if client {
                let writable = req.conn.wire.wait_writable(&thread.io);
                return match thread.io.poller.deadline(until, writable).await {
                    Some(()) => Awaited::Writable,
                    None => Awaited::TimeOver,
                };
            }
            // Content that is made on demand cannot be read ahead, so nothing but the time ends this wait.
            std::future::poll_fn(|_| thread.io.poller.poll_deadline(until)).await;
            Awaited::TimeOver
        })
    }

    /// Returns `true` if [`Streamed::save`] has something to do.
    fn wants_save(&self) -> bool {
        false
    }

    /// Moves content from full memory to a file, and gives the file of a kept response its name at the end.
    fn save<'a>(&'a mut self, req: &'a mut Request) -> Pooled<'a, ()> {
        let _ = req;
        Pooled::new(async {})
    }

    /// Appends content from the file.
    fn load<'a>(&'a mut self, req: &'a mut Request, out: &'a mut Vec<u8>) -> Pooled<'a, Pulled> {
        // Content without a file never reports that bytes are in it.
        let _ = (req, out);
        Pooled::new(async { Pulled::Failed })
    }

    /// Returns `true` if the response is kept. All of it is read then, even if the client goes away.
    fn keeps(&self) -> bool {
        false
    }

    /// Reads the rest of a response that is kept, for a client that is gone or does not want it.
    fn drain<'a>(&'a mut self, req: &'a mut Request) -> Pooled<'a, ()> {
        let _ = req;
        Pooled::new(async {})
    }

    /// Ends content whose rest is not read.
    fn abandon(&mut self, req: &mut Request);

    /// Returns `true` if bytes are to leave as they come (nginx: proxy_buffering off).
    fn is_unbuffered(&self) -> bool {
        false
    }

    /// Returns `true` while the request's body is being sent.
    fn uploads(&self) -> bool {
        false
    }

    /// Returns `true` if enough content follows that may go to the client inside the kernel.
    fn can_pass(&mut self) -> bool {
        false
    }

    /// Fills a pipe with content that has come. Returns `None` if that is impossible now, so that [`Streamed::pull`] is needed.
    fn pass(&mut self, req: &mut Request, pipe: &mut Pipe) -> Option<Pulled> {
        let _ = (req, pipe);
        None
    }

    /// Holds back bytes of a pipe that come after bytes which the client does not take. Returns `None` if nothing may be read ahead.
    fn hold_back(&mut self, req: &Request, pipe: &mut Pipe) -> Option<Result<(), Errno>> {
        let _ = (req, pipe);
        None
    }

    /// Returns `true` if the rest of the response is passed on as it is: the connection has switched to another protocol, or is a
    /// tunnel.
    fn is_switched(&self) -> bool {
        false
    }

    /// Passes bytes both ways where the protocol was switched. Returns `false` if it was not.
    fn relay<'a>(&'a mut self, req: &'a mut Request) -> Pooled<'a, bool> {
        let _ = req;
        Pooled::new(async { false })
    }

    /// Returns `true` if [`Streamed::suspend`] is possible: only the connections are needed to pass the rest on.
    fn is_suspendable(&self) -> bool {
        false
    }

    /// Gives up the connection of a switched protocol, which is passed on without the request.
    fn suspend(self: Box<Self>, req: &mut Request) -> Option<Relay> {
        let _ = req;
        None
    }
}

/// Connections whose bytes are passed on as they are.
#[derive(Debug)]
pub struct Relay {
    /// State of both directions.
    pub pair: Pair,
    /// Times of both sides.
    pub rules: Rules,
    /// Connection to the upstream.
    pub upstream: Conn,
    /// Rest of the request's contact with the upstream.
    pub contact: Box<dyn RelayContact>,
}

/// A request's contact with an upstream whose connection is relayed.
pub trait RelayContact: Debug {
    /// Ends the contact. `from_client` and `from_server`: bytes that the other side has taken.
    fn over(self: Box<Self>, req: &mut Request, from_client: u64, from_server: u64);

    /// Returns `true` if the relay has to end since its server has been removed.
    fn is_revoked(&self) -> bool {
        false
    }
}

/// Content that is over.
#[derive(Debug)]
pub struct Empty;

impl Streamed for Empty {
    fn pull(&mut self, _: &mut Request, _: &mut Vec<u8>) -> Pulled {
        Pulled::End
    }

    fn wait<'a>(&'a mut self, _: &'a mut Request) -> Pooled<'a, Done> {
        Pooled::new(async { Ok(()) })
    }

    fn abandon(&mut self, _: &mut Request) {}
}
