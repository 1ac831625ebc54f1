//! The model to directives.

mod host;
mod main;
pub(crate) mod merge;

pub use host::server;
pub(crate) use host::{collect, guard, lookalikes, other_spellings};
pub(crate) use host::{listen_http, listen_https};
pub use main::{Main, StreamPort, main};
pub(crate) use main::{TLS_HERE, is_pattern, stream_group};

use crate::ingress::Globals;
use forebay_conf::Node;

/// Makes a directive with words.
fn node<W: Into<Vec<u8>>>(name: &str, words: impl IntoIterator<Item = W>) -> Node {
    Node::new(name).args(words)
}

/// Returns the addresses to listen at with a port.
pub(crate) fn addresses(globals: &Globals, port: u16) -> Vec<String> {
    let given = &globals.addresses;
    if given.is_empty() {
        let six = globals.ipv6.then(|| format!("[::]:{port}"));
        return std::iter::once(port.to_string()).chain(six).collect();
    }
    let bracketed =
        |a: &String| if a.contains(':') { format!("[{a}]:{port}") } else { format!("{a}:{port}") };
    given.iter().map(bracketed).collect()
}
