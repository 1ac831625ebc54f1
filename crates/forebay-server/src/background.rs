//! Requests without a client: an entry of a cache is renewed while what is stale has been sent already (nginx:
//! proxy_cache_background_update).

use crate::cache::index::Ticket;
use crate::connection::Work;
use crate::modules::acme::hook;
use crate::request::Request;
use crate::thread::Thread;
use forebay_conf::error::Level;
use forebay_net::reactor::{Job, Token};
use std::cell::Cell;
use std::rc::Rc;

/// A request without a client.
#[derive(Debug)]
pub(crate) enum Task {
    /// Renews an entry of a cache.
    Renew(Box<Request>),
    /// Runs a subrequest whose answer nothing waits for; with the name of its location, or an empty one.
    Sub(Box<Request>, Box<[u8]>),
    /// Publishes or withdraws the proof of an ACME challenge.
    Hook(Box<Request>, hook::Answer),
}

/// Counts of a thread's tasks that have not ended.
#[derive(Default)]
pub(crate) struct Running {
    renewals: Rc<Cell<usize>>,
    subs: Rc<Cell<usize>>,
}

/// Most renewals of a thread at a time.
const MOST: usize = 256;
/// Most subrequests of a thread at a time.
const MOST_SUBS: usize = 1024;

impl Running {
    /// Returns the number of subrequests that have not ended.
    pub(crate) fn subs(&self) -> usize {
        self.subs.get()
    }
}

/// Renews the entry that answers a request.
pub(crate) fn update(req: &Request, ticket: Ticket) {
    let running = &req.thread.background.renewals;
    if running.get() < MOST {
        running.set(running.get() + 1);
        start(&req.thread, Task::Renew(Request::renewal(req, ticket)));
    }
}

/// Starts a subrequest whose answer nothing waits for.
pub(crate) fn send(req: &mut Request, sub: Box<Request>, target: &[u8]) {
    let running = req.thread.background.subs.clone();
    if running.get() >= MOST_SUBS {
        req.log(Level::Warn, "too many subrequests are under way, one is left out");
        return;
    }
    running.set(running.get() + 1);
    start(&req.thread, Task::Sub(sub, target.into()));
}

/// Has a runner of a thread run a task.
pub(crate) fn start(thread: &Thread, task: Task) {
    // A runner gets it in this turn of the loop.
    thread.runners.queue(Job { token: Token::NONE, work: Work::Task(Box::new(task)) });
}

/// Counts a task out when it ends, also after a panic.
struct Leave(Rc<Cell<usize>>);

impl Drop for Leave {
    fn drop(&mut self) {
        self.0.set(self.0.get().saturating_sub(1));
    }
}

/// Runs a task.
pub(crate) async fn run(thread: &Thread, task: Task) {
    let (Task::Renew(req) | Task::Sub(req, _) | Task::Hook(req, _)) = &task;
    thread.io.poller.note_place(req.conn.client.number);
    match task {
        Task::Renew(mut req) => {
            let _leave = Leave(thread.background.renewals.clone());
            renew(&mut req).await;
            req.recycle();
        }
        Task::Sub(mut sub, target) => {
            let _leave = Leave(thread.background.subs.clone());
            crate::subrequest::run(&mut sub, &target).await;
            sub.recycle();
        }
        Task::Hook(mut req, answer) => hook::run(&mut req, answer).await,
    }
}

async fn renew(req: &mut Request) {
    let http = req.http();
    if let Some(content) = &http.location(req).content {
        content.handle(req).decide().await;
    }
    if let Some(mut source) = req.resp.source.take() {
        source.drain(req).await;
        source.abandon(req);
    }
    req.body.end();
}
