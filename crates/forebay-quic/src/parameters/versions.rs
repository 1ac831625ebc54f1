//! Negotiation of versions (RFC 9368; RFC 9369, section 4).

use super::id;
use super::read::{next, wrong};
use crate::error::{Code, Error};
use crate::packet::negotiation::preferred;
use crate::varint::{self, Reader};
use crate::version::Version;

/// Parameter `version_information`.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct VersionInformation {
    /// Version of the connection in the view of the sender.
    pub chosen: u32,
    /// Available versions that are spoken here. Those of a client are in the order of its preference.
    pub available: [Option<Version>; 2],
    /// There are available versions, known or not.
    pub lists_any: bool,
    /// The chosen version is among them.
    lists_chosen: bool,
}

impl VersionInformation {
    /// Creates what an endpoint sends.
    pub fn new(chosen: Version, available: &[Version]) -> VersionInformation {
        let mut information = VersionInformation {
            chosen: chosen.number(),
            available: [None; 2],
            lists_any: !available.is_empty(),
            lists_chosen: available.contains(&chosen),
        };
        available.iter().for_each(|version| information.add(*version));
        information
    }

    /// Adds an available version behind the others, unless it is there.
    fn add(&mut self, version: Version) {
        if !self.available.contains(&Some(version))
            && let Some(free) = self.available.iter_mut().find(|place| place.is_none())
        {
            *free = Some(version);
        }
    }

    /// Reads the value of the parameter that a side sent.
    ///
    /// # Errors
    /// TRANSPORT_PARAMETER_ERROR as RFC 9368, section 4, has it.
    pub(super) fn read(value: &[u8]) -> Result<VersionInformation, Error> {
        let (chunks, rest) = value.as_chunks();
        let Some((chosen, available)) = chunks.split_first().filter(|_| rest.is_empty()) else {
            return Err(wrong("version information has a wrong length"));
        };
        let chosen = u32::from_be_bytes(*chosen);
        let numbers = available.iter().map(|number| u32::from_be_bytes(*number));
        if chosen == 0 || numbers.clone().any(|number| number == 0) {
            return Err(wrong("version information has a version 0"));
        }
        let lists_chosen = numbers.clone().any(|number| number == chosen);
        let lists_any = !available.is_empty();
        let mut information = VersionInformation { chosen, available: [None; 2], lists_any, lists_chosen };
        numbers.filter_map(Version::from_number).for_each(|version| information.add(version));
        Ok(information)
    }

    /// Checks the information of a client.
    ///
    /// # Errors
    /// TRANSPORT_PARAMETER_ERROR if it does not offer the version that it has chosen.
    pub(super) fn check_offer(&self) -> Result<(), Error> {
        if self.lists_chosen { Ok(()) } else { Err(wrong("chosen version is not among the available ones")) }
    }

    /// Appends length and value of the parameter, with a version that nobody speaks among the available ones.
    pub(super) fn push(&self, out: &mut Vec<u8>, reserved: u32) {
        let available = self.available.iter().flatten();
        varint::push(out, 4 * (available.clone().count() as u64 + 2));
        for number in
            [self.chosen].into_iter().chain(available.map(|version| version.number())).chain([reserved])
        {
            out.extend_from_slice(&number.to_be_bytes());
        }
    }
}

/// Chooses the version of a connection for a server, from the parameters in the extension of TLS and the version of the long headers
/// that brought them. A client that began with version 1 and prefers version 2 gets version 2, unless it sends early data:
/// 0-RTT packets stay in the version that the client began with.
///
/// # Errors
/// TRANSPORT_PARAMETER_ERROR if the parameters are malformed so far as they are looked at here, VERSION_NEGOTIATION_ERROR if the
/// client says that it chose another version than the one in use (RFC 9368, section 4).
pub fn negotiate(client_params: &[u8], begun: Version, has_early_data: bool) -> Result<Version, Error> {
    let mut reader = Reader::new(client_params);
    while let Some(parameter) = next(&mut reader) {
        let (id, value) = parameter?;
        if id != id::VERSION_INFORMATION {
            continue;
        }
        let information = VersionInformation::read(value)?;
        if information.chosen != begun.number() {
            return Err(Error::new(Code::VERSION_NEGOTIATION_ERROR, "chosen version is not the one in use"));
        }
        information.check_offer()?;
        let prefers_v2 = information.available.first() == Some(&Some(Version::V2));
        return Ok(if prefers_v2 && !has_early_data { Version::V2 } else { begun });
    }
    Ok(begun)
}

/// Attempt of a client to connect.
#[derive(Clone, Copy, Debug)]
pub struct Attempt<'a> {
    /// Version of the first packets.
    pub begun: Version,
    /// Version that the long headers of the server switched to; `begun` if they did not.
    pub negotiated: Version,
    /// Available versions that were sent.
    pub available: &'a [Version],
    /// The attempt follows a Version Negotiation packet.
    pub is_reaction: bool,
}

impl Attempt<'_> {
    /// Checks what a server says about versions.
    ///
    /// # Errors
    /// VERSION_NEGOTIATION_ERROR if somebody may have tampered with the negotiation (RFC 9368, section 4).
    pub fn validate_server(&self, information: Option<&VersionInformation>) -> Result<(), Error> {
        let wrong = |reason| Err(Error::new(Code::VERSION_NEGOTIATION_ERROR, reason));
        let Some(information) = information else {
            if self.is_reaction || self.negotiated != self.begun {
                return wrong("version information is missing");
            }
            return Ok(());
        };
        if !self.available.iter().any(|version| version.number() == information.chosen) {
            return wrong("chosen version was not offered");
        }
        if information.chosen != self.negotiated.number() {
            return wrong("chosen version is not the one in use");
        }
        if !self.is_reaction {
            return Ok(());
        }
        let known = information.available.into_iter().flatten().chain([self.negotiated]);
        if !information.lists_any || preferred(known.map(Version::number)) != Some(self.begun) {
            return wrong("version was downgraded");
        }
        Ok(())
    }
}
