//! Certificates by which the server proves control of a name to an authority: TLS-ALPN-01 of ACME (RFC 8737). A handshake that
//! offers no other protocol than `acme-tls/1` gets the one for its server name.

use super::presented::Presented;
use forebay_net::tls::hello::Hello;
use forebay_sys::sync::{read, write};
use rustls::ServerConfig;
use rustls::sign::CertifiedKey;
use std::collections::HashMap;
use std::sync::{Arc, LazyLock, RwLock};

/// Protocol in the authority's handshake.
const PROTOCOL: &[u8] = b"acme-tls/1";

/// Configurations of handshakes by server name.
static PROOFS: LazyLock<RwLock<HashMap<Vec<u8>, Arc<ServerConfig>>>> = LazyLock::new(RwLock::default);

/// Proof that is withdrawn when this is dropped.
#[derive(Debug)]
pub struct Published(Vec<u8>);

impl Drop for Published {
    fn drop(&mut self) {
        write(&PROOFS).remove(&self.0);
    }
}

/// Presents a certificate to handshakes of an authority with this server name, in lower case.
///
/// # Errors
/// If TLS cannot be set up.
pub fn publish(name: Vec<u8>, certified: CertifiedKey) -> Result<Published, String> {
    let provider = Arc::new(rustls::crypto::aws_lc_rs::default_provider());
    let presented = Presented::fixed(vec![Arc::new(certified)]);
    let mut config = ServerConfig::builder_with_provider(provider)
        .with_safe_default_protocol_versions()
        .map_err(|e| e.to_string())?
        .with_no_client_auth()
        .with_cert_resolver(Arc::new(presented));
    config.alpn_protocols = vec![PROTOCOL.to_vec()];
    // The record layer takes the keys from rustls.
    config.enable_secret_extraction = true;
    config.send_tls13_tickets = 0;
    write(&PROOFS).insert(name.clone(), Arc::new(config));
    Ok(Published(name))
}

/// Returns the configuration for the handshake of an authority, if there is a proof for its server name.
pub(super) fn config_for(hello: &Hello) -> Option<Arc<ServerConfig>> {
    let mut protocols = hello.protocols();
    if protocols.next() != Some(PROTOCOL) || protocols.next().is_some() {
        return None;
    }
    read(&PROOFS).get(hello.server_name.as_ref()?).cloned()
}
