//! Peers that break the protocol, and what they are answered.
//!
//! [`rows`] has a row for each rule of the RFCs that a peer can break. [`attacks`] has what costs a peer little and could cost this side
//! much, each with a budget. [`paths`] has peers that move, or pretend to, and [`silence`] those that do not answer.

#![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic)]

mod attacks;
mod lab;
mod node;
mod paths;
mod random;
mod raw;
mod rows;
mod setup;
mod silence;
mod table;
