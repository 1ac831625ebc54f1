//! Protection of packets and their headers (RFC 9001, section 5).

use std::ops::Range;

use rustls::crypto::aws_lc_rs::cipher_suite::TLS13_AES_128_GCM_SHA256;
use rustls::quic::{HeaderProtectionKey, Keys, PacketKey};

use super::build::{Place, SAMPLE, SAMPLE_AT};
use super::header::{LONG, NUMBER_LEN, RESERVED_LONG, RESERVED_SHORT};
use crate::error::{Code, Error};
use crate::id::{ConnectionId, Side};
use crate::version::Version;

/// Derives the keys of Initial packets. `dst` is the destination connection identifier of the client's first Initial packet, or of
/// the first one after a Retry packet (RFC 9001, section 5.2).
///
/// # Errors
/// INTERNAL_ERROR if the cipher suite is missing, which it is not.
pub fn initial_keys(version: Version, dst: &ConnectionId, side: Side) -> Result<Keys, Error> {
    let suite = TLS13_AES_128_GCM_SHA256.tls13().and_then(|suite| suite.quic_suite());
    let suite = suite.ok_or(Error::new(Code::INTERNAL_ERROR, "no cipher suite for Initial packets"))?;
    let side = match side {
        Side::Client => rustls::Side::Client,
        Side::Server => rustls::Side::Server,
    };
    Ok(suite.keys(dst, side, version.for_tls()))
}

/// Seals a finished packet of a buffer.
///
/// # Errors
/// INTERNAL_ERROR if the place is not in the buffer. The packet must not be sent then.
pub fn seal(
    header: &dyn HeaderProtectionKey,
    key: &dyn PacketKey,
    buffer: &mut [u8],
    place: &Place,
) -> Result<(), Error> {
    seal_all(header, key, buffer, std::slice::from_ref(place))
}

/// Seals finished packets of a buffer that have the same keys.
///
/// # Errors
/// INTERNAL_ERROR if a place is not in the buffer. None of the packets must be sent then.
pub fn seal_all(
    header: &dyn HeaderProtectionKey,
    key: &dyn PacketKey,
    buffer: &mut [u8],
    places: &[Place],
) -> Result<(), Error> {
    // One cipher after the other.
    each(buffer, places, |packet, place| encrypt(key, packet, place))
        .and_then(|()| each(buffer, places, |packet, place| protect(header, packet, place)))
        .ok_or(Error::new(Code::INTERNAL_ERROR, "packet cannot be sealed"))
}

/// Does the same with the bytes of each packet of a buffer. Returns `None` at the first for which that fails.
fn each(buffer: &mut [u8], places: &[Place], act: impl Fn(&mut [u8], &Place) -> Option<()>) -> Option<()> {
    places.iter().try_for_each(|place| act(buffer.get_mut(place.start..place.end)?, place))
}

/// Returns the number of bytes of a packet number by the first byte of its packet.
const fn number_len(first: u8) -> usize {
    (first & NUMBER_LEN) as usize + 1
}

/// Encrypts the payload of a packet and writes the tag behind it.
fn encrypt(key: &dyn PacketKey, packet: &mut [u8], place: &Place) -> Option<()> {
    let header_len = place.number_at.checked_sub(place.start)? + number_len(*packet.first()?);
    let (header, rest) = packet.split_at_mut_checked(header_len)?;
    let (payload, tag) = rest.split_at_mut_checked(rest.len().checked_sub(key.tag_len())?)?;
    tag.copy_from_slice(key.encrypt_in_place(place.number, header, payload).ok()?.as_ref());
    Some(())
}

/// Puts the header of an encrypted packet under protection.
fn protect(key: &dyn HeaderProtectionKey, packet: &mut [u8], place: &Place) -> Option<()> {
    let number_at = place.number_at.checked_sub(place.start)?;
    let (first, number, sample) = fields(packet, number_at)?;
    key.encrypt_in_place(sample, first, number).ok()
}

/// Returns first byte, packet number (four bytes, whatever its length) and sample of a packet.
fn fields(packet: &mut [u8], number_at: usize) -> Option<(&mut u8, &mut [u8], &[u8])> {
    let (first, rest) = packet.split_first_mut()?;
    let (_, rest) = rest.split_at_mut_checked(number_at.checked_sub(1)?)?;
    let (number, rest) = rest.split_at_mut_checked(SAMPLE_AT)?;
    Some((first, number, rest.get(..SAMPLE)?))
}

/// Header fields of a packet whose header protection is off. They are authentic only after [`open`].
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Unprotected {
    /// First byte.
    pub first: u8,
    /// Bytes of the packet number.
    pub number_len: usize,
    /// Low bytes of the packet number, see [`expand`](super::number::expand).
    pub number: u32,
}

/// Takes the protection off the header of a packet. Returns `None` if the packet is too short for a sample: it is dropped then.
///
/// `packet` ends with the packet: other packets of its datagram are not in it.
pub fn unprotect(key: &dyn HeaderProtectionKey, packet: &mut [u8], number_at: usize) -> Option<Unprotected> {
    let (first, number, sample) = fields(packet, number_at)?;
    key.decrypt_in_place(sample, first, number).ok()?;
    let number_len = number_len(*first);
    let number = number.iter().take(number_len).fold(0, |value, byte| value << 8 | u32::from(*byte));
    Some(Unprotected { first: *first, number_len, number })
}

/// Opens a packet in place. Returns where its payload lies, or `None` if it is not authentic: it is dropped then.
///
/// `number` is the whole packet number, of which `number_len` bytes are at `number_at`.
pub fn open(
    key: &dyn PacketKey,
    packet: &mut [u8],
    number_at: usize,
    number_len: usize,
    number: u64,
) -> Option<Range<usize>> {
    let start = number_at + number_len;
    let (header, payload) = packet.split_at_mut_checked(start)?;
    let len = key.decrypt_in_place(number, header, payload).ok()?.len();
    Some(start..start + len)
}

/// Checks the reserved bits in the first byte of an authentic packet (RFC 9000, sections 17.2 and 17.3.1).
///
/// # Errors
/// PROTOCOL_VIOLATION if they are not 0.
pub fn check_reserved(first: u8) -> Result<(), Error> {
    let reserved = if first & LONG == 0 { RESERVED_SHORT } else { RESERVED_LONG };
    if first & reserved == 0 {
        Ok(())
    } else {
        Err(Error::new(Code::PROTOCOL_VIOLATION, "reserved bits are set"))
    }
}

#[cfg(test)]
mod samples;
#[cfg(test)]
mod tests;
