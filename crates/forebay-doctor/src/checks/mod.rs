//! Checks of configurations and machines, by the names of their rules.

mod access;
pub(crate) mod aims;
mod answers;
pub(crate) mod ask;
mod caching;
pub(crate) mod carriage;
pub(crate) mod certificates;
mod decisions;
pub(crate) mod detours;
pub(crate) mod disks;
pub(crate) mod doors;
mod effect;
pub(crate) mod faults;
pub(crate) mod general;
mod guards;
mod heirs;
pub(crate) mod http3;
mod identity;
mod keeping;
pub(crate) mod kernel;
pub(crate) mod leaks;
mod networks;
pub(crate) mod openings;
mod passing;
mod patterns;
mod pitfalls;
mod ranges;
pub(crate) mod running;
pub(crate) mod safety;
mod secrecy;
mod slips;
pub(crate) mod stores;
mod strays;
pub(crate) mod stream;
pub(crate) mod tellings;
mod traffic;
mod transport;
mod trust;
mod turns;
mod upkeep;
mod upstreams;

use crate::facts::host::Host;
use crate::scene::Scene;
use crate::target::Target;
use forebay_conf::tree::Span;
use std::ops::Deref;

/// Facts about the machine and the server, besides the configuration.
pub(crate) struct Facts<'a> {
    /// The machine.
    pub host: &'a Host,
    /// The server that is advised.
    pub target: Target,
}

impl Deref for Facts<'_> {
    type Target = Host;
    fn deref(&self) -> &Host {
        self.host
    }
}

/// Looks for one problem in a configuration, and reports each place with its text.
pub(crate) type Check = fn(&Scene<'_>, &Facts<'_>, &mut dyn FnMut(Span, String));

/// A table of checks: the name of the rule, and what looks.
macro_rules! checks {
    ($check:ty; $($id:literal $look:expr,)*) => {
        /// The table.
        pub(crate) const CHECKS: &[(&str, $check)] = &[$(($id, $look),)*];
    };
}
pub(crate) use checks;

/// Returns the checks of configurations.
pub(crate) fn of_configurations() -> impl Iterator<Item = &'static (&'static str, Check)> {
    let tables = [
        general::CHECKS,
        safety::CHECKS,
        access::CHECKS,
        openings::CHECKS,
        guards::CHECKS,
        identity::CHECKS,
        trust::CHECKS,
        caching::CHECKS,
        secrecy::CHECKS,
        traffic::CHECKS,
        passing::CHECKS,
        effect::CHECKS,
        upkeep::CHECKS,
        stream::CHECKS,
        http3::CHECKS,
        faults::CHECKS,
        certificates::CHECKS,
        patterns::CHECKS,
        networks::CHECKS,
        decisions::CHECKS,
        transport::CHECKS,
        ranges::CHECKS,
        answers::CHECKS,
        turns::CHECKS,
        upstreams::CHECKS,
        keeping::CHECKS,
        slips::CHECKS,
        detours::CHECKS,
        leaks::CHECKS,
        tellings::CHECKS,
        stores::CHECKS,
        doors::CHECKS,
        carriage::CHECKS,
        aims::CHECKS,
        pitfalls::CHECKS,
        heirs::CHECKS,
        strays::CHECKS,
    ];
    tables.into_iter().flatten()
}

/// Returns the names of all rules that have a check.
#[cfg(test)]
pub(crate) fn ids() -> impl Iterator<Item = &'static str> {
    let configuration = of_configurations().map(|(id, _)| *id);
    let machine = disks::CHECKS.iter().map(|(id, _)| *id).chain(kernel::CHECKS.iter().map(|(id, _)| *id));
    let settings = kernel::SETTINGS.iter().map(|(id, ..)| *id);
    configuration.chain(machine).chain(settings).chain(running::CHECKS.iter().map(|(id, _)| *id))
}
