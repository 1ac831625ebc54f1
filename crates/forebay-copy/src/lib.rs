//! The private copy of a configuration, which the tuner measures and the comparison asks.
//!
//! - [`patch`] reads a configuration and edits it at the places of its words.
//! - [`scene`] makes the copy: other ports, logs, temporary files and upstreams, and nothing of the live server.
//! - [`program`] tests, starts and ends the program that runs it.
//! - [`record`] keeps what was found about a configuration, for `forebay move`.

#![warn(unreachable_pub)]

pub mod patch;
pub mod program;
pub mod record;
pub mod scene;
