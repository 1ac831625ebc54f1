//! `random_index` (nginx: ngx_http_random_index_module).

use crate::phases::Outcome;
use crate::request::Request;

crate::settings! {
    /// `random_index`.
    "random_index" => enabled: bool = false;
}

/// The content handler. `None`: not for this request.
pub async fn run(req: &mut Request) -> Option<Outcome> {
    let _ = req;
    None
}
