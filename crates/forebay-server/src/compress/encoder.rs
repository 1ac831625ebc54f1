//! Encoders: bytes in, compressed bytes out, as a filter of a body or for a whole form at once.

use super::Coding;
use super::forms::FormKey;
use crate::response::{BodyFilter, FilterError};
use flate2::{Compress, Compression, FlushCompress, Status};
use std::cell::RefCell;
use std::io::Write;
use zstd::stream::raw::{CParameter, InBuffer, Operation, OutBuffer};

/// Room reserved for output at a time, bytes.
const ROOM: usize = 8 * 1024;

/// Largest window of zstd, as a power of two. Clients need not support more (RFC 8878, section 3.1.1.1.2).
const ZSTD_WINDOW: u32 = 23;

/// Encoders kept for reuse, of each kind a thread.
const KEPT: usize = 4;

/// Highest level of zstd whose tables are kept. Those of higher levels are too large.
const ZSTD_KEPT: u8 = 12;

/// Encoders of ended streams, for reuse. Their tables take up to some MiB: creating them for each response would cost more than
/// a small response itself.
type SpareEncoders<T> = RefCell<Vec<(FormKey, T)>>;

thread_local! {
    static DEFLATE: SpareEncoders<Box<Compress>> = const { RefCell::new(Vec::new()) };
    static ZSTD: SpareEncoders<zstd::stream::raw::Encoder<'static>> = const { RefCell::new(Vec::new()) };
}

fn spare<T>(from: &'static std::thread::LocalKey<SpareEncoders<T>>, key: FormKey) -> Option<T> {
    from.with(|s| {
        let mut s = s.borrow_mut();
        let at = s.iter().position(|(k, _)| *k == key)?;
        Some(s.swap_remove(at).1)
    })
}

fn give<T>(to: &'static std::thread::LocalKey<SpareEncoders<T>>, key: FormKey, encoder: T) {
    // A thread that is ending has no store any more.
    let _ = to.try_with(|s| {
        let mut s = s.borrow_mut();
        if s.len() >= KEPT {
            s.remove(0);
        }
        s.push((key, encoder));
    });
}

enum Compressor {
    Gzip(Box<Compress>),
    Brotli(Box<brotli::CompressorWriter<Vec<u8>>>),
    Zstd(zstd::stream::raw::Encoder<'static>),
    /// The stream could not be created, or has ended.
    None,
}

/// Encoder of a stream: a body filter.
pub(crate) struct Encoder {
    key: FormKey,
    kind: Compressor,
    before: u64,
    after: u64,
    /// There is input that has not been flushed.
    pending: bool,
}

impl Encoder {
    /// Creates an encoder for a new stream.
    pub(crate) fn new(key: FormKey) -> Encoder {
        let kind = match key.coding {
            Coding::Gzip => Compressor::Gzip(spare(&DEFLATE, key).unwrap_or_else(|| {
                let level = Compression::new(u32::from(key.level));
                Box::new(Compress::new_gzip(level, key.window.clamp(9, 15)))
            })),
            Coding::Br => Compressor::Brotli(Box::new(brotli::CompressorWriter::new(
                Vec::new(),
                4096,
                u32::from(key.level),
                u32::from(key.window.clamp(10, 24)),
            ))),
            Coding::Zstd => match spare(&ZSTD, key).or_else(|| zstd_encoder(key.level)) {
                Some(e) => Compressor::Zstd(e),
                None => Compressor::None,
            },
        };
        Encoder { key, kind, before: 0, after: 0, pending: false }
    }

    fn run(&mut self, input: &[u8], end: AfterInput, out: &mut Vec<u8>) -> Result<(), FilterError> {
        let start = out.len();
        self.before += input.len() as u64;
        match &mut self.kind {
            Compressor::Gzip(c) => deflate(c, input, end, out)?,
            Compressor::Brotli(w) => {
                std::mem::swap(w.get_mut(), out);
                let mut done = w.write_all(input);
                if end == AfterInput::Flush {
                    done = done.and_then(|()| w.flush());
                }
                std::mem::swap(w.get_mut(), out);
                done.map_err(|_| FilterError("brotli encoder failed"))?;
            }
            Compressor::Zstd(e) => {
                zstd(e, input, end, out).map_err(|_| FilterError("zstd encoder failed"))?
            }
            Compressor::None => return Err(FilterError("encoder has ended")),
        }
        if end == AfterInput::Finish {
            self.end(out);
        }
        self.pending = end == AfterInput::More && (self.pending || !input.is_empty());
        self.after += (out.len() - start) as u64;
        Ok(())
    }

    /// Ends the stream, and keeps its tables for reuse. Only ended streams come here: zlib-rs 0.6 leaves a block of an unfinished
    /// one open when it is reset at level 1, and the next stream would begin inside of that block.
    fn end(&mut self, out: &mut Vec<u8>) {
        match std::mem::replace(&mut self.kind, Compressor::None) {
            Compressor::Gzip(mut c) => {
                c.reset();
                give(&DEFLATE, self.key, c);
            }
            Compressor::Zstd(mut e) => {
                if self.key.level <= ZSTD_KEPT && e.reinit().is_ok() {
                    give(&ZSTD, self.key, e);
                }
            }
            // `out` has all compressed bytes but the end of the stream.
            Compressor::Brotli(w) => out.extend_from_slice(&w.into_inner()),
            Compressor::None => {}
        }
    }
}

/// Compresses a whole content. The same input gives the same bytes.
pub(crate) fn whole(key: FormKey, input: &[u8]) -> Option<Vec<u8>> {
    let mut out = Vec::with_capacity(input.len() / 3 + 64);
    Encoder::new(key).run(input, AfterInput::Finish, &mut out).ok()?;
    out.shrink_to_fit();
    Some(out)
}

/// Continuation after the bytes of a call.
#[derive(Clone, Copy, PartialEq, Eq)]
enum AfterInput {
    More,
    Flush,
    Finish,
}

fn deflate(c: &mut Compress, input: &[u8], end: AfterInput, out: &mut Vec<u8>) -> Result<(), FilterError> {
    let flush = match end {
        AfterInput::More => FlushCompress::None,
        AfterInput::Flush => FlushCompress::Sync,
        AfterInput::Finish => FlushCompress::Finish,
    };
    let mut rest = input;
    loop {
        out.reserve(ROOM);
        let before = c.total_in();
        let status = c.compress_vec(rest, out, flush).map_err(|_| FilterError("deflate() failed"))?;
        rest = rest.get((c.total_in() - before) as usize..).unwrap_or_default();
        let full = out.len() == out.capacity();
        match end {
            AfterInput::Finish if status == Status::StreamEnd => return Ok(()),
            AfterInput::Finish => {}
            _ if rest.is_empty() && !full => return Ok(()),
            _ => {}
        }
    }
}

fn zstd_encoder(level: u8) -> Option<zstd::stream::raw::Encoder<'static>> {
    let mut e = zstd::stream::raw::Encoder::new(i32::from(level)).ok()?;
    if level > 19 {
        e.set_parameter(CParameter::WindowLog(ZSTD_WINDOW)).ok()?;
    }
    Some(e)
}

fn zstd(
    e: &mut zstd::stream::raw::Encoder<'static>,
    input: &[u8],
    end: AfterInput,
    out: &mut Vec<u8>,
) -> std::io::Result<()> {
    let mut input = InBuffer::around(input);
    while input.pos() < input.src.len() {
        out.reserve(ROOM);
        let at = out.len();
        e.run(&mut input, &mut OutBuffer::around_pos(out, at))?;
    }
    if end == AfterInput::More {
        return Ok(());
    }
    loop {
        out.reserve(ROOM);
        let at = out.len();
        let mut room = OutBuffer::around_pos(out, at);
        let left = if end == AfterInput::Flush { e.flush(&mut room)? } else { e.finish(&mut room, true)? };
        if left == 0 {
            return Ok(());
        }
    }
}

impl BodyFilter for Encoder {
    fn feed(&mut self, input: &[u8], last: bool, out: &mut Vec<u8>) -> Result<(), FilterError> {
        self.run(input, if last { AfterInput::Finish } else { AfterInput::More }, out)
    }

    fn flush(&mut self, out: &mut Vec<u8>) -> Result<(), FilterError> {
        if self.pending { self.run(&[], AfterInput::Flush, out) } else { Ok(()) }
    }

    fn lengths(&self) -> Option<(u64, u64)> {
        Some((self.before, self.after))
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::io::Read;

    fn key(coding: Coding, level: u8) -> FormKey {
        FormKey { coding, level, window: if coding == Coding::Br { 19 } else { 15 } }
    }

    /// Undoes a coding.
    fn decoded(coding: Coding, bytes: &[u8]) -> Vec<u8> {
        let mut out = Vec::new();
        let read = match coding {
            Coding::Gzip => flate2::read::MultiGzDecoder::new(bytes).read_to_end(&mut out),
            Coding::Br => brotli::Decompressor::new(bytes, 4096).read_to_end(&mut out),
            Coding::Zstd => zstd::Decoder::new(bytes).expect("a decoder").read_to_end(&mut out),
        };
        assert_eq!(read.expect("decoded"), out.len());
        out
    }

    fn text(n: usize) -> Vec<u8> {
        (0..n)
            .flat_map(|i| format!("line {} {}\n", i % 97, i.wrapping_mul(2654435761) % 1000).into_bytes())
            .collect()
    }

    #[test]
    fn streams_are_decoded_to_what_went_in() {
        let text = text(20_000);
        for coding in Coding::ALL {
            for level in [1, 5, 9] {
                for piece in [1000, 32 * 1024, usize::MAX] {
                    let mut e = Encoder::new(key(coding, level));
                    let mut out = Vec::new();
                    for p in text.chunks(piece) {
                        e.feed(p, false, &mut out).expect("fed");
                    }
                    e.feed(b"", true, &mut out).expect("ended");
                    assert_eq!(decoded(coding, &out), text);
                    assert_eq!(e.lengths(), Some((text.len() as u64, out.len() as u64)));
                    assert!(out.len() < text.len() / 2);
                }
            }
        }
    }

    /// A stream that is abandoned after any byte, flushed or not, must not reach into the next stream of the thread.
    #[test]
    fn an_abandoned_stream_leaves_nothing_to_the_next() {
        let text = text(40);
        for coding in Coding::ALL {
            let levels = match coding {
                Coding::Gzip => 1..=9,
                Coding::Br => 0..=11,
                Coding::Zstd => 1..=19,
            };
            for level in levels {
                // Tables of brotli and of the high levels of zstd are not kept, and take milliseconds to create.
                let kept = coding == Coding::Gzip || (coding == Coding::Zstd && level <= 3);
                let step = if kept { 1 } else { 89 };
                for stop in (0..=text.len()).step_by(step) {
                    let flushed = stop % 8 == 7;
                    let mut abandoned = Encoder::new(key(coding, level));
                    let mut out = Vec::new();
                    abandoned.feed(&text[..stop], false, &mut out).expect("fed");
                    if flushed {
                        abandoned.flush(&mut out).expect("flushed");
                    }
                    drop(abandoned);
                    let next = whole(key(coding, level), &text).expect("encoded");
                    assert_eq!(decoded(coding, &next), text, "{coding:?} {level} after {stop} {flushed}");
                }
            }
        }
    }

    /// Only the tables of ended streams are kept.
    #[test]
    fn tables_of_ended_streams_alone_are_kept() {
        for coding in [Coding::Gzip, Coding::Zstd] {
            let count = || match coding {
                Coding::Gzip => DEFLATE.with_borrow(Vec::len),
                _ => ZSTD.with_borrow(Vec::len),
            };
            let mut out = Vec::new();
            let mut e = Encoder::new(key(coding, 2));
            e.feed(b"abc", false, &mut out).expect("fed");
            drop(e);
            assert_eq!(count(), 0);
            whole(key(coding, 2), b"abc").expect("encoded");
            assert_eq!(count(), 1);
        }
    }

    #[test]
    fn a_flush_gives_all_that_went_in() {
        for coding in Coding::ALL {
            let mut e = Encoder::new(key(coding, 5));
            let mut out = Vec::new();
            let mut sizes = Vec::new();
            for i in 0..4 {
                e.feed(format!("event {i}\n").as_bytes(), false, &mut out).expect("fed");
                e.flush(&mut out).expect("flushed");
                sizes.push(out.len());
                let mut seen = vec![0; 64];
                let n = match coding {
                    Coding::Gzip => partial(flate2::read::MultiGzDecoder::new(out.as_slice()), &mut seen),
                    Coding::Br => partial(brotli::Decompressor::new(out.as_slice(), 4096), &mut seen),
                    Coding::Zstd => {
                        partial(zstd::Decoder::new(out.as_slice()).expect("a decoder"), &mut seen)
                    }
                };
                assert_eq!(n, 8 * (i + 1), "{coding:?} {i}");
            }
            let before = out.len();
            e.flush(&mut out).expect("flushed");
            assert_eq!(out.len(), before, "nothing new, nothing sent");
        }
    }

    /// Reads until the input is not enough.
    fn partial(mut from: impl Read, to: &mut [u8]) -> usize {
        let mut at = 0;
        while let Ok(n) = from.read(&mut to[at..]) {
            if n == 0 {
                break;
            }
            at += n;
        }
        at
    }

    #[test]
    fn the_same_input_gives_the_same_bytes() {
        let text = text(3000);
        for coding in Coding::ALL {
            let first = whole(key(coding, 6), &text).expect("encoded");
            let again = whole(key(coding, 6), &text).expect("encoded");
            assert_eq!(first, again);
            assert_eq!(decoded(coding, &first), text);
            assert_eq!(decoded(coding, &whole(key(coding, 6), b"").expect("encoded")), b"");
        }
    }

    #[test]
    fn the_highest_levels_keep_to_a_window_that_clients_take() {
        let long = text(200_000);
        for level in [19, 22] {
            let out = whole(key(Coding::Zstd, level), &long).expect("encoded");
            let mut d = zstd::Decoder::new(out.as_slice()).expect("a decoder");
            d.window_log_max(ZSTD_WINDOW).expect("a limit");
            let mut back = Vec::new();
            d.read_to_end(&mut back).expect("decoded");
            assert_eq!(back.len(), long.len());
        }
    }
}
