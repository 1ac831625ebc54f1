//! Variables of the PROXY protocol header (nginx: ngx_http_core_module, embedded variables).

use crate::variables::Row;

/// The rows.
pub(crate) const VARIABLES: &[Row] = &forebay_core::vars::proxy_protocol::rows();
