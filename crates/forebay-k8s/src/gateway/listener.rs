//! Listeners of Gateways and ListenerSets, with what follows from the cluster.

use super::certificates::certificate;
use super::cluster::{Cluster, Referrer};
use super::objects::{GROUP, Listener, ListenerSet, RouteKind};
use crate::model::{CertificateFiles, File};
use std::sync::Arc;

/// Object that a listener is written in.
#[derive(Clone, Debug)]
pub(crate) enum Owner {
    /// A Gateway.
    Gateway,
    /// A ListenerSet.
    Set(Arc<ListenerSet>),
}

/// Protocol of a listener.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Speaks {
    Http,
    Https,
    /// TLS that ends here.
    TlsTerminate,
    /// TLS that passes as it is.
    TlsPassthrough,
    Tcp,
    Udp,
}

impl Speaks {
    fn of(listener: &Listener) -> Option<Speaks> {
        let mode = listener.tls.as_ref().and_then(|tls| tls.mode.as_deref()).unwrap_or("Terminate");
        Some(match (listener.protocol.as_str(), mode) {
            ("HTTP", _) => Speaks::Http,
            ("HTTPS", "Terminate") => Speaks::Https,
            ("TLS", "Terminate") => Speaks::TlsTerminate,
            ("TLS", "Passthrough") => Speaks::TlsPassthrough,
            ("TCP", _) => Speaks::Tcp,
            ("UDP", _) => Speaks::Udp,
            _ => return None,
        })
    }

    /// Returns the name for messages.
    pub(crate) fn name(self) -> &'static str {
        match self {
            Speaks::Http => "HTTP",
            Speaks::Https => "HTTPS",
            Speaks::TlsTerminate => "TLS (Terminate)",
            Speaks::TlsPassthrough => "TLS (Passthrough)",
            Speaks::Tcp => "TCP",
            Speaks::Udp => "UDP",
        }
    }

    /// Returns what a port is shared by: TLS that ends here and TLS that passes are told apart by the name in the handshake.
    pub(crate) fn shared(self) -> Speaks {
        if self == Speaks::TlsPassthrough { Speaks::TlsTerminate } else { self }
    }

    /// Returns the kinds of routes that may attach.
    fn kinds(self) -> &'static [&'static str] {
        match self {
            Speaks::Http | Speaks::Https => &["HTTPRoute", "GRPCRoute"],
            Speaks::TlsTerminate | Speaks::TlsPassthrough => &["TLSRoute"],
            Speaks::Tcp => &["TCPRoute"],
            Speaks::Udp => &["UDPRoute"],
        }
    }

    /// Returns `true` if HTTP is spoken.
    pub(crate) fn is_http(self) -> bool {
        matches!(self, Speaks::Http | Speaks::Https)
    }

    /// Returns `true` if clients tell the name of a host.
    pub(crate) fn has_hosts(self) -> bool {
        !matches!(self, Speaks::Tcp | Speaks::Udp)
    }
}

/// Listener with what follows from the cluster.
#[derive(Clone, Debug)]
pub(crate) struct Attached {
    /// As written.
    pub listener: Listener,
    /// Protocol; `None`: it is not served.
    pub speaks: Option<Speaks>,
    /// Object that it is written in.
    pub owner: Owner,
    /// Namespace of that object.
    pub namespace: String,
    /// Certificates.
    pub certificates: Vec<CertificateFiles>,
    /// Why references to certificates cannot be used: reason and message.
    pub unresolved: Option<(&'static str, String)>,
    /// Kinds of routes that it serves.
    pub kinds: Vec<&'static str>,
    /// It names kinds that it cannot serve.
    pub invalid_kinds: bool,
    /// Another listener has the same port and host, or another protocol at this port: reason and message.
    pub conflict: Option<(&'static str, String)>,
    /// Why something else has the port.
    pub unavailable: Option<String>,
    /// What it asks for and does not get. It is not served, and nobody else gets its host.
    pub unsupported: Option<String>,
    /// Routes that are attached.
    pub routes: usize,
    /// Certificates that clients have to show.
    pub clients: Clients,
}

/// Verification of clients at a listener.
#[derive(Clone, Debug, Default)]
pub(crate) enum Clients {
    /// They show no certificate.
    #[default]
    Any,
    /// They show one of these authorities. `insecure`: others are served, too.
    Of { authorities: File, insecure: bool },
    /// No authority can be read. Nobody is served.
    Unknown,
}

impl Clients {
    /// Returns `true` if two listeners demand the same of clients.
    pub(crate) fn is_same(&self, other: &Clients) -> bool {
        match (self, other) {
            (Clients::Any, Clients::Any) | (Clients::Unknown, Clients::Unknown) => true,
            (
                Clients::Of { authorities, insecure },
                Clients::Of { authorities: others, insecure: other_insecure },
            ) => authorities.bytes == others.bytes && insecure == other_insecure,
            _ => false,
        }
    }
}

impl Attached {
    /// Returns the port; `true` for UDP, which has ports of its own.
    pub(crate) fn port(&self) -> (bool, u16) {
        (self.listener.protocol == "UDP", self.listener.port)
    }

    /// Returns `true` if the listener is the one, or one of those, that its port belongs to.
    pub(crate) fn has_port(&self) -> bool {
        self.speaks.is_some() && self.conflict.is_none() && self.unavailable.is_none()
    }

    /// Returns `true` if HTTP is spoken at the listener.
    pub(crate) fn is_http(&self) -> bool {
        self.speaks.is_some_and(Speaks::is_http)
    }

    /// Returns `true` if TLS ends at the listener.
    pub(super) fn ends_tls(&self) -> bool {
        matches!(self.speaks, Some(Speaks::Https | Speaks::TlsTerminate))
    }

    /// Returns `true` if the listener gets requests.
    pub(crate) fn works(&self) -> bool {
        // Without a certificate no handshake can be answered.
        let has_certificate = !self.ends_tls() || !self.certificates.is_empty();
        let knows_clients = !matches!(self.clients, Clients::Unknown);
        self.has_port() && self.unsupported.is_none() && has_certificate && knows_clients
    }

    /// Returns the host in lower case; empty for all.
    pub(crate) fn host(&self) -> String {
        if self.speaks.is_some_and(|speaks| !speaks.has_hosts()) {
            return String::new();
        }
        self.listener.hostname.clone().unwrap_or_default().to_ascii_lowercase()
    }

    /// Finds the certificates that the listener names.
    fn find_certificates(&mut self, cluster: Cluster<'_>, referrer: Referrer<'_>) {
        if !self.ends_tls() {
            return;
        }
        for reference in self.listener.tls.iter().flat_map(|tls| &tls.certificate_refs) {
            match certificate(cluster, reference, referrer) {
                Ok(files) => self.certificates.push(files),
                Err(why) => self.unresolved = Some(why),
            }
        }
        if self.certificates.is_empty() && self.unresolved.is_none() {
            self.unresolved = Some(("InvalidCertificateRef", "there is no certificate".into()));
        }
    }
}

/// Makes a listener of a Gateway or ListenerSet, which `referrer` names.
pub(super) fn attach(
    cluster: Cluster<'_>,
    listener: &Listener,
    owner: Owner,
    referrer: Referrer<'_>,
) -> Attached {
    let speaks = Speaks::of(listener);
    let all = speaks.map_or(&[][..], Speaks::kinds);
    let asked = &listener.allowed_routes.kinds;
    let of_group = |k: &RouteKind| k.group.as_deref().unwrap_or(GROUP) == GROUP;
    let is_asked = |name: &str| asked.is_empty() || asked.iter().any(|k| k.kind == name && of_group(k));
    let mut attached = Attached {
        listener: listener.clone(),
        speaks,
        owner,
        namespace: referrer.namespace.to_owned(),
        certificates: Vec::new(),
        unresolved: None,
        invalid_kinds: asked.iter().any(|k| !(of_group(k) && all.contains(&k.kind.as_str()))),
        kinds: all.iter().copied().filter(|name| is_asked(name)).collect(),
        conflict: None,
        unavailable: None,
        unsupported: None,
        routes: 0,
        clients: Clients::Any,
    };
    attached.find_certificates(cluster, referrer);
    attached
}
