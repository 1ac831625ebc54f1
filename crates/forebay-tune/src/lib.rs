//! Tuning by measurement.
//!
//! - [`search`] is the method: it knows nothing of servers and decides which settings to try, which lines to keep and
//!   what may be claimed. `model` is the regression that it learns with, `sequential` says when a gain is proven, `stats`
//!   has other intervals, `design` the screening design. `goal` has the objectives.
//! - [`knobs`] is the table of settings; [`patch`] writes them into a configuration, and [`program`] finds the server.
//! - [`load`] loads a private copy (crate `forebay-copy`), and [`rig`] measures points of a search with it. [`load_point`] has
//!   the load as a part of the capacity.
//! - `choice` picks the settings to try, `tuning` is one tuning from start to end, `resume` reads its log, `output`, `report` and
//!   `results` write its reports, `apply` puts them into the user's files and takes them out again.
//! - `state` has the lock, `sysctl` changes kernel settings with a journal, `watch` cleans up after a tuner that was
//!   killed.
//! - `replay` measures the steps of published articles, `table` tunes five loads for both servers, [`cli`] is the command
//!   line.

#![warn(unreachable_pub)]

// A line for people.
macro_rules! say {
    ($($arg:tt)*) => {
        forebay_terminal::print(format!($($arg)*) + "\n")
    };
}

mod apply;
mod choice;
pub mod cli;
mod design;
pub mod figures;
mod goal;
pub mod knobs;
mod link;
pub mod load;
pub mod load_point;
mod model;
mod output;
pub mod patch;
pub mod program;
mod random;
mod replay;
mod report;
mod results;
mod resume;
pub mod rig;
pub mod search;
mod sequential;
mod service;
mod state;
mod stats;
mod storable;
mod sysctl;
mod table;
mod tuning;
mod upstream;
mod watch;
