//! Ends of connections.

use super::Connection;
use crate::modules::core::{self, Lingering};
use crate::thread::Thread;
use forebay_core::log::buffers;
use rustix::io::Errno;
use std::rc::Rc;
use std::time::{Duration, Instant};

/// Number of bytes that one read takes while lingering.
const READ: usize = 4096;

/// Ends a connection whose output has been flushed. Reads on for a while if the client may still be sending
/// (`unread`, or bytes have arrived), since a socket that is closed with bytes unread resets the connection, which can cost the
/// client the response (RFC 9112, section 9.6).
pub async fn close(thread: &Rc<Thread>, conn: &mut Connection, core: &core::Settings, unread: bool) {
    let lingers = match core.lingering_close {
        Lingering::Off => false,
        Lingering::On => unread || conn.wire.is_readable(&thread.io),
        Lingering::Always => true,
    };
    // The client sees the end of the connection from here on, and may look for its line in the log.
    buffers::flush_gathered(thread);
    // Even without lingering the FIN leaves before the socket is closed. The kernel may hold back the last bytes of the response
    // (`Then::Close`), and a reset would discard them. Over TLS the alert `close_notify` comes first: without it a response that ends
    // with the connection looks cut off (RFC 8446, section 6.1).
    conn.wire.shutdown(&thread.io);
    if lingers {
        linger(thread, conn, core).await;
    }
}

/// Reads and discards bytes that the client still sends.
async fn linger(thread: &Rc<Thread>, conn: &mut Connection, core: &core::Settings) {
    let end = Instant::now() + core.lingering_time.0;
    let mut scratch = Vec::new();
    loop {
        thread.io.poller.be_fair().await;
        scratch.reserve(READ);
        match conn.wire.discard(&thread.io, &mut scratch) {
            Ok(n) if n > 0 && Instant::now() < end => {}
            Err(Errno::AGAIN) => {
                let until = (Instant::now() + core.lingering_timeout.0).min(end);
                // A process that stops does not wait for lingering clients.
                if thread.quitting.get() && thread.stopping.get() {
                    return;
                }
                let readable = conn.wire.wait_readable(&thread.io);
                if thread.io.poller.deadline(until, readable).await.is_none() {
                    return;
                }
            }
            _ => return,
        }
    }
}

/// Has the kernel reset a connection when it is closed, which frees its send buffer at once
/// (nginx: `reset_timedout_connection`).
pub fn reset(thread: &Thread, conn: &Connection) {
    // With a linger time of zero the kernel discards what it holds (socket(7)).
    let zero = Some(Duration::ZERO);
    let _ = conn.wire.with_fd(&thread.io, |fd| rustix::net::sockopt::set_socket_linger(fd, zero));
}
