//! TLS of both sides, by rustls: the client takes any certificate.

use crate::Result;
use rustls::client::danger::{HandshakeSignatureValid, ServerCertVerified, ServerCertVerifier};
use rustls::crypto::{CryptoProvider, aws_lc_rs};
use rustls::pki_types::pem::PemObject;
use rustls::pki_types::{CertificateDer, PrivateKeyDer, ServerName, UnixTime};
use rustls::{
    CipherSuite, ClientConfig, DigitallySignedStruct, Error, ServerConfig, SignatureScheme, version,
};
#[allow(deprecated, reason = "it is the version of rustls that s2n-quic is compiled with")]
use s2n_quic::provider::tls::rustls::rustls;
use std::sync::Arc;

#[derive(Debug)]
struct Any(Arc<CryptoProvider>);

impl ServerCertVerifier for Any {
    fn verify_server_cert(
        &self,
        _: &CertificateDer<'_>,
        _: &[CertificateDer<'_>],
        _: &ServerName<'_>,
        _: &[u8],
        _: UnixTime,
    ) -> std::result::Result<ServerCertVerified, Error> {
        Ok(ServerCertVerified::assertion())
    }

    fn verify_tls12_signature(
        &self,
        _: &[u8],
        _: &CertificateDer<'_>,
        _: &DigitallySignedStruct,
    ) -> std::result::Result<HandshakeSignatureValid, Error> {
        Err(Error::General("TLS 1.2".into()))
    }

    fn verify_tls13_signature(
        &self,
        message: &[u8],
        certificate: &CertificateDer<'_>,
        signed: &DigitallySignedStruct,
    ) -> std::result::Result<HandshakeSignatureValid, Error> {
        rustls::crypto::verify_tls13_signature(
            message,
            certificate,
            signed,
            &self.0.signature_verification_algorithms,
        )
    }

    fn supported_verify_schemes(&self) -> Vec<SignatureScheme> {
        self.0.signature_verification_algorithms.supported_schemes()
    }
}

fn provider(is_chacha20: bool) -> Arc<CryptoProvider> {
    let mut provider = aws_lc_rs::default_provider();
    if is_chacha20 {
        provider.cipher_suites.retain(|suite| suite.suite() == CipherSuite::TLS13_CHACHA20_POLY1305_SHA256);
    }
    provider.into()
}

/// Returns the client's configuration.
pub fn client(is_chacha20: bool) -> Result<ClientConfig> {
    let provider = provider(is_chacha20);
    let mut config = ClientConfig::builder_with_provider(provider.clone())
        .with_protocol_versions(&[&version::TLS13])?
        .dangerous()
        .with_custom_certificate_verifier(Arc::new(Any(provider)))
        .with_no_client_auth();
    config.alpn_protocols = vec![b"h3".to_vec()];
    Ok(config)
}

/// Returns the server's configuration.
pub fn server(dir: &str, is_large: bool) -> Result<ServerConfig> {
    let certificate = format!("{dir}/{}", if is_large { "large.pem" } else { "cert.pem" });
    let chain = CertificateDer::pem_file_iter(certificate)?.collect::<std::result::Result<Vec<_>, _>>()?;
    let key = PrivateKeyDer::from_pem_file(format!("{dir}/key.pem"))?;
    let mut config = ServerConfig::builder_with_provider(provider(false))
        .with_protocol_versions(&[&version::TLS13])?
        .with_no_client_auth()
        .with_single_cert(chain, key)?;
    config.alpn_protocols = vec![b"h3".to_vec()];
    Ok(config)
}
