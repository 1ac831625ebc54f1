//! Shows a fault of zlib-rs 0.6.8, for a report to its authors: a stream that was abandoned at level 1 and reset is followed by
//! one that cannot be decoded. Ends with 1 if the fault is there.

use flate2::{Compress, Compression, FlushCompress};
use std::io::Read;
use std::process::ExitCode;

fn compress(c: &mut Compress, input: &[u8], flush: FlushCompress) -> Vec<u8> {
    let mut out = Vec::with_capacity(64 * 1024);
    c.compress_vec(input, &mut out, flush).expect("room for all of it");
    out
}

/// Abandons a stream after `stop` bytes, resets it, and compresses the whole text. Returns `true` if the result is the text.
fn is_right(level: u32, text: &[u8], stop: usize) -> bool {
    let mut c = Compress::new_gzip(Compression::new(level), 15);
    compress(&mut c, &text[..stop], FlushCompress::None);
    c.reset();
    let next = compress(&mut c, text, FlushCompress::Finish);
    let mut decoded = Vec::new();
    flate2::read::GzDecoder::new(&next[..]).read_to_end(&mut decoded).is_ok() && decoded == text
}

fn main() -> ExitCode {
    let text: Vec<u8> =
        (0..40u32).flat_map(|i| format!("line {i} {}\n", i.wrapping_mul(2_654_435_761) % 1000).into_bytes()).collect();
    let mut code = ExitCode::SUCCESS;
    for level in 1..=9 {
        let wrong = (0..=text.len()).filter(|stop| !is_right(level, &text, *stop)).count();
        println!("level {level}: {wrong} of {} streams after a reset are wrong", text.len() + 1);
        if wrong > 0 {
            code = ExitCode::FAILURE;
        }
    }
    code
}
