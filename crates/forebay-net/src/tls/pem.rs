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

/// Reason for which PEM text cannot be read on.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum PemError {
    /// There is no block.
    None,
    /// A block does not end, or its end has another label.
    End,
    /// A block has headers that are not those of an encrypted key.
    Headers,
    /// The content of a block is not base64.
    Base64,
    /// The content of a block is not what its label says.
    Content,
}

impl std::fmt::Display for PemError {
    /// Writes OpenSSL's error.
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str(match self {
            PemError::None => "error:0480006C:PEM routines::no start line",
            PemError::End => "error:04800066:PEM routines::bad end line",
            PemError::Headers => "error:0480006B:PEM routines::not proc type",
            PemError::Base64 => "error:04800064:PEM routines::bad base64 decode",
            PemError::Content => {
                "error:0688010A:asn1 encoding routines::nested asn1 error:Type=X509 error:0488000D:PEM routines::ASN1 lib"
            }
        })
    }
}

/// Blocks of a text, as OpenSSL reads them: a block begins with the first sign of a line. Text between blocks and a byte order mark
/// before a block are skipped. An error is the last item.
pub struct Blocks<'t> {
    rest: &'t [u8],
}

const BYTE_ORDER_MARK: &[u8] = b"\xef\xbb\xbf";

impl<'t> Blocks<'t> {
    /// Creates the blocks of a text.
    pub fn new(text: &'t [u8]) -> Blocks<'t> {
        Blocks { rest: text }
    }

    /// Takes a line without the blanks and line break at its end. Returns `None` at the end of the text.
    fn line(&mut self) -> Option<&'t [u8]> {
        if self.rest.is_empty() {
            return None;
        }
        let (line, rest) = match self.rest.iter().position(|b| *b == b'\n') {
            Some(at) => (self.rest.get(..at)?, self.rest.get(at + 1..)?),
            None => (self.rest, &self.rest[..0]),
        };
        self.rest = rest;
        // Files from other systems have carriage returns, and copied ones have blanks at the ends of lines.
        let end = line.iter().rposition(|b| *b > b' ').map_or(0, |last| last + 1);
        line.get(..end)
    }

    /// Reads the rest of a block with this label.
    fn block(&mut self, label: &[u8]) -> Result<Block, PemError> {
        let mut lines = Vec::new();
        loop {
            let line = self.line().ok_or(PemError::End)?;
            if let Some(end) = line.strip_prefix(b"-----END ") {
                if end.strip_suffix(b"-----") != Some(label) {
                    return Err(PemError::End);
                }
                break;
            }
            lines.push(line);
        }
        // An empty line ends the headers.
        let (headers, body) = match lines.iter().position(|l| l.is_empty()) {
            Some(at) => (lines.get(..at).unwrap_or_default(), lines.get(at + 1..).unwrap_or_default()),
            None => (&[][..], lines.as_slice()),
        };
        if headers.first().is_some_and(|l| !l.starts_with(b"Proc-Type:"))
            || body.iter().any(|l| l.contains(&b':'))
        {
            return Err(PemError::Headers);
        }
        let mut text = Zeroizing::new(Vec::with_capacity(body.iter().map(|l| l.len()).sum()));
        for line in body {
            text.extend(line.iter().filter(|b| !b.is_ascii_whitespace()));
        }
        let der = base64::engine::general_purpose::STANDARD.decode(text.as_slice());
        let der = Zeroizing::new(der.map_err(|_| PemError::Base64)?);
        let label = String::from_utf8_lossy(label).into_owned();
        Ok(Block { label, headers: headers.iter().filter_map(|l| header(l)).collect(), der })
    }
}

impl Iterator for Blocks<'_> {
    type Item = Result<Block, PemError>;

    fn next(&mut self) -> Option<Self::Item> {
        self.rest = self.rest.strip_prefix(BYTE_ORDER_MARK).unwrap_or(self.rest);
        loop {
            let line = self.line()?;
            let label = line.strip_prefix(b"-----BEGIN ").and_then(|l| l.strip_suffix(b"-----"));
            if let Some(label) = label {
                let block = self.block(label);
                if block.is_err() {
                    self.rest = &[];
                }
                return Some(block);
            }
        }
    }
}

/// Reads a header of a block.
fn header(line: &[u8]) -> Option<(String, String)> {
    let (name, value) = line.split_at(line.iter().position(|b| *b == b':')?);
    let text = |b: &[u8]| String::from_utf8_lossy(b).into_owned();
    Some((text(name), text(value.get(1..)?.trim_ascii())))
}

/// Largest number of blocks that are read of one file.
const MAX_BLOCKS: usize = 100_000;

/// Reads the blocks of a text up to one that is broken.
pub fn blocks(text: &[u8]) -> Vec<Block> {
    Blocks::new(text).map_while(Result::ok).take(MAX_BLOCKS).collect()
}

/// Reads the certificates of a text, in order, up to a block that is broken.
pub fn certificates(text: &[u8]) -> Vec<CertificateDer<'static>> {
    blocks(text).iter().filter_map(Block::certificate).collect()
}

/// Reads the certificates of a file that is to have some, and nothing that is broken. Skips blocks of other kinds.
///
/// # Errors
/// [`PemError`].
pub fn all_certificates(text: &[u8]) -> Result<Vec<CertificateDer<'static>>, PemError> {
    let mut found = Vec::new();
    for block in Blocks::new(text).take(MAX_BLOCKS) {
        let block = block?;
        if let Some(certificate) = block.certificate() {
            if super::verify::public_key(&certificate).is_none() {
                return Err(PemError::Content);
            }
            found.push(certificate);
        } else if block.is_certificate() {
            return Err(PemError::Content);
        }
    }
    if found.is_empty() { Err(PemError::None) } else { Ok(found) }
}

impl Block {
    fn is_certificate(&self) -> bool {
        matches!(self.label.as_str(), "CERTIFICATE" | "X509 CERTIFICATE" | "TRUSTED CERTIFICATE")
    }

    /// Returns the certificate in a block. `None` if it is of another kind, or broken.
    fn certificate(&self) -> Option<CertificateDer<'static>> {
        let der = first_element(&self.der).filter(|_| self.is_certificate())?;
        Some(CertificateDer::from(der.to_vec()))
    }
}

/// Returns a DER element at the start of `bytes`, its header included. In a `TRUSTED
/// CERTIFICATE` OpenSSL puts the permitted uses behind it.
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

/// Returns the block of the first private key of a text. As in OpenSSL, the text after that key does not
/// count.
fn key_block(text: &[u8]) -> Option<Block> {
    Blocks::new(text).map_while(Result::ok).take(MAX_BLOCKS).find(|b| b.key(&[]).is_some())
}

/// Returns `true` if the first private key of a text needs a password.
pub fn is_encrypted(text: &[u8]) -> bool {
    key_block(text).is_some_and(|block| block.is_encrypted())
}

/// Reads the first private key of a text. Tries `passwords` one after the other.
///
/// # Errors
/// [`KeyError`].
pub fn private_key(
    text: &[u8],
    passwords: &[Zeroizing<Vec<u8>>],
) -> Result<PrivateKeyDer<'static>, KeyError> {
    let block = key_block(text).ok_or(KeyError::None)?;
    if !block.is_encrypted() {
        return block.key(&block.der).ok_or(KeyError::None);
    }
    let cipher = block.cipher();
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
    /// Returns the value of `DEK-Info`, which keys in the older encrypted form have.
    fn cipher(&self) -> Option<&str> {
        self.headers.iter().find(|(name, _)| name == "DEK-Info").map(|(_, value)| value.as_str())
    }

    fn is_encrypted(&self) -> bool {
        self.label == "ENCRYPTED PRIVATE KEY" || self.cipher().is_some()
    }

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

    /// Returns DER as a key of the kind in the label of this block; `None` if the label is not one of a key.
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

/// Largest number of rounds of PBKDF2 that a file may ask for.
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
    // The padding repeats its own length (RFC 8018, appendix B.2). Anything else means that the password is
    // wrong.
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
        // A file could otherwise keep a reload busy for hours with a number of rounds.
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

/// Reads the pseudo-random function, which follows the salt and the rounds.
fn prf(mut rest: Der<'_>) -> Option<pbkdf2::Algorithm> {
    // RFC 8018, appendix A.2: HMAC with SHA-1 is the default, which DER leaves out.
    let mut prf = pbkdf2::PBKDF2_HMAC_SHA1;
    // The length of the key may come first. It is not needed, since the cipher gives it, too.
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

/// Decrypts a key with `DEK-Info: AES-256-CBC,HEX`. The cipher's key is made by MD5 of the password and the first bytes of the
/// vector.
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
    // This is OpenSSL's derivation with one round: each digest covers the one before it, the password and the
    // salt.
    while key.len() < cipher.key_len() {
        let digest = md5::Md5::new().chain_update(&last).chain_update(password).chain_update(salt).finalize();
        last = digest.to_vec();
        key.extend_from_slice(&last);
    }
    key.truncate(cipher.key_len());
    Ok(cipher.decrypt(&key, &iv, data))
}

/// Reads the passwords of a file, one a line (nginx: ssl_password_file).
pub fn passwords(text: &[u8]) -> Vec<Zeroizing<Vec<u8>>> {
    let lines = text.split(|b| *b == b'\n').map(|l| l.strip_suffix(b"\r").unwrap_or(l));
    lines.filter(|l| !l.is_empty()).map(|l| Zeroizing::new(l.to_vec())).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn read(text: &str) -> Result<Vec<String>, PemError> {
        Blocks::new(text.as_bytes())
            .map(|b| b.map(|b| format!("{}={}", b.label, String::from_utf8_lossy(&b.der))))
            .collect()
    }

    #[test]
    fn blocks_are_read_as_openssl_reads_them() {
        let block = "-----BEGIN A-----\nYWJj\n-----END A-----\n";
        let one = || Ok(vec!["A=abc".to_owned()]);
        let two = || Ok(vec!["A=abc".to_owned(), "A=abc".to_owned()]);
        for (text, wanted) in [
            (block.to_owned(), one()),
            (block.trim_end().to_owned(), one()),
            (block.replace('\n', "\r\n"), one()),
            (block.replace('\n', " \t\r\n"), one()),
            (format!("\u{feff}{block}\u{feff}{block}"), two()),
            (format!("text: x\n{block}more\n-----BEGIN x\n{block}-----END A-----"), two()),
            (block.replace("YWJj", "YW\nJj"), one()),
            (block.replace("YWJj", "Proc-Type: 4,ENCRYPTED\nDEK-Info: x\n\nYWJj"), one()),
            (format!(" {block}"), Ok(vec![])),
            (format!("x{block}"), Ok(vec![])),
            (block.replace("YWJj", "YW!j"), Err(PemError::Base64)),
            (block.replace("YWJj", "YWJ"), Err(PemError::Base64)),
            (block.replace("YWJj", "YW\n\nJj"), Err(PemError::Headers)),
            (block.replace("YWJj", "Foo: x\n\nYWJj"), Err(PemError::Headers)),
            (block.replace("YWJj", "Foo: x\nYWJj"), Err(PemError::Headers)),
            (block.replace("END A", "END B"), Err(PemError::End)),
            (block.replace("-----END A-----\n", ""), Err(PemError::End)),
            (format!("{block}{}", block.replace("YWJj", "YW!j")), Err(PemError::Base64)),
            (format!("-----BEGIN A-----\nYWJj\n{block}"), Err(PemError::Base64)),
            (String::new(), Ok(vec![])),
        ] {
            assert_eq!(read(&text), wanted, "{text:?}");
        }
        assert_eq!(all_certificates(b"").unwrap_err(), PemError::None);
        assert_eq!(all_certificates(block.as_bytes()).unwrap_err(), PemError::None);
        let junk = block.replace(" A-", " CERTIFICATE-");
        assert_eq!(all_certificates(junk.as_bytes()).unwrap_err(), PemError::Content);
        assert_eq!(blocks(format!("{block}{}", block.replace("YWJj", "!")).as_bytes()).len(), 1);
    }

    /// The authorities of a system are of many years and makers.
    #[test]
    fn authorities_of_the_system_can_be_read() {
        let Ok(text) = std::fs::read("/etc/ssl/certs/ca-certificates.crt") else { return };
        assert!(all_certificates(&text).expect("sound").len() > 50);
    }
}
