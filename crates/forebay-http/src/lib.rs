//! HTTP itself: fields, heads, bodies, URIs, ranges, conditions and dates, for every version; and the first messages of other
//! protocols by which a proxy chooses a server.

#![warn(unreachable_pub)]

pub mod cgi;
pub mod compression;
pub mod conditional;
pub mod date;
pub mod fastcgi;
pub mod field;
pub mod h1;
pub mod h2;
pub mod h3;
pub mod host;
pub mod memcached;
pub mod mqtt;
pub mod params;
pub mod priority;
pub mod proxy_protocol;
pub mod range;
pub mod rdp;
pub mod request;
pub mod uri;
mod words;
