//! Certificates with their keys, from files or from inline data (`data:`).

use super::presented::{Loaded, id};
use crate::config::Build;
use forebay_net::tls::certified::certified;
use forebay_net::tls::pem;
use forebay_sys::files;
use rustls::sign::CertifiedKey;
use std::path::Path;
use std::sync::Arc;
use zeroize::Zeroizing;

/// Returns the PEM text of a name: its inline data, or the contents of the file.
pub(super) fn text_of(
    name: &[u8],
    read: impl FnOnce(&[u8]) -> Result<Vec<u8>, String>,
) -> Result<Zeroizing<Vec<u8>>, String> {
    match name.strip_prefix(b"data:".as_slice()) {
        Some(text) => Ok(Zeroizing::new(text.to_vec())),
        None => read(name).map(Zeroizing::new),
    }
}

/// Removes OpenSSL's prefix for a plain file.
pub(super) fn without_store(key: &[u8]) -> &[u8] {
    key.strip_prefix(b"store:file:".as_slice()).unwrap_or(key)
}

/// Returns the name of a certificate for messages. Inline data may be secret and is left out.
pub(super) fn shown(name: &[u8], path: &Path) -> String {
    if name.starts_with(b"data:") { "data:".to_owned() } else { path.display().to_string() }
}

/// Returns `true` if both certificate and key are inline data.
pub(super) fn is_inline((cert, key): &(Vec<u8>, Vec<u8>)) -> bool {
    cert.starts_with(b"data:") && key.starts_with(b"data:")
}

/// Reads a file of a certificate or key. `what` names it in the error.
pub(super) fn read_file(name: &[u8], what: &str, cx: &mut Build<'_>) -> Result<Vec<u8>, String> {
    let path = cx.conf_path(name);
    let failed =
        |e: &std::io::Error| format!("cannot load {what} \"{}\": {}", path.display(), bio_failed(&path, e));
    cx.files.read(&path).map(|(_, bytes)| bytes.to_vec()).map_err(|e| failed(&e))
}

/// Loads certificate and key by the values of their names, relative to `base`.
///
/// # Errors
/// The text for the error log.
pub(super) fn certified_files(
    files: &(Vec<u8>, Vec<u8>),
    base: &Path,
    passwords: &[Zeroizing<Vec<u8>>],
    cache: Option<&Loaded>,
) -> Result<Arc<CertifiedKey>, String> {
    let (cert, key) = (files.0.as_slice(), without_store(&files.1));
    let id = id(files);
    if let Some(k) = cache.and_then(|c| c.get(&id)) {
        return Ok(k);
    }
    let path = |n: &[u8]| base.join(<std::ffi::OsStr as std::os::unix::ffi::OsStrExt>::from_bytes(n));
    let read = |n: &[u8], what: &str| {
        let failed = |e: std::io::Error| {
            format!("cannot load {what} \"{}\": {}", path(n).display(), bio_failed(&path(n), &e))
        };
        files::read_file(&path(n), files::MAX_WHOLE).map_err(failed)
    };
    let cert_pem = text_of(cert, |n| read(n, "certificate"))?;
    let key_pem = text_of(key, |n| read(n, "certificate key"))?;
    let names = (shown(cert, &path(cert)), shown(key, &path(key)));
    let made = Arc::new(certified((&names.0, &cert_pem), (&names.1, &key_pem), passwords)?);
    // A key that needs a password stays out of the cache, as in nginx.
    if let Some(c) = cache.filter(|_| !pem::is_encrypted(&key_pem)) {
        c.put(id, made.clone());
    }
    Ok(made)
}

/// Returns OpenSSL's error text for a file that cannot be opened.
pub(super) fn bio_failed(path: &Path, e: &std::io::Error) -> String {
    let path = path.display();
    let Some(code) = e.raw_os_error() else { return format!("BIO_new_file() failed ({e}: {path})") };
    let text = forebay_sys::errno::strerror(code);
    let tail = if code == 2 { " error:10000080:BIO routines::no such file" } else { "" };
    format!(
        "BIO_new_file() failed (SSL: error:8{code:07X}:system library::{text}:calling fopen({path}, r){tail})"
    )
}
