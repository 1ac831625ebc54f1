//! Files that directives name: certificates, keys, passwords, revocation lists.

use super::certified::bio_failed;
use crate::config::value::{Setting, first, once};
use crate::config::{Build, Context, Scope};
use crate::vars::Template;
use forebay_conf::error::Error;
use forebay_conf::tree::Directive;
use forebay_net::quic::HostKey;
use forebay_net::tls::der::{Der, INTEGER, SEQUENCE};
use forebay_net::tls::pem::{self, Blocks, PemError};
use forebay_net::tls::{crl, ocsp_message, sessions};
use std::sync::Arc;
use zeroize::Zeroizing;

/// File names with their positions in the configuration. They may contain variables.
#[derive(Clone, Debug, Default)]
pub struct FileNames(pub Vec<FileName>);

/// One file name with its position.
#[derive(Clone, Debug)]
pub struct FileName {
    /// Name as written.
    pub text: Vec<u8>,
    /// Name with its variables compiled.
    pub template: Template,
    /// Error without a message at the position of the name.
    pub place: Error,
}

impl FileName {
    /// Makes an error with this message at the position of the name.
    pub fn error(&self, message: String) -> Error {
        Error { message, ..self.place.clone() }
    }
}

impl<C: Context> Setting<C> for FileNames {
    fn take(previous: Option<Self>, d: &Directive, cx: &mut Scope<'_, C>) -> Result<Self, Error> {
        let mut names = previous.unwrap_or_default();
        let Some(word) = d.args.first() else { return Ok(names) };
        let template = if word.text.starts_with(b"data:") && !word.text.contains(&b'$') {
            Template::constant(&word.text)
        } else {
            cx.template(d, word)?
        };
        names.0.push(FileName { text: word.text.clone(), template, place: cx.error(d, "") });
        Ok(names)
    }
}

/// Passwords for encrypted private keys.
#[derive(Clone, Default)]
pub struct Passwords(pub Arc<Vec<Zeroizing<Vec<u8>>>>);

impl std::fmt::Debug for Passwords {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str("Passwords")
    }
}

fn read(d: &Directive, cx: &mut Build<'_>) -> Result<Arc<[u8]>, Error> {
    let path = cx.conf_path(first(d));
    match cx.files.read_shared(&path) {
        Ok((_, bytes)) => Ok(bytes),
        Err(e) => {
            let why = forebay_sys::errno::errno(&e);
            Err(cx.error(d, format!("open() \"{}\" failed ({why})", path.display())))
        }
    }
}

impl<C: Context> Setting<C> for Passwords {
    fn take(previous: Option<Self>, d: &Directive, cx: &mut Scope<'_, C>) -> Result<Self, Error> {
        once(&previous, d, cx)?;
        Ok(Passwords(Arc::new(pem::passwords(&read(d, cx)?))))
    }
}

/// Keys that encrypt session tickets; the contents of the files.
#[derive(Clone, Default)]
pub struct TicketKeys(pub Vec<Arc<Zeroizing<Vec<u8>>>>);

impl std::fmt::Debug for TicketKeys {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str("TicketKeys")
    }
}

impl<C: Context> Setting<C> for TicketKeys {
    fn take(previous: Option<Self>, d: &Directive, cx: &mut Scope<'_, C>) -> Result<Self, Error> {
        let mut keys = previous.unwrap_or_default();
        let bytes = read(d, cx)?;
        if sessions::TicketKey::new(&bytes).is_none() {
            let path = cx.conf_path(first(d));
            return Err(cx.error(d, format!("\"{}\" must be 48 or 80 bytes", path.display())));
        }
        keys.0.push(Arc::new(Zeroizing::new(bytes.to_vec())));
        Ok(keys)
    }
}

/// Secret of stateless resets and tokens over QUIC, from a file (nginx: quic_host_key).
#[derive(Clone, Debug, Default)]
pub struct HostKeyFile(pub Option<HostKey>);

impl<C: Context> Setting<C> for HostKeyFile {
    fn take(previous: Option<Self>, d: &Directive, cx: &mut Scope<'_, C>) -> Result<Self, Error> {
        once(&previous, d, cx)?;
        let secret = read(d, cx)?;
        if secret.is_empty() {
            let path = cx.conf_path(first(d));
            return Err(cx.error(d, format!("\"{}\" zero key size", path.display())));
        }
        Ok(HostKeyFile(Some(HostKey::new(&secret))))
    }
}

/// Certificates of a file.
#[derive(Clone, Debug, Default)]
pub struct PemFile(pub Arc<Vec<rustls::pki_types::CertificateDer<'static>>>);

impl<C: Context> Setting<C> for PemFile {
    fn take(previous: Option<Self>, d: &Directive, cx: &mut Scope<'_, C>) -> Result<Self, Error> {
        once(&previous, d, cx)?;
        if first(d).is_empty() {
            return Ok(PemFile::default());
        }
        let path = cx.conf_path(first(d));
        let failed = |what: String| format!("cannot load certificate \"{}\": {what}", path.display());
        let certificates = match cx.files.read(&path) {
            Ok((_, text)) => {
                pem::all_certificates(text).map_err(|e| format!("PEM_read_bio_X509() failed (SSL: {e})"))
            }
            Err(e) => Err(bio_failed(&path, &e)),
        };
        Ok(PemFile(Arc::new(certificates.map_err(|what| cx.error(d, failed(what)))?)))
    }
}

/// Revocation lists, DER.
#[derive(Clone, Debug, Default)]
pub struct Crl(pub Arc<Vec<Vec<u8>>>);

impl<C: Context> Setting<C> for Crl {
    fn take(previous: Option<Self>, d: &Directive, cx: &mut Scope<'_, C>) -> Result<Self, Error> {
        once(&previous, d, cx)?;
        if first(d).is_empty() {
            return Ok(Crl::default());
        }
        let path = cx.conf_path(first(d));
        let failed = |what: String| format!("cannot load CRL \"{}\": {what}", path.display());
        let lists = match cx.files.read(&path) {
            Ok((_, text)) => revocation_lists(text),
            Err(e) => Err(bio_failed(&path, &e)),
        };
        Ok(Crl(Arc::new(lists.map_err(|what| cx.error(d, failed(what)))?)))
    }
}

/// Reads revocation lists in PEM.
///
/// # Errors
/// In OpenSSL's words, if there is no list or one of them is broken.
fn revocation_lists(text: &[u8]) -> Result<Vec<Vec<u8>>, String> {
    let failed = |e: PemError| format!("PEM_read_bio_X509_CRL() failed (SSL: {e})");
    let mut lists = Vec::new();
    for block in Blocks::new(text) {
        let block = block.map_err(failed)?;
        if block.label != "X509 CRL" {
            continue;
        }
        // Skipping a broken list would accept certificates that it revokes.
        if !crl::is_list(&block.der) {
            return Err("PEM_read_bio_X509_CRL() failed (SSL: error:0688010A:asn1 encoding routines::nested asn1 error:\
                        Type=X509_CRL error:0488000D:PEM routines::ASN1 lib)"
                .to_owned());
        }
        lists.push(block.der.to_vec());
    }
    if lists.is_empty() { Err(failed(PemError::None)) } else { Ok(lists) }
}

/// Check of the parameters of Diffie-Hellman in a file (nginx: ssl_dhparam). The exchanges that they are for are not served, but a
/// file that nginx would refuse is a mistake.
#[derive(Clone, Debug, Default)]
pub struct DhFile;

impl<C: Context> Setting<C> for DhFile {
    fn take(previous: Option<Self>, d: &Directive, cx: &mut Scope<'_, C>) -> Result<Self, Error> {
        once(&previous, d, cx)?;
        check_dh_file(d, first(d), cx).map(|()| DhFile)
    }
}

/// Refuses a file without parameters of Diffie-Hellman. No name is no file.
pub(super) fn check_dh_file<C: Context>(
    d: &Directive,
    name: &[u8],
    cx: &mut Scope<'_, C>,
) -> Result<(), Error> {
    if name.is_empty() {
        return Ok(());
    }
    let path = cx.conf_path(name);
    let shown = path.display().to_string();
    let checked = match cx.files.read(&path) {
        Ok((_, text)) => {
            check_dh(text).map_err(|e| format!("PEM_read_bio_DHparams(\"{shown}\") failed (SSL: {e})"))
        }
        Err(e) => {
            let text = bio_failed(&path, &e);
            Err(text.replacen("BIO_new_file()", &format!("BIO_new_file(\"{shown}\")"), 1))
        }
    };
    checked.map_err(|what| cx.error(d, what))
}

/// Looks for `DHParameter` (PKCS #3) or `DomainParameters` (X9.42) in PEM.
fn check_dh(text: &[u8]) -> Result<(), String> {
    for block in Blocks::new(text) {
        let block = block.map_err(|e| e.to_string())?;
        if matches!(block.label.as_str(), "DH PARAMETERS" | "X9.42 DH PARAMETERS") {
            let mut numbers = Der(Der(&block.der).expect(SEQUENCE).unwrap_or_default());
            let sound =
                numbers.expect(INTEGER).is_some_and(|p| p.len() > 1) && numbers.expect(INTEGER).is_some();
            return if sound {
                Ok(())
            } else {
                Err("error:0688010A:asn1 encoding routines::nested asn1 error:Type=DHparams error:0488000D:PEM routines::ASN1 \
                     lib"
                .to_owned())
            };
        }
    }
    Err(format!("{}:Expecting: DH PARAMETERS", PemError::None))
}

/// Content of a DER file, empty without the directive.
#[derive(Clone, Debug, Default)]
pub struct DerFile(pub Arc<Vec<u8>>);

impl<C: Context> Setting<C> for DerFile {
    fn take(previous: Option<Self>, d: &Directive, cx: &mut Scope<'_, C>) -> Result<Self, Error> {
        once(&previous, d, cx)?;
        let path = cx.conf_path(first(d));
        match cx.files.read(&path) {
            Ok((_, bytes)) if !ocsp_message::is_response(bytes) => Err(cx.error(
                d,
                format!(
                    "d2i_OCSP_RESPONSE_bio(\"{}\") failed (SSL: error:0688010A:asn1 encoding routines::nested asn1 \
                     error:Type=OCSP_RESPONSE)",
                    path.display()
                ),
            )),
            Ok((_, bytes)) => Ok(DerFile(Arc::new(bytes.to_vec()))),
            Err(e) => {
                let text = bio_failed(&path, &e);
                let text =
                    text.replacen("BIO_new_file()", &format!("BIO_new_file(\"{}\")", path.display()), 1);
                Err(cx.error(d, text))
            }
        }
    }
}
