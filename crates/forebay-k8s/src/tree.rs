//! The model to directives.

mod host;
mod main;

pub(crate) use host::collect;
pub use host::server;
pub use main::{Main, StreamPort, main};

use forebay_conf::Node;

/// Makes a directive with words.
fn node<W: Into<Vec<u8>>>(name: &str, words: impl IntoIterator<Item = W>) -> Node {
    Node::new(name).args(words)
}
