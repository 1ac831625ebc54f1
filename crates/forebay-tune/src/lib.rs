//! Tuning by measurement. `search` is the method: it knows nothing of servers and decides which settings to try, which
//! lines to keep and what may be claimed. `model` is the regression that it learns with, `stats` the intervals.

pub mod design;
pub mod knobs;
pub mod model;
pub mod patch;
pub mod random;
pub mod search;
pub mod stats;
pub mod sysctl;
