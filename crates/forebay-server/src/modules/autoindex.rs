//! `autoindex` (nginx: ngx_http_autoindex_module).

use crate::phases::Outcome;
use crate::request::Request;

crate::settings! {
    /// `autoindex`.
    "autoindex" => enabled: bool = false;
}

/// The content handler. `None`: not for this request.
pub async fn run(req: &mut Request) -> Option<Outcome> {
    let _ = req;
    None
}
