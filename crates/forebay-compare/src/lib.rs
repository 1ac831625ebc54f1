//! Comparison of two servers on one configuration, before one takes the place of the other.
//!
//! Both programs run private copies (crate `forebay-copy`) whose upstreams lead to a recorder, and get the same requests. Nothing
//! here knows how a server has to behave: both programs decide, and what they differ in is reported.
//!
//! - [`requests`] are made from the configuration and from an access log, each with variations.
//! - `marks` edits the copies so that blocks, logs and requests to upstreams can be told by the number of a request.
//! - `pair` starts both servers, [`recorder`] stands in for all upstreams, `client` asks, `h2`, `h3` and `wire` are the protocols.
//! - `observe` is one pass, [`differ`] compares, `known` has the differences that docs/differences.md explains.
//! - [`expect`] is `forebay test`: requests with what is expected of them, against one private copy.
//! - `coverage` says which lines were reached, `report` groups and prints, `run` is one comparison, `live` one that goes on, [`cli`]
//!   the command line. `outcome` leaves records for `forebay move`.

#![warn(unreachable_pub)]

pub mod cli;
mod client;
mod coverage;
pub mod differ;
pub mod expect;
mod h2;
mod h3;
mod known;
mod live;
mod marks;
pub mod message;
mod observe;
mod outcome;
mod pair;
pub mod recorder;
mod report;
pub mod requests;
mod run;
mod wire;
