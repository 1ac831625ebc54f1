//! Text screens of `forebay top` and `forebay bench`: a terminal in raw mode, lines with looks, panels and bar charts.
//!
//! The programs draw some lines once a second. A library of widgets would be a sixth of the compiler's work for the first start.

mod chart;
mod key;
mod line;
mod panel;
mod screen;

pub use chart::{bars, spark};
pub use key::keys;
pub use line::{Line, Look};
pub use panel::{beside, gauge, panel};
pub use screen::{Screen, size};
