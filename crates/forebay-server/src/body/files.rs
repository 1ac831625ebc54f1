//! Bytes of files that are not in the thread's memory. Hot path.

use super::send::memory;
use crate::file_cache::OpenFile;
use crate::response::Part;
use rustix::io::{Errno, ReadWriteFlags};
use std::rc::Rc;

/// Appends bytes of a part to `out`. What is not in the page cache is read on the blocking pool. Returns `false` if the
/// file cannot be read or has become shorter.
pub(super) async fn load(text: &[u8], part: &Part, at: u64, n: u64, out: &mut Vec<u8>) -> bool {
    let Part::File { file, start, .. } = part else {
        out.extend_from_slice(memory(text, part).get(at as usize..(at + n) as usize).unwrap_or_default());
        return true;
    };
    if file.bytes().is_some() {
        out.extend_from_slice(memory(text, part).get(at as usize..(at + n) as usize).unwrap_or_default());
        return true;
    }
    let offset = start + at;
    if resident(file, offset, n) {
        out.resize(n as usize, 0);
        return rustix::io::pread(&file.fd, out.as_mut_slice(), offset).is_ok_and(|got| got as u64 == n);
    }
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

/// Whether the last byte of a stretch can be read without waiting for the disk. Reading ahead fills files
/// from the front, so the last byte speaks for the others.
pub(super) fn resident(file: &OpenFile, offset: u64, n: u64) -> bool {
    let mut byte = [0u8; 1];
    let mut bufs = [rustix::io::IoSliceMut::new(&mut byte)];
    let at = offset + n.saturating_sub(1);
    !matches!(rustix::io::preadv2(&file.fd, &mut bufs, at, ReadWriteFlags::NOWAIT), Err(Errno::AGAIN))
}

/// Brings a stretch of a file into the page cache without blocking the thread.
pub(super) async fn warm(file: &Rc<OpenFile>, offset: u64, n: u64) {
    let Ok(fd) = file.fd.try_clone() else { return };
    let read = tokio::task::spawn_blocking(move || {
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
