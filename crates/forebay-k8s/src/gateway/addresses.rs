//! Addresses of Gateways.

use super::GatewayOptions;
use super::gateways::Ours;
use crate::objects::Key;
use std::collections::{BTreeSet, HashMap};
use std::net::IpAddr;

/// Keeps the addresses of Gateways from one translation to the next.
#[derive(Clone, Debug, Default)]
pub(super) struct Addresses(HashMap<Key, IpAddr>);

impl Addresses {
    /// Gives each Gateway an address. A Gateway keeps the one that it has.
    pub(super) fn allocate(&mut self, ours: &mut [Ours], options: &GatewayOptions) {
        let mut taken: BTreeSet<IpAddr> = BTreeSet::new();
        let keys: BTreeSet<&Key> = ours.iter().map(|o| &o.key).collect();
        self.0.retain(|key, address| keys.contains(key) && options.addresses.contains(address));
        for o in ours.iter_mut().filter(|o| o.problem.is_none()) {
            let wanted = &o.gateway.spec.addresses;
            if let Some(other) =
                wanted.iter().find(|a| a.kind.as_deref().unwrap_or("IPAddress") != "IPAddress")
            {
                let text =
                    format!("addresses of type {} are not known", other.kind.as_deref().unwrap_or_default());
                o.problem = Some(("Accepted", "UnsupportedAddress", text));
                continue;
            }
            let fixed: Vec<&str> =
                wanted.iter().map(|a| a.value.as_str()).filter(|v| !v.is_empty()).collect();
            if fixed.is_empty() {
                continue;
            }
            match fixed
                .iter()
                .find_map(|v| v.parse().ok().filter(|a| options.addresses.contains(a) && !taken.contains(a)))
            {
                Some(address) if fixed.len() == 1 => {
                    taken.insert(address);
                    self.0.insert(o.key.clone(), address);
                }
                _ => {
                    let text = "not all of its addresses are addresses of this machine".to_owned();
                    o.problem = Some(("Programmed", "AddressNotUsable", text));
                }
            }
        }
        taken.extend(self.0.values());
        for o in ours.iter_mut().filter(|o| o.problem.is_none() && !options.addresses.is_empty()) {
            let published = o.gateway.status.addresses.iter().find_map(|a| a.value.parse().ok());
            let known = self.0.get(&o.key).copied();
            let free = |a: &IpAddr| options.addresses.contains(a) && !taken.contains(a);
            let address =
                known.or(published.filter(free)).or_else(|| options.addresses.iter().copied().find(free));
            match address {
                Some(address) => {
                    taken.insert(address);
                    self.0.insert(o.key.clone(), address);
                    o.address = Some(address);
                }
                None => {
                    o.problem = Some(("Programmed", "AddressNotAssigned", "no address is free".to_owned()));
                }
            }
        }
    }
}
