//! `set_escape_uri`, `set_if_empty`, `set_md5` and related directives (the third-party module set-misc, by its documentation).
//! They run in the order of the file, together with `set`.

use base64::Engine;
use base64::alphabet;
use base64::engine::DecodePaddingMode;
use base64::engine::general_purpose::{GeneralPurpose, GeneralPurposeConfig, STANDARD, URL_SAFE_NO_PAD};
use forebay_conf::error::Error;
use forebay_conf::tree::Directive;
use forebay_conf::units;
use forebay_core::vars::{Template, VarError, VarId};
use forebay_http::uri::{self, Escape};
use forebay_server::config::Scope;
use forebay_server::config::http::LocationBuild;
use forebay_server::module::Module;
use forebay_server::modules::rewrite::{self, Op, Operation};
use forebay_server::request::Request;
use md5::{Digest, Md5};
use std::sync::Arc;

/// Decoder of the Base64 of URLs, with or without padding.
const URL_SAFE: GeneralPurpose = GeneralPurpose::new(
    &alphabet::URL_SAFE,
    GeneralPurposeConfig::new().with_decode_padding_mode(DecodePaddingMode::Indifferent),
);

/// `set_misc`.
pub static MODULE: Module = Module {
    location_directives: &[
        ("set_if_empty", directive),
        ("set_quote_json_str", directive),
        ("set_escape_uri", directive),
        ("set_unescape_uri", directive),
        ("set_encode_base64", directive),
        ("set_decode_base64", directive),
        ("set_encode_base64url", directive),
        ("set_decode_base64url", directive),
        ("set_encode_hex", directive),
        ("set_decode_hex", directive),
        ("set_md5", directive),
        ("set_sha1", directive),
        ("set_random", directive),
        ("set_secure_random_alphanum", directive),
        ("set_secure_random_lcalpha", directive),
    ],
    ..Module::NONE
};

/// Longest random text, characters.
const LONGEST: u64 = 64;

/// What a directive makes of a value.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Function {
    /// `set_if_empty`.
    IfEmpty,
    /// `set_quote_json_str`.
    QuoteJson,
    /// `set_escape_uri`.
    EscapeUri,
    /// `set_unescape_uri`.
    UnescapeUri,
    /// `set_encode_base64`.
    EncodeBase64,
    /// `set_decode_base64`.
    DecodeBase64,
    /// `set_encode_base64url`.
    EncodeBase64Url,
    /// `set_decode_base64url`.
    DecodeBase64Url,
    /// `set_encode_hex`.
    EncodeHex,
    /// `set_decode_hex`.
    DecodeHex,
    /// `set_md5`.
    Md5,
    /// `set_sha1`.
    Sha1,
    /// Integer from the first bound to the second.
    Random(u64, u64),
    /// Letters and digits, that many.
    Alphanumeric(u64),
    /// Small letters, that many.
    Lowercase(u64),
}

impl Function {
    /// Returns the function of a directive, with arguments of 0.
    fn named(name: &[u8]) -> Option<Function> {
        Some(match name {
            b"set_if_empty" => Function::IfEmpty,
            b"set_quote_json_str" => Function::QuoteJson,
            b"set_escape_uri" => Function::EscapeUri,
            b"set_unescape_uri" => Function::UnescapeUri,
            b"set_encode_base64" => Function::EncodeBase64,
            b"set_decode_base64" => Function::DecodeBase64,
            b"set_encode_base64url" => Function::EncodeBase64Url,
            b"set_decode_base64url" => Function::DecodeBase64Url,
            b"set_encode_hex" => Function::EncodeHex,
            b"set_decode_hex" => Function::DecodeHex,
            b"set_md5" => Function::Md5,
            b"set_sha1" => Function::Sha1,
            b"set_random" => Function::Random(0, 0),
            b"set_secure_random_alphanum" => Function::Alphanumeric(0),
            b"set_secure_random_lcalpha" => Function::Lowercase(0),
            _ => return None,
        })
    }
}

/// Compiles a directive into a level.
///
/// # Errors
/// In nginx's words.
fn directive(d: &Directive, l: &mut LocationBuild, cx: &mut Scope<'_>) -> Result<(), Error> {
    let (Some(function), Some(target)) = (Function::named(&d.name.text), d.args.first()) else {
        return Err(cx.error(d, "invalid number of arguments"));
    };
    let number = |at: usize, cx: &Scope<'_>| match d.args.get(at) {
        Some(w) => units::number(&w.text)
            .ok_or_else(|| cx.error_at(d, w, format!("invalid number \"{}\"", w.as_str()))),
        None => Err(cx.error(d, "invalid number of arguments")),
    };
    let length = |cx: &Scope<'_>| match number(1, cx)? {
        n @ 1..=LONGEST => Ok(n),
        _ => Err(cx.directive_error(d, "the length must be from 1 to 64")),
    };
    let function = match function {
        Function::Random(..) => {
            let (a, b) = (number(1, cx)?, number(2, cx)?);
            // The bounds may stand in any order.
            Function::Random(a.min(b), a.max(b))
        }
        Function::Alphanumeric(_) => Function::Alphanumeric(length(cx)?),
        Function::Lowercase(_) => Function::Lowercase(length(cx)?),
        other => other,
    };
    let var = rewrite::variable_to_set(d, target, cx)?;
    cx.vars.note_set(var);
    // With one word, the variable is changed in place.
    let source = match function {
        Function::Random(..) | Function::Alphanumeric(_) | Function::Lowercase(_) => Template::default(),
        _ => cx.template(d, d.args.get(1).unwrap_or(target))?,
    };
    l.add_op(d, Op::Run(Arc::new(Compute { var, function, source })));
    Ok(())
}

/// A directive: `set` with a function.
#[derive(Debug)]
struct Compute {
    var: VarId,
    function: Function,
    source: Template,
}

impl Operation for Compute {
    /// Sets the variable.
    ///
    /// # Errors
    /// If a variable cannot be evaluated, or the kernel has no random numbers.
    fn run(&self, req: &mut Request) -> Result<(), VarError> {
        let Compute { var, function, source } = self;
        // The source is not evaluated if the variable has a value, since that may cost as much as a map or a
        // regular expression.
        if *function == Function::IfEmpty {
            let mut present = req.take_buf();
            let read = req.var(*var, &mut present);
            let empty = present.is_empty();
            req.give_buf(present);
            read?;
            if !empty {
                return Ok(());
            }
        }
        let mut input = req.take_buf();
        let mut out = req.take_buf();
        let done = source.eval(req, &mut input).and_then(|()| apply(*function, &input, &mut out));
        if done.is_ok() && !req.set_special(*var, &out) {
            req.store(*var, Some(&out));
        }
        req.give_buf(input);
        req.give_buf(out);
        done
    }
}

/// Appends the result of a function. A text that cannot be decoded gives nothing.
fn apply(function: Function, input: &[u8], out: &mut Vec<u8>) -> Result<(), VarError> {
    match function {
        Function::IfEmpty => out.extend_from_slice(input),
        Function::QuoteJson => quote_json(input, out),
        Function::EscapeUri => uri::escape(input, Escape::Component, out),
        Function::UnescapeUri => uri::unescape(input, out),
        Function::EncodeBase64 => out.extend_from_slice(STANDARD.encode(input).as_bytes()),
        Function::EncodeBase64Url => out.extend_from_slice(URL_SAFE_NO_PAD.encode(input).as_bytes()),
        Function::DecodeBase64 => out.extend(STANDARD.decode(input).unwrap_or_default()),
        Function::DecodeBase64Url => out.extend(URL_SAFE.decode(input).unwrap_or_default()),
        Function::EncodeHex => push_hex(input, out),
        Function::DecodeHex => out.extend(unhex(input).unwrap_or_default()),
        Function::Md5 => push_hex(&Md5::digest(input), out),
        Function::Sha1 => push_hex(&forebay_core::digest::sha1(&[input]), out),
        Function::Random(from, to) => {
            // The number of all 64-bit numbers does not fit into 64 bits, so that span needs no remainder.
            let n = match (to - from).checked_add(1) {
                Some(span) => from + u64::from_ne_bytes(random()?) % span,
                None => u64::from_ne_bytes(random()?),
            };
            out.extend_from_slice(itoa::Buffer::new().format(n).as_bytes());
        }
        Function::Alphanumeric(n) => {
            letters(n, b"ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789", out)?;
        }
        Function::Lowercase(n) => letters(n, b"abcdefghijklmnopqrstuvwxyz", out)?,
    }
    Ok(())
}

fn random<const N: usize>() -> Result<[u8; N], VarError> {
    let mut bytes = [0; N];
    match rustix::rand::getrandom(&mut bytes, rustix::rand::GetRandomFlags::empty()) {
        Ok(n) if n == N => Ok(bytes),
        _ => Err(VarError("the kernel has no random numbers".into())),
    }
}

/// Appends random characters of an alphabet, each with the same probability.
fn letters(n: u64, alphabet: &[u8], out: &mut Vec<u8>) -> Result<(), VarError> {
    let end = out.len() + n as usize;
    // Bytes above the last whole multiple of the alphabet's length would favour its first letters, so they
    // are left out.
    let limit = 256 - 256 % alphabet.len();
    while out.len() < end {
        // One call asks for enough bytes for the longest text, so that a few unfair ones seldom need a second
        // call.
        let bytes: [u8; 64] = random()?;
        let fair = bytes.iter().map(|b| usize::from(*b)).filter(|b| *b < limit);
        let wanted = end - out.len();
        out.extend(fair.filter_map(|b| alphabet.get(b % alphabet.len())).take(wanted));
    }
    Ok(())
}

fn push_hex(bytes: &[u8], out: &mut Vec<u8>) {
    const DIGITS: &[u8; 16] = b"0123456789abcdef";
    out.extend(bytes.iter().flat_map(|b| [DIGITS[usize::from(b >> 4)], DIGITS[usize::from(b & 15)]]));
}

fn unhex(text: &[u8]) -> Option<Vec<u8>> {
    let digit = |b: u8| char::from(b).to_digit(16).map(|n| n as u8);
    let (pairs, rest) = text.as_chunks::<2>();
    if !rest.is_empty() {
        return None;
    }
    pairs.iter().map(|[high, low]| Some(digit(*high)? << 4 | digit(*low)?)).collect()
}

/// Appends a text as a JSON string (RFC 8259, section 7). Bytes from 0x80 on stay as they are.
fn quote_json(text: &[u8], out: &mut Vec<u8>) {
    out.push(b'"');
    for &b in text {
        match b {
            b'"' | b'\\' => out.extend_from_slice(&[b'\\', b]),
            b'\n' => out.extend_from_slice(b"\\n"),
            b'\r' => out.extend_from_slice(b"\\r"),
            b'\t' => out.extend_from_slice(b"\\t"),
            0x08 => out.extend_from_slice(b"\\b"),
            0x0c => out.extend_from_slice(b"\\f"),
            0..0x20 | 0x7f => {
                out.extend_from_slice(b"\\u00");
                push_hex(&[b], out);
            }
            _ => out.push(b),
        }
    }
    out.push(b'"');
}

#[cfg(test)]
mod tests {
    use super::*;

    fn result(name: &str, input: &str) -> String {
        let mut out = Vec::new();
        apply(Function::named(name.as_bytes()).unwrap(), input.as_bytes(), &mut out).unwrap();
        String::from_utf8(out).unwrap()
    }

    #[test]
    fn functions_compute() {
        let cases = [
            ("set_escape_uri", "/a b?c=d&e", "%2Fa%20b%3Fc%3Dd%26e"),
            ("set_unescape_uri", "hello%20world", "hello world"),
            ("set_quote_json_str", "a\n'\"\\\u{1}", "\"a\\n'\\\"\\\\\\u0001\""),
            ("set_encode_base64", "abcde", "YWJjZGU="),
            ("set_decode_base64", "YWJjZGU=", "abcde"),
            ("set_decode_base64", "not base64!", ""),
            ("set_encode_base64url", "abcde?>", "YWJjZGU_Pg"),
            ("set_decode_base64url", "YWJjZGU_Pg", "abcde?>"),
            ("set_decode_base64url", "YWJjZGU_Pg==", "abcde?>"),
            ("set_encode_hex", "az", "617a"),
            ("set_decode_hex", "617A", "az"),
            ("set_decode_hex", "617", ""),
            ("set_decode_hex", "6g", ""),
            ("set_md5", "abc", "900150983cd24fb0d6963f7d28e17f72"),
            ("set_sha1", "abc", "a9993e364706816aba3e25717850c26c9cd0d89d"),
        ];
        for (name, input, expected) in cases {
            assert_eq!(result(name, input), expected, "{name} {input}");
        }
    }

    #[test]
    fn random_values_are_within_their_bounds() {
        let made = |f: Function| {
            let mut out = Vec::new();
            apply(f, b"", &mut out).unwrap();
            String::from_utf8(out).unwrap()
        };
        for _ in 0..200 {
            assert!((3..=5).contains(&made(Function::Random(3, 5)).parse::<u64>().unwrap()));
        }
        made(Function::Random(0, u64::MAX)).parse::<u64>().unwrap();
        let text = made(Function::Alphanumeric(64));
        assert!(text.len() == 64 && text.bytes().all(|b| b.is_ascii_alphanumeric()), "{text}");
        let text = made(Function::Lowercase(32));
        assert!(text.len() == 32 && text.bytes().all(|b| b.is_ascii_lowercase()), "{text}");
    }
}
