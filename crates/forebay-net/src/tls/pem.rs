//! Certificates and private keys from PEM text (RFC 7468), with passwords: PKCS#8 (RFC 5958, RFC 8018) and
//! OpenSSL's older form (`Proc-Type: 4,ENCRYPTED`).

use super::der::{Der, OCTETS, OID, SEQUENCE};
use aws_lc_rs::cipher::{
    AES_128, AES_192, AES_256, Algorithm, DecryptionContext, PaddedBlockDecryptingKey, UnboundCipherKey,
};
use aws_lc_rs::pbkdf2;
use base64::Engine;
use des::cipher::{BlockCipherDecrypt, KeyInit};
use rustls::pki_types::{CertificateDer, PrivateKeyDer};
use std::num::NonZeroU32;
use zeroize::Zeroizing;

/// A block of PEM text.
pub struct Block {
    /// Label after `BEGIN`.
    pub label: String,
    headers: Vec<(String, String)>,
    /// Contents.
    pub der: Zeroizing<Vec<u8>>,
}

/// A block whose end has not come.
struct Open {
    label: String,
    headers: Vec<(String, String)>,
    /// Its lines in base64.
    body: Zeroizing<Vec<u8>>,
}

impl Open {
    fn new(label: &[u8]) -> Open {
        let label = String::from_utf8_lossy(label).into_owned();
        Open { label, headers: Vec::new(), body: Zeroizing::default() }
    }

    /// Takes a line, which is a header if it has a colon.
    fn take(&mut self, line: &[u8]) {
        let Some(colon) = line.iter().position(|b| *b == b':') else {
            self.body.extend_from_slice(line);
            return;
        };
        let (name, value) = line.split_at(colon);
        let text = |b: &[u8]| String::from_utf8_lossy(b).into_owned();
        self.headers.push((text(name), text(value.get(1..).unwrap_or_default().trim_ascii())));
    }

    /// Decodes the body. Returns `None` if it is not base64.
    fn close(self) -> Option<Block> {
        let der = base64::engine::general_purpose::STANDARD.decode(self.body.as_slice()).ok()?;
        Some(Block { label: self.label, headers: self.headers, der: Zeroizing::new(der) })
    }
}

/// Most blocks that are read of one file.
const MAX_BLOCKS: usize = 100_000;

/// All blocks of a text; what stands between them is passed over, and so is a block that is not sound.
pub fn blocks(text: &[u8]) -> Vec<Block> {
    let mut found = Vec::new();
    let mut open: Option<Open> = None;
    for line in text.split(|b| *b == b'\n') {
        let line = line.trim_ascii();
        if let Some(label) = line.strip_prefix(b"-----BEGIN ").and_then(|l| l.strip_suffix(b"-----")) {
            open = Some(Open::new(label));
        } else if line.starts_with(b"-----END ") {
            found.extend(open.take().and_then(Open::close));
            if found.len() >= MAX_BLOCKS {
                break;
            }
        } else if let Some(block) = &mut open {
            block.take(line);
        }
    }
    found
}

/// The certificates of a text, in order.
pub fn certificates(text: &[u8]) -> Vec<CertificateDer<'static>> {
    blocks(text)
        .into_iter()
        .filter(|b| matches!(b.label.as_str(), "CERTIFICATE" | "X509 CERTIFICATE" | "TRUSTED CERTIFICATE"))
        .filter_map(|b| first_element(&b.der).map(|der| CertificateDer::from(der.to_vec())))
        .collect()
}

/// A DER element at the start of `bytes`, its header included. What OpenSSL trusts a certificate for stands
/// behind it.
fn first_element(bytes: &[u8]) -> Option<&[u8]> {
    let mut r = Der(bytes);
    let before = r.0.len();
    r.next()?;
    bytes.get(..before - r.0.len())
}

/// Reason for which there is no key.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum KeyError {
    /// No private key is in the text.
    None,
    /// It is encrypted and there is no password.
    NeedsPassword,
    /// No password fits.
    WrongPassword,
    /// Its encryption is not understood.
    Unsupported,
}

/// The first private key of a text; `passwords` are tried in turn.
///
/// # Errors
/// [`KeyError`].
pub fn private_key(
    text: &[u8],
    passwords: &[Zeroizing<Vec<u8>>],
) -> Result<PrivateKeyDer<'static>, KeyError> {
    let blocks = blocks(text);
    let block = blocks.iter().find(|b| b.key(&[]).is_some()).ok_or(KeyError::None)?;
    let cipher = block.headers.iter().find(|(name, _)| name == "DEK-Info").map(|(_, v)| v.as_str());
    if block.label != "ENCRYPTED PRIVATE KEY" && cipher.is_none() {
        return block.key(&block.der).ok_or(KeyError::None);
    }
    if passwords.is_empty() {
        return Err(KeyError::NeedsPassword);
    }
    for password in passwords {
        if let Some(key) = block.decrypt(cipher, password)? {
            return Ok(key);
        }
    }
    Err(KeyError::WrongPassword)
}

impl Block {
    /// Decrypts a key. `cipher` is the value of `DEK-Info`, which the older form has. Returns `None` if the password is wrong.
    fn decrypt(
        &self,
        cipher: Option<&str>,
        password: &[u8],
    ) -> Result<Option<PrivateKeyDer<'static>>, KeyError> {
        let opened = match cipher {
            Some(info) => open_old(&self.der, info, password)?,
            None => open_pkcs8(&self.der, password)?,
        };
        Ok(opened.filter(|der| sequence(der)).and_then(|der| self.key(&der)))
    }
    /// Returns DER as the key that the label of this block says; `None`: it is not one of a key.
    fn key(&self, der: &[u8]) -> Option<PrivateKeyDer<'static>> {
        let der = der.to_vec();
        match self.label.as_str() {
            "PRIVATE KEY" | "ENCRYPTED PRIVATE KEY" => Some(PrivateKeyDer::Pkcs8(der.into())),
            "RSA PRIVATE KEY" => Some(PrivateKeyDer::Pkcs1(der.into())),
            "EC PRIVATE KEY" => Some(PrivateKeyDer::Sec1(der.into())),
            _ => None,
        }
    }
}

/// Returns `true` if the bytes are one DER sequence, as every key is. A wrong password can result in valid padding by chance,
/// but not in this, too.
fn sequence(der: &[u8]) -> bool {
    der.first() == Some(&0x30) && first_element(der).is_some_and(|e| e.len() == der.len())
}

const PBES2: &[u8] = &[0x2a, 0x86, 0x48, 0x86, 0xf7, 0x0d, 1, 5, 13];
const PBKDF2: &[u8] = &[0x2a, 0x86, 0x48, 0x86, 0xf7, 0x0d, 1, 5, 12];
const HMAC: &[u8] = &[0x2a, 0x86, 0x48, 0x86, 0xf7, 0x0d, 2];
const AES: &[u8] = &[0x60, 0x86, 0x48, 1, 101, 3, 4, 1];
const DES3: &[u8] = &[0x2a, 0x86, 0x48, 0x86, 0xf7, 0x0d, 3, 7];

/// Most rounds of PBKDF2 that a file may ask for.
const MAX_ROUNDS: u32 = 10_000_000;

/// Cipher of an encrypted key. AES has the length of its key in bytes.
enum Cipher {
    Aes(usize),
    Des3,
}

impl Cipher {
    fn of(oid: &[u8]) -> Option<Cipher> {
        match oid.strip_prefix(AES) {
            Some([2]) => Some(Cipher::Aes(16)),
            Some([22]) => Some(Cipher::Aes(24)),
            Some([42]) => Some(Cipher::Aes(32)),
            _ if oid == DES3 => Some(Cipher::Des3),
            _ => None,
        }
    }

    /// Finds a cipher by OpenSSL's name in `DEK-Info`.
    fn by_name(name: &str) -> Option<Cipher> {
        match name {
            "AES-128-CBC" => Some(Cipher::Aes(16)),
            "AES-192-CBC" => Some(Cipher::Aes(24)),
            "AES-256-CBC" => Some(Cipher::Aes(32)),
            "DES-EDE3-CBC" => Some(Cipher::Des3),
            _ => None,
        }
    }
    fn key_len(&self) -> usize {
        match self {
            Cipher::Aes(n) => *n,
            Cipher::Des3 => 24,
        }
    }

    /// Decrypts and removes the padding. Returns `None` if the key is wrong.
    fn decrypt(&self, key: &[u8], iv: &[u8], data: &[u8]) -> Option<Zeroizing<Vec<u8>>> {
        match self {
            Cipher::Aes(16) => decrypt_aes(&AES_128, key, iv, data),
            Cipher::Aes(24) => decrypt_aes(&AES_192, key, iv, data),
            Cipher::Aes(_) => decrypt_aes(&AES_256, key, iv, data),
            Cipher::Des3 => decrypt_des3(key, iv, data),
        }
    }
}

fn decrypt_aes(
    algorithm: &'static Algorithm,
    key: &[u8],
    iv: &[u8],
    data: &[u8],
) -> Option<Zeroizing<Vec<u8>>> {
    let key = UnboundCipherKey::new(algorithm, key).ok()?;
    let key = PaddedBlockDecryptingKey::cbc_pkcs7(key).ok()?;
    let context = DecryptionContext::Iv128(<[u8; 16]>::try_from(iv).ok()?.into());
    let mut data = Zeroizing::new(data.to_vec());
    let n = key.decrypt(&mut data, context).ok()?.len();
    data.truncate(n);
    Some(data)
}

fn decrypt_des3(key: &[u8], iv: &[u8], data: &[u8]) -> Option<Zeroizing<Vec<u8>>> {
    let cipher = des::TdesEde3::new_from_slice(key).ok()?;
    let mut last: [u8; 8] = iv.try_into().ok()?;
    let mut plain = Zeroizing::new(Vec::with_capacity(data.len()));
    for block in data.chunks(8) {
        let sealed: [u8; 8] = block.try_into().ok()?;
        let mut block = sealed.into();
        cipher.decrypt_block(&mut block);
        plain.extend(block.iter().zip(last).map(|(a, b)| a ^ b));
        last = sealed;
    }
    let pad = usize::from(*plain.last()?);
    let n = plain.len().checked_sub(pad).filter(|_| (1..=8).contains(&pad))?;
    let sound = plain.iter().skip(n).all(|b| usize::from(*b) == pad);
    plain.truncate(n);
    sound.then_some(plain)
}

type Opened = Result<Option<Zeroizing<Vec<u8>>>, KeyError>;

/// An `EncryptedPrivateKeyInfo` with PBES2 (RFC 8018, appendix A.4).
struct Sealed<'d> {
    derivation: Derivation<'d>,
    cipher: Cipher,
    iv: &'d [u8],
    data: &'d [u8],
}

impl<'d> Sealed<'d> {
    fn parse(der: &'d [u8]) -> Option<Sealed<'d>> {
        let mut outer = Der(Der(der).expect(SEQUENCE)?);
        let mut scheme = Der(outer.expect(SEQUENCE)?);
        let data = outer.expect(OCTETS)?;
        let mut parameters =
            Der(scheme.expect(OID).filter(|oid| *oid == PBES2).and(scheme.expect(SEQUENCE))?);
        let derivation = Derivation::parse(parameters.expect(SEQUENCE)?)?;
        let (cipher, iv) = encryption(parameters.expect(SEQUENCE)?)?;
        Some(Sealed { derivation, cipher, iv, data })
    }
}

/// Returns a cipher and its initialization vector.
fn encryption(scheme: &[u8]) -> Option<(Cipher, &[u8])> {
    let mut scheme = Der(scheme);
    let oid = scheme.expect(OID)?;
    Some((Cipher::of(oid)?, scheme.expect(OCTETS)?))
}

/// Derivation of a key from a password by PBKDF2.
struct Derivation<'d> {
    salt: &'d [u8],
    rounds: NonZeroU32,
    prf: pbkdf2::Algorithm,
}

impl<'d> Derivation<'d> {
    fn parse(scheme: &'d [u8]) -> Option<Derivation<'d>> {
        let mut scheme = Der(scheme);
        scheme.expect(OID).filter(|oid| *oid == PBKDF2)?;
        let mut parameters = Der(scheme.expect(SEQUENCE)?);
        let salt = parameters.expect(OCTETS)?;
        let rounds = parameters.number().filter(|n| *n <= MAX_ROUNDS).and_then(NonZeroU32::new)?;
        let prf = prf(parameters)?;
        Some(Derivation { salt, rounds, prf })
    }

    fn key(&self, password: &[u8], len: usize) -> Zeroizing<Vec<u8>> {
        let mut key = Zeroizing::new(vec![0; len]);
        pbkdf2::derive(self.prf, self.rounds, self.salt, password, &mut key);
        key
    }
}

/// Reads the pseudo-random function behind the salt and the rounds.
fn prf(mut rest: Der<'_>) -> Option<pbkdf2::Algorithm> {
    let mut prf = pbkdf2::PBKDF2_HMAC_SHA1;
    // The length of the key may come first; it follows from the cipher, too.
    while let Some((tag, contents)) = rest.next() {
        if tag == SEQUENCE {
            prf = hash(contents)?;
        }
    }
    Some(prf)
}

/// Returns the pseudo-random function of an algorithm identifier.
fn hash(algorithm: &[u8]) -> Option<pbkdf2::Algorithm> {
    match Der(algorithm).expect(OID)?.strip_prefix(HMAC)? {
        [7] => Some(pbkdf2::PBKDF2_HMAC_SHA1),
        [9] => Some(pbkdf2::PBKDF2_HMAC_SHA256),
        [10] => Some(pbkdf2::PBKDF2_HMAC_SHA384),
        [11] => Some(pbkdf2::PBKDF2_HMAC_SHA512),
        _ => None,
    }
}

fn open_pkcs8(der: &[u8], password: &[u8]) -> Opened {
    let sealed = Sealed::parse(der).ok_or(KeyError::Unsupported)?;
    let key = sealed.derivation.key(password, sealed.cipher.key_len());
    Ok(sealed.cipher.decrypt(&key, sealed.iv, sealed.data))
}

/// `DEK-Info: AES-256-CBC,HEX`: the key is made by MD5 of the password and the first bytes of the vector.
fn open_old(data: &[u8], info: &str, password: &[u8]) -> Opened {
    use md5::Digest;
    let (name, iv) = info.split_once(',').ok_or(KeyError::Unsupported)?;
    let cipher = Cipher::by_name(name.trim()).ok_or(KeyError::Unsupported)?;
    let iv: Option<Vec<u8>> = (iv.trim().as_bytes().chunks(2))
        .map(|pair| std::str::from_utf8(pair).ok().and_then(|p| u8::from_str_radix(p, 16).ok()))
        .collect();
    let iv = iv.filter(|iv| iv.len() >= 8).ok_or(KeyError::Unsupported)?;
    let salt = iv.get(..8).unwrap_or_default();
    let mut key = Zeroizing::new(Vec::with_capacity(64));
    let mut last: Vec<u8> = Vec::new();
    while key.len() < cipher.key_len() {
        let digest = md5::Md5::new().chain_update(&last).chain_update(password).chain_update(salt).finalize();
        last = digest.to_vec();
        key.extend_from_slice(&last);
    }
    key.truncate(cipher.key_len());
    Ok(cipher.decrypt(&key, &iv, data))
}

/// Passwords of a file: one a line (nginx: ssl_password_file).
pub fn passwords(text: &[u8]) -> Vec<Zeroizing<Vec<u8>>> {
    let lines = text.split(|b| *b == b'\n').map(|l| l.strip_suffix(b"\r").unwrap_or(l));
    lines.filter(|l| !l.is_empty()).map(|l| Zeroizing::new(l.to_vec())).collect()
}
