//! Resources of a thread through which the bytes of its connections pass. Hot path.

use crate::pipe::{Pipe, Pipes};
use crate::reactor::{Poller, Token};
use crate::socket_pool::SocketPool;
use crate::tls::stream::Scratch;
use forebay_sys::datagrams::Batch;
use rustix::net::AddressFamily;
use std::cell::{Cell, RefCell};

/// Poller and buffers of a thread. Wires, TLS and relays need no more than this to move bytes.
pub struct Io {
    /// Descriptors, readiness and deadlines.
    pub poller: Poller,
    /// Buffers for encrypted connections.
    pub tls: RefCell<Scratch>,
    /// Buffers for content that passes from one connection to another.
    pub large: LargeBuffers,
    /// Buffers for the bytes of relays.
    pub(crate) relayed: RelayBuffers,
    /// Pipe for content that passes from one connection to another inside the kernel.
    pub pipe: RefCell<Pipe>,
    /// Pipes for the bytes of relays.
    pub(crate) pipes: Pipes,
    /// Sockets for datagrams between two uses.
    pub(crate) spare: SocketPool,
    /// Buffers for datagrams, between two calls.
    batch: RefCell<Option<Batch>>,
}

impl std::fmt::Debug for Io {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Io").field("descriptors", &self.poller.in_use()).finish_non_exhaustive()
    }
}

impl Io {
    /// Creates the resources of a thread.
    ///
    /// # Errors
    /// Errors of [`Poller::new`].
    pub fn new() -> std::io::Result<Io> {
        Ok(Io {
            poller: Poller::new()?,
            tls: RefCell::default(),
            large: LargeBuffers::default(),
            relayed: RelayBuffers::default(),
            pipe: RefCell::default(),
            pipes: Pipes::default(),
            spare: SocketPool::default(),
            batch: RefCell::default(),
        })
    }

    /// Calls `f` with buffers for datagrams, which are empty.
    pub fn with_batch<R>(&self, f: impl FnOnce(&mut Batch) -> R) -> R {
        // The buffers are taken out for the call, as the function may come back here and gets others then.
        let mut batch = self.batch.take().unwrap_or_default();
        batch.clear();
        let result = f(&mut batch);
        self.batch.replace(Some(batch));
        result
    }

    /// Frees the buffers that no connection uses at the moment.
    pub fn free_buffers(&self) {
        drop(self.batch.take());
        self.large.free();
        self.relayed.free();
        drop(self.tls.take());
    }

    /// Takes back the socket of a connection over which only datagrams have passed (see [`crate::dial::DialSettings::spare`]), for
    /// a later [`crate::dial::dial`].
    pub fn give_socket(&self, family: AddressFamily, token: Token) {
        self.spare.give(&self.poller, family, token);
    }
}

/// Buffers that one request uses after another.
pub type LargeBuffers = Buffers<{ 64 * 1024 }, { 256 * 1024 }>;

/// Buffers that one relay uses after another. Over TLS a read appends up to 32 KiB.
pub(crate) type RelayBuffers = Buffers<{ 16 * 1024 }, { 64 * 1024 }>;

/// Stock of empty buffers with a capacity from `LEAST` to `MOST` bytes.
#[derive(Debug, Default)]
pub struct Buffers<const LEAST: usize, const MOST: usize> {
    kept: RefCell<Vec<Vec<u8>>>,
    /// Number of buffers that are held during a wait: see [`Buffers::hold`].
    held: Cell<usize>,
}

/// Permission to keep a buffer during a wait.
#[derive(Debug)]
pub struct Held<'b>(&'b Cell<usize>);

impl Drop for Held<'_> {
    fn drop(&mut self) {
        self.0.set(self.0.get() - 1);
    }
}

impl<const LEAST: usize, const MOST: usize> Buffers<LEAST, MOST> {
    /// Smallest capacity of a buffer, bytes.
    pub const LEAST: usize = LEAST;
    /// Number of buffers that are kept.
    const KEPT: usize = 8;
    /// Largest number of buffers that are held at a time.
    const HELD: usize = 32;

    /// Permits to keep a buffer with bytes in it while a connection takes nothing, which spares a copy. Only this many
    /// connections may do so. Among thousands of slow clients, the others keep no more than the bytes.
    pub fn hold(&self) -> Option<Held<'_>> {
        let held = self.held.get();
        (held < Self::HELD).then(|| {
            self.held.set(held + 1);
            Held(&self.held)
        })
    }

    /// Returns an empty buffer, of a size that [`Buffers::give`] keeps.
    pub fn take(&self) -> Vec<u8> {
        self.kept.borrow_mut().pop().unwrap_or_else(|| Vec::with_capacity(LEAST))
    }

    /// Frees the buffers that are kept.
    fn free(&self) {
        drop(self.kept.take());
    }

    /// Takes a buffer back.
    pub fn give(&self, mut b: Vec<u8>) {
        let mut kept = self.kept.borrow_mut();
        // A buffer that has grown beyond the limit is freed, so that one large response does not take memory
        // for ever.
        if kept.len() < Self::KEPT && (LEAST..=MOST).contains(&b.capacity()) {
            b.clear();
            kept.push(b);
        }
    }
}
