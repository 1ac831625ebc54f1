//! `require` of a `match` block. Variables are evaluated for a request, on a worker thread. The response to a check goes
//! to such a thread, which makes a request of it and evaluates the variables for it.

use super::Check;
use forebay_core::vars::VarId;
use forebay_http::h1::client::ResponseHead;
use forebay_server::config::http::Http;
use forebay_server::module::message::Message;
use forebay_server::request::Request;
use forebay_server::request::upstream::Attempt;
use forebay_server::thread::{Thread, ThreadConfig};
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::rc::Rc;
use std::sync::Arc;
use std::time::Instant;
use tokio::sync::oneshot;

/// Function that sends a question to a worker thread.
pub type Ask = Arc<dyn Fn(Question) + Send + Sync>;

/// A check and its response.
#[derive(Debug)]
pub(super) struct Checked {
    pub(super) check: Check,
    /// Name of the server.
    pub(super) peer: Vec<u8>,
    pub(super) head: ResponseHead,
    /// Bytes of the body.
    pub(super) length: u64,
    pub(super) started: Instant,
}

/// Question whether all variables that a `match` block requires have values.
#[derive(Debug)]
pub struct Question {
    config: Arc<Http>,
    checked: Checked,
    answer: oneshot::Sender<bool>,
}

/// Returns `true` if all variables that are required have values, or if no thread is left to answer.
pub(super) async fn holds(ask: &Ask, config: &Arc<Http>, checked: Checked) -> bool {
    let (answer, answered) = oneshot::channel();
    ask(Question { config: config.clone(), checked, answer });
    // The process is ending then, which must not count against a server.
    answered.await.unwrap_or(true)
}

impl Message for Question {
    /// Answers.
    fn deliver(self: Box<Self>, thread: &Rc<Thread>) {
        let Question { config, checked, answer } = *self;
        // A panic in a variable must not end the worker thread, which serves requests.
        let judged = catch_unwind(AssertUnwindSafe(|| {
            let conditions = checked.check.conditions.clone();
            let mut req = checked.request(thread, config);
            let good = conditions.iter().flat_map(|m| &m.required).all(|v| has_value(&mut req, *v));
            req.modules.clear();
            good
        }));
        let _ = answer.send(judged.unwrap_or(false));
    }
}

/// Returns `true` if a variable is neither empty nor 0.
fn has_value(req: &mut Request, v: VarId) -> bool {
    let value = req.var_value(v).ok().flatten();
    value.is_some_and(|v| !v.is_empty() && *v != *b"0")
}

impl Checked {
    /// Makes a request whose variables have the values of the check.
    fn request(self, thread: &Rc<Thread>, config: Arc<Http>) -> Request {
        let now = thread.io.poller.now();
        let took = Some(now.saturating_duration_since(self.started));
        let mut req = Request::new(thread.clone());
        req.head.buf.extend_from_slice(&self.check.bare_request());
        let limits = forebay_http::h1::request::Limits::default();
        let _ = forebay_http::h1::request::parse(&mut req.head, &limits);
        req.begin_request();
        // The check belongs to a configuration, and the thread may have an earlier or a later one by now.
        req.conf = Rc::new(ThreadConfig::of(thread.active(), config));
        (req.server, req.location) = self.check.location;
        let u = &mut req.modules.upstream;
        u.host = self.check.upstream;
        u.attempts.push(Attempt {
            status: self.head.status,
            header: took,
            response: took,
            received: self.head.buf.len() as u64,
            length: self.length,
            ..Attempt::new(self.peer, self.started)
        });
        u.head = self.head;
        req
    }
}
