//! Hashes of texts.

/// Returns the SHA-256 hash of bytes.
pub fn sha256(bytes: &[u8]) -> [u8; 32] {
    let digest = aws_lc_rs::digest::digest(&aws_lc_rs::digest::SHA256, bytes);
    let mut hash = [0; 32];
    hash.iter_mut().zip(digest.as_ref()).for_each(|(out, byte)| *out = *byte);
    hash
}

/// Returns the SHA-1 hash of bytes in several pieces, for protocols that demand it (RFC 6455, section 1.3).
pub fn sha1(pieces: &[&[u8]]) -> [u8; 20] {
    let mut context = aws_lc_rs::digest::Context::new(&aws_lc_rs::digest::SHA1_FOR_LEGACY_USE_ONLY);
    pieces.iter().for_each(|piece| context.update(piece));
    let mut hash = [0; 20];
    hash.iter_mut().zip(context.finish().as_ref()).for_each(|(out, byte)| *out = *byte);
    hash
}
