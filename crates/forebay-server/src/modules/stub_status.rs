//! `stub_status` (nginx: ngx_http_stub_status_module).

use crate::module::{Content, Module, Needs, Page, Verdict};
use crate::request::Request;
use forebay_core::counters::Counters;
use forebay_http::request::Method;
use std::sync::Arc;

/// `stub_status`.
pub static MODULE: Module = Module {
    location_directives: &[("stub_status", |_, l, _| {
        l.content = Content::of(Page { answer: handle, needs: Needs::default() });
        Ok(())
    })],
    ..Module::NONE
};

/// Returns sums over all threads: active, accepted, handled, requests, reading, writing, waiting.
pub fn totals(req: &Request) -> [u64; 7] {
    sums(&req.thread.all_counters)
}

/// Returns the sums of [`totals`] over these threads.
pub fn sums(threads: &[Arc<Counters>]) -> [u64; 7] {
    let sum = |f: fn(&Counters) -> u64| threads.iter().map(|c| f(c)).fold(0u64, u64::wrapping_add);
    let active = sum(|c| c.active.get());
    let reading = sum(|c| c.reading.get());
    let writing = sum(|c| c.writing.get());
    let busy = reading.wrapping_add(writing).wrapping_add(sum(|c| c.sessions.get()));
    let waiting = active.saturating_sub(busy);
    [
        active,
        sum(|c| c.accepted.get()),
        sum(|c| c.handled.get()),
        sum(|c| c.requests.get()),
        reading,
        writing,
        waiting,
    ]
}

/// Answers with the status page. A content handler.
fn handle(req: &mut Request) -> Verdict {
    if !matches!(req.method, Method::Get | Method::Head) {
        return Verdict::Status(405);
    }
    let [active, accepted, handled, requests, reading, writing, waiting] = totals(req);
    let text = format!(
        "Active connections: {active} \nserver accepts handled requests\n {accepted} {handled} {requests} \nReading: {reading} Writing: {writing} Waiting: {waiting} \n"
    );
    req.resp.status = 200;
    req.resp.content_type = b"text/plain".to_vec();
    req.resp.set_body(text);
    Verdict::Done
}
