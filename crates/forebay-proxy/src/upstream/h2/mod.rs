//! HTTP/2 to upstreams (RFC 9113; nginx: proxy_http_version 2, grpc_pass). Hot path.
//!
//! - [`Pool`] has the connections of a thread. `codec/http2.rs` asks it for a stream, and speaks HTTP on it.
//! - `session::Session` is a connection. Its events, and work that streams leave, come as steps of the reactor ([`Pool::step`]): one read
//!   serves all its streams, and the frames of all streams of a turn leave with one send.
//! - [`stream::Stream`] is a request. To all code after it, it is a wire ([`forebay_net::wire::Wire::Mux`]). Dropping it cancels it.
//!
//! forebay-http, `h2/link/mod.rs`, reads and writes the frames, and has the state of a connection without its socket. `pooled/mod.rs`
//! has what connections of HTTP/3 have, too.

mod session;
mod stream;

pub use stream::Stream;

use super::pooled::{self, Opened, Session as _, Shared, Trouble};
use forebay_core::thread::Thread as WorkerThread;
use forebay_core::tls::client::{Unencrypted, Wanted};
use forebay_core::upstream::conn::Conn;
use forebay_core::upstream::dialing;
use forebay_net::dial::{DialError, DialSettings};
use forebay_net::reactor::Direct;
use forebay_net::wire::Watch;
use forebay_server::module::thread::{ThreadSlot, ThreadState};
use forebay_server::thread::Thread;
use session::Session;
use std::cell::RefCell;
use std::path::Path;
use std::rc::Rc;
use std::time::Instant;

/// Properties that connections must have in common to serve the same requests.
pub type Key = pooled::Key<()>;
/// A request that needs a stream.
pub type Need = pooled::Need<()>;

/// Parameters of a new connection.
#[derive(Clone, Copy)]
pub struct Dial<'d> {
    pub(crate) settings: DialSettings<'d>,
    /// Encryption.
    pub wanted: Option<&'d Wanted>,
    /// Directory of certificates whose names have variables.
    pub base: &'d Path,
}

/// Connections of a thread to upstreams.
#[derive(Default)]
pub struct Pool {
    shared: Shared<Session>,
    /// All connections, by their numbers.
    sessions: RefCell<Vec<Option<Rc<Session>>>>,
}

/// Connections of all threads to upstreams.
pub static POOL: ThreadSlot<Pool> = ThreadSlot::new();

impl ThreadState for Pool {
    fn new(_: &WorkerThread) -> Pool {
        Pool::default()
    }

    fn step(&self, _: &Rc<Thread>, number: u32) {
        let session = self.sessions.borrow().get(number as usize).cloned().flatten();
        let Some(session) = session else { return };
        session.step();
        self.shared.trim(&session, session.now());
        session.flush();
        if session.life().is_over() {
            self.forget(&session);
        } else {
            session.set_timer();
        }
    }

    fn applied(&self) {
        self.shared.retire();
    }

    fn end(&self) {
        self.applied();
        let sessions: Vec<_> = self.sessions.take().into_iter().flatten().collect();
        for session in sessions {
            session.flush();
            session.close();
            session.disconnect();
        }
    }

    fn shed_connections(&self) -> bool {
        let Some(session) = self.shared.oldest_idle(|_| true) else { return false };
        session.close();
        self.forget(&session);
        true
    }
}

/// A connection that is being opened. It is over unless it is established.
struct Opening<'p> {
    pool: &'p Pool,
    session: Rc<Session>,
}

impl Drop for Opening<'_> {
    fn drop(&mut self) {
        if self.session.life().is_connecting() {
            self.session.close();
            self.pool.forget(&self.session);
        }
    }
}

impl Pool {
    /// Opens a stream at once, on a connection that has room.
    pub fn open_now(&self, need: &Need, now: Instant) -> Option<Opened<Stream>> {
        self.shared.open_now(need, now)
    }

    /// Opens a stream on a connection that has room, or on a new one.
    ///
    /// # Errors
    /// `Trouble`.
    pub async fn open(
        &self,
        thread: &Rc<Thread>,
        need: &Need,
        dial: &Dial<'_>,
        watch: &mut Watch,
    ) -> Result<Opened<Stream>, Trouble> {
        let connect = async |watch: &mut Watch| self.connect(thread, need, dial, watch).await;
        self.shared.open(&thread.io.poller, need, watch, connect).await
    }

    /// Opens a stream on a connection that has been opened, and gives the connection to other requests.
    pub fn adopt(&self, thread: &Rc<Thread>, need: &Need, conn: Conn) -> Option<Opened<Stream>> {
        let session = self.begin(thread, need);
        session.connected(conn, true);
        session.opened(need.longest)
    }

    fn begin(&self, thread: &Rc<Thread>, need: &Need) -> Rc<Session> {
        let mut sessions = self.sessions.borrow_mut();
        // Numbers of connections that are gone are used again, so that the list does not grow with the age of the thread.
        let at = sessions.iter().position(Option::is_none).unwrap_or(sessions.len());
        let number = u32::try_from(at).unwrap_or(u32::MAX);
        let direct = Direct { front: thread.front, kind: POOL.kind(), number };
        let session = Rc::new(Session::new(&thread.io, direct, need));
        match sessions.get_mut(at) {
            Some(place) => *place = Some(session.clone()),
            None => sessions.push(Some(session.clone())),
        }
        drop(sessions);
        self.shared.add(&session);
        session
    }

    /// Opens a connection. Other requests may wait for the connection meanwhile. If this request gives up, one of them
    /// opens another.
    async fn connect(
        &self,
        thread: &Rc<Thread>,
        need: &Need,
        dial: &Dial<'_>,
        watch: &mut Watch,
    ) -> Result<Rc<Session>, Trouble> {
        let opening = Opening { pool: self, session: self.begin(thread, need) };
        let session = &opening.session;
        match dialled(thread, dial, watch).await {
            Ok(conn) => {
                session.connected(conn, dial.wanted.is_some());
                Ok(session.clone())
            }
            Err(trouble) => {
                // A timeout or a client that is gone concerns this request only, so others that wait make an attempt of
                // their own.
                let is_own = matches!(
                    trouble,
                    Trouble::Timeout | Trouble::ClientGone | Trouble::Tls(Unencrypted::Timeout)
                );
                if !is_own {
                    session.life().note_trouble(trouble.clone());
                }
                Err(trouble)
            }
        }
    }

    /// Forgets a connection that is over.
    fn forget(&self, session: &Rc<Session>) {
        self.shared.leave(session);
        let forgotten = {
            let mut sessions = self.sessions.borrow_mut();
            let place = sessions.get_mut(session.number() as usize);
            place.and_then(|place| place.take_if(|other| Rc::ptr_eq(other, session)))
        };
        drop(forgotten);
        session.disconnect();
    }
}

/// Opens a connection, and encrypts it if that is wanted.
async fn dialled(thread: &Rc<Thread>, dial: &Dial<'_>, watch: &mut Watch) -> Result<Conn, Trouble> {
    let opened = thread.io.poller.now();
    let wire = dialing::dial(thread, &dial.settings, watch).await.map_err(|e| match e {
        DialError::Timeout => Trouble::Timeout,
        DialError::ClientGone => Trouble::ClientGone,
        e => Trouble::Dial(e),
    })?;
    let mut conn = Conn::opened(&thread.io, wire, opened);
    if let Some(wanted) = dial.wanted {
        // A handshake consists of several small writes, which Nagle's algorithm would delay.
        conn.hurry();
        let (io, timeout) = (&thread.io, dial.settings.timeout);
        let encrypted = wanted.encrypt(io, conn.wire_mut(), dial.base, timeout, watch).await;
        encrypted.map_err(|e| match e {
            Unencrypted::ClientGone => Trouble::ClientGone,
            e => Trouble::Tls(e),
        })?;
    }
    Ok(conn)
}

#[cfg(test)]
mod tests;
