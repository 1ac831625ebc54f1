use super::*;

#[test]
fn stars_stand_for_one_label() {
    assert!(matches_name("example.com", "EXAMPLE.com"));
    assert!(matches_name("*.example.com", "a.example.com"));
    assert!(!matches_name("*.example.com", "a.b.example.com"));
    assert!(!matches_name("*.example.com", "example.com"));
    assert!(!matches_name("*.com", "example.com"));
    assert!(!matches_name("*.example.com", ".example.com"));
}

/// A client that shows a certificate, signs by the first algorithm and claims the second.
#[derive(Debug)]
struct Wilful(SignatureScheme, SignatureScheme, Arc<rustls::sign::CertifiedKey>);

#[derive(Debug)]
struct Claimed(SignatureScheme, Box<dyn rustls::sign::Signer>);

impl rustls::sign::Signer for Claimed {
    fn sign(&self, message: &[u8]) -> Result<Vec<u8>, Error> {
        self.1.sign(message)
    }
    fn scheme(&self) -> SignatureScheme {
        self.0
    }
}

impl rustls::sign::SigningKey for Wilful {
    fn choose_scheme(&self, _: &[SignatureScheme]) -> Option<Box<dyn rustls::sign::Signer>> {
        let signer = self.2.key.choose_scheme(&[self.0])?;
        Some(Box::new(Claimed(self.1, signer)))
    }
    fn algorithm(&self) -> rustls::SignatureAlgorithm {
        self.2.key.algorithm()
    }
}

impl rustls::client::ResolvesClientCert for Wilful {
    fn resolve(&self, _: &[&[u8]], _: &[SignatureScheme]) -> Option<Arc<rustls::sign::CertifiedKey>> {
        let key = Arc::new(Wilful(self.0, self.1, self.2.clone()));
        Some(Arc::new(rustls::sign::CertifiedKey::new(self.2.cert.clone(), key)))
    }
    fn has_certs(&self) -> bool {
        true
    }
}

/// Makes a certificate; `None`: openssl is missing.
fn made(key: &str) -> Option<Arc<rustls::sign::CertifiedKey>> {
    let (crt, key) = super::super::made::in_pem(key, "")?;
    Some(Arc::new(super::super::certified::certified(("crt", &crt), ("key", &key), &[]).unwrap()))
}

/// Result of a handshake for the server, whose certificate is the client's.
fn shaken(version: &'static rustls::SupportedProtocolVersion, client: Wilful) -> Result<(), Error> {
    let certified = client.2.clone();
    let trust = Trust::new(certified.cert.clone(), Vec::new(), Vec::new(), 1);
    let provider = Arc::new(rustls::crypto::aws_lc_rs::default_provider());
    let server = rustls::ServerConfig::builder_with_provider(provider.clone())
        .with_protocol_versions(&[version])
        .unwrap()
        .with_client_cert_verifier(trust.asker())
        .with_cert_resolver(Arc::new(rustls::sign::SingleCertAndKey::from(
            rustls::sign::CertifiedKey::clone(&certified),
        )));
    let client = rustls::ClientConfig::builder_with_provider(provider)
        .with_protocol_versions(&[version])
        .unwrap()
        .dangerous()
        .with_custom_certificate_verifier(Arc::new(super::super::certified::VerifyLater))
        .with_client_cert_resolver(Arc::new(client));
    let name = rustls::pki_types::ServerName::try_from("h").unwrap();
    let mut server = rustls::ServerConnection::new(Arc::new(server)).unwrap();
    let mut client = rustls::ClientConnection::new(Arc::new(client), name).unwrap();
    let mut outcome = Ok(());
    for _ in 0..4 {
        let mut bytes = Vec::new();
        while client.wants_write() {
            client.write_tls(&mut bytes).unwrap();
        }
        let mut rest = bytes.as_slice();
        while !rest.is_empty() && outcome.is_ok() {
            server.read_tls(&mut rest).unwrap();
            outcome = server.process_new_packets().map(|_| ());
        }
        let mut bytes = Vec::new();
        while server.wants_write() {
            server.write_tls(&mut bytes).unwrap();
        }
        let mut rest = bytes.as_slice();
        while !rest.is_empty() {
            client.read_tls(&mut rest).unwrap();
            let _ = client.process_new_packets();
        }
    }
    assert_eq!(server.is_handshaking(), outcome.is_err());
    outcome
}

/// TLS 1.3 has no handshake signed by RSASSA-PKCS1-v1_5 (RFC 8446, section 4.2.3), TLS 1.2 has.
#[test]
fn handshakes_are_signed_by_what_the_version_knows() {
    let Some(key) = made("rsa:2048") else { return };
    for (version, scheme, sound) in [
        (&rustls::version::TLS13, SignatureScheme::RSA_PKCS1_SHA256, false),
        (&rustls::version::TLS13, SignatureScheme::RSA_PSS_SHA256, true),
        (&rustls::version::TLS12, SignatureScheme::RSA_PKCS1_SHA256, true),
    ] {
        let outcome = shaken(version, Wilful(scheme, scheme, key.clone()));
        assert_eq!(outcome.is_ok(), sound, "{version:?} {scheme:?}: {outcome:?}");
    }
}

/// An algorithm that the key cannot be used with is another error than a wrong signature (RFC 8446, section 4.4.3).
#[test]
fn algorithms_for_other_keys_are_illegal() {
    use SignatureScheme as S;
    let Some(key) = made(super::super::made::P256) else { return };
    let own = S::ECDSA_NISTP256_SHA256;
    for (version, claimed, sound) in [
        (&rustls::version::TLS13, own, true),
        (&rustls::version::TLS13, S::ECDSA_NISTP384_SHA384, false),
        (&rustls::version::TLS13, S::ED25519, false),
        (&rustls::version::TLS13, S::RSA_PSS_SHA256, false),
        (&rustls::version::TLS12, S::RSA_PKCS1_SHA256, false),
    ] {
        let outcome = shaken(version, Wilful(own, claimed, key.clone()));
        let illegal = matches!(outcome, Err(Error::PeerMisbehaved(_)));
        assert_eq!((outcome.is_ok(), illegal), (sound, !sound), "{version:?} {claimed:?}: {outcome:?}");
    }
}
