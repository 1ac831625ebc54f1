//! Certificates that servers of several front ends share: each is got by a client that the http block defines, for the names of all
//! servers that use the client (Angie: acme_client).

use super::slot::Slot;
use forebay_conf::error::Error;
use std::sync::Arc;

/// Certificate that a server gets and renews itself (ACME).
#[derive(Clone, Debug)]
pub struct Issued {
    /// Name that no other certificate of the process has.
    pub name: String,
    /// Place of the certificate.
    pub slot: Arc<Slot>,
    /// Variables that name the certificate and its key as values of directives. `None`: it is presented without a directive.
    pub variables: Option<(String, String)>,
}

/// Names of a server outside of the http block for the certificate of a client.
#[derive(Clone, Debug)]
pub struct ClientNames {
    /// Name of the client.
    pub client: String,
    /// Words of `server_name`.
    pub names: Vec<String>,
    /// Error without a message at the directive, for its place.
    pub place: Error,
}

/// Certificates by the names of their clients.
#[derive(Clone, Debug, Default)]
pub struct IssuedToClients(Vec<(String, Arc<Slot>)>);

impl IssuedToClients {
    /// Adds a certificate.
    pub fn add(&mut self, client: &str, slot: Arc<Slot>) {
        self.0.push((client.to_owned(), slot));
    }

    /// Returns `true` if there is a client of this name.
    pub fn has(&self, client: &str) -> bool {
        self.0.iter().any(|(name, _)| name.eq_ignore_ascii_case(client))
    }

    /// Returns the certificates that a server may present: those of all clients, which it may name by variables. With `implied`
    /// it presents those of the clients that it uses without naming them.
    pub fn issued(&self, implied: bool, uses: impl Fn(&str) -> bool) -> Vec<Issued> {
        let issued = |(name, slot): &(String, Arc<Slot>)| {
            let named = !(implied && uses(name));
            let variables = named.then(|| (format!("acme_cert_{name}"), format!("acme_cert_key_{name}")));
            Issued { name: format!("acme client {name}"), slot: slot.clone(), variables }
        };
        self.0.iter().map(issued).collect()
    }
}
