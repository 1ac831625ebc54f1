//! Certificates of servers that no directive with a file names: a module gets them (nginx: ngx_http_acme_module).

use super::Scope;
use super::parts::Parts;
use crate::module::levels::LocationSettings;
use forebay_conf::error::Error;
use forebay_core::config::Listener;
use forebay_core::config::listen::ListenDirective;
use forebay_core::config::names::ServerName;
use forebay_core::tls::loader::Issued;
use forebay_net::resolver::Resolver;
use std::path::PathBuf;
use std::sync::Arc;

/// Facts about a server that the choice of its certificates depends on.
pub struct Subject<'s> {
    /// Number of the server.
    pub number: usize,
    /// Settings in effect at the server.
    pub settings: &'s LocationSettings,
    /// Names of the server.
    pub names: &'s [ServerName],
    /// `listen` directives of the server.
    pub listens: &'s [ListenDirective],
    /// The server has `ssl_certificate`, or a level around it has.
    pub certified: bool,
}

/// Facts about the http block before the first server is looked at.
pub struct Issuing<'a, 'f> {
    /// Resolver of the http level.
    pub resolver: Option<&'a Arc<Resolver>>,
    /// `listen` directives of all servers.
    pub listens: Vec<&'a ListenDirective>,
    /// Shared state of the configuration.
    pub cx: &'a mut Scope<'f>,
}

/// Certificates that a server may present.
#[derive(Default)]
pub struct Chosen {
    /// The certificates.
    pub issued: Vec<Issued>,
    /// They are ordered for this server, so that it cannot be taken over by the next configuration.
    pub is_ordered: bool,
}

/// Things that the source needs besides its certificates.
#[derive(Default)]
pub struct Needed {
    /// Sockets to open.
    pub listeners: Vec<Listener>,
    /// Directories that no directive names, in the order in which they are made.
    pub directories: Vec<PathBuf>,
}

/// Source of certificates, while the configuration is assembled. The functions are called in the order in which they stand.
pub trait CertificateSource {
    /// Notes the names of a server.
    ///
    /// # Errors
    /// If there can be no certificate for them.
    fn collect(&mut self, subject: &Subject<'_>, cx: &mut Scope<'_>) -> Result<(), Error>;

    /// Notes the names of servers of other front ends and makes what serves several servers. Keeps its errors in `cx`.
    fn prepare(&mut self, cx: &mut Scope<'_>);

    /// Returns the certificates of a server.
    ///
    /// # Errors
    /// If its names cannot be in a certificate, or its issuer is not defined.
    fn choose(&mut self, subject: &Subject<'_>, cx: &mut Scope<'_>) -> Result<Chosen, Error>;

    /// Ends the choice. Leaves in `parts` what is needed while the configuration serves. `front`: number of the HTTP front end.
    fn finish(self: Box<Self>, front: u8, parts: &mut Parts) -> Needed;
}
