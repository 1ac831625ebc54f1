//! Idle connections that are closed to make room for others.

use super::h1;
use super::unread::HeadFailure;
use crate::thread::Thread;
use forebay_core::front::{Idle, IdlePlace, choose_idle};
use std::rc::Rc;
use std::time::Instant;

/// Appends the idle connections that may be closed for others.
pub fn idle(thread: &Thread, now: Instant, out: &mut Vec<Idle>) {
    thread.runners.each_idle(|token, c, deadline, sending| {
        let rank = super::rank(c, deadline, now).filter(|_| !sending);
        let place = IdlePlace::Socket(token);
        out.extend(rank.map(|rank| Idle { place, network: c.client.network(), rank }));
    });
    thread.quic.idle(now, out);
}

/// Closes an idle connection. A head may have begun on it.
pub fn close_idle(thread: &Rc<Thread>, place: IdlePlace, why: HeadFailure) {
    match place {
        IdlePlace::Socket(token) => {
            if let Some(conn) = thread.runners.close_parked(token) {
                thread.counters.active.sub(1);
                // A parked head stays counted as being read, which ends here.
                thread.counters.reading.sub(u64::from(conn.partial.is_some()));
                h1::drop_idle(thread, conn, why);
            }
        }
        IdlePlace::Quic(number) => thread.quic.close_idle(thread, number),
    }
}

/// Closes idle connections to make room for a connection that is not accepted from a socket. Returns `false` if there is no idle
/// connection.
pub fn make_room(thread: &Rc<Thread>) -> bool {
    let mut waiting = Vec::new();
    idle(thread, thread.clock.now(), &mut waiting);
    let chosen = choose_idle(&waiting, thread.max_connections);
    for idle in chosen.iter().filter_map(|number| waiting.get(*number)) {
        close_idle(thread, idle.place, HeadFailure::Displaced);
        thread.counters.evicted.add(1);
    }
    !chosen.is_empty()
}
