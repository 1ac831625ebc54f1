//! Built-in variables of HTTP by name.

use crate::request::Request;
use forebay_core::vars::{RowSource, Source, VarError};

/// Built-in variable: a row in its module's file.
pub type Row = forebay_core::vars::Row<Request>;

/// Variables of a configuration under construction.
pub type Registry = forebay_core::vars::Registry<Request>;

/// Result of a getter: `true` if the variable has a value, which has been appended.
pub type HasValue = Result<bool, VarError>;

/// Finds a built-in variable of HTTP: its source, and whether `set` and the like may define it.
pub fn builtin(name: &[u8]) -> (Source<Request>, bool) {
    for row in crate::module::list::variables() {
        match row.get {
            RowSource::Get(g) if row.name.as_bytes() == name => return (Source::Get(g), row.settable),
            RowSource::Prefix(g) => {
                // The name of a family ends with an asterisk.
                let prefix = &row.name[..row.name.len() - 1];
                if name.starts_with(prefix.as_bytes()) {
                    // A member of a family can be set, except for members that nginx has as variables of their own. As long as nothing
                    // sets it, the family answers.
                    let settable = !FIXED.contains(&name);
                    return (Source::Prefix(g, name[prefix.len()..].into()), settable);
                }
            }
            RowSource::Get(_) => {}
        }
    }
    if LATER.contains(&&*String::from_utf8_lossy(name))
        || LATER_PREFIXES.iter().any(|p| name.starts_with(p.as_bytes()))
    {
        return (Source::Absent, is_settable_later(name));
    }
    (Source::Unknown, true)
}

/// Members of the family `$http_NAME` that cannot be set.
const FIXED: &[&[u8]] =
    &[b"http_cookie", b"http_referer", b"http_user_agent", b"http_via", b"http_x_forwarded_for"];

/// Returns `true` if nginx lets `set` give a value to a variable of a feature that is not there.
fn is_settable_later(name: &[u8]) -> bool {
    name.starts_with(b"ssl_")
        || name.starts_with(b"geoip_")
        || [
            b"ancient_browser".as_slice(),
            b"modern_browser",
            b"msie",
            b"upstream_first_byte_time",
            b"upstream_session_time",
        ]
        .contains(&name)
}

const LATER_PREFIXES: &[&str] = &["ssl_", "jwt_"];

/// Variables of features that are not there yet: a log format may name them, and they print as `-`.
const LATER: &[&str] = &[
    "ancient_browser",
    "connections_active",
    "geoip_area_code",
    "geoip_city",
    "geoip_city_continent_code",
    "geoip_city_country_code",
    "geoip_city_country_code3",
    "geoip_city_country_name",
    "geoip_country_code",
    "geoip_country_code3",
    "geoip_country_name",
    "grpc_internal_trailers",
    "http2",
    "modern_browser",
    "msie",
    "quic_connection",
    "spdy",
    "spdy_request_priority",
    "upstream_first_byte_time",
    "upstream_last_server_name",
    "upstream_queue_time",
    "upstream_server_name",
    "upstream_session_time",
];
