//! Encoders: bytes in, compressed bytes out, as a filter of a body or for a whole form at once.
//!
//! A content that is at hand as a whole is compressed in one call: for gzip, libdeflate takes half of the time of an encoder of streams. So
//! a stream begins by gathering its input, which an encoder of streams would hold back as well. It becomes a stream of pieces where the
//! content is long, or where a flush has to send the gathered input.

use super::brotli_memory::{self, Memory};
use super::pool::{Lent, Pool, Reusable};
use brotli::enc::encode::{
    BrotliEncoderDestroyInstance, BrotliEncoderOperation, BrotliEncoderParameter, BrotliEncoderStateStruct,
};
use flate2::{Compress, Compression, FlushCompress, Status};
use forebay_core::idle_memory::Ended;
use forebay_server::response::coding::Coding;
use forebay_server::response::coding::FormKey;
use forebay_server::response::{BodyFilter, FilterError};
use libdeflater::{CompressionLvl, Compressor};
use std::cell::RefCell;
use std::thread::LocalKey;
use zstd::stream::raw::{CParameter, InBuffer, Operation, OutBuffer};

/// Room reserved for output at a time, bytes.
const ROOM: usize = 8 * 1024;

/// Longest content that is gathered, bytes. zlib's encoder holds back about as much text before it puts out the first block.
const WHOLE: usize = 64 * 1024;

/// Largest window of zstd, as a power of two. Clients need not support more (RFC 8878, section 3.1.1.1.2).
const ZSTD_WINDOW: u32 = 23;

/// Number of encoders with small tables that a thread keeps. An encoder of gzip takes 270 kB.
const KEPT: usize = 64;

/// Number of zstd encoders with large tables that a thread keeps.
const KEPT_LARGE: usize = 8;

/// Highest level of zstd whose tables are small, some 2 MB.
const ZSTD_SMALL: u8 = 3;

/// Highest level of zstd whose tables are kept. The tables of higher levels are too large for that.
const ZSTD_KEPT: u8 = 12;

/// Smallest window that a whole content gets by its length, as a power of two. With a smaller window, the encoder searches in another, far
/// slower way.
const BROTLI_SMALL: u8 = 17;

type BrotliState = BrotliEncoderStateStruct<Memory>;

thread_local! {
    static DEFLATE: RefCell<Pool<Box<Compress>>> = const { RefCell::new(Pool::new()) };
    static ZSTD: RefCell<Pool<zstd::stream::raw::Encoder<'static>>> = const { RefCell::new(Pool::new()) };
    static LIBDEFLATE: RefCell<Pool<Compressor>> = const { RefCell::new(Pool::new()) };
}

impl Reusable for Compressor {
    fn create(key: FormKey) -> Option<Self> {
        // The levels of libdeflate whose output is at most 1.02 times as long as zlib's at the levels 1 to 9, for HTML, JSON and Markdown
        // of 20 to 64 KB.
        const LEVELS: [i32; 10] = [1, 1, 2, 3, 4, 6, 7, 7, 8, 8];
        let level = LEVELS.get(usize::from(key.level)).copied().unwrap_or(8);
        CompressionLvl::new(level).ok().map(Compressor::new)
    }

    fn renew(&mut self) -> bool {
        true
    }

    fn most(_: FormKey) -> usize {
        KEPT
    }

    fn pool() -> &'static LocalKey<RefCell<Pool<Self>>> {
        &LIBDEFLATE
    }
}

impl Reusable for Box<Compress> {
    fn create(key: FormKey) -> Option<Self> {
        // The levels of zlib-rs that give the same lengths for these texts as the levels 1 to 9 of zlib.
        const LEVELS: [u32; 10] = [2, 2, 3, 4, 4, 5, 6, 7, 8, 9];
        let level = LEVELS.get(usize::from(key.level)).copied().unwrap_or(9);
        // Windows of deflate have 2^9 to 2^15 bytes in zlib, and distances end at 32 kB (RFC 1951, section
        // 2).
        Some(Box::new(Compress::new_gzip(Compression::new(level), key.window.clamp(9, 15))))
    }

    /// Only encoders of ended streams get here: zlib-rs 0.6 leaves a block of an unfinished one open when it is reset at level 1,
    /// and the next stream would begin inside of that block.
    fn renew(&mut self) -> bool {
        self.reset();
        true
    }

    fn most(_: FormKey) -> usize {
        KEPT
    }

    fn pool() -> &'static LocalKey<RefCell<Pool<Self>>> {
        &DEFLATE
    }
}

impl Reusable for zstd::stream::raw::Encoder<'static> {
    fn create(key: FormKey) -> Option<Self> {
        zstd_encoder(key.level)
    }

    fn renew(&mut self) -> bool {
        self.reinit().is_ok()
    }

    fn most(key: FormKey) -> usize {
        match key.level {
            level if level <= ZSTD_SMALL => KEPT,
            level if level <= ZSTD_KEPT => KEPT_LARGE,
            _ => 0,
        }
    }

    fn pool() -> &'static LocalKey<RefCell<Pool<Self>>> {
        &ZSTD
    }
}

/// Drops encoders and memory of them that were not needed since the last call.
pub fn end_unneeded() -> Ended {
    let all = [
        DEFLATE.with_borrow_mut(Pool::end_unneeded),
        ZSTD.with_borrow_mut(Pool::end_unneeded),
        LIBDEFLATE.with_borrow_mut(Pool::end_unneeded),
        brotli_memory::end_unneeded(),
    ];
    all.into_iter().fold(Ended::default(), |a, b| Ended { some: a.some | b.some, left: a.left | b.left })
}

enum Stage {
    /// What was put in so far has been gathered.
    Gathering(Vec<u8>),
    Gzip(Lent<Box<Compress>>),
    Brotli(Brotli),
    Zstd(Lent<zstd::stream::raw::Encoder<'static>>),
    /// The stream could not be created, or has ended.
    None,
}

/// Encoder of a stream: a body filter.
pub struct Encoder {
    key: FormKey,
    stage: Stage,
    before: u64,
    after: u64,
    /// There is input that has not been flushed.
    pending: bool,
}

impl Encoder {
    /// Creates an encoder for a new stream.
    pub fn new(key: FormKey) -> Encoder {
        Encoder { key, stage: Stage::Gathering(Vec::new()), before: 0, after: 0, pending: false }
    }

    fn run(&mut self, input: &[u8], end: AfterInput, out: &mut Vec<u8>) -> Result<(), FilterError> {
        let start = out.len();
        self.before += input.len() as u64;
        match std::mem::replace(&mut self.stage, Stage::None) {
            Stage::Gathering(gathered) => self.gather(gathered, input, end, out)?,
            stage => {
                self.stage = stage;
                self.stage.run(input, end, out)?;
            }
        }
        // Only an ended stream gives its tables back. An abandoned one leaves them in an unknown state, so
        // they are dropped with it.
        if end == AfterInput::Finish {
            std::mem::replace(&mut self.stage, Stage::None).end();
        }
        self.pending = end == AfterInput::More && (self.pending || !input.is_empty());
        self.after += (out.len() - start) as u64;
        Ok(())
    }

    /// Gathers input, compresses all of it at the end, or goes on as a stream.
    fn gather(
        &mut self,
        mut gathered: Vec<u8>,
        input: &[u8],
        end: AfterInput,
        out: &mut Vec<u8>,
    ) -> Result<(), FilterError> {
        let fits = gathered.len() + input.len() <= WHOLE;
        match end {
            AfterInput::More if fits => {
                gathered.extend_from_slice(input);
                self.stage = Stage::Gathering(gathered);
                return Ok(());
            }
            // The whole content is in this one piece, so nothing needs to be copied before it is compressed.
            AfterInput::Finish if fits && gathered.is_empty() => return at_once(self.key, input, out),
            AfterInput::Finish if fits => {
                gathered.extend_from_slice(input);
                return at_once(self.key, &gathered, out);
            }
            _ => {}
        }
        // From here on pieces are sent as they come: a flush asks for what was gathered, or the content is so
        // long that one call would need much memory.
        self.stage = Stage::stream(self.key);
        if !gathered.is_empty() {
            self.stage.run(&gathered, AfterInput::More, out)?;
        }
        self.stage.run(input, end, out)
    }
}

/// Compresses a whole content, and appends the result.
fn at_once(key: FormKey, input: &[u8], out: &mut Vec<u8>) -> Result<(), FilterError> {
    // libdeflate always uses the full window of 32 kB. A configuration asks for a smaller one where its
    // clients have little memory, and zlib-rs keeps to that.
    if key.coding == Coding::Gzip && key.window >= 15 {
        let mut compressor = Lent::<Compressor>::take(key).ok_or(FilterError("deflate() failed"))?;
        let start = out.len();
        // libdeflate fails where the room is too small, so it gets the bound for contents that cannot be
        // compressed.
        let bound = compressor.get().gzip_compress_bound(input.len());
        out.resize(start + bound, 0);
        let room = out.get_mut(start..).unwrap_or_default();
        let n = compressor.get().gzip_compress(input, room).map_err(|_| FilterError("deflate() failed"))?;
        out.truncate(start + n);
        compressor.end();
        return Ok(());
    }
    let window = match key.coding {
        // Brotli takes memory for its window. One with room for all of the content finds the same matches.
        Coding::Br => key.window.min(bits(input.len()).max(BROTLI_SMALL)),
        _ => key.window,
    };
    let mut stream = Stage::stream(FormKey { window, ..key });
    stream.run(input, AfterInput::Finish, out)?;
    stream.end();
    Ok(())
}

/// Returns the least power of two, by its exponent, that is greater than `len`.
fn bits(len: usize) -> u8 {
    (usize::BITS - len.leading_zeros()) as u8
}

impl Stage {
    /// Begins a stream.
    fn stream(key: FormKey) -> Stage {
        let stream = match key.coding {
            Coding::Gzip => Lent::take(key).map(Stage::Gzip),
            Coding::Br => Some(Stage::Brotli(Brotli::new(key))),
            Coding::Zstd => Lent::take(key).map(Stage::Zstd),
        };
        stream.unwrap_or(Stage::None)
    }

    /// Compresses a piece of a stream.
    fn run(&mut self, input: &[u8], end: AfterInput, out: &mut Vec<u8>) -> Result<(), FilterError> {
        match self {
            Stage::Gzip(c) => deflate(c.get(), input, end, out),
            Stage::Brotli(b) => b.run(input, end, out),
            Stage::Zstd(e) => zstd(e.get(), input, end, out).map_err(|_| FilterError("zstd encoder failed")),
            Stage::Gathering(_) | Stage::None => Err(FilterError("encoder has ended")),
        }
    }

    /// Gives the tables of an ended stream to the next one.
    fn end(self) {
        match self {
            Stage::Gzip(c) => c.end(),
            Stage::Zstd(e) => e.end(),
            // Brotli's memory is given back by its allocator.
            Stage::Brotli(_) | Stage::Gathering(_) | Stage::None => {}
        }
    }
}

/// Encoder of brotli.
struct Brotli(Box<BrotliState>);

impl Drop for Brotli {
    fn drop(&mut self) {
        BrotliEncoderDestroyInstance(&mut self.0);
    }
}

impl Brotli {
    fn new(key: FormKey) -> Brotli {
        let mut state = Box::new(BrotliState::new(Memory { level: key.level }));
        state.set_parameter(BrotliEncoderParameter::BROTLI_PARAM_QUALITY, u32::from(key.level));
        // RFC 7932, section 9.1: a window has an exponent from 10 to 24.
        state.set_parameter(BrotliEncoderParameter::BROTLI_PARAM_LGWIN, u32::from(key.window.clamp(10, 24)));
        Brotli(state)
    }

    fn run(&mut self, input: &[u8], end: AfterInput, out: &mut Vec<u8>) -> Result<(), FilterError> {
        let operation = match end {
            AfterInput::More => BrotliEncoderOperation::BROTLI_OPERATION_PROCESS,
            AfterInput::Flush => BrotliEncoderOperation::BROTLI_OPERATION_FLUSH,
            AfterInput::Finish => BrotliEncoderOperation::BROTLI_OPERATION_FINISH,
        };
        let (mut left, mut at) = (input.len(), 0);
        loop {
            let start = out.len();
            out.resize(start + ROOM, 0);
            let (mut room, mut written) = (ROOM, 0);
            let place = out.get_mut(start..).unwrap_or_default();
            let done = self.0.compress_stream(
                operation,
                &mut left,
                input,
                &mut at,
                &mut room,
                place,
                &mut written,
                &mut None,
                &mut |_, _, _, _| (),
            );
            out.truncate(start + written);
            if !done {
                return Err(FilterError("brotli encoder failed"));
            }
            // The encoder may have taken all input and still hold output, for which there was no room in this
            // round.
            let over = if end == AfterInput::Finish { self.0.is_finished() } else { left == 0 };
            if over && !self.0.has_more_output() {
                return Ok(());
            }
        }
    }
}

/// Compresses a whole content. The same input gives the same bytes.
pub fn whole(key: FormKey, input: &[u8]) -> Option<Vec<u8>> {
    let mut out = Vec::with_capacity(input.len() / 3 + 64);
    at_once(key, input, &mut out).ok()?;
    // The form is kept with its content and counts against the memory of the cache, so it must not hold spare
    // room.
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
        // A full buffer means that zlib may have more output, even after it has taken all of the input.
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
    // The levels above 19 would choose a window above the limit that clients have to support.
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
        // Without new input, a flush would only add the bytes of an empty block to the stream.
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
                    let (first, rest) = text[..stop].split_at(stop.min(1));
                    abandoned.feed(first, false, &mut out).expect("fed");
                    if stop % 3 > 0 {
                        // What follows is not gathered.
                        abandoned.flush(&mut out).expect("flushed");
                    }
                    abandoned.feed(rest, false, &mut out).expect("fed");
                    if flushed {
                        abandoned.flush(&mut out).expect("flushed");
                    }
                    drop(abandoned);
                    for next in [
                        whole(key(coding, level), &text).expect("encoded"),
                        in_pieces(key(coding, level), &text),
                    ] {
                        assert_eq!(decoded(coding, &next), text, "{coding:?} {level} after {stop} {flushed}");
                    }
                }
            }
        }
    }

    /// Compresses a text as a stream that is flushed on the way.
    fn in_pieces(key: FormKey, text: &[u8]) -> Vec<u8> {
        let mut e = Encoder::new(key);
        let mut out = Vec::new();
        let (first, rest) = text.split_at(text.len().min(1));
        e.feed(first, false, &mut out).expect("fed");
        e.flush(&mut out).expect("flushed");
        e.feed(rest, true, &mut out).expect("ended");
        out
    }

    /// Texts that are at hand as a whole take one compressor, however many streams gather at a time.
    #[test]
    fn a_short_content_is_compressed_in_one_call() {
        let text = text(1500);
        // Lengths by zlib 1.2.13, at the levels 1 to 9.
        let lengths = [5731, 5792, 5762, 5507, 5412, 5340, 5340, 5279, 5278];
        for (level, length) in (1..=9).zip(lengths) {
            let mut streams: Vec<_> = (0..20).map(|_| Encoder::new(key(Coding::Gzip, level))).collect();
            for e in &mut streams {
                for piece in text.chunks(5000) {
                    let mut out = Vec::new();
                    e.feed(piece, false, &mut out).expect("fed");
                    assert!(out.is_empty());
                }
            }
            for e in &mut streams {
                let mut out = Vec::new();
                e.feed(b"", true, &mut out).expect("ended");
                assert_eq!(decoded(Coding::Gzip, &out), text);
                assert!(out.len() * 100 <= length * 102, "level {level}: {} bytes, zlib {length}", out.len());
            }
        }
        assert_eq!(LIBDEFLATE.with_borrow(|p| p.created), 9, "one for each level");
        assert_eq!(DEFLATE.with_borrow(|p| p.created), 0);
        for (level, length) in (1..=9).zip(lengths) {
            let out = in_pieces(key(Coding::Gzip, level), &text);
            // The flush takes some bytes.
            assert!(
                out.len() * 100 <= length * 102 + 2000,
                "level {level}: {} bytes, zlib {length}",
                out.len()
            );
        }
        // A client with little memory gets the window that is configured.
        let small = FormKey { window: 9, ..key(Coding::Gzip, 6) };
        let before = DEFLATE.with_borrow(|p| p.created);
        assert_eq!(decoded(Coding::Gzip, &whole(small, &text).expect("encoded")), text);
        assert_eq!(DEFLATE.with_borrow(|p| p.created), before + 1);
    }

    /// Returns the number of encoders that the thread has kept, and of those that it has created.
    fn counts(coding: Coding) -> (usize, usize) {
        match coding {
            Coding::Gzip => DEFLATE.with_borrow(|p| (p.len(), p.created)),
            _ => ZSTD.with_borrow(|p| (p.len(), p.created)),
        }
    }

    /// Only the tables of ended streams are kept.
    #[test]
    fn tables_of_ended_streams_alone_are_kept() {
        for coding in [Coding::Gzip, Coding::Zstd] {
            let mut out = Vec::new();
            let mut e = Encoder::new(key(coding, 2));
            e.feed(b"abc", false, &mut out).expect("fed");
            e.flush(&mut out).expect("flushed");
            drop(e);
            assert_eq!(counts(coding), (0, 1));
            in_pieces(key(coding, 2), b"abc");
            assert_eq!(counts(coding), (1, 2));
        }
    }

    /// Streams that run at a time get encoders of the pool once as many have ended.
    #[test]
    fn a_pool_is_as_large_as_what_is_used_at_a_time() {
        for coding in [Coding::Gzip, Coding::Zstd] {
            for round in 0..5 {
                let mut streams: Vec<_> = (0..20).map(|_| Encoder::new(key(coding, 1))).collect();
                let mut outs = vec![Vec::new(); streams.len()];
                for (e, out) in streams.iter_mut().zip(&mut outs) {
                    e.feed(b"some text", false, out).expect("fed");
                    e.flush(out).expect("flushed");
                }
                for (e, out) in streams.iter_mut().zip(&mut outs) {
                    e.feed(b" and more", true, out).expect("ended");
                    assert_eq!(decoded(coding, out), b"some text and more", "{round}");
                }
                assert_eq!(counts(coding), (20, 20), "{coding:?}");
            }
            // A single stream after another needs one. Its parameters may be others.
            assert!(!end_unneeded().some);
            for level in [1, 2, 2] {
                in_pieces(key(coding, level), b"abc");
            }
            assert_eq!(counts(coding), (20, 21), "{coding:?}");
            assert!(end_unneeded().some);
            assert_eq!(counts(coding).0, 1);
            assert!(end_unneeded().some);
            assert_eq!(counts(coding).0, 0);
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

    /// The encoders of a thread use memory of earlier ones again. Nothing of what those have left in it must change the result.
    #[test]
    fn an_earlier_content_does_not_change_the_bytes_of_the_next() {
        let text = text(600);
        let other: Vec<u8> = text.iter().rev().map(|b| b ^ 0x15).collect();
        for coding in Coding::ALL {
            for level in 1..=if coding == Coding::Br { 11 } else { 9 } {
                let key = key(coding, level);
                let both = |text: &[u8]| (whole(key, text).expect("encoded"), in_pieces(key, text));
                // In a thread of its own, all memory is new.
                let new = std::thread::scope(|scope| scope.spawn(|| both(&text)).join().expect("a thread"));
                let _ = both(&other);
                assert!(both(&text) == new, "{coding:?} {level}");
                assert!(decoded(coding, &new.0) == text, "{coding:?} {level}");
            }
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

    #[test]
    fn brotli_takes_a_window_for_the_content_and_no_larger_one_than_configured() {
        for len in [0, 1, 60_000, 65_520, 131_071, 131_072, 200_000] {
            let mut content = text(len / 8 + 1);
            content.truncate(len);
            for (level, window) in [(1, 19), (5, 10), (5, 19), (11, 24)] {
                let key = FormKey { window, ..key(Coding::Br, level) };
                let out = whole(key, &content).expect("encoded");
                let mut back = Vec::new();
                brotli::Decompressor::new(out.as_slice(), 4096).read_to_end(&mut back).expect("decoded");
                assert!(back == content, "{len} at level {level}, window {window}");
                // RFC 7932, section 9.1: the first bits say how large the window is.
                let first = out[0];
                let says = match first & 0b1111 {
                    low if low & 1 == 0 => 16,
                    low if low >> 1 != 0 => 17 + (low >> 1),
                    _ if first >> 4 & 0b111 == 0 => 17,
                    _ => 8 + (first >> 4 & 0b111),
                };
                // The encoder of the lowest levels never has less.
                let least = if level == 1 { 18 } else { BROTLI_SMALL };
                assert!(says <= window && says <= bits(len).max(least), "{says} for {len}, {window}");
            }
        }
    }
}
