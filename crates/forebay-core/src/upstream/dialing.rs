//! Opens connections to servers for requests and sessions. Hot path.

use crate::thread::Thread;
use crate::trace;
use forebay_net::dial::{self, DialError, DialSettings};
use forebay_net::wire::{Watch, Wire};

/// Opens a connection as [`dial::dial`] does. Where this machine has no descriptor left, the thread gives up cached files or idle
/// connections first, and it is tried once more.
///
/// # Errors
/// [`DialError`].
pub async fn dial(thread: &Thread, s: &DialSettings<'_>, watch: &mut Watch) -> Result<Wire, DialError> {
    if let Some(addr) = trace::stand_in() {
        let stand_in = DialSettings { addr: &addr, local: None, greeting: &[], ..*s };
        return dial::dial(&thread.io, &stand_in, watch).await;
    }
    match dial::dial(&thread.io, s, watch).await {
        Err(e) if e.is_out_of_descriptors() && thread.shed() => dial::dial(&thread.io, s, watch).await,
        done => done,
    }
}
