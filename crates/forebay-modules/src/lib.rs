//! Modules of the HTTP front end, except the modules of the base and of upstreams, and the list of all modules. A module is a file
//! here with a [`Module`](forebay_server::module::Module), and a line in the list.

#![warn(unreachable_pub)]
#![cfg_attr(test, allow(clippy::disallowed_methods, reason = "tests make files as they like"))]

use forebay_core::front::FrontEnd;
use forebay_server::front::HttpFrontEnd;
use forebay_server::module::list::List;
use forebay_server::modules;

pub mod access;
pub mod acme;
pub mod addition;
pub mod auth_basic;
pub mod auth_request;
pub mod autoindex;
pub mod brotli;
pub mod charset;
pub mod compress;
pub mod dav;
pub mod early_read;
pub mod empty_gif;
pub mod gunzip;
pub mod gzip;
pub mod gzip_accept;
pub mod gzip_static;
pub mod headers;
pub mod headers_more;
pub mod internal_redirect;
pub mod json;
pub mod keyval;
pub mod limit_conn;
pub mod limit_req;
pub mod metrics;
pub mod mirror;
pub mod not_modified;
pub mod parts;
pub mod password;
pub mod post_action;
pub mod prometheus_labels;
pub mod proxy_protocol;
pub mod random_index;
pub mod range;
pub mod realip;
pub mod referer;
pub mod secure_link;
pub mod set_misc;
pub mod slice;
pub mod ssi;
pub mod store_answers;
pub mod stub_status;
pub mod sub_filter;
#[cfg(test)]
mod testing;
#[cfg(test)]
mod tests;
pub mod try_files;
pub mod userid;
pub mod zstd;

/// All modules. The order is the order of their hooks in a phase and of their header filters.
pub static MODULES: List = &[
    &modules::core::MODULE,
    &modules::log::MODULE,
    &forebay_server::BLOCKS,
    &forebay_proxy::upstream::MODULE,
    &acme::MODULE,
    &modules::index::MODULE,
    &dav::MODULE,
    &random_index::MODULE,
    &autoindex::MODULE,
    &gzip_static::MODULE,
    &forebay_proxy::modules::early_hints::MODULE,
    &prometheus_labels::MODULE,
    // The address of the client is replaced first in its phases, since limits and access rules judge the
    // client by it.
    &realip::MODULE,
    &early_read::MODULE,
    &modules::rewrite::MODULE,
    &set_misc::MODULE,
    &json::MODULE,
    &keyval::MODULE,
    &referer::MODULE,
    &secure_link::MODULE,
    &modules::ssl::MODULE,
    &modules::http2::MODULE,
    &modules::resolver::MODULE,
    &proxy_protocol::MODULE,
    // A rate is counted before places are taken, as in nginx, so a request that is delayed holds no place of
    // `limit_conn` meanwhile.
    &limit_req::MODULE,
    &limit_conn::MODULE,
    &access::MODULE,
    &auth_basic::MODULE,
    &auth_request::MODULE,
    &internal_redirect::MODULE,
    &try_files::MODULE,
    &mirror::MODULE,
    &forebay_proxy::modules::proxy::MODULE,
    &forebay_proxy::modules::proxy_cache::MODULE,
    &forebay_proxy::modules::fastcgi::MODULE,
    &forebay_proxy::modules::uwsgi::MODULE,
    &forebay_proxy::modules::scgi::MODULE,
    &forebay_proxy::modules::grpc::MODULE,
    &forebay_proxy::modules::memcached::MODULE,
    &forebay_proxy::modules::tunnel::MODULE,
    &stub_status::MODULE,
    &empty_gif::MODULE,
    &metrics::MODULE,
    // From here on the modules have header filters, which run in this order, from the first to the last.
    &slice::MODULE,
    &not_modified::MODULE,
    &headers_more::MODULE,
    &headers::MODULE,
    &userid::MODULE,
    &gunzip::MODULE,
    // Texts are replaced in what `gunzip` has decompressed, and before the charset changes their bytes.
    &sub_filter::MODULE,
    &charset::MODULE,
    &addition::MODULE,
    &ssi::MODULE,
    // Compression follows all filters that read or change the text of a body.
    &gzip::MODULE,
    &gzip_accept::MODULE,
    &brotli::MODULE,
    &zstd::MODULE,
    &compress::MODULE,
    // Ranges are cut last, out of the content that the other filters have left as it is.
    &range::MODULE,
    &post_action::MODULE,
];

/// The HTTP front end with all modules.
pub static FRONT_END: HttpFrontEnd = HttpFrontEnd::new(MODULES);
/// HTTP as the only front end.
pub static FRONT_ENDS: &[&dyn FrontEnd] = &[&FRONT_END];
