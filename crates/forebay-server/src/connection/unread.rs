//! Requests whose heads are not read to their end, and requests that no runner serves. Each gets its line in the access log.

use crate::connection::mux::RequestStream;
use crate::request::Request;
use crate::response::respond::finish;
use crate::thread::Thread;
use forebay_conf::error::Level;
use forebay_core::client::Client;
use forebay_core::transfers::Over;
use forebay_http::request::{RequestHead, Version};
use forebay_net::wire::Wire;
use forebay_sys::errno::errno_text;
use rustix::io::Errno;
use std::rc::Rc;

/// Reason for which a head will not be completed.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum HeadFailure {
    /// The client closed the connection.
    Closed,
    /// Reading failed.
    Failed(Errno),
    /// The client broke a rule of HTTP/2 or HTTP/3.
    Broken,
    /// The client is too slow (`client_header_timeout`).
    TimedOut,
    /// The client is slow, and another connection needs the place (`worker_connections`).
    Displaced,
    /// The listener is gone, or the process ends (`worker_shutdown_timeout`).
    Ended,
}

impl HeadFailure {
    /// Returns the message of nginx's log; `did` is the participle for a client that closed the connection.
    pub(super) fn text(self, did: &str) -> String {
        match self {
            HeadFailure::Closed => format!("client {did} connection"),
            HeadFailure::Failed(e) => format!("recv() failed {}", errno_text(e)),
            HeadFailure::Broken => "client broke the protocol".to_owned(),
            HeadFailure::TimedOut => "client timed out (110: Connection timed out)".to_owned(),
            HeadFailure::Displaced => Over::GivenUp.text().to_owned(),
            HeadFailure::Ended => "connection was closed".to_owned(),
        }
    }

    /// Returns the status for the access log.
    pub(super) fn status(self) -> u16 {
        match self {
            HeadFailure::Closed | HeadFailure::Failed(_) | HeadFailure::Broken => 400,
            HeadFailure::TimedOut | HeadFailure::Displaced | HeadFailure::Ended => 408,
        }
    }
}

/// Logs a request of HTTP/2 or HTTP/3 whose head is not read to its end, so nothing of it is known. `number` is the number of the request
/// on its client's connection.
pub fn log(thread: &Rc<Thread>, version: Version, client: Rc<Client>, number: u32, why: HeadFailure) {
    let mut head = Box::<RequestHead>::default();
    head.version = version;
    let mut req = begun(thread, head, client, number);
    req.timed_out = why == HeadFailure::TimedOut;
    req.log(Level::Info, &format!("{} while reading client request headers", why.text("prematurely closed")));
    end(req, why.status());
}

/// Logs the request of a stream that no runner will serve, since the thread ends.
pub fn log_unserved(thread: &Rc<Thread>, stream: &impl RequestStream) {
    if let Some(head) = stream.state().take_head() {
        // nginx logs this status for a request whose client does not get a response.
        end(begun(thread, head, stream.client(), stream.state().number.get()), 499);
    }
}

fn begun(thread: &Rc<Thread>, head: Box<RequestHead>, client: Rc<Client>, number: u32) -> Request {
    let mut req = Request::new(thread.clone());
    req.head = head;
    // Nothing can be sent any more, so the request has no wire.
    req.take_stream(Wire::Closed, client, number);
    req.begin_request();
    // The request is refused whatever its server is, so a failure of the choice does not matter.
    let _ = req.choose_server();
    req
}

fn end(mut req: Request, status: u16) {
    req.resp.status = status;
    finish(&mut req);
    req.end_stream();
}
