//! Variables of the PROXY protocol header (nginx: ngx_http_core_module, embedded variables).

use forebay_server::module::Module;
use forebay_server::variables::Row;

/// `proxy_protocol`.
pub static MODULE: Module = Module { variables: &[VARIABLES], ..Module::NONE };

const VARIABLES: &[Row] = &forebay_core::vars::proxy_protocol::rows();
