//! Parts that every front end needs and that know no protocol: variables and values with variables, patterns, networks,
//! log files, counters.

#![warn(unreachable_pub)]

pub mod counters;
pub mod essential;
pub mod histogram;
pub mod limit;
pub mod log;
pub mod pattern;
pub mod tasks;
pub mod vars;
