//! Certificates and keys for rustls.

use super::pem::{self, KeyError, PemError};
use super::rsa_pss::{self, Unusable};
use super::verify;
use rustls::client::danger::{HandshakeSignatureValid, ServerCertVerified, ServerCertVerifier};
use rustls::pki_types::{CertificateDer, ServerName, UnixTime};
use rustls::sign::CertifiedKey;
use rustls::{DigitallySignedStruct, SignatureScheme};
use zeroize::Zeroizing;

/// Reads a certificate and its key from PEM texts, each given with its name for messages.
///
/// # Errors
/// OpenSSL's message.
pub fn certified(
    (cert_name, cert): (&str, &[u8]),
    (key_name, key): (&str, &[u8]),
    passwords: &[Zeroizing<Vec<u8>>],
) -> Result<CertifiedKey, String> {
    let failed = |e: PemError| {
        // OpenSSL adds the label that it looked for only if it has found no block.
        let expecting = if e == PemError::None { ":Expecting: TRUSTED CERTIFICATE" } else { "" };
        format!(
            "cannot load certificate \"{cert_name}\": PEM_read_bio_X509_AUX() failed (SSL: {e}{expecting})"
        )
    };
    let chain = pem::all_certificates(cert).map_err(failed)?;
    let public =
        chain.first().and_then(|leaf| verify::public_key(leaf)).ok_or_else(|| failed(PemError::Content))?;
    let der = pem::private_key(key, passwords).map_err(|e| {
        let what = key_error(&e);
        format!("cannot load certificate key \"{key_name}\": PEM_read_bio_PrivateKey() failed (SSL: {what})")
    })?;
    let unusable = |what: &str| format!("cannot load certificate key \"{key_name}\": {what}");
    let mismatch = || {
        format!(
            "SSL_CTX_use_PrivateKey(\"{key_name}\") failed (SSL: error:05800074:x509 certificate routines::key \
             values mismatch)"
        )
    };
    let key = if rsa_pss::is_pss(&der) {
        rsa_pss::signing_key(&der, &public).map_err(|e| match e {
            Unusable::Mismatch => mismatch(),
            Unusable::Key => unusable("the RSA-PSS key is broken or has less than 2048 bits"),
            Unusable::Parameters => unusable("the parameters of the RSA-PSS key allow no signature of TLS"),
        })?
    } else {
        rustls::crypto::aws_lc_rs::sign::any_supported_type(&der).map_err(|e| unusable(&e.to_string()))?
    };
    // A key of another certificate would fail in each handshake, so the mistake is reported with the
    // configuration.
    if key.public_key().is_some_and(|k| k.as_ref() != public) {
        return Err(mismatch());
    }
    Ok(CertifiedKey::new(chain, super::sigalg::noting(key)))
}

/// Returns OpenSSL's text for a key that cannot be read.
fn key_error(e: &KeyError) -> &'static str {
    match e {
        KeyError::None | KeyError::Unsupported => {
            "error:1E08010C:DECODER routines::unsupported:No supported data to decode. Input type: PEM"
        }
        KeyError::NeedsPassword => "error:04800068:PEM routines::bad password read",
        KeyError::WrongPassword => {
            "error:1C800064:Provider routines::bad decrypt error:11800074:PKCS12 routines::pkcs12 \
             cipherfinal error:maybe wrong password"
        }
    }
}

/// Accepts any server certificate, whose trust is verified after the handshake. Signatures are checked here.
#[derive(Debug)]
pub struct VerifyLater;

impl ServerCertVerifier for VerifyLater {
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
        dss: &DigitallySignedStruct,
    ) -> Result<HandshakeSignatureValid, rustls::Error> {
        verify::handshake_signature(verify::Version::V12, message, cert, dss)
    }
    fn verify_tls13_signature(
        &self,
        message: &[u8],
        cert: &CertificateDer<'_>,
        dss: &DigitallySignedStruct,
    ) -> Result<HandshakeSignatureValid, rustls::Error> {
        verify::handshake_signature(verify::Version::V13, message, cert, dss)
    }
    fn supported_verify_schemes(&self) -> Vec<SignatureScheme> {
        verify::schemes()
    }
}
