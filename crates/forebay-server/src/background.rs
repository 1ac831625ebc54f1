//! Requests without a client: an entry of a cache is renewed while what is stale has been sent already (nginx:
//! proxy_cache_background_update).

use crate::cache::index::Ticket;
use crate::modules::{Content, proxy};
use crate::reactor::Token;
use crate::request::{Captures, Conn, Peer, Request, Slot};
use crate::thread::{Thread, ThreadConfig};
use forebay_http::request::{Method, RequestHead};
use std::cell::RefCell;
use std::rc::Rc;

/// What is to be done.
pub struct Work {
    conf: Rc<ThreadConfig>,
    head: Box<RequestHead>,
    number: u64,
    listener: u32,
    local: Option<std::net::SocketAddr>,
    peer: Peer,
    remote: Vec<u8>,
    method: Method,
    uri: Vec<u8>,
    args: Vec<u8>,
    server: usize,
    location: usize,
    slots: Vec<Slot>,
    arena: Vec<u8>,
    captures: Captures,
    valid_location: bool,
    rewritten: bool,
    slice: crate::modules::slice::State,
    ticket: Ticket,
}

/// Work of a thread, by the slot that stands for the client.
#[derive(Default)]
pub struct Queue(RefCell<Vec<(Token, Box<Work>)>>);

/// Most background requests of a thread at a time.
const MOST: usize = 256;

impl Queue {
    /// The work of a slot.
    #[inline]
    pub fn take(&self, token: Token) -> Option<Box<Work>> {
        let mut queue = self.0.borrow_mut();
        let at = queue.iter().position(|(t, _)| *t == token)?;
        Some(queue.swap_remove(at).1)
    }
}

/// Renews the entry that answers a request, in the background.
pub fn update(req: &Request, ticket: Ticket) {
    use rustix::event::{EventfdFlags, eventfd};
    let thread = &req.thread;
    if thread.background.0.borrow().len() >= MOST {
        return;
    }
    // A descriptor that nothing ever happens on takes the place of the client's.
    let Ok(fd) = eventfd(0, EventfdFlags::CLOEXEC | EventfdFlags::NONBLOCK) else { return };
    let token = thread.reactor.insert(fd);
    let work = Work {
        conf: req.conf.clone(),
        head: req.head.clone(),
        number: req.conn.number,
        listener: req.conn.listener,
        local: req.conn.local,
        peer: req.peer,
        remote: req.remote.clone(),
        method: req.method,
        uri: req.uri.clone(),
        args: req.args.clone(),
        server: req.server,
        location: req.location,
        slots: req.slots.clone(),
        arena: req.arena.clone(),
        captures: req.captures.clone(),
        valid_location: req.valid_location,
        rewritten: req.rewritten,
        slice: req.modules.slice.clone(),
        ticket,
    };
    thread.background.0.borrow_mut().push((token, Box::new(work)));
    thread.reactor.drained(token);
    // Its deadline is over: a runner gets it in this turn of the loop.
    let now = thread.reactor.now();
    if thread.reactor.park(token, Box::new(Conn::none(now)), now).is_err() {
        thread.background.take(token);
        thread.reactor.remove(token);
    }
}

/// Frees the slot, also after a panic.
struct Guard<'t>(&'t Rc<Thread>, Token);

impl Drop for Guard<'_> {
    fn drop(&mut self) {
        self.0.reactor.remove(self.1);
    }
}

/// Does the work.
pub async fn run(thread: &Rc<Thread>, req: &mut Request, token: Token, work: Work) {
    let _guard = Guard(thread, token);
    let mut conn = Box::new(Conn::none(thread.clock.now()));
    (conn.number, conn.listener, conn.local, conn.peer) = (work.number, work.listener, work.local, work.peer);
    req.conn = conn;
    req.token = token;
    req.head = work.head;
    req.begin_request();
    req.conf = work.conf;
    (req.method, req.uri, req.args) = (work.method, work.uri, work.args);
    (req.server, req.location) = (work.server, work.location);
    (req.slots, req.arena, req.captures) = (work.slots, work.arena, work.captures);
    (req.valid_location, req.rewritten) = (work.valid_location, work.rewritten);
    (req.peer, req.remote) = (work.peer, work.remote);
    req.modules.slice = work.slice;
    req.modules.proxy_cache.background = true;
    req.modules.proxy_cache.detached = true;
    req.modules.proxy_cache.ticket = Some(work.ticket);
    let http = req.http();
    if let Some(Content::Proxy(pass)) = &http.location(req).content {
        let _ = proxy::run(req, pass).await;
    }
    if let Some(mut source) = req.resp.source.take() {
        source.drain(req).await;
        source.abandon(req);
    }
    req.resp.clear();
    req.modules.clear();
    req.body.end();
    req.head.clear();
    req.arena.clear();
    req.slots.clear();
}
