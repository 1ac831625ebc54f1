//! `empty_gif` (nginx: ngx_http_empty_gif_module).

use crate::modules::Verdict;
use crate::request::Request;

/// The content handler.
pub fn handle(req: &mut Request) -> Verdict {
    let _ = req;
    Verdict::Status(404)
}
