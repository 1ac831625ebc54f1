//! The kit of the tests of `forebay`. Only tests depend on it.
//!
//! A test says what the program is to do in the words of a configuration, has it started on a directory and ports of its own,
//! talks to it over plain sockets, and stands in for its upstreams:
//!
//! ```no_run
//! use forebay_testkit::{Origin, server};
//! let up = Origin::start(|a| a.answer("200 OK", "X-Up: 1\r\n", "well"));
//! let server = server!("location / {{ proxy_pass http://{up}; }}").start();
//! assert!(server.get("/").ends_with("well"));
//! assert_eq!(up.asked(), 1);
//! ```
//!
//! - [`http!`], [`server!`], [`stream!`] begin a [`Conf`]: a configuration with the directives that every test needs.
//! - [`Site`] is its directory, [`Server`] the program on it.
//! - [`Origin`] is an upstream whose answers the test writes; [`fastcgi`], [`gateways`], [`h2`] and [`accept`] are the others.
//! - [`connect`], [`raw`], [`Talk`] and [`Answer`] are the client. None of them uses a parser of the program for HTTP/1.
//! - [`oracle`] finds nginx; [`compare`] sends the same requests to both.
//! - [`mod@cases`] runs tables of requests and answers.
//! - [`Running`] is another program beside a test, [`Done`] one that has ended.
//! - [`acme`] is an authority for certificates.
//! - [`store`] is the store that servers share.
//! - [`worker`] runs a worker thread in the thread of a test.
//!
//! Waits have a deadline and say what they wait for. A test whose tool is missing prints so; with `CI` set it fails.
#![allow(clippy::disallowed_methods, reason = "tests make files as they like")]

pub mod acme;
mod answer;
pub mod cases;
mod certificates;
mod client;
mod conf;
mod dns;
pub mod fastcgi;
pub mod gateways;
pub mod h2;
pub mod h3;
mod oracle;
mod origin;
mod process;
mod programs;
mod server;
mod site;
pub mod store;
mod tls;
mod tools;
mod udp;
mod wait;
pub mod worker;

pub use answer::{Answer, body, body_of, content_of, dechunked, field, series, status};
pub use certificates::{P256, RSA};
pub use client::{
    Talk, ask, chunked, connect, connect_with_small_buffer, get, get_with, join_all, raw, request,
};
pub use conf::{Conf, http, main, server, stream};
pub use dns::Names;
pub use oracle::{
    Form, Oracle, compare, compare_with, expires_after, is_before, nginx_answers, normalise, oracle,
    page_files, stamp, wrap,
};
pub use origin::{Asked, Origin, accept, echo, fragments, reset, silent};
pub use process::{alive, children, descriptors, kill, memory, program, quit, title};
pub use programs::{Done, Running};
pub use server::Server;
pub use site::{Site, open_up};
pub use tls::{Kept, s_client, s_client_at};
pub use tools::{files, run, through, tool};
pub use udp::{Echo, receive, udp};
pub use wait::{DEADLINE, free_pair, free_port, wait_for, wait_until};

pub use nix::sys::signal::Signal;
