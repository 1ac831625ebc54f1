//! Password hashes of user files (nginx: auth_basic_user_file; crypt(3); RFC 2307, section 5.3).

pub mod remembered;

use base64::Engine;
use forebay_server::request::credentials::LENIENT;
use md5::{Digest, Md5};
use sha1::Sha1;

/// Returns `true` if a check of this hash takes so long that it must not run on a thread that serves others.
pub fn is_slow(hash: &[u8]) -> bool {
    !hash.starts_with(b"{")
}

/// Returns `true` if `password` belongs to `hash`. A hash of an unknown form matches nothing.
pub fn verify(password: &[u8], hash: &[u8]) -> bool {
    FORMS
        .iter()
        .find_map(|(start, check)| Some(check(password, hash.strip_prefix(*start)?, hash)))
        // The oldest form of crypt(3), by DES, has no prefix: two letters of salt, then eleven of the hash.
        .unwrap_or_else(|| {
            hash.len() == 13
                && hash.iter().all(crypt_letter)
                && by_text(hash, |t| pwhash::unix_crypt::verify(password, t))
        })
}

/// Check of a password against the rest of a hash after its start, and the whole hash.
type HashCheck = fn(&[u8], &[u8], &[u8]) -> bool;

/// Forms of hashes by their start.
const FORMS: &[(&[u8], HashCheck)] = &[
    (b"{PLAIN}", |password, plain, _| same(plain, password)),
    (b"{SSHA}", |password, text, _| salted_sha1(password, text)),
    (b"{SHA}", |password, text, _| {
        LENIENT.decode(text).is_ok_and(|want| same(&want, &Sha1::digest(password)))
    }),
    (b"$apr1$", |password, rest, hash| same_md5(password, b"$apr1$", rest, hash)),
    (b"$1$", |password, rest, hash| same_md5(password, b"$1$", rest, hash)),
    (b"$5$", |password, _, hash| by_text(hash, |t| pwhash::sha256_crypt::verify(password, t))),
    (b"$6$", |password, _, hash| by_text(hash, |t| pwhash::sha512_crypt::verify(password, t))),
    // All versions of bcrypt begin like this, among them `$2a$`, `$2b$` and `$2y$`.
    (b"$2", |password, _, hash| by_text(hash, |t| bcrypt::verify(password, t).unwrap_or(false))),
];

/// Cost of new hashes: about 50 ms on a processor of 2026.
const COST: u32 = 10;

/// Returns a bcrypt hash of a password in the form of htpasswd, `$2y$`.
///
/// # Errors
/// The password is longer than 72 bytes, of which bcrypt would not look at the rest.
pub fn bcrypt(password: &str) -> Result<String, String> {
    let hash = bcrypt::non_truncating_hash_with_result(password, COST).map_err(|e| e.to_string())?;
    Ok(hash.format_for_version(bcrypt::Version::TwoY))
}

fn by_text(hash: &[u8], check: impl Fn(&str) -> bool) -> bool {
    std::str::from_utf8(hash).is_ok_and(check)
}

fn same_md5(password: &[u8], magic: &[u8], rest: &[u8], hash: &[u8]) -> bool {
    md5_crypt(password, magic, rest).is_some_and(|made| same(&made, hash))
}

/// Returns `true` if a byte belongs to the alphabet of crypt(3).
fn crypt_letter(b: &u8) -> bool {
    b.is_ascii_alphanumeric() || matches!(b, b'.' | b'/')
}

/// Compares without telling by its duration how much is right.
fn same(a: &[u8], b: &[u8]) -> bool {
    // The loop looks at all bytes, since an early end would tell how many of them are right.
    a.len() == b.len() && a.iter().zip(b).fold(0, |diff, (x, y)| diff | (x ^ y)) == 0
}

/// Checks a password of the scheme `{SSHA}`: the digest of password and salt, then the salt.
fn salted_sha1(password: &[u8], text: &[u8]) -> bool {
    let Ok(raw) = LENIENT.decode(text) else { return false };
    // A digest of SHA-1 has 20 bytes, and the salt may have any length.
    let Some((want, salt)) = raw.split_at_checked(20) else { return false };
    let digest = Sha1::new().chain_update(password).chain_update(salt).finalize();
    same(want, &digest)
}

/// Alphabet of crypt(3), six bits a letter, low bits first.
const LETTERS: &[u8; 64] = b"./0123456789ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz";

/// Returns the MD5-crypt of a password; its two variants differ in the magic. `rest` is what follows the magic: salt, `$`,
/// checksum.
fn md5_crypt(password: &[u8], magic: &[u8], rest: &[u8]) -> Option<Vec<u8>> {
    let salt = rest.split(|b| *b == b'$').next()?;
    // MD5-crypt uses eight bytes of the salt at most, and ignores what follows them up to the `$`.
    let salt = salt.get(..8).unwrap_or(salt);
    let mut digest = first_digest(password, magic, salt)?;
    for round in 0..1000 {
        digest = next_digest(round, &digest, password, salt);
    }
    let mut out = [magic, salt, b"$"].concat();
    let d = digest;
    // MD5-crypt writes the digest in this order of bytes, three of them in four letters.
    for (a, b, c) in [(0, 6, 12), (1, 7, 13), (2, 8, 14), (3, 9, 15), (4, 10, 5)] {
        letters(u32::from_be_bytes([0, d[a], d[b], d[c]]), 4, &mut out);
    }
    letters(u32::from(d[11]), 2, &mut out);
    Some(out)
}

fn next_digest(round: u32, digest: &[u8], password: &[u8], salt: &[u8]) -> [u8; 16] {
    // The irregular order of the parts comes from the first implementation, in FreeBSD, and is the definition
    // of MD5-crypt.
    let mut next = Md5::new();
    let (start, end) = if round % 2 == 1 { (password, digest) } else { (digest, password) };
    next.update(start);
    if !round.is_multiple_of(3) {
        next.update(salt);
    }
    if !round.is_multiple_of(7) {
        next.update(password);
    }
    next.update(end);
    next.finalize().into()
}

/// Returns the digest that the rounds of MD5-crypt begin with.
fn first_digest(password: &[u8], magic: &[u8], salt: &[u8]) -> Option<[u8; 16]> {
    let inner = Md5::new().chain_update(password).chain_update(salt).chain_update(password).finalize();
    let mut first = Md5::new().chain_update(password).chain_update(magic).chain_update(salt);
    for piece in password.chunks(inner.len()) {
        first.update(inner.get(..piece.len())?);
    }
    // One byte for each bit of the length, lowest first: NUL for ones, the password's first for zeros.
    let mut bits = password.len();
    while bits > 0 {
        first.update(if bits & 1 == 1 { &[0][..] } else { password.get(..1)? });
        bits >>= 1;
    }
    Some(first.finalize().into())
}

fn letters(mut bits: u32, count: usize, out: &mut Vec<u8>) {
    for _ in 0..count {
        out.push(LETTERS[(bits & 63) as usize]);
        bits >>= 6;
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_form() {
        // Made by `openssl passwd` and crypt(3).
        for hash in [
            "$apr1$saltsalt$xx013OFx2cRtDjpNeiZXf.",
            "$1$saltsalt$hZR.9zfJXcVTsa9iTxnQR1",
            "$5$saltsalt$9k0iflfLhuazVMAUTm0egnVlpP5ays5xBLqSJuoPfB9",
            "$5$rounds=2000$salts$7zo.LOvnldXNEW5amxT.r.pAVdjX5X.ys2xGVWQ07X5",
            "$6$saltsalt$KN.twvCyfwE67paW76hS2/bacYkY9PxIhxqYG9vL5bZmIwWBGDJ6mu4HlCosKUBfQwVXKXxXVXPcqdwd1Ip0X/",
            "abccBcrPOxnLU",
            "$2y$05$abcdefghijklmnopqrstuuZFBUbfXoM8LFiPx8LYlO/sXZB/Cwk3K",
            "{PLAIN}pass",
            "{SHA}nU4eI71bcnBGqeO0t9tXvY1u5oQ=",
            "{SSHA}EfVjnyJSUVXLC0NXPuQhKDjHjYdzYWx0",
        ] {
            assert!(verify(b"pass", hash.as_bytes()), "{hash}");
            assert!(!verify(b"wrong", hash.as_bytes()), "{hash}");
            assert!(!verify(b"", hash.as_bytes()), "{hash}");
        }
        assert!(verify(b"passpasspasspasspass", b"$apr1$saltsalt$QU3liZF6qB3st/bAaKEU3."));
    }

    #[test]
    fn junk_matches_nothing() {
        for hash in [
            "",
            "*",
            "!!",
            "pass",
            "{FOO}pass",
            "{SHA}!!!",
            "{SSHA}aaaa",
            "{SSHA}",
            "$apr1$",
            "$1$",
            "$5$",
            "$6$",
            "$6$rounds=$",
            "$2",
            "$2y$",
            "$2y$05$",
            "$2y$99$abcdefghijklmnopqrstuuZFBUbfXoM8LFiPx8LYlO/sXZB/Cwk3K",
            "$y$j9T$abcdefgh$x",
            "$",
            "$5$a",
            "ab",
            "$6$rounds=99999999999999999999$a$b",
            "\u{e9}\u{e9}ccBcrPOxnLU",
        ] {
            assert!(!verify(b"pass", hash.as_bytes()), "{hash}");
            assert!(!verify(b"\0\xff", hash.as_bytes()), "{hash}");
        }
    }
}
