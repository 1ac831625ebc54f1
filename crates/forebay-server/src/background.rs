//! Requests without a client: the renewal of a cache entry whose stale content has been sent already (nginx:
//! proxy_cache_background_update), the copy of a request for a mirror, and requests that the server itself makes to a location.

use crate::connection::Work;
use crate::request::Request;
use crate::thread::Thread;
use forebay_conf::error::Level;
use forebay_net::reactor::{Job, Token};
use forebay_sys::pooled::Pooled;
use std::cell::Cell;
use std::fmt;
use std::rc::Rc;

/// Runs the request of a task to its end.
pub type Run = Box<dyn for<'r> FnOnce(&'r mut Request) -> Pooled<'r, ()>>;

/// A request without a client.
pub struct Task {
    req: Box<Request>,
    run: Run,
    /// Counts the task, if tasks of its kind are limited.
    _counted: Option<Counted>,
}

impl Task {
    /// Makes a task of which any number may run at a time.
    pub fn new(req: Box<Request>, run: Run) -> Task {
        Task { req, run, _counted: None }
    }
}

impl fmt::Debug for Task {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Task").field("req", &self.req).finish_non_exhaustive()
    }
}

/// Counts of a thread's tasks that have not ended.
#[derive(Default)]
pub struct Running {
    renewals: Rc<Cell<usize>>,
    subs: Rc<Cell<usize>>,
}

/// Maximum number of renewals of a thread at a time.
const MOST: usize = 256;
/// Maximum number of subrequests of a thread at a time.
const MOST_SUBS: usize = 1024;

impl Running {
    /// Returns the number of subrequests that have not ended.
    pub fn subs(&self) -> usize {
        self.subs.get()
    }
}

/// Place of a task in the count, which is given back even after a panic.
struct Counted(Rc<Cell<usize>>);

impl Counted {
    /// Counts a task. Returns `None` if the limit is reached.
    fn new(count: &Rc<Cell<usize>>, limit: usize) -> Option<Counted> {
        (count.get() < limit).then(|| {
            count.set(count.get() + 1);
            Counted(count.clone())
        })
    }
}

impl Drop for Counted {
    fn drop(&mut self) {
        self.0.set(self.0.get().saturating_sub(1));
    }
}

/// Makes a request again for the cache that has answered it. `prepare` sets what the new request needs to know.
pub fn renew(req: &Request, prepare: impl FnOnce(&mut Request)) {
    // A renewal that is left out does no harm, since the next request for the stale entry tries again.
    let Some(counted) = Counted::new(&req.thread.background.renewals, MOST) else { return };
    let mut new = Request::renewal(req);
    prepare(&mut new);
    let run: Run = Box::new(|req| Pooled::new(fetch(req)));
    start(&req.thread, Task { req: new, run, _counted: Some(counted) });
}

/// Starts a subrequest whose answer nothing waits for. `target`: name of its location, or empty.
pub fn send(req: &mut Request, sub: Box<Request>, target: &[u8]) {
    let Some(counted) = Counted::new(&req.thread.background.subs, MOST_SUBS) else {
        req.log(Level::Warn, "too many subrequests are under way, one is left out");
        return;
    };
    let target = target.to_vec();
    let run: Run = Box::new(|sub| Pooled::new(async move { crate::subrequest::run(sub, &target).await }));
    start(&req.thread, Task { req: sub, run, _counted: Some(counted) });
}

/// Has a runner of a thread run a task.
pub fn start(thread: &Thread, task: Task) {
    // A runner gets it in this turn of the loop.
    thread.runners.queue(Job { token: Token::NONE, work: Work::Task(Box::new(task)) });
}

/// Runs a task.
pub async fn run(thread: &Thread, task: Task) {
    let Task { mut req, run, _counted } = task;
    thread.io.poller.note_place(req.conn.client.number);
    run(&mut req).await;
    req.recycle();
}

/// Runs the content handler of a request and reads its response to the end.
async fn fetch(req: &mut Request) {
    let http = req.http();
    if let Some(content) = &http.location(req).content {
        content.handle(req).decide().await;
    }
    if let Some(mut source) = req.resp.source.take() {
        // The cache stores the response as it is read, so all of it is read.
        source.drain(req).await;
        source.abandon(req);
    }
    req.body.end();
}
