//! Bytes in and out: the event loop, sockets, TLS, name resolution. This crate knows neither the configuration nor HTTP.
//!
//! Of HTTP it has only the trait by which HTTP/3 uses QUIC's streams (`quic/http.rs`).

#![warn(unreachable_pub)]

pub mod addr;
pub mod blame;
pub mod dial;
mod few_clients;
pub mod io;
pub mod loopback;
pub mod mux;
pub mod pipe;
pub mod quic;
pub mod reactor;
pub mod relay;
pub mod resolver;
mod socket_pool;
pub mod tls;
pub mod wait;
pub mod wire;
