//! Tuning by measurement. `search` is the method: it knows nothing of servers and decides which settings to try, which
//! lines to keep and what may be claimed. `model` is the regression that it learns with, `stats` the intervals.

pub mod apply;
pub mod cli;
pub mod design;
pub mod knobs;
pub mod model;
pub mod output;
pub mod patch;
pub mod random;
pub mod replay;
pub mod rig;
pub mod scene;
pub mod search;
pub mod stats;
pub mod sysctl;
pub mod upstream;
