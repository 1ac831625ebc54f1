//! Certificates and private keys from PEM text (RFC 7468), with passwords: PKCS#8 (RFC 5958, RFC 8018) and
//! OpenSSL's older form (`Proc-Type: 4,ENCRYPTED`).

use super::der::Der;
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
    /// What stands behind `BEGIN`.
    pub label: String,
    headers: Vec<(String, String)>,
    /// Contents.
    pub der: Zeroizing<Vec<u8>>,
}

/// Label, headers and body of a block whose end has not come.
type Open = (String, Vec<(String, String)>, Zeroizing<Vec<u8>>);

/// Most blocks that are read of one file.
const MAX_BLOCKS: usize = 100_000;

/// All blocks of a text; what stands between them is passed over, and so is a block that is not sound.
pub fn blocks(text: &[u8]) -> Vec<Block> {
    let mut found = Vec::new();
    let mut open: Option<Open> = None;
    for line in text.split(|b| *b == b'\n') {
        let line = line.trim_ascii();
        if let Some(label) = line.strip_prefix(b"-----BEGIN ").and_then(|l| l.strip_suffix(b"-----")) {
            open = Some((String::from_utf8_lossy(label).into_owned(), Vec::new(), Zeroizing::default()));
        } else if line.starts_with(b"-----END ") {
            let Some((label, headers, body)) = open.take() else { continue };
            if let Ok(der) = base64::engine::general_purpose::STANDARD.decode(body.as_slice()) {
                found.push(Block { label, headers, der: Zeroizing::new(der) });
            }
            if found.len() >= MAX_BLOCKS {
                break;
            }
        } else if let Some((_, headers, body)) = &mut open {
            match line.split(|b| *b == b':').next() {
                Some(name) if name.len() < line.len() => {
                    let value = line.get(name.len() + 1..).unwrap_or_default().trim_ascii();
                    let text = |b: &[u8]| String::from_utf8_lossy(b).into_owned();
                    headers.push((text(name), text(value)));
                }
                _ => body.extend_from_slice(line),
            }
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

/// Why there is no key.
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
    for block in blocks(text) {
        let plain = |der: &[u8]| match block.label.as_str() {
            "PRIVATE KEY" | "ENCRYPTED PRIVATE KEY" => Some(PrivateKeyDer::Pkcs8(der.to_vec().into())),
            "RSA PRIVATE KEY" => Some(PrivateKeyDer::Pkcs1(der.to_vec().into())),
            "EC PRIVATE KEY" => Some(PrivateKeyDer::Sec1(der.to_vec().into())),
            _ => None,
        };
        let cipher = block.headers.iter().find(|(name, _)| name == "DEK-Info").map(|(_, v)| v.as_str());
        let encrypted = block.label == "ENCRYPTED PRIVATE KEY";
        if !encrypted && cipher.is_none() {
            match plain(&block.der) {
                Some(key) => return Ok(key),
                None => continue,
            }
        }
        if plain(&[]).is_none() {
            continue;
        }
        if passwords.is_empty() {
            return Err(KeyError::NeedsPassword);
        }
        for password in passwords {
            let opened = match cipher {
                Some(info) => open_old(&block.der, info, password)?,
                None => open_pkcs8(&block.der, password)?,
            };
            if let Some(key) = opened.as_deref().filter(|der| sequence(der)).and_then(|der| plain(der)) {
                return Ok(key);
            }
        }
        return Err(KeyError::WrongPassword);
    }
    Err(KeyError::None)
}

/// Whether the bytes are one DER sequence, as every key is: a wrong password that leaves sound padding does not
/// leave that.
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

/// What encrypts, by the length of its key in bytes.
enum Cipher {
    Aes(usize),
    Des3,
}

impl Cipher {
    fn key_len(&self) -> usize {
        match self {
            Cipher::Aes(n) => *n,
            Cipher::Des3 => 24,
        }
    }

    /// Takes the padding off too; `None`: the key is wrong.
    fn decrypt(&self, key: &[u8], iv: &[u8], data: &[u8]) -> Option<Zeroizing<Vec<u8>>> {
        match self {
            Cipher::Aes(n) => {
                let algorithm: &Algorithm = match n {
                    16 => &AES_128,
                    24 => &AES_192,
                    _ => &AES_256,
                };
                let key = UnboundCipherKey::new(algorithm, key).ok()?;
                let key = PaddedBlockDecryptingKey::cbc_pkcs7(key).ok()?;
                let context = DecryptionContext::Iv128(<[u8; 16]>::try_from(iv).ok()?.into());
                let mut data = Zeroizing::new(data.to_vec());
                let n = key.decrypt(&mut data, context).ok()?.len();
                data.truncate(n);
                Some(data)
            }
            Cipher::Des3 => {
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
        }
    }
}

type Opened = Result<Option<Zeroizing<Vec<u8>>>, KeyError>;

fn open_pkcs8(der: &[u8], password: &[u8]) -> Opened {
    let parsed = (|| {
        let mut outer = Der(Der(der).expect(0x30)?);
        let mut scheme = Der(outer.expect(0x30)?);
        let data = outer.expect(4)?;
        if scheme.expect(6)? != PBES2 {
            return None;
        }
        let mut parameters = Der(scheme.expect(0x30)?);
        let mut derivation = Der(parameters.expect(0x30)?);
        let mut encryption = Der(parameters.expect(0x30)?);
        if derivation.expect(6)? != PBKDF2 {
            return None;
        }
        let mut derivation = Der(derivation.expect(0x30)?);
        let salt = derivation.expect(4)?;
        let rounds = derivation.number().filter(|n| *n <= MAX_ROUNDS).and_then(NonZeroU32::new)?;
        let mut prf = pbkdf2::PBKDF2_HMAC_SHA1;
        while let Some((tag, contents)) = derivation.next() {
            if tag == 0x30 {
                prf = match Der(contents).expect(6)?.strip_prefix(HMAC)? {
                    [7] => pbkdf2::PBKDF2_HMAC_SHA1,
                    [9] => pbkdf2::PBKDF2_HMAC_SHA256,
                    [10] => pbkdf2::PBKDF2_HMAC_SHA384,
                    [11] => pbkdf2::PBKDF2_HMAC_SHA512,
                    _ => return None,
                };
            }
        }
        let oid = encryption.expect(6)?;
        let cipher = match oid.strip_prefix(AES) {
            Some([2]) => Cipher::Aes(16),
            Some([22]) => Cipher::Aes(24),
            Some([42]) => Cipher::Aes(32),
            _ if oid == DES3 => Cipher::Des3,
            _ => return None,
        };
        Some((salt, rounds, prf, cipher, encryption.expect(4)?, data))
    })();
    let (salt, rounds, prf, cipher, iv, data) = parsed.ok_or(KeyError::Unsupported)?;
    let mut key = Zeroizing::new(vec![0; cipher.key_len()]);
    pbkdf2::derive(prf, rounds, salt, password, &mut key);
    Ok(cipher.decrypt(&key, iv, data))
}

/// `DEK-Info: AES-256-CBC,HEX`: the key is made by MD5 of the password and the first bytes of the vector.
fn open_old(data: &[u8], info: &str, password: &[u8]) -> Opened {
    use md5::Digest;
    let (name, iv) = info.split_once(',').ok_or(KeyError::Unsupported)?;
    let cipher = match name.trim() {
        "AES-128-CBC" => Cipher::Aes(16),
        "AES-192-CBC" => Cipher::Aes(24),
        "AES-256-CBC" => Cipher::Aes(32),
        "DES-EDE3-CBC" => Cipher::Des3,
        _ => return Err(KeyError::Unsupported),
    };
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
