//! `forebay test`: tests of a configuration. A file has requests with what is expected of them; they run against a private copy
//! of the configuration, whose upstreams lead to the recorder.
//!
//! `file` has the format, `run` sends the requests, `judge` compares, `output` prints, `update` writes values into a file, and
//! `write` makes a first file from a comparison.

pub mod cli;
mod file;
mod judge;
pub(crate) mod output;
pub(crate) mod run;
mod update;
pub(crate) mod write;
