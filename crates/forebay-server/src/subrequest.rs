//! Internal requests made for another request (nginx: subrequests). The caller decides when they run and uses the response. A subrequest
//! is a separate [`Request`] without a connection. It goes through all phases except ACCESS.
//!
//! `auth_request` waits for a subrequest and takes over its variables. `mirror` and `post_action` hand one to `background.rs`, and a
//! runner takes it as it takes a connection.

use crate::access_log;
use crate::body::{Progress, Source};
use crate::phases;
use crate::request::Request;
use std::cell::Cell;
use std::convert::Infallible;
use std::future::{Future, poll_fn};
use std::pin::Pin;
use std::rc::Rc;
use std::task::{Context, Poll};

/// Longest response that is read only to keep the connection to the upstream, bytes.
const WORTH_READING: usize = 1 << 20;

/// Runs a subrequest to its end and discards the response except for its head. A `target` that begins with `@` names a
/// location.
pub async fn run(sub: &mut Request, target: &[u8]) {
    phases::subrequest(sub, target).await;
    end(sub).await;
}

/// As [`run`] for a subrequest that begins in the location of `Request::location`.
pub async fn run_in_location(sub: &mut Request) {
    phases::in_location(sub).await;
    end(sub).await;
}

/// Discards the content of the response and ends the subrequest.
async fn end(sub: &mut Request) {
    if sub.resp.source.is_some() {
        sub.resp.body.clear();
        let mut source = Source::of(sub);
        discard(sub, &mut source).await;
        source.end(sub).await;
    }
    let http = sub.http();
    if http.location(sub).settings.core.log_subrequest {
        access_log::log_request(sub);
    }
    sub.body.end();
    sub.modules.states.end();
}

/// Reads content without using it, up to its end or to [`WORTH_READING`].
async fn discard(sub: &mut Request, source: &mut Source) {
    let mut piece = sub.take_buf();
    let mut read = 0;
    // Reading the rest of a short response is cheaper than another connection to the upstream.
    while read < WORTH_READING {
        let got = source.read(sub, &mut piece, u64::MAX).await;
        read += piece.len();
        piece.clear();
        match got {
            Progress::Data => sub.thread.clone().io.poller.be_fair().await,
            Progress::Blocked if source.wait(sub).await.is_ok() => {}
            _ => break,
        }
    }
    sub.give_buf(piece);
}

/// Subrequest whose head is ready, and its status if an error is returned instead of answered.
pub type Headed = (Box<Request>, Option<u16>);

/// Task of a [`Walk`], or its result.
enum Task {
    /// The subrequest, and whether an error is returned.
    Begin(Box<Request>, bool),
    Headed(Headed),
}

/// Runs subrequests whose bodies are wanted through the phases, one after another. The future of the phases is large, and making one
/// costs more than most fragments of a page, so one future serves many subrequests.
pub struct Walk {
    task: Rc<Cell<Option<Task>>>,
    running: Pin<Box<dyn Future<Output = Infallible>>>,
}

impl Walk {
    /// Makes a walk that has nothing to do.
    pub(crate) fn new() -> Walk {
        let task = Rc::new(Cell::new(None));
        Walk { task: task.clone(), running: Box::pin(walk(task)) }
    }

    /// Begins with a subrequest, which runs when this is polled. With `bare`, an error is returned instead of answered. The subrequest
    /// before it must have been returned.
    pub fn begin(&self, sub: Box<Request>, bare: bool) {
        self.task.set(Some(Task::Begin(sub, bare)));
    }

    /// Runs the subrequest. Returns it when it has its head.
    pub fn poll(&mut self, cx: &mut Context<'_>) -> Poll<Headed> {
        let _ = self.running.as_mut().poll(cx);
        match self.task.take() {
            Some(Task::Headed(headed)) => Poll::Ready(headed),
            other => {
                self.task.set(other);
                Poll::Pending
            }
        }
    }
}

async fn walk(task: Rc<Cell<Option<Task>>>) -> Infallible {
    loop {
        let (mut sub, bare) = poll_fn(|_| match task.take() {
            Some(Task::Begin(sub, bare)) => Poll::Ready((sub, bare)),
            other => {
                task.set(other);
                Poll::Pending
            }
        })
        .await;
        let status = phases::included(&mut sub, bare).await;
        task.set(Some(Task::Headed((sub, status))));
    }
}
