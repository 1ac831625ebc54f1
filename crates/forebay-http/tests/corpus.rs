//! The request corpus: every case whole and in pieces, against what nginx made of it.
//! `corpus_oracle.py` keeps the table true.

use forebay_http::h1::request::{Limits, Reject, Status, parse};
use forebay_http::request::{RequestHead, Version};

const TABLE: &str = include_str!("corpus/requests.tsv");

fn limits(configuration: &str) -> Limits {
    match configuration {
        "default" => Limits::default(),
        "small" => Limits {
            client_header_buffer_size: 128,
            large_client_header_buffers: (4, 256),
            ..Limits::default()
        },
        "lenient" => Limits {
            underscores_in_headers: true,
            ignore_invalid_headers: false,
            merge_slashes: false,
            max_headers: 5,
            ..Limits::default()
        },
        other => panic!("no configuration {other}"),
    }
}

/// Bytes of a table field; see `corpus_oracle.py`.
fn unescape(text: &str) -> Vec<u8> {
    let mut out = Vec::new();
    let mut rest = text;
    while let Some(c) = rest.chars().next() {
        rest = &rest[c.len_utf8()..];
        match c {
            '\\' => {
                let kind = rest.as_bytes()[0];
                rest = &rest[1..];
                match kind {
                    b'r' => out.push(b'\r'),
                    b'n' => out.push(b'\n'),
                    b't' => out.push(b'\t'),
                    b'\\' => out.push(b'\\'),
                    b'x' => {
                        out.push(u8::from_str_radix(&rest[..2], 16).expect("two digits"));
                        rest = &rest[2..];
                    }
                    other => panic!("escape {other}"),
                }
            }
            '{' => {
                let (count, after) = rest.split_once('*').expect("a count");
                let (piece, after) = after.split_once('}').expect("a closing brace");
                let piece = unescape(piece);
                for _ in 0..count.parse::<usize>().expect("a number") {
                    out.extend_from_slice(&piece);
                }
                rest = after;
            }
            c => out.push(u8::try_from(u32::from(c)).expect("ASCII")),
        }
    }
    out
}

fn escape(data: &[u8], out: &mut String) {
    for &b in data {
        match b {
            b'\t' => *out += "\\t",
            b'\n' => *out += "\\n",
            b'\r' => *out += "\\r",
            b'\\' => *out += "\\\\",
            b' '..=b'z' | b'|' | b'~' => out.push(char::from(b)),
            _ => *out += &format!("\\x{b:02x}"),
        }
    }
}

/// Feeds `input` in pieces of `piece` bytes until the parser is satisfied.
fn feed(head: &mut RequestHead, input: &[u8], limits: &Limits, piece: usize) -> Result<Status, Reject> {
    for part in input.chunks(piece) {
        head.buf.extend_from_slice(part);
        match parse(head, limits) {
            Ok(Status::Partial) => {}
            done => return done,
        }
    }
    Ok(Status::Partial)
}

fn outcome(head: &RequestHead, result: Result<Status, Reject>) -> String {
    match result {
        Ok(Status::Partial) => "partial".to_owned(),
        Err(reject) if head.version == Version::Http09 => format!("bare {}", reject.wire_status()),
        Err(reject) => reject.wire_status().to_string(),
        Ok(Status::Complete) => {
            let mut out = format!("200 {} ", if head.keep_alive { "keep" } else { "close" });
            let parts: [&[u8]; 5] = [
                head.method_text.of(&head.buf),
                &head.path,
                head.args.of(&head.buf),
                &head.host,
                head.protocol.of(&head.buf),
            ];
            for (i, part) in parts.iter().enumerate() {
                if i > 0 {
                    out.push('|');
                }
                escape(part, &mut out);
            }
            out
        }
    }
}

#[test]
fn requests_are_taken_as_nginx_takes_them() {
    let mut failures = Vec::new();
    let mut count = 0;
    // One head for all cases: what an earlier one leaves behind must not matter.
    let mut head = RequestHead::default();
    for line in TABLE.lines().filter(|l| !l.starts_with('#')) {
        let fields: Vec<&str> = line.split('\t').collect();
        let &[name, configuration, want, input] = &fields[..] else { panic!("columns of {line}") };
        let input = unescape(input);
        let limits = limits(configuration);
        count += 1;
        for piece in [input.len(), 1, 2, 7] {
            head.clear();
            let result = feed(&mut head, &input, &limits, piece);
            let got = outcome(&head, result);
            if got != want {
                failures.push(format!("{name}, pieces of {piece}: {got}, nginx: {want}"));
            }
            if let Err(reject) = result {
                // Any message can be written whatever state the head is in.
                let mut text = Vec::new();
                reject.message(&head, &mut text);
                assert!(text.starts_with(b"client sent "), "{name}");
            }
        }
    }
    assert!(count >= 90, "only {count} cases");
    assert!(failures.is_empty(), "{}", failures.join("\n"));
}

#[test]
fn the_table_is_true() {
    if std::env::var_os("FOREBAY_TEST_NGINX").is_none() {
        println!("skipped: FOREBAY_TEST_NGINX is not set");
        return;
    }
    let script = concat!(env!("CARGO_MANIFEST_DIR"), "/tests/corpus_oracle.py");
    let run = std::process::Command::new("python3").arg(script).output().expect("python3 runs");
    assert!(run.status.success(), "{}", String::from_utf8_lossy(&run.stdout));
}
