//! Bytes of parts: in memory, or in files that are read or leave by sendfile. Hot path.
//!
//! Files of more than 128 KiB leave by sendfile. What is not in the page cache is first read on the blocking pool.

use super::write::{Broken, Done, Idle, failed, room, write_unsent};
use crate::file_cache::OpenFile;
use crate::request::Request;
use crate::response::Part;
use crate::thread::Thread;
use bytes::Bytes;
use forebay_conf::error::Level;
use rustix::io::{Errno, ReadWriteFlags};
use std::rc::Rc;

/// Longest stretch of a file that leaves at once, bytes.
pub(super) const STRETCH: u64 = 2 * 1024 * 1024;

/// Bytes of a file.
pub(super) struct Stretch {
    pub(super) file: Rc<OpenFile>,
    /// First byte.
    pub(super) start: u64,
    /// Number of bytes.
    pub(super) len: u64,
}

/// Returns the bytes of a part that is in memory.
#[inline]
pub(super) fn memory<'p>(text: &'p [u8], p: &'p Part) -> &'p [u8] {
    match p {
        Part::Text { start, end } => text.get(*start as usize..*end as usize).unwrap_or_default(),
        Part::Static(b) => b,
        Part::Bytes(b) => b,
        Part::File { file, start, end } => {
            file.bytes().and_then(|c| c.get(*start as usize..*end as usize)).unwrap_or_default()
        }
    }
}

/// Returns the bytes of a part that is in memory outside the response.
pub(super) fn shared(p: &Part) -> Option<Bytes> {
    match p {
        Part::Text { .. } => None,
        Part::Static(b) => Some(Bytes::from_static(b)),
        Part::Bytes(b) => Some(b.clone()),
        Part::File { file, start, end } => {
            let range = *start as usize..*end as usize;
            // `Bytes::slice` panics on a range outside of the content.
            file.bytes()
                .filter(|all| range.start <= range.end && range.end <= all.len())
                .map(|all| all.slice(range))
        }
    }
}

/// Appends bytes of a part to `out`. What is not in the page cache is read on the blocking pool. Returns `false` if the
/// file cannot be read or has become shorter.
pub(super) async fn load(text: &[u8], part: &Part, at: u64, n: u64, out: &mut Vec<u8>) -> bool {
    match part {
        Part::File { file, start, .. } if file.bytes().is_none() => read(file, start + at, n, out).await,
        _ => {
            out.extend_from_slice(memory(text, part).get(at as usize..(at + n) as usize).unwrap_or_default());
            true
        }
    }
}

/// Appends `n` bytes of a file.
async fn read(file: &OpenFile, offset: u64, n: u64, out: &mut Vec<u8>) -> bool {
    if resident(file, offset, n) {
        let before = out.len();
        out.resize(before + n as usize, 0);
        let room = out.get_mut(before..).unwrap_or_default();
        return rustix::io::pread(&file.fd, room, offset).is_ok_and(|got| got as u64 == n);
    }
    // The closure may outlive this request and its file, so it has a descriptor of its own.
    let Ok(fd) = file.fd.try_clone() else { return false };
    let read = tokio::task::spawn_blocking(move || {
        let mut buf = vec![0; n as usize];
        rustix::io::pread(&fd, buf.as_mut_slice(), offset).map(|got| {
            buf.truncate(got);
            buf
        })
    });
    match read.await {
        Ok(Ok(buf)) if buf.len() as u64 == n => {
            out.extend_from_slice(&buf);
            true
        }
        _ => false,
    }
}

/// Sends a stretch of a file without copying it to user space.
pub(super) async fn send_file(thread: &Rc<Thread>, req: &mut Request, stretch: &Stretch) -> Done {
    let Stretch { file, start, len } = stretch;
    // sendfile would wait for the disk inside of the call and stop all connections of the thread.
    if !resident(file, *start, *len) {
        warm(file, *start, *len).await;
    }
    let mut offset = *start;
    let end = start + len;
    while offset < end {
        let rest = (end - offset) as usize;
        match req.conn.wire.send_file(&thread.io, &file.fd, &mut offset, rest) {
            // The file has become shorter. The length in the head cannot be kept any more, so the connection has to end.
            Ok(sent) if sent.bytes == 0 && !sent.full => {
                req.log(Level::Alert, &format!("sendfile() reported that file was truncated at {offset}"));
                return Err(Broken::Connection);
            }
            Ok(sent) => {
                req.tally.sent += sent.bytes as u64;
                if sent.full {
                    room(thread, req, &mut Idle).await?;
                }
            }
            Err(Errno::AGAIN) => room(thread, req, &mut Idle).await?,
            Err(e) => return Err(failed(req, "sendfile()", e)),
        }
    }
    // Over TLS, sealed records may still wait in the wire.
    write_unsent(thread, req).await
}

/// Returns `true` if the last byte of a stretch can be read without waiting for the disk. The kernel reads ahead from the front, so the
/// other bytes are there if the last one is.
fn resident(file: &OpenFile, offset: u64, n: u64) -> bool {
    let mut byte = [0u8; 1];
    let mut bufs = [rustix::io::IoSliceMut::new(&mut byte)];
    let at = offset + n.saturating_sub(1);
    // Only EAGAIN means that the disk is needed. A file system without RWF_NOWAIT answers with another error, and its files are read
    // directly.
    !matches!(rustix::io::preadv2(&file.fd, &mut bufs, at, ReadWriteFlags::NOWAIT), Err(Errno::AGAIN))
}

/// Brings a stretch of a file into the page cache without blocking the thread.
async fn warm(file: &OpenFile, offset: u64, n: u64) {
    let Ok(fd) = file.fd.try_clone() else { return };
    let read = tokio::task::spawn_blocking(move || {
        // The bytes are thrown away: the read only brings them into the page cache, from which sendfile takes them.
        let mut buf = vec![0; 64 * 1024];
        let mut at = offset;
        while at < offset + n {
            match rustix::io::pread(&fd, buf.as_mut_slice(), at) {
                Ok(got) if got > 0 => at += got as u64,
                _ => return,
            }
        }
    });
    let _ = read.await;
}
