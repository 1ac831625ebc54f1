//! Servers that a request may be sent to: the servers of a group, or addresses found while the request is served. Hot
//! path.

use crate::modules::proxy;
use crate::upstream::contact::Contact;
use crate::upstream::exchange::Target;
use crate::upstream::sticky::Sticky;
use forebay_conf::error::Level;
use forebay_core::upstream::balance::{Key, Picker};
use forebay_core::upstream::lease::{DropRule, Lease};
use forebay_net::addr::{PeerAddr, address_text};
use forebay_server::request::Request;
use std::sync::Arc;
use std::time::Instant;

/// Servers that a request may be sent to.
pub(super) enum Servers<'t> {
    Group(Picker, Option<&'t Arc<Sticky>>),
    Direct(&'t [PeerAddr]),
}

impl<'t> Servers<'t> {
    /// Evaluates the properties of a request that the choice depends on.
    ///
    /// # Errors
    /// The status to answer with.
    pub(super) async fn new(req: &mut Request, target: &'t Target) -> Result<Servers<'t>, u16> {
        let (group, sticky) = match target {
            Target::Direct(addrs) => return Ok(Servers::Direct(addrs)),
            Target::None(status) => {
                req.log(Level::Error, "no servers in upstream");
                return Err(*status);
            }
            Target::Group { local, sticky } => (&local.group, sticky.as_ref()),
        };
        let mut key = Key::of(group, req).map_err(|_| 500u16)?;
        if let Some(s) = sticky {
            key.sticky = s.wanted(req).await.map_err(|_| 500u16)?;
        }
        Ok(Servers::Group(Picker::new(req.conf.groups.local(group), key), sticky))
    }

    /// Chooses a server that may be asked.
    pub(super) fn choose(&mut self, tried: &[usize], now: Instant) -> Option<usize> {
        match self {
            Servers::Group(p, _) => p.choose(now),
            // Addresses from the resolver have no weights and no failures to remember, so they are asked in their order.
            Servers::Direct(addrs) => (0..addrs.len()).find(|i| !tried.contains(i)),
        }
    }

    /// Chooses among all servers again, after each of them was tried.
    pub(super) fn choose_again(&mut self, now: Instant) -> Option<usize> {
        match self {
            Servers::Group(p, _) => {
                p.ask_again();
                p.choose(now)
            }
            Servers::Direct(addrs) => (!addrs.is_empty()).then_some(0),
        }
    }

    /// Takes the place of a request at a chosen server.
    pub(super) fn contact(&self, req: &Request, peer: usize, now: Instant) -> Contact {
        match self {
            Servers::Group(p, sticky) => {
                let mut lease = Lease::new(p, peer, now, req.place());
                let settings = proxy::SETTINGS.of(&req.own_location().settings);
                lease.drop_by(DropRule { after: settings.connection_drop.0, if_unhealthy: false });
                Contact::new(lease, sticky.cloned())
            }
            Servers::Direct(_) => Contact::new(Lease::direct(), None),
        }
    }

    pub(super) fn address(&self, peer: usize) -> Option<&PeerAddr> {
        match self {
            Servers::Group(p, _) => p.peer(peer).map(|p| &p.addr),
            Servers::Direct(addrs) => addrs.get(peer),
        }
    }

    /// Appends the name of a server.
    pub(super) fn push_name(&self, peer: usize, out: &mut Vec<u8>) {
        match self {
            Servers::Group(p, _) => out.extend_from_slice(p.peer(peer).map_or(&[], |p| &p.name)),
            Servers::Direct(addrs) => out.extend(addrs.get(peer).map(address_text).unwrap_or_default()),
        }
    }

    /// Returns the number of servers that may be asked.
    pub(super) fn number(&self) -> usize {
        match self {
            Servers::Group(p, _) => p.number(),
            Servers::Direct(addrs) => addrs.len(),
        }
    }
}
