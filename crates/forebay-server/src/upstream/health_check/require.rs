//! `require` of a `match` block. Values of variables belong to requests, and those to worker threads: the response to a check
//! is sent to one, which answers for a request that stands for the check.

use super::Check;
use crate::config::http::Http;
use crate::request::Request;
use crate::thread::{Thread, ThreadConfig};
use crate::upstream::exchange::Attempt;
use forebay_http::h1::client::ResponseHead;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::rc::Rc;
use std::sync::Arc;
use std::time::Instant;
use tokio::sync::oneshot;

/// Sends a question to a worker thread.
pub type Ask = Arc<dyn Fn(Box<Question>) + Send + Sync>;

/// Whether all variables that are required have values.
#[derive(Debug)]
pub struct Question {
    config: Arc<Http>,
    check: Check,
    /// Name of the server.
    peer: Vec<u8>,
    head: ResponseHead,
    /// Bytes of the body.
    length: u64,
    started: Instant,
    answer: oneshot::Sender<bool>,
}

/// Asks. Where nobody is left to answer, nothing is required.
pub async fn holds(
    ask: &Ask,
    config: &Arc<Http>,
    (check, peer): (&Check, &[u8]),
    (head, length, started): (ResponseHead, u64, Instant),
) -> bool {
    let (answer, answered) = oneshot::channel();
    let (config, check, peer) = (config.clone(), check.clone(), peer.to_vec());
    ask(Box::new(Question { config, check, peer, head, length, started, answer }));
    answered.await.unwrap_or(true)
}

impl Question {
    /// Answers, on a worker thread.
    pub fn answer(self: Box<Self>, thread: &Rc<Thread>) {
        let Question { config, check, peer, head, length, started, answer } = *self;
        let now = thread.io.poller.now();
        let took = Some(now.saturating_duration_since(started));
        let judged = catch_unwind(AssertUnwindSafe(|| {
            let mut req = Request::new(thread.clone());
            let text =
                [b"GET ", check.uri.as_slice(), b" HTTP/1.1\r\nHost: ", &check.host, b"\r\n\r\n"].concat();
            req.head.buf.extend_from_slice(&text);
            let limits = forebay_http::h1::request::Limits::default();
            let _ = forebay_http::h1::request::parse(&mut req.head, &limits);
            req.begin_request();
            // The thread may have another one still, or already.
            req.vars.reset(config.vars.len());
            req.conf = Rc::new(ThreadConfig::of(thread.active(), config));
            req.location = check.location;
            let u = &mut req.modules.upstream;
            u.host.clone_from(&check.upstream);
            u.attempts.push(Attempt {
                name: peer,
                status: head.status,
                started,
                connect: None,
                header: took,
                response: took,
                sent: 0,
                received: head.buf.len() as u64,
                length,
                redirected: false,
            });
            u.head = head;
            let required = check.conditions.iter().flat_map(|m| &m.required);
            let good = required.copied().all(|v| {
                let value = req.var_value(v).ok().flatten();
                value.is_some_and(|v| !v.is_empty() && *v != *b"0")
            });
            req.modules.clear();
            good
        }));
        let _ = answer.send(judged.unwrap_or(false));
    }
}
