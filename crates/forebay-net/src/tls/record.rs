//! The record layer once the handshake is over (RFC 8446, section 5; RFC 5246, section 6.2; RFC 5288; RFC
//! 7905). Handshakes are rustls' business; afterwards rustls hands over the keys, and records are sealed
//! straight from the file cache into the buffer that is sent, and opened where they were received: no copy and
//! no allocation a record. Hot path.

use aws_lc_rs::aead::{self, Aad, LessSafeKey, Nonce, UnboundKey};
use rustls::ConnectionTrafficSecrets;

/// `change_cipher_spec`.
pub const CCS: u8 = 20;
/// `alert`.
pub const ALERT: u8 = 21;
/// `handshake`.
pub const HANDSHAKE: u8 = 22;
/// `application_data`.
pub const DATA: u8 = 23;

/// Largest content of a record, bytes.
pub const MAX_CONTENT: usize = 1 << 14;
/// Largest body of a record that is received, bytes: TLS 1.2 allows more for padding than TLS 1.3.
pub const MAX_BODY: usize = MAX_CONTENT + 2048;
/// Type, version, length.
pub const HEADER: usize = 5;
/// Length of the authentication tag of a record, bytes.
pub const TAG: usize = 16;
/// Largest number of bytes that a record has before and after its content.
pub const OVERHEAD: usize = HEADER + 8 + 1 + TAG;

/// Records after which keys are to change: AES-GCM wears out, ChaCha20-Poly1305 does not (RFC 8446, section 5.5).
const WORN: u64 = 1 << 24;

/// Reason for which a record cannot be read or written.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Broken {
    /// The length is out of bounds.
    Overflow,
    /// The tag is wrong: the peer has not written this record, or not at this place.
    BadMac,
    /// The record has a type that does not belong here, or no type at all.
    Malformed,
    /// A message in it has a wrong length.
    Undecodable,
    /// A message has a value that the protocol does not define.
    Illegal,
    /// The peer has ended the connection by a fatal alert, and waits for no answer.
    Alerted,
}

impl Broken {
    /// Returns the alert to send to the peer, if any (RFC 8446, section 6.2).
    pub fn alert(self) -> Option<u8> {
        match self {
            Broken::Malformed => Some(10),
            Broken::BadMac => Some(20),
            Broken::Overflow => Some(22),
            Broken::Illegal => Some(47),
            Broken::Undecodable => Some(50),
            Broken::Alerted => None,
        }
    }
}

/// Form of nonces and associated data.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Form {
    /// TLS 1.3: the type is hidden in the content.
    V13,
    /// TLS 1.2 with ChaCha20-Poly1305.
    V12,
    /// TLS 1.2 with AES-GCM, whose nonce travels with the record.
    V12Explicit,
}

impl Form {
    fn new(v13: bool, gcm: bool) -> Form {
        match (v13, gcm) {
            (true, _) => Form::V13,
            (false, true) => Form::V12Explicit,
            (false, false) => Form::V12,
        }
    }
}

/// Returns the number of records after which a key has to change; ChaCha20-Poly1305 has no limit that a connection reaches (RFC
/// 8446, section 5.5).
fn records_before_worn(gcm: bool) -> u64 {
    if gcm { WORN } else { u64::MAX }
}

/// One direction of a connection.
pub struct Half {
    key: LessSafeKey,
    iv: [u8; 12],
    seq: u64,
    form: Form,
    /// Records after which the key has to change.
    worn: u64,
}

impl std::fmt::Debug for Half {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Half").field("seq", &self.seq).field("form", &self.form).finish_non_exhaustive()
    }
}

impl Half {
    /// Prepares a direction with the secrets of rustls. `v13`: TLS 1.3.
    pub fn new((seq, secrets): (u64, ConnectionTrafficSecrets), v13: bool) -> Option<Half> {
        use ConnectionTrafficSecrets as S;
        let (algorithm, key, iv, gcm) = match &secrets {
            S::Aes128Gcm { key, iv } => (&aead::AES_128_GCM, key, iv, true),
            S::Aes256Gcm { key, iv } => (&aead::AES_256_GCM, key, iv, true),
            S::Chacha20Poly1305 { key, iv } => (&aead::CHACHA20_POLY1305, key, iv, false),
            _ => return None,
        };
        let key = LessSafeKey::new(UnboundKey::new(algorithm, key.as_ref()).ok()?);
        let iv = iv.as_ref().try_into().ok()?;
        Some(Half { key, iv, seq, form: Form::new(v13, gcm), worn: records_before_worn(gcm) })
    }

    /// Returns the number of bytes before the content of a record.
    pub fn before(&self) -> usize {
        if self.form == Form::V12Explicit { HEADER + 8 } else { HEADER }
    }

    /// Returns the number of bytes behind the content of a record.
    fn behind(&self) -> usize {
        if self.form == Form::V13 { 1 + TAG } else { TAG }
    }

    /// Returns the length of a record with `n` bytes of content.
    pub fn sealed_len(&self, n: usize) -> usize {
        self.before() + n + self.behind()
    }

    /// Returns `true` if the keys should be changed before much more is sent.
    pub fn worn(&self) -> bool {
        self.seq >= self.worn
    }

    /// Sets the number of records to the limit.
    #[cfg(test)]
    pub(super) fn wear(&mut self) {
        self.seq = WORN;
    }

    fn nonce(&self) -> [u8; 12] {
        let mut nonce = self.iv;
        // The sequence number is padded on the left to the length of the IV (RFC 8446, section 5.3).
        for (n, s) in nonce.iter_mut().skip(4).zip(self.seq.to_be_bytes()) {
            *n ^= s;
        }
        nonce
    }

    /// Returns the associated data of TLS 1.2.
    fn old_aad(&self, kind: u8, len: usize) -> [u8; 13] {
        let mut aad = [0; 13];
        aad[..8].copy_from_slice(&self.seq.to_be_bytes());
        aad[8..11].copy_from_slice(&[kind, 3, 3]);
        // This is the length of the content, and not of the record (RFC 5246, section 6.2.3.3). It is at most
        // MAX_CONTENT or was read from a u16.
        aad[11..].copy_from_slice(&(len as u16).to_be_bytes());
        aad
    }

    /// Writes the header. Returns the nonce, and the associated data with its length.
    fn begin(&mut self, kind: u8, n: usize, record: &mut [u8]) -> Option<(Nonce, [u8; 13], usize)> {
        let v13 = self.form == Form::V13;
        // The length fits, since callers have checked that `n` is at most MAX_CONTENT.
        let body = (self.sealed_len(n) - HEADER) as u16;
        let nonce = self.nonce();
        let header = [if v13 { DATA } else { kind }, 3, 3, (body >> 8) as u8, body as u8];
        record.get_mut(..HEADER)?.copy_from_slice(&header);
        if self.form == Form::V12Explicit {
            // The explicit part of the nonce is the sequence number mixed with the IV, which is as unique as the
            // number alone (RFC 5288, section 3).
            record.get_mut(HEADER..HEADER + 8)?.copy_from_slice(nonce.get(4..)?);
        }
        let (aad, aad_len) = if v13 {
            let mut aad = [0; 13];
            aad[..HEADER].copy_from_slice(&header);
            (aad, HEADER)
        } else {
            (self.old_aad(kind, n), 13)
        };
        // The number grows before the key is used, and never goes back to 0: a nonce must not be used twice,
        // even if sealing fails.
        self.seq = self.seq.checked_add(1)?;
        Some((Nonce::assume_unique_for_key(nonce), aad, aad_len))
    }

    /// Seals `content` into `record`, which is exactly [`Half::sealed_len`] long.
    ///
    /// # Errors
    /// The lengths do not fit, or the keys are used up.
    pub fn seal(&mut self, kind: u8, content: &[u8], record: &mut [u8]) -> Result<(), Broken> {
        let n = content.len();
        if record.len() != self.sealed_len(n) || n > MAX_CONTENT {
            return Err(Broken::Overflow);
        }
        let (nonce, aad, aad_len) = self.begin(kind, n, record).ok_or(Broken::Overflow)?;
        let aad = Aad::from(aad.get(..aad_len).unwrap_or_default());
        let (out, tail) = record.get_mut(self.before()..).ok_or(Broken::Overflow)?.split_at_mut(n);
        let inner: &[u8] = if self.form == Form::V13 { &[kind] } else { &[] };
        self.key.seal_out_of_place_scatter(nonce, aad, content, out, inner, tail).map_err(|_| Broken::BadMac)
    }

    /// Seals application data in two pieces, of which the second has the type behind it (TLSInnerPlaintext). For TLS 1.3.
    ///
    /// # Errors
    /// Errors of [`Half::seal`].
    pub fn seal_inner(&mut self, content: &[u8], inner: &[u8], record: &mut [u8]) -> Result<(), Broken> {
        let n = content.len() + inner.len().saturating_sub(1);
        if record.len() != self.sealed_len(n) || n > MAX_CONTENT || !self.v13() || inner.last() != Some(&DATA)
        {
            return Err(Broken::Overflow);
        }
        let (nonce, aad, aad_len) = self.begin(DATA, n, record).ok_or(Broken::Overflow)?;
        let aad = Aad::from(aad.get(..aad_len).unwrap_or_default());
        let body = record.get_mut(self.before()..).ok_or(Broken::Overflow)?;
        let (out, tail) = body.split_at_mut(content.len());
        self.key.seal_out_of_place_scatter(nonce, aad, content, out, inner, tail).map_err(|_| Broken::BadMac)
    }

    /// Returns `true` for TLS 1.3.
    #[inline]
    pub fn v13(&self) -> bool {
        self.form == Form::V13
    }

    /// Seals content as [`Half::seal`] does, if it is at its place in `record` already.
    ///
    /// # Errors
    /// Errors of [`Half::seal`].
    pub fn seal_in_place(&mut self, kind: u8, n: usize, record: &mut [u8]) -> Result<(), Broken> {
        if record.len() != self.sealed_len(n) || n > MAX_CONTENT {
            return Err(Broken::Overflow);
        }
        let (nonce, aad, aad_len) = self.begin(kind, n, record).ok_or(Broken::Overflow)?;
        let aad = Aad::from(aad.get(..aad_len).unwrap_or_default());
        let mut len = n;
        let body = record.get_mut(self.before()..).ok_or(Broken::Overflow)?;
        if self.form == Form::V13 {
            *body.get_mut(n).ok_or(Broken::Overflow)? = kind;
            len += 1;
        }
        let (inner, tag) = body.split_at_mut(len);
        let sealed = self.key.seal_in_place_separate_tag(nonce, aad, inner).map_err(|_| Broken::BadMac)?;
        tag.copy_from_slice(sealed.as_ref());
        Ok(())
    }

    /// Opens a whole record in place. Returns its type, and the range of its content.
    ///
    /// # Errors
    /// The record does not belong to this connection, or is malformed.
    pub fn open(&mut self, record: &mut [u8]) -> Result<(u8, std::ops::Range<usize>), Broken> {
        let header: [u8; HEADER] =
            record.get(..HEADER).and_then(|h| h.try_into().ok()).ok_or(Broken::Malformed)?;
        let kind = header[0];
        // In TLS 1.3 every encrypted record has this type outside, and its real type inside (RFC 8446,
        // section 5.2).
        if self.form == Form::V13 && kind != DATA {
            return Err(Broken::Malformed);
        }
        let at = self.before();
        let body = record.len().checked_sub(at + TAG).ok_or(Broken::BadMac)?;
        let (nonce, aad, aad_len) = match self.form {
            // RFC 8446, section 5.2.
            Form::V13 if record.len() > HEADER + MAX_CONTENT + 256 => return Err(Broken::Overflow),
            Form::V13 => {
                let mut aad = [0; 13];
                aad[..HEADER].copy_from_slice(&header);
                (self.nonce(), aad, HEADER)
            }
            Form::V12 => (self.nonce(), self.old_aad(kind, body), 13),
            Form::V12Explicit => {
                let mut nonce = self.iv;
                let explicit = record.get(HEADER..HEADER + 8).ok_or(Broken::Malformed)?;
                nonce[4..].copy_from_slice(explicit);
                (nonce, self.old_aad(kind, body), 13)
            }
        };
        let aad = Aad::from(aad.get(..aad_len).unwrap_or_default());
        let sealed = record.get_mut(at..).ok_or(Broken::Malformed)?;
        let nonce = Nonce::assume_unique_for_key(nonce);
        let plain = self.key.open_in_place(nonce, aad, sealed).map_err(|_| Broken::BadMac)?;
        self.seq = self.seq.checked_add(1).ok_or(Broken::Overflow)?;
        if self.form != Form::V13 {
            let n = plain.len();
            return if n > MAX_CONTENT { Err(Broken::Overflow) } else { Ok((kind, at..at + n)) };
        }
        // Content, type and padding together (RFC 8446, section 5.4).
        if plain.len() > MAX_CONTENT + 1 {
            return Err(Broken::Overflow);
        }
        // The type is the last byte that is not padding.
        let end = plain.iter().rposition(|b| *b != 0).ok_or(Broken::Malformed)?;
        Ok((plain.get(end).copied().unwrap_or(0), at..at + end))
    }
}

/// Returns the length of the record that `bytes` begin with; `None` if it is incomplete.
///
/// # Errors
/// No record begins with these bytes.
pub fn whole(bytes: &[u8]) -> Result<Option<usize>, Broken> {
    let Some(header) = bytes.get(..HEADER) else { return Ok(None) };
    // The minor version is not checked, since it must be ignored (RFC 8446, section 5.1).
    if !(CCS..=DATA).contains(&header[0]) || header[1] != 3 {
        return Err(Broken::Malformed);
    }
    let body = usize::from(u16::from_be_bytes([header[3], header[4]]));
    if body > MAX_BODY {
        return Err(Broken::Overflow);
    }
    Ok((bytes.len() >= HEADER + body).then_some(HEADER + body))
}

#[cfg(test)]
mod tests {
    use super::*;
    use rustls::crypto::cipher::{AeadKey, Iv};

    fn pair(secrets: fn() -> ConnectionTrafficSecrets, v13: bool) -> (Half, Half) {
        (Half::new((7, secrets()), v13).unwrap(), Half::new((7, secrets()), v13).unwrap())
    }

    fn gcm() -> ConnectionTrafficSecrets {
        ConnectionTrafficSecrets::Aes256Gcm { key: AeadKey::from([7; 32]), iv: Iv::new([9; 12]) }
    }

    fn chacha() -> ConnectionTrafficSecrets {
        ConnectionTrafficSecrets::Chacha20Poly1305 { key: AeadKey::from([1; 32]), iv: Iv::new([2; 12]) }
    }

    #[test]
    fn sealed_records_are_opened() {
        for (secrets, v13) in [(gcm as fn() -> _, true), (gcm, false), (chacha, true), (chacha, false)] {
            let (mut tx, mut rx) = pair(secrets, v13);
            for n in [0, 1, 100, MAX_CONTENT] {
                let content: Vec<u8> = (0..n).map(|i| i as u8).collect();
                let mut a = vec![0; tx.sealed_len(n)];
                tx.seal(DATA, &content, &mut a).unwrap();
                assert_eq!(whole(&a), Ok(Some(a.len())));
                let (kind, at) = rx.open(&mut a).unwrap();
                assert_eq!((kind, &a[at]), (DATA, content.as_slice()), "{n} {v13}");
                let mut b = vec![0; tx.sealed_len(n)];
                let before = tx.before();
                b[before..before + n].copy_from_slice(&content);
                tx.seal_in_place(HANDSHAKE, n, &mut b).unwrap();
                let (kind, at) = rx.open(&mut b).unwrap();
                assert_eq!((kind, &b[at]), (HANDSHAKE, content.as_slice()), "{n} {v13}");
                for first in [0, 1, n / 2, n] {
                    let (head, rest) = content.split_at(first.min(n));
                    let inner = [rest, &[DATA]].concat();
                    let mut c = vec![0; tx.sealed_len(n)];
                    assert_eq!(tx.seal_inner(head, rest, &mut c), Err(Broken::Overflow), "no type");
                    if tx.seal_inner(head, &inner, &mut c).is_ok() {
                        let (kind, at) = rx.open(&mut c).unwrap();
                        assert_eq!((kind, &c[at]), (DATA, content.as_slice()), "{n} {first}");
                    } else {
                        assert!(!v13);
                    }
                }
            }
        }
    }

    #[test]
    fn only_keys_that_wear_out_are_worn() {
        let half = |secrets: fn() -> _, seq| Half::new((seq, secrets()), false).unwrap();
        assert!(!half(gcm, WORN - 1).worn() && half(gcm, WORN).worn());
        // TLS 1.2 cannot change keys: a connection that needs not end goes on.
        assert!(!half(chacha, WORN).worn());
        let mut last = half(chacha, u64::MAX);
        let mut record = vec![0; last.sealed_len(1)];
        assert_eq!(last.seal(DATA, b"x", &mut record), Err(Broken::Overflow), "no nonce twice");
    }

    #[test]
    fn records_of_tls13_have_a_bound_of_their_own() {
        for (n, wanted) in [(MAX_CONTENT + 256, Broken::BadMac), (MAX_CONTENT + 257, Broken::Overflow)] {
            let (_, mut rx) = pair(gcm, true);
            let mut record = vec![0; HEADER + n];
            record[..HEADER].copy_from_slice(&[DATA, 3, 3, (n >> 8) as u8, n as u8]);
            assert_eq!(rx.open(&mut record), Err(wanted), "{n}");
        }
    }

    #[test]
    fn padding_counts_as_content_of_tls13() {
        for (padding, fits) in [(0, true), (100, true), (MAX_CONTENT - 5, true), (MAX_CONTENT - 4, false)] {
            let (mut tx, mut rx) = pair(gcm, true);
            let n = 5 + padding;
            let mut record = vec![0; HEADER + n + 1 + 16];
            let (nonce, aad, aad_len) = tx.begin(DATA, n, &mut record).unwrap();
            record[HEADER..HEADER + 5].copy_from_slice(b"hello");
            record[HEADER + 5] = DATA;
            let (inner, tag) = record[HEADER..].split_at_mut(n + 1);
            let sealed = tx.key.seal_in_place_separate_tag(nonce, Aad::from(&aad[..aad_len]), inner).unwrap();
            tag.copy_from_slice(sealed.as_ref());
            let wanted = if fits { Ok((DATA, HEADER..HEADER + 5)) } else { Err(Broken::Overflow) };
            assert_eq!(rx.open(&mut record), wanted, "{padding}");
        }
    }

    #[test]
    fn changed_repeated_and_cut_records_are_refused() {
        let (mut tx, mut rx) = pair(gcm, true);
        let mut record = vec![0; tx.sealed_len(5)];
        tx.seal(DATA, b"hello", &mut record).unwrap();
        let mut changed = record.clone();
        changed[8] ^= 1;
        assert_eq!(rx.open(&mut changed), Err(Broken::BadMac));
        let mut cut = record[..20].to_vec();
        assert_eq!(rx.open(&mut cut), Err(Broken::BadMac));
        assert!(rx.open(&mut record.clone()).is_ok());
        assert_eq!(rx.open(&mut record), Err(Broken::BadMac), "replayed");
        assert_eq!(whole(&[23, 3, 3, 255, 255]), Err(Broken::Overflow));
        assert_eq!(whole(b"GET /"), Err(Broken::Malformed));
        assert_eq!(whole(&[23, 3, 3, 0, 9, 1]), Ok(None));
    }
}
