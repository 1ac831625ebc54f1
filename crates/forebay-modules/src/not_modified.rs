//! Conditional requests (RFC 9110, section 13; nginx: the not-modified filter). Hot path.

use forebay_core::vars::VarError;
use forebay_http::conditional::{self, Conditions, Validators, Verdict};
use forebay_server::module::{Head, HeaderFilter, Module};
use forebay_server::modules::core::IfModifiedSince;
use forebay_server::request::{Refusal, Request};
use forebay_server::response::Window;

/// `not_modified_filter`.
pub static MODULE: Module = Module {
    header_filters: &[HeaderFilter::new(|_| true, not_modified).with_head(Head::File)],
    ..Module::NONE
};

/// Evaluates the conditions of a request.
///
/// # Errors
/// Never.
fn not_modified(req: &mut Request) -> Result<(), VarError> {
    // An upstream has evaluated the conditions already, except for a response that is put together from slices.
    if req.resp.status != 200 || (req.resp.origin.is_evaluated() && req.resp.segments.is_none()) {
        return Ok(());
    }
    let Some(conditions) = Conditions::of(&req.head) else { return Ok(()) };
    let http = req.http();
    let mode = match http.location(req).settings.core.if_modified_since {
        IfModifiedSince::Off => conditional::IfModifiedSince::Off,
        IfModifiedSince::Exact => conditional::IfModifiedSince::Exact,
        IfModifiedSince::Before => conditional::IfModifiedSince::Before,
    };
    match conditional::evaluate(&conditions, validators(req), mode) {
        Verdict::Proceed => {}
        Verdict::NotModified => {
            let r = &mut req.resp;
            // RFC 9110, section 15.4.5: a 304 carries what a cache needs to find and update its entry, and
            // nothing about a content.
            r.status = 304;
            r.reason.clear();
            r.content_type.clear();
            r.content_length = None;
            r.body.clear();
            r.window = Window::default();
            // A 304 has no body, and filters of the body would append their ends to it.
            r.filters.clear();
            r.forbid_ranges();
            r.fields.remove(b"Content-Encoding");
        }
        Verdict::PreconditionFailed => {
            req.errors.refusal = Some(Box::new(Refusal { status: 412, content_range: Vec::new() }));
        }
    }
    Ok(())
}

/// Returns the validators of the response.
pub fn validators(req: &Request) -> Validators<'_> {
    Validators { etag: req.resp.etag(), last_modified: req.resp.modified() }
}
