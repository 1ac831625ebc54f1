//! Any bytes as frames, settings, instructions of a QPACK encoder and field sections of a peer, in any cut; what was encoded decodes
//! to itself, also with the dynamic table and with any feedback of the peer.
#![no_main]

use forebay_http::compression::{Field, Sink};
use forebay_http::h3::encode;
use forebay_http::h3::encoder::Encoder;
use forebay_http::h3::frame::{self, Header, Settings, kind};
use forebay_http::h3::qpack::{self, Decoder, TABLE_CAPACITY};
use libfuzzer_sys::fuzz_target;

#[derive(Debug, Default, PartialEq, Eq)]
struct Fields(Vec<(Vec<u8>, Vec<u8>)>);

impl Sink for Fields {
    fn field(&mut self, Field { name, value, sound, .. }: Field<'_>) {
        assert_eq!(sound, !value.iter().any(|b| matches!(b, b'\r' | b'\n' | 0)));
        self.0.push((name.to_vec(), value.to_vec()));
    }
}

/// Reads all frames.
fn frames(mut input: &[u8]) {
    while let Some((header, len)) = Header::read(input) {
        let mut again = Vec::new();
        header.push(&mut again);
        assert_eq!(Header::read(&again), Some((header, again.len())));
        assert!(again.len() <= len, "ours is the shortest form");
        input = &input[len..];
        let size = usize::try_from(header.len).unwrap_or(usize::MAX).min(input.len());
        let (payload, rest) = input.split_at(size);
        match header.kind {
            kind::SETTINGS => drop(Settings::read(payload)),
            kind::PRIORITY_UPDATE => drop(frame::priority_update(payload)),
            _ => drop(frame::id(payload)),
        }
        input = rest;
    }
}

/// Reads the instructions of a decoder stream.
fn feedback(mut input: &[u8]) {
    while let Ok((_, len)) = qpack::feedback(input) {
        assert!((1..=input.len()).contains(&len));
        input = &input[len..];
    }
}

/// Has a decoder take instructions piece by piece. Returns whether they were right.
fn instructed(decoder: &mut Decoder, input: &[u8], piece: usize) -> bool {
    let (mut waiting, mut scratch) = (Vec::new(), Vec::new());
    for part in input.chunks(piece.max(1)) {
        waiting.extend_from_slice(part);
        match decoder.instructions(&waiting, &mut scratch) {
            Ok(done) => drop(waiting.drain(..done)),
            Err(_) => return false,
        }
    }
    true
}

/// Decodes a section, if nothing of it is missing.
fn decoded(decoder: &Decoder, section: &[u8]) -> Option<Fields> {
    let required = decoder.required(section);
    let mut fields = Fields::default();
    let read = decoder.decode(section, &mut Vec::new(), &mut fields);
    if let Ok(dynamic) = read {
        assert_eq!(dynamic, required.is_ok_and(|n| n > 0));
        assert!(required.is_ok_and(|n| n <= decoder.inserted()));
    }
    read.is_ok().then_some(fields)
}

/// Has an encoder and a decoder talk: each byte is a section of some lines, or an instruction of the decoder's. Every section decodes to
/// what went in, without waiting for the insertions that go with it.
fn both_ends(events: &[u8], capacity: u64) {
    let Some(mut encoder) = Encoder::new(capacity) else { return };
    let mut decoder = Decoder::new(usize::try_from(capacity).unwrap_or(usize::MAX));
    let (mut stream, mut received) = (0, 0);
    for event in events {
        match event {
            0..4 => drop(encoder.acknowledge(stream - stream.min(4 * u64::from(*event)))),
            4..8 => encoder.cancel(stream - stream.min(4 * u64::from(event - 4))),
            8..16 => {
                let n = u64::from(event - 8);
                let right = n > 0 && received + n <= decoder.inserted();
                assert_eq!(encoder.increment(n).is_ok(), right);
                received += if right { n } else { 0 };
            }
            _ => {
                stream += 4;
                let mut section = Vec::new();
                encode::prefix(&mut section);
                let value = [b'v'].repeat(usize::from(event % 40));
                let mut want = Vec::new();
                for name in
                    [&b"server"[..], b"date", b"x-a", b"x-bcd", b"vary"].iter().take(usize::from(event % 6))
                {
                    encode::field(&mut section, name, &value);
                    want.push((name.to_vec(), value.clone()));
                }
                let (mut out, mut inserts) = (Vec::new(), Vec::new());
                if let Some(at) = encoder.encode(stream, &section, &mut out, Some(&mut inserts)) {
                    section = [&out[at..], &out[..at]].concat();
                }
                assert_eq!(decoded(&decoder, &section), Some(Fields(want)));
                assert_eq!(decoder.instructions(&inserts, &mut Vec::new()), Ok(inserts.len()));
                assert_eq!(decoder.inserted(), encoder.inserted());
            }
        }
    }
}

fuzz_target!(|input: &[u8]| {
    frames(input);
    feedback(input);
    let (Some(cut), Some(piece), Some(rest)) = (input.first(), input.get(1), input.get(2..)) else { return };
    let (instructions, section) = rest.split_at(usize::from(*cut).min(rest.len()));
    // The cut of the stream makes no difference.
    let (mut whole, mut pieces) = (Decoder::new(TABLE_CAPACITY), Decoder::new(TABLE_CAPACITY));
    let right = instructed(&mut whole, instructions, instructions.len());
    assert_eq!(right, instructed(&mut pieces, instructions, usize::from(*piece)));
    assert_eq!((whole.inserted(), whole.carried_out()), (pieces.inserted(), pieces.carried_out()));
    assert!(whole.inserted() <= whole.carried_out());
    assert_eq!(decoded(&whole, section), decoded(&pieces, section));

    both_ends(rest, 128 << (cut % 8));
    // A section of any bytes is left alone, or sent in a form that means the same.
    if let (Some(mut encoder), Some(plain)) = (Encoder::new(4096), decoded(&Decoder::new(0), section)) {
        let mut decoder = Decoder::new(4096);
        for stream in 0..3 {
            let (mut out, mut inserts, mut sent) = (Vec::new(), Vec::new(), section.to_vec());
            if let Some(at) = encoder.encode(stream, section, &mut out, Some(&mut inserts)) {
                sent = [&out[at..], &out[..at]].concat();
            }
            assert_eq!(decoded(&decoder, &sent).as_ref(), Some(&plain));
            assert_eq!(decoder.instructions(&inserts, &mut Vec::new()), Ok(inserts.len()));
            if !inserts.is_empty() {
                encoder.increment(encoder.inserted()).expect("none is known");
            }
        }
    }

    let (name, value) = rest.split_at(rest.len().min(5));
    let mut out = Vec::new();
    encode::prefix(&mut out);
    encode::status(&mut out, 100 + u16::from(*cut) * 3 % 500);
    encode::indexed(&mut out, encode::ETAG, value);
    encode::indexed_plain(&mut out, encode::CONTENT_LENGTH, value);
    encode::field(&mut out, name, value);
    let status = (100 + u16::from(*cut) * 3 % 500).to_string().into_bytes();
    let want = [
        (b":status".to_vec(), status),
        (b"etag".to_vec(), value.to_vec()),
        (b"content-length".to_vec(), value.to_vec()),
        (name.to_ascii_lowercase(), value.to_vec()),
    ];
    assert_eq!(decoded(&whole, &out).map(|f| f.0), Some(want.to_vec()));
});
