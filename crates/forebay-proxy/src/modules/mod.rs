//! Modules that pass requests on, with their directives and variables.

pub mod early_hints;
pub mod family;
pub mod fastcgi;
pub mod grpc;
pub mod memcached;
pub mod params;
pub mod proxy;
pub mod proxy_bind;
pub mod proxy_cache;
pub mod proxy_cookie;
pub mod proxy_http3;
pub mod proxy_ssl;
pub mod scgi;
pub mod tunnel;
pub mod uwsgi;
