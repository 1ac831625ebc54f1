//! `add_before_body` and `add_after_body` (nginx: ngx_http_addition_module): bodies of subrequests before and after the
//! body of a response.

use crate::compress;
use forebay_conf::error::Error;
use forebay_conf::tree::Directive;
use forebay_core::config::value::{Setting, once};
use forebay_core::vars::VarError;
use forebay_server::body::compose::Join;
use forebay_server::config::Scope;
use forebay_server::config::mime_types::MimeTypes;
use forebay_server::module::levels::LocationSettings;
use forebay_server::module::{HeaderFilter, Module};
use forebay_server::request::Request;
use std::sync::Arc;

forebay_server::module_settings! {
    /// `add_before_body`.
    "add_before_body" => before: Path = Path(None);
    /// `add_after_body`.
    "add_after_body" => after: Path = Path(None);
    /// `addition_types`.
    "addition_types" => types: MimeTypes = MimeTypes::of(&["text/html"]);
}

/// `addition`.
pub static MODULE: Module =
    Module { settings: &[&SETTINGS], header_filters: &[HeaderFilter::new(enabled, filter)], ..Module::NONE };

/// Path for a subrequest. An empty path cancels the one of the level above.
#[derive(Clone, Debug)]
pub struct Path(pub Option<Arc<[u8]>>);

impl Setting<forebay_server::config::HttpContext> for Path {
    fn take(previous: Option<Self>, d: &Directive, cx: &mut Scope<'_>) -> Result<Self, Error> {
        once(&previous, d, cx)?;
        Ok(Path(d.args.first().filter(|w| !w.text.is_empty()).map(|w| w.text.as_slice().into())))
    }
}

/// Returns `true` if a location adds bodies.
fn enabled(s: &LocationSettings) -> bool {
    SETTINGS.of(s).before.0.is_some() || SETTINGS.of(s).after.0.is_some()
}

/// Prepares a response for additions.
///
/// # Errors
/// Never.
fn filter(req: &mut Request) -> Result<(), VarError> {
    let http = req.http();
    let s = SETTINGS.of(&http.location(req).settings);
    if req.resp.status != 200 || !s.types.contains(compress::media_type(&req.resp.content_type)) {
        return Ok(());
    }
    // The lengths of the added bodies are not known before the head is sent.
    compress::unknown_length(req);
    req.resp.join = Some(Box::new(Join {
        own_filters: req.resp.filters.body.len(),
        page: None,
        around: [s.before.0.clone(), s.after.0.clone()],
    }));
    Ok(())
}
