//! Any bytes as a chunked body, in one piece and in pieces; then what was decoded, encoded again.
#![no_main]

use forebay_http::h1::chunked::{Chunked, ChunkedLimits, InvalidChunked, Step, encode};
use libfuzzer_sys::fuzz_target;

type Decoded = Result<(Vec<u8>, usize, bool), InvalidChunked>;

fn decode(input: &[u8], piece: usize) -> Decoded {
    let mut chunked = Chunked::new(ChunkedLimits { extensions: 100, trailers: 100 });
    let mut content = Vec::new();
    let mut used = 0;
    for part in input.chunks(piece.max(1)) {
        let mut rest = part;
        loop {
            match chunked.decode(rest)? {
                Step::Data { start, end } => {
                    assert!(start < end);
                    content.extend_from_slice(&rest[start..end]);
                    used += end;
                    rest = &rest[end..];
                }
                Step::More => {
                    used += rest.len();
                    break;
                }
                Step::End { consumed } => {
                    for (_, name, value) in chunked.trailers() {
                        assert!(!name.is_empty() && !value.iter().any(|b| matches!(b, b'\r' | b'\n' | 0)));
                    }
                    return Ok((content, used + consumed, true));
                }
            }
        }
    }
    Ok((content, used, false))
}

fuzz_target!(|data: &[u8]| {
    let Some((&piece, input)) = data.split_first() else { return };
    let whole = decode(input, input.len());
    assert_eq!(whole, decode(input, piece as usize % 9));
    if let Ok((content, used, true)) = whole {
        assert!(used <= input.len());
        let mut again = Vec::new();
        for chunk in content.chunks(1 + piece as usize) {
            again.extend_from_slice(encode::SizeLine::new(chunk.len() as u64).as_bytes());
            again.extend_from_slice(chunk);
            again.extend_from_slice(b"\r\n");
        }
        again.extend_from_slice(encode::LAST);
        assert_eq!(decode(&again, again.len()), Ok((content, again.len(), true)));
    }
});
