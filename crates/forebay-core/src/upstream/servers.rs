//! `server` lines of a group, and the addresses found for them.

use super::peer::{Peer, sid};
use forebay_net::addr::{PeerAddr, Place, address_text};
use std::sync::Arc;

/// One `server` line.
#[derive(Clone, Debug)]
pub struct Server {
    /// Parameters of all its peers.
    pub template: Peer,
    /// Host and port as written.
    pub place: Place,
    /// Port if none is written.
    pub default_port: u16,
    /// Way in which its addresses are found.
    pub source: Discovery,
    /// Its addresses now.
    pub found: Vec<Found>,
}

/// Way in which the addresses of a server are found.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Discovery {
    /// Once, while the configuration is read.
    Fixed,
    /// At run time (`resolve`), with the name of the SRV record that `service=` asks for.
    Resolve(Option<String>),
    /// At run time, below each of these domains first and then as it is (`resolve search=`).
    Search(Arc<[String]>),
    /// By the system's resolver until it finds them, since the name was not found at the start (`upstream_start_unresolved`).
    Later,
    /// By a controller outside of this process, which replaces all of them at once (`peers external`).
    External,
}

/// An address of a server.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Found {
    /// Address.
    pub addr: PeerAddr,
    /// Weight of a SRV record.
    pub weight: Option<i64>,
    /// It is from an SRV record of lower priority.
    pub backup: bool,
}

impl Found {
    /// Creates an address without a SRV record.
    pub fn plain(addr: PeerAddr) -> Found {
        Found { addr, weight: None, backup: false }
    }
}

impl Server {
    /// Returns an address that a line with the same name has found, with the port of this line. The port of an SRV record stays.
    pub(super) fn adopted(&self, found: &Found) -> Found {
        let mut found = found.clone();
        if let (PeerAddr::Inet(addr), Discovery::Resolve(None) | Discovery::Search(_) | Discovery::Later) =
            (&mut found.addr, &self.source)
        {
            addr.set_port(self.place.port().unwrap_or(self.default_port));
        }
        found
    }

    /// Makes the peer of one of its addresses, without the state of an earlier one.
    pub(super) fn peer(&self, found: &Found) -> Peer {
        let mut peer = self.template.clone();
        peer.name = address_text(&found.addr);
        peer.addr = found.addr.clone();
        peer.live = Arc::default();
        if self.source == Discovery::External {
            // No line names it.
            peer.server = peer.name.clone();
        }
        peer.weight = found.weight.unwrap_or(peer.weight);
        peer.backup |= found.backup;
        if !peer.routed {
            peer.sid = sid(&peer.name);
        }
        peer
    }
}
