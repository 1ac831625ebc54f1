//! Tuning by measurement. `search` is the method: it knows nothing of servers and decides which settings to try, which
//! lines to keep and what may be claimed. `model` is the regression that it learns with, `stats` the intervals.
//! `knobs` is the table of what can be set, `patch` writes it into a configuration, `scene` makes the private copy that
//! `rig` starts and loads, `load_point` says how much of its capacity is asked for, `sysctl` changes kernel settings with a journal, `output` tells, `apply` puts results in place
//! and takes them out again, `watch` cleans up behind a tuner that was killed, `replay` has the ladders of published
//! articles, `table` tunes five loads for both servers, `cli` is the command line.

#![warn(unreachable_pub)]

// A line for people; a reader that has gone away, as `head` does, ends nothing.
macro_rules! say {
    ($($arg:tt)*) => {{
        use std::io::Write as _;
        let _ = writeln!(std::io::stdout().lock(), $($arg)*);
    }};
}

mod apply;
mod choice;
pub mod cli;
mod design;
pub mod figures;
pub mod knobs;
pub mod load_point;
pub mod manner;
mod model;
mod output;
mod past;
pub mod patch;
pub mod program;
mod random;
mod replay;
mod results;
pub mod rig;
pub mod scene;
pub mod search;
mod service;
mod state;
mod stats;
mod sysctl;
mod table;
mod tuning;
mod upstream;
mod watch;
