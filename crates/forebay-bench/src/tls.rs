//! TLS of the client.

use crate::Error;
use crate::load::Protocol;
use rustls::client::danger::{HandshakeSignatureValid, ServerCertVerified, ServerCertVerifier};
use rustls::client::{WebPkiServerVerifier, verify_server_name};
use rustls::crypto::{CryptoProvider, aws_lc_rs, verify_tls12_signature, verify_tls13_signature};
use rustls::pki_types::{CertificateDer, ServerName, UnixTime, pem::PemObject};
use rustls::server::ParsedCertificate;
use rustls::{CertificateError, ClientConfig, DigitallySignedStruct, RootCertStore, SignatureScheme};
use std::path::Path;
use std::process::{Command, Stdio};
use std::sync::Arc;

/// Keys of a certificate.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Kind {
    /// RSA, 2048 bits
    Rsa,
    /// ECDSA with P-256
    Ecdsa,
}

/// Makes a certificate for `localhost` that is good for 30 days, with the openssl program.
///
/// # Errors
/// There is no such program, or it fails.
pub fn self_signed(kind: Kind, certificate: &Path, key: &Path) -> Result<(), Error> {
    let kind: &[&str] = match kind {
        Kind::Rsa => &["-newkey", "rsa:2048"],
        Kind::Ecdsa => &["-newkey", "ec", "-pkeyopt", "ec_paramgen_curve:prime256v1"],
    };
    let status = Command::new("openssl")
        .args(["req", "-x509", "-nodes", "-days", "30", "-subj", "/CN=localhost"])
        .args(["-addext", "subjectAltName=DNS:localhost"])
        .args(kind)
        .arg("-keyout")
        .arg(key)
        .arg("-out")
        .arg(certificate)
        .stderr(Stdio::null())
        .status()
        .map_err(Error::io("openssl, which makes the certificates"))?;
    if status.success() { Ok(()) } else { Err(Error::Usage("openssl could not make a certificate".into())) }
}

/// Judges servers' certificates where rustls alone would not do. Signatures are checked in any case, as their cost belongs to a
/// handshake.
#[derive(Debug)]
struct Verifier {
    provider: CryptoProvider,
    /// `--ca`; `None`: any certificate will do (`--insecure`).
    named: Option<Named>,
}

/// Trust in a file: in the certificates that its own have signed, and in these themselves. A self-signed one is most often
/// marked as an authority (`openssl req -x509`), which none may be that a server shows.
#[derive(Debug)]
struct Named {
    roots: Arc<WebPkiServerVerifier>,
    certificates: Vec<CertificateDer<'static>>,
}

impl ServerCertVerifier for Verifier {
    fn verify_server_cert(
        &self,
        cert: &CertificateDer<'_>,
        intermediates: &[CertificateDer<'_>],
        name: &ServerName<'_>,
        ocsp: &[u8],
        now: UnixTime,
    ) -> Result<ServerCertVerified, rustls::Error> {
        let Some(named) = &self.named else { return Ok(ServerCertVerified::assertion()) };
        let result = named.roots.verify_server_cert(cert, intermediates, name, ocsp, now);
        match &result {
            // Found after its dates were.
            Err(rustls::Error::InvalidCertificate(why))
                if is_authority(why) && named.certificates.contains(cert) =>
            {
                verify_server_name(&ParsedCertificate::try_from(cert)?, name)?;
                Ok(ServerCertVerified::assertion())
            }
            _ => result,
        }
    }

    fn verify_tls12_signature(
        &self,
        message: &[u8],
        cert: &CertificateDer<'_>,
        signature: &DigitallySignedStruct,
    ) -> Result<HandshakeSignatureValid, rustls::Error> {
        verify_tls12_signature(message, cert, signature, &self.provider.signature_verification_algorithms)
    }

    fn verify_tls13_signature(
        &self,
        message: &[u8],
        cert: &CertificateDer<'_>,
        signature: &DigitallySignedStruct,
    ) -> Result<HandshakeSignatureValid, rustls::Error> {
        verify_tls13_signature(message, cert, signature, &self.provider.signature_verification_algorithms)
    }

    fn supported_verify_schemes(&self) -> Vec<SignatureScheme> {
        self.provider.signature_verification_algorithms.supported_schemes()
    }
}

impl Named {
    /// Reads the certificates of a PEM file.
    fn read(path: &Path, provider: &CryptoProvider) -> Result<Named, Error> {
        let bad = |e: &dyn std::fmt::Display| Error::Usage(format!("{}: {e}", path.display()));
        let certificates = CertificateDer::pem_file_iter(path)
            .and_then(Iterator::collect::<Result<Vec<_>, _>>)
            .map_err(|e| bad(&e))?;
        if certificates.is_empty() {
            return Err(bad(&"no certificate in it"));
        }
        let mut roots = RootCertStore::empty();
        for cert in &certificates {
            roots.add(cert.clone()).map_err(|e| bad(&e))?;
        }
        let roots = WebPkiServerVerifier::builder_with_provider(Arc::new(roots), Arc::new(provider.clone()));
        Ok(Named { roots: roots.build().map_err(|e| bad(&e))?, certificates })
    }
}

/// Returns `true` if a certificate was refused only for being an authority's. rustls has no error of its own for that.
fn is_authority(why: &CertificateError) -> bool {
    matches!(why, CertificateError::Other(e) if e.to_string().contains("CaUsedAsEndEntity"))
}

/// Certificates that are trusted.
#[derive(Clone, Debug, Default)]
pub enum Trust<'a> {
    /// Certificates of the system.
    #[default]
    System,
    /// Certificates of a PEM file.
    File(&'a Path),
    /// All.
    Anyone,
}

/// Creates a configuration for `protocol`.
///
/// # Errors
/// No certificates to believe.
pub fn config(trust: &Trust<'_>, protocol: Protocol) -> Result<Arc<ClientConfig>, Error> {
    let provider = aws_lc_rs::default_provider();
    let builder = ClientConfig::builder_with_provider(Arc::new(provider.clone()));
    let builder = match protocol {
        Protocol::Http3 => builder.with_protocol_versions(&[&rustls::version::TLS13]),
        _ => builder.with_safe_default_protocol_versions(),
    };
    let builder = builder.map_err(|e| Error::Usage(e.to_string()))?;
    let named = match trust {
        Trust::System => None,
        Trust::Anyone => Some(None),
        Trust::File(path) => Some(Some(Named::read(path, &provider)?)),
    };
    let mut config = match named {
        None => {
            let mut roots = RootCertStore::empty();
            roots.add_parsable_certificates(rustls_native_certs::load_native_certs().certs);
            builder.with_root_certificates(roots).with_no_client_auth()
        }
        Some(named) => builder
            .dangerous()
            .with_custom_certificate_verifier(Arc::new(Verifier { provider, named }))
            .with_no_client_auth(),
    };
    config.alpn_protocols = match protocol {
        Protocol::Http2 => vec![b"h2".to_vec()],
        Protocol::Http3 => vec![b"h3".to_vec()],
        Protocol::Http1 | Protocol::Http10 => vec![b"http/1.1".to_vec()],
        Protocol::Raw => Vec::new(),
    };
    Ok(Arc::new(config))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_file_vouches_for_what_it_names() {
        let dir = tempfile::tempdir().expect("temporary");
        let file = |name: &str| dir.path().join(name);
        // Marked as authorities, which rustls alone never takes from a server.
        for name in ["a", "b"] {
            self_signed(Kind::Ecdsa, &file(name), &file(&format!("{name}.key"))).expect("openssl");
        }
        let cert = |name: &str| CertificateDer::from_pem_file(file(name)).expect("certificate");
        let provider = aws_lc_rs::default_provider();
        let named = Named::read(&file("a"), &provider).expect("a certificate");
        let verifier = Verifier { provider, named: Some(named) };
        let ask = |shown: &str, name: &str, now: UnixTime| {
            let name = ServerName::try_from(name.to_owned()).expect("name");
            verifier.verify_server_cert(&cert(shown), &[], &name, &[], now).is_ok()
        };
        let now = UnixTime::now();
        let late = UnixTime::since_unix_epoch(std::time::Duration::from_secs(now.as_secs() + 60 * 86_400));
        assert!(ask("a", "localhost", now));
        assert!(
            !ask("a", "other.example", now) && !ask("b", "localhost", now) && !ask("a", "localhost", late)
        );
        std::fs::write(file("empty"), "nothing").expect("write");
        let empty = config(&Trust::File(&file("empty")), Protocol::Http1);
        assert!(empty.is_err_and(|e| e.to_string().contains("no certificate in it")));
    }
}
