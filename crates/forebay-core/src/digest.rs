//! Hashes of texts.

/// Returns the SHA-256 hash of bytes.
pub fn sha256(bytes: &[u8]) -> [u8; 32] {
    let digest = aws_lc_rs::digest::digest(&aws_lc_rs::digest::SHA256, bytes);
    let mut hash = [0; 32];
    hash.iter_mut().zip(digest.as_ref()).for_each(|(out, byte)| *out = *byte);
    hash
}
