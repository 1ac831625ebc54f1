//! Work in a thread of its own, during which one thing goes on.

use rustix::event::{PollFd, PollFlags, poll};
use std::io;
use std::os::fd::OwnedFd;
use std::panic::resume_unwind;

/// Runs `work` in a thread and returns its result. Until then calls `act` each time that `socket` is readable. After `act` has returned
/// `false`, it is not called again. Without a descriptor to wait for, or a thread, `work` is run and nothing else.
pub(crate) fn run_in_thread<T: Send>(
    socket: io::Result<OwnedFd>,
    work: impl FnOnce() -> T + Send,
    mut act: impl FnMut() -> bool,
) -> T {
    let (Ok(socket), Ok((ended, end))) = (socket, io::pipe()) else { return work() };
    std::thread::scope(|scope| {
        let thread = scope.spawn(move || {
            // Closed at the end, also by a panic.
            let _end = end;
            work()
        });
        let mut acts = true;
        while !thread.is_finished() {
            let mut fds = vec![PollFd::new(&ended, PollFlags::IN)];
            fds.extend(acts.then(|| PollFd::new(&socket, PollFlags::IN)));
            match poll(&mut fds, None) {
                Ok(_) => {}
                Err(rustix::io::Errno::INTR) => continue,
                Err(_) => break,
            }
            let ready = |fd: &PollFd<'_>| !fd.revents().is_empty();
            if fds.first().is_none_or(ready) {
                break;
            }
            acts = acts && act();
        }
        thread.join().unwrap_or_else(|panic| resume_unwind(panic))
    })
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::io::{Read, Write};
    use std::os::fd::AsFd;
    use std::os::unix::net::UnixStream;

    #[test]
    fn messages_are_acted_on_before_the_work_is_done() {
        let (mut theirs, mut ours) = UnixStream::pair().expect("socket pair");
        let (mut go_on, mut told) = UnixStream::pair().expect("socket pair");
        theirs.write_all(b"a").expect("write");
        let mut got = Vec::new();
        let work = move || {
            // The work is not done before both messages have been read.
            let mut two = [0; 2];
            told.read_exact(&mut two).map(|()| two)
        };
        let socket = ours.as_fd().try_clone_to_owned();
        let result = run_in_thread(socket, work, || {
            let mut byte = [0];
            ours.read_exact(&mut byte).expect("read");
            got.extend(byte);
            go_on.write_all(&byte).expect("write");
            got.len() < 2 && theirs.write_all(b"b").is_ok()
        });
        assert_eq!((result.expect("two messages"), got), (*b"ab", b"ab".to_vec()));
    }

    #[test]
    fn a_socket_that_is_always_ready_is_left_alone() {
        let (theirs, ours) = UnixStream::pair().expect("socket pair");
        drop(theirs);
        let mut calls = 0;
        let (go_on, mut told) = UnixStream::pair().expect("socket pair");
        let mut go_on = Some(go_on);
        let work = move || told.read(&mut [0]).expect("read");
        let result = run_in_thread(Ok(ours.into()), work, || {
            calls += 1;
            go_on = None;
            false
        });
        assert_eq!((result, calls), (0, 1));
    }
}
