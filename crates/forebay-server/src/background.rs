//! Requests without a client: an entry of a cache is renewed while what is stale has been sent already (nginx:
//! proxy_cache_background_update).

use crate::cache::index::Ticket;
use crate::modules::{Content, proxy};
use crate::request::{Captures, Conn, Request, Slot};
use crate::thread::{Thread, ThreadConfig};
use forebay_conf::error::Level;
use forebay_http::request::{Method, RequestHead};
use forebay_net::addr::Peer;
use forebay_net::reactor::{Job, Token};
use std::cell::{Cell, RefCell};
use std::rc::Rc;

/// What is to be done.
pub struct Work {
    conf: Rc<ThreadConfig>,
    head: Box<RequestHead>,
    conn: Box<Conn>,
    request_id: Option<[u8; 32]>,
    replaced_peer: Option<Peer>,
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

/// A request without a client.
pub enum Task {
    /// Renews an entry of a cache.
    Renew(Box<Work>),
    /// A subrequest that nobody waits for, and the location it is for, if that has a name.
    Sub(Box<Request>, Box<[u8]>),
}

/// Work of a thread, by the slot that stands for the client.
#[derive(Default)]
pub struct Queue {
    waiting: RefCell<Vec<(Token, Task)>>,
    /// Subrequests that have not ended.
    subs: Rc<Cell<usize>>,
}

/// Most renewals of a thread that wait at a time.
const MOST: usize = 256;
/// Most subrequests of a thread at a time.
const MOST_SUBS: usize = 1024;

impl Queue {
    /// Subrequests that have not ended.
    pub fn subs(&self) -> usize {
        self.subs.get()
    }

    /// The work of a slot.
    #[inline]
    pub fn take(&self, token: Token) -> Option<Task> {
        let mut queue = self.waiting.borrow_mut();
        let at = queue.iter().position(|(t, _)| *t == token)?;
        Some(queue.swap_remove(at).1)
    }
}

/// Renews the entry that answers a request, in the background.
pub fn update(req: &Request, ticket: Ticket) {
    let thread = &req.thread;
    if thread.background.waiting.borrow().len() >= MOST {
        return;
    }
    let work = Work {
        conf: req.conf.clone(),
        head: req.head.clone(),
        conn: Box::new(req.conn.known()),
        request_id: req.modules.request_id,
        replaced_peer: req.modules.replaced_peer,
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
    start(thread, Task::Renew(Box::new(work)));
}

/// Sends a subrequest on its way that nobody waits for.
pub fn send(req: &mut Request, sub: Box<Request>, target: &[u8]) {
    let thread = req.thread.clone();
    if thread.background.subs() >= MOST_SUBS {
        req.log(Level::Warn, "too many subrequests are under way, one is left out");
        return;
    }
    thread.background.subs.set(thread.background.subs() + 1);
    if !start(&thread, Task::Sub(sub, target.into())) {
        thread.background.subs.set(thread.background.subs() - 1);
        req.log(Level::Alert, "no descriptor is left for a subrequest");
    }
}

fn start(thread: &Rc<Thread>, task: Task) -> bool {
    use rustix::event::{EventfdFlags, eventfd};
    // A descriptor that nothing ever happens on takes the place of the client's.
    let Ok(fd) = eventfd(0, EventfdFlags::CLOEXEC | EventfdFlags::NONBLOCK) else { return false };
    let token = thread.io.poller.insert(fd);
    thread.background.waiting.borrow_mut().push((token, task));
    thread.io.poller.drained(token);
    // A runner gets it in this turn of the loop.
    thread.reactor.queue(Job { token, conn: Box::new(Conn::none(thread.io.poller.now())) });
    true
}

/// Frees the slot, also after a panic.
struct Guard<'t>(&'t Rc<Thread>, Token);

impl Drop for Guard<'_> {
    fn drop(&mut self) {
        self.0.io.poller.remove(self.1);
    }
}

/// Counts a subrequest out, also after a panic.
struct Leave(Rc<Cell<usize>>);

impl Drop for Leave {
    fn drop(&mut self) {
        self.0.set(self.0.get() - 1);
    }
}

/// Does the work.
pub async fn run(thread: &Rc<Thread>, req: &mut Request, token: Token, task: Task) {
    let _guard = Guard(thread, token);
    let work = match task {
        Task::Renew(work) => *work,
        Task::Sub(mut sub, target) => {
            let _leave = Leave(thread.background.subs.clone());
            crate::subrequest::run(&mut sub, &target).await;
            return;
        }
    };
    req.conn = work.conn;
    req.token = token;
    req.head = work.head;
    req.begin_request();
    req.conf = work.conf;
    (req.method, req.uri, req.args) = (work.method, work.uri, work.args);
    (req.server, req.location) = (work.server, work.location);
    (req.slots, req.arena, req.captures) = (work.slots, work.arena, work.captures);
    (req.valid_location, req.rewritten) = (work.valid_location, work.rewritten);
    (req.peer, req.remote) = (work.peer, work.remote);
    (req.modules.request_id, req.modules.replaced_peer) = (work.request_id, work.replaced_peer);
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
    *req.conn = Conn::none(thread.clock.now());
}
