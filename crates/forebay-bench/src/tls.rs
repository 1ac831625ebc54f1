//! TLS of the client.

use crate::Error;
use crate::load::Protocol;
use rustls::client::danger::{HandshakeSignatureValid, ServerCertVerified, ServerCertVerifier};
use rustls::crypto::{CryptoProvider, aws_lc_rs, verify_tls12_signature, verify_tls13_signature};
use rustls::pki_types::{CertificateDer, ServerName, UnixTime, pem::PemObject};
use rustls::{ClientConfig, DigitallySignedStruct, RootCertStore, SignatureScheme};
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

/// Takes any certificate (`--insecure`); signatures are still checked, as their cost belongs to a handshake.
#[derive(Debug)]
struct Anyone(CryptoProvider);

impl ServerCertVerifier for Anyone {
    fn verify_server_cert(
        &self,
        _: &CertificateDer<'_>,
        _: &[CertificateDer<'_>],
        _: &ServerName<'_>,
        _: &[u8],
        _: UnixTime,
    ) -> Result<ServerCertVerified, rustls::Error> {
        Ok(ServerCertVerified::assertion())
    }

    fn verify_tls12_signature(
        &self,
        message: &[u8],
        cert: &CertificateDer<'_>,
        signature: &DigitallySignedStruct,
    ) -> Result<HandshakeSignatureValid, rustls::Error> {
        verify_tls12_signature(message, cert, signature, &self.0.signature_verification_algorithms)
    }

    fn verify_tls13_signature(
        &self,
        message: &[u8],
        cert: &CertificateDer<'_>,
        signature: &DigitallySignedStruct,
    ) -> Result<HandshakeSignatureValid, rustls::Error> {
        verify_tls13_signature(message, cert, signature, &self.0.signature_verification_algorithms)
    }

    fn supported_verify_schemes(&self) -> Vec<SignatureScheme> {
        self.0.signature_verification_algorithms.supported_schemes()
    }
}

/// Which certificates are believed.
#[derive(Clone, Debug, Default)]
pub enum Trust<'a> {
    /// Those of the system.
    #[default]
    System,
    /// Those of a PEM file.
    File(&'a Path),
    /// All.
    Anyone,
}

/// A configuration for `protocol`.
///
/// # Errors
/// No certificates to believe.
pub fn config(trust: &Trust<'_>, protocol: Protocol) -> Result<Arc<ClientConfig>, Error> {
    let provider = aws_lc_rs::default_provider();
    let builder = ClientConfig::builder_with_provider(Arc::new(provider.clone()))
        .with_safe_default_protocol_versions()
        .map_err(|e| Error::Usage(e.to_string()))?;
    let mut config = match trust {
        Trust::Anyone => builder
            .dangerous()
            .with_custom_certificate_verifier(Arc::new(Anyone(provider)))
            .with_no_client_auth(),
        Trust::System => {
            let mut roots = RootCertStore::empty();
            roots.add_parsable_certificates(rustls_native_certs::load_native_certs().certs);
            builder.with_root_certificates(roots).with_no_client_auth()
        }
        Trust::File(path) => {
            let bad = |e: String| Error::Usage(format!("{}: {e}", path.display()));
            let mut roots = RootCertStore::empty();
            for cert in CertificateDer::pem_file_iter(path).map_err(|e| bad(e.to_string()))? {
                roots.add(cert.map_err(|e| bad(e.to_string()))?).map_err(|e| bad(e.to_string()))?;
            }
            builder.with_root_certificates(roots).with_no_client_auth()
        }
    };
    config.alpn_protocols =
        vec![if protocol == Protocol::Http2 { b"h2".to_vec() } else { b"http/1.1".to_vec() }];
    Ok(Arc::new(config))
}
