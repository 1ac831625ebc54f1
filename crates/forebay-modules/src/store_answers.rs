//! Answers of the shared store that requests wait for (`exact` of `limit_req_zone`, `sync` of `limit_conn_zone`).

use forebay_core::shared_store::Answer;
use forebay_server::request::Request;
use std::time::Instant;
use tokio::sync::oneshot::Receiver;

/// Waits for answers until this time. Returns those that have come, in the same order.
pub async fn gather(
    req: &Request,
    receivers: Vec<Option<Receiver<Answer>>>,
    until: Instant,
) -> Vec<Option<Answer>> {
    let poller = &req.thread.io.poller;
    let mut answers = Vec::with_capacity(receivers.len());
    for receiver in receivers {
        answers.push(match receiver {
            // All answers have the same deadline, so that several limits do not add up their waits.
            Some(receiver) => poller.deadline(until, receiver).await.and_then(Result::ok),
            None => None,
        });
    }
    answers
}
