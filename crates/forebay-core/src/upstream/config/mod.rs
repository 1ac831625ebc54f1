//! `upstream` blocks, and groups that directives imply (nginx: upstream).

mod block;
mod fallback;
mod groups;
mod server;

pub use block::Block;
pub use fallback::{Fallback, Serving};
pub use groups::{Groups, Named, Numbers, Table, Upstream, Uses};
