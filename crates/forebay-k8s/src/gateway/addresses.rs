//! Addresses of Gateways.

use super::GatewayOptions;
use super::gateways::{Ours, Problem};
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
            o.problem = self.fix(o, options, &mut taken);
        }
        taken.extend(self.0.values());
        for o in ours.iter_mut().filter(|o| o.problem.is_none() && !options.addresses.is_empty()) {
            self.choose(o, options, &mut taken);
        }
    }

    /// Gives a Gateway the address that it asks for, if it asks for one. Returns why it cannot have that.
    fn fix(&mut self, o: &Ours, options: &GatewayOptions, taken: &mut BTreeSet<IpAddr>) -> Option<Problem> {
        let wanted = &o.gateway.spec.addresses;
        let is_other = |kind: &&str| *kind != "IPAddress";
        if let Some(kind) = wanted.iter().filter_map(|a| a.kind.as_deref()).find(is_other) {
            let text = format!("addresses of type {kind} are not known");
            return Some(("Accepted", "UnsupportedAddress", text));
        }
        let fixed: Vec<&str> = wanted.iter().map(|a| a.value.as_str()).filter(|v| !v.is_empty()).collect();
        if fixed.is_empty() {
            return None;
        }
        let free = |a: &IpAddr| options.addresses.contains(a) && !taken.contains(a);
        match fixed.iter().find_map(|v| v.parse().ok().filter(free)) {
            Some(address) if fixed.len() == 1 => {
                taken.insert(address);
                self.0.insert(o.key.clone(), address);
                None
            }
            _ => {
                let text = "not all of its addresses are addresses of this machine".to_owned();
                Some(("Programmed", "AddressNotUsable", text))
            }
        }
    }

    /// Gives a Gateway the address that it has, the one that its status names, or one that is free.
    fn choose(&mut self, o: &mut Ours, options: &GatewayOptions, taken: &mut BTreeSet<IpAddr>) {
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
            None => o.problem = Some(("Programmed", "AddressNotAssigned", "no address is free".to_owned())),
        }
    }
}
