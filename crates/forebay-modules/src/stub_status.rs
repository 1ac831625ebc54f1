//! `stub_status` (nginx: ngx_http_stub_status_module).

use forebay_http::request::Method;
use forebay_server::counting::totals;
use forebay_server::module::{Content, Module, Needs, Page, Verdict};
use forebay_server::request::Request;

/// `stub_status`.
pub static MODULE: Module = Module {
    location_directives: &[("stub_status", |_, l, _| {
        l.content = Content::of(Page { answer: handle, needs: Needs::default() });
        Ok(())
    })],
    ..Module::NONE
};

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
