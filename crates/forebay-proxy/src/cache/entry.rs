//! File format of a cached response: a fixed part, validators, key and head of the response, then the body.
//!
//! All numbers are little-endian. A checksum covers everything before the body; the body is checked by its length only.
//! Files are renamed into the cache once they are complete, so a killed process leaves no partial entries.

use super::Hash;
use md5::{Digest, Md5};

/// First bytes of every file; the last is the version of the format.
const MAGIC: &[u8; 8] = b"FOREBAY1";

/// Bytes of the fixed part.
pub const FIXED: usize = 112;

/// Longest supported `Vary`, bytes (nginx: 128). Responses with a longer one are not stored.
pub const MAX_VARY: usize = 128;

/// Longest part before the body, bytes. A file with a longer one is not ours.
const MAX_START: usize = 1 << 20;

/// Metadata of a cached response.
#[derive(Clone, Debug, PartialEq, Eq, Default)]
pub struct Meta {
    /// Time until which the response is fresh, Unix seconds.
    pub valid: i64,
    /// Seconds after `valid` in which the response may be served while it is renewed (stale-while-revalidate).
    pub updating: i64,
    /// Seconds after `valid` in which the response may be served instead of an error (stale-if-error).
    pub error: i64,
    /// Time of storing, Unix seconds.
    pub date: i64,
    /// `Last-Modified`, Unix seconds.
    pub last_modified: Option<i64>,
    /// `ETag`.
    pub etag: Vec<u8>,
    /// `Vary`.
    pub vary: Vec<u8>,
    /// Hash of the request fields that `vary` names.
    pub variant: Hash,
    /// Number that all variants of a response share, so that they become invalid together.
    pub family: u64,
    /// Status.
    pub status: u16,
    /// The key.
    pub key: Vec<u8>,
    /// Head of the response as the upstream sent it, with its empty line.
    pub head: Vec<u8>,
}

// The same text as in files of nginx, so that people find an entry with grep.
const KEY: &[u8] = b"\nKEY: ";

/// Reads the key in the file of an entry. Returns `None` if the file is missing or broken. Blocks.
pub fn key_of(path: &std::path::Path) -> Option<Vec<u8>> {
    use std::os::unix::fs::FileExt;
    let file = std::fs::File::open(path).ok()?;
    let size = file.metadata().ok()?.len();
    let mut start = vec![0; FIXED];
    loop {
        let want = start.len();
        file.read_exact_at(&mut start, 0).ok()?;
        match Meta::decode(&start, size).ok()? {
            Ok((meta, _)) => return Some(meta.key),
            // A file that needs no more bytes than it has given is broken. Reading it again would never end.
            Err(need) if need > want => start = vec![0; need],
            Err(_) => return None,
        }
    }
}

impl Meta {
    /// Returns the offset of the body.
    pub fn body_start(&self) -> usize {
        FIXED + self.etag.len() + self.vary.len() + KEY.len() + self.key.len() + 1 + self.head.len()
    }

    /// Encodes everything before a body of `body_len` bytes.
    pub fn encode(&self, body_len: u64) -> Vec<u8> {
        let mut out = Vec::with_capacity(self.body_start());
        out.extend_from_slice(MAGIC);
        out.extend_from_slice(&[0; 8]);
        for n in [self.body_start(), self.key.len(), self.head.len()] {
            out.extend_from_slice(&(n as u32).to_le_bytes());
        }
        for n in [self.etag.len(), self.vary.len()] {
            out.extend_from_slice(&(n as u16).to_le_bytes());
        }
        out.extend_from_slice(&body_len.to_le_bytes());
        // The smallest number stands for no time, as 0 is a valid one.
        let changed = self.last_modified.unwrap_or(i64::MIN);
        for n in [self.valid, self.updating, self.error, self.date, changed] {
            out.extend_from_slice(&n.to_le_bytes());
        }
        out.extend_from_slice(&self.variant);
        out.extend_from_slice(&self.family.to_le_bytes());
        out.extend_from_slice(&self.status.to_le_bytes());
        out.resize(FIXED, 0);
        for piece in [&self.etag, &self.vary, KEY, &self.key, b"\n", &self.head] as [&[u8]; 6] {
            out.extend_from_slice(piece);
        }
        let sum = checksum(&out);
        out[8..16].copy_from_slice(&sum);
        out
    }

    /// Decodes the start of a file of `size` bytes. Returns the metadata and the offset of the body, or `Ok(Err(n))` if
    /// `start` is incomplete and at least `n` bytes are needed.
    ///
    /// # Errors
    /// If the file is broken, with the end of a sentence about it.
    pub fn decode(start: &[u8], size: u64) -> Result<Result<(Meta, usize), usize>, &'static str> {
        if start.len() < FIXED {
            return if size < FIXED as u64 { Err("is too small") } else { Ok(Err(FIXED)) };
        }
        if &start[..8] != MAGIC {
            return Err("has another format");
        }
        let u32_at = |at: usize| u32::from_le_bytes(array(start, at)) as usize;
        let u16_at = |at: usize| usize::from(u16::from_le_bytes(array(start, at)));
        let i64_at = |at: usize| i64::from_le_bytes(array(start, at));
        let (body_start, key, head) = (u32_at(16), u32_at(20), u32_at(24));
        let (etag, vary) = (u16_at(28), u16_at(30));
        let body_len = u64::from_le_bytes(array(start, 32));
        let sum = FIXED + etag + vary + KEY.len() + key + 1 + head;
        if body_start > MAX_START || sum != body_start {
            return Err("has a broken header");
        }
        // Bodies have no checksum, so a file that was cut off shows only by its length.
        if (body_start as u64).checked_add(body_len) != Some(size) {
            return Err("has the wrong length");
        }
        let Some(all) = start.get(..body_start) else { return Ok(Err(body_start)) };
        if checksum(all) != array(start, 8) {
            return Err("has a wrong checksum");
        }
        let mut at = FIXED;
        let mut take = |n: usize| {
            let piece = all.get(at..at + n).unwrap_or_default();
            at += n;
            piece.to_vec()
        };
        let (etag, vary) = (take(etag), take(vary));
        take(KEY.len());
        let key = take(key);
        take(1);
        let head = take(head);
        let changed = i64_at(72);
        let meta = Meta {
            valid: i64_at(40),
            updating: i64_at(48),
            error: i64_at(56),
            date: i64_at(64),
            last_modified: (changed != i64::MIN).then_some(changed),
            etag,
            vary,
            variant: array(start, 80),
            family: u64::from_le_bytes(array(start, 96)),
            status: u16::from_le_bytes(array(start, 104)),
            key,
            head,
        };
        Ok(Ok((meta, body_start)))
    }

    /// Returns `true` if the response is fresh at a time.
    pub fn fresh(&self, now: i64) -> bool {
        self.valid >= now
    }
}

fn array<const N: usize>(bytes: &[u8], at: usize) -> [u8; N] {
    let mut out = [0; N];
    if let Some(b) = bytes.get(at..at + N) {
        out.copy_from_slice(b);
    }
    out
}

/// Returns the checksum of everything before the body, except the checksum itself.
fn checksum(start: &[u8]) -> [u8; 8] {
    let mut md5 = Md5::new();
    md5.update(start.get(..8).unwrap_or_default());
    // The eight bytes in between are the place of the checksum itself.
    md5.update(start.get(16..).unwrap_or_default());
    array(&md5.finalize(), 0)
}

/// Returns the MD5 of the concatenated pieces.
pub fn hash<'a>(pieces: impl IntoIterator<Item = &'a [u8]>) -> Hash {
    let mut md5 = Md5::new();
    for p in pieces {
        md5.update(p);
    }
    md5.finalize().into()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn meta() -> Meta {
        Meta {
            valid: 1,
            updating: 2,
            error: 3,
            date: 4,
            last_modified: Some(5),
            etag: b"\"x\"".to_vec(),
            vary: b"Accept-Encoding".to_vec(),
            variant: [7; 16],
            family: 8,
            status: 200,
            key: b"http://u/a".to_vec(),
            head: b"HTTP/1.1 200 OK\r\n\r\n".to_vec(),
        }
    }

    #[test]
    fn written_entries_are_read() {
        let bytes = meta().encode(10);
        assert_eq!(bytes.len(), meta().body_start());
        let size = bytes.len() as u64 + 10;
        assert_eq!(Meta::decode(&bytes, size), Ok(Ok((meta(), bytes.len()))));
        assert_eq!(Meta::decode(&bytes[..20], size), Ok(Err(FIXED)));
        assert_eq!(Meta::decode(&bytes[..FIXED], size), Ok(Err(bytes.len())));
        // What people look for with grep.
        assert!(memchr::memmem::find(&bytes, b"\nKEY: http://u/a\n").is_some());
    }

    #[test]
    fn every_damage_is_seen() {
        let bytes = meta().encode(10);
        let size = bytes.len() as u64 + 10;
        for at in 0..bytes.len() {
            let mut bad = bytes.clone();
            bad[at] ^= 0x40;
            assert!(!matches!(Meta::decode(&bad, size), Ok(Ok(_))), "byte {at}");
        }
        assert_eq!(Meta::decode(&bytes, size - 1), Err("has the wrong length"));
        assert_eq!(Meta::decode(&bytes[..7], 7), Err("is too small"));
    }
}
