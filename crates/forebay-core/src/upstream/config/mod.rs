//! `upstream` blocks, and groups that directives imply (nginx: upstream).

mod block;
mod groups;
mod server;

pub use block::Block;
pub use groups::{Groups, Named, Upstream};
