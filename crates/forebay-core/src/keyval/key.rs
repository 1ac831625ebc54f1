//! Keys of a zone: the bytes by which a record is found. Hot path.

use crate::limit::cidr::Cidr;
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr};

/// Type of a zone's keys (nginx: `type=`).
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Kind {
    /// A record matches its own key.
    #[default]
    String,
    /// Keys of records are addresses or networks. The smallest network that contains the address matches.
    Ip,
    /// The longest key of a record that the text begins with matches.
    Prefix,
}

/// Longest key in bytes.
pub const MAX_KEY: usize = 1024;

/// Fault of a key that cannot be one of a record.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum BadKey {
    /// It is empty.
    Empty,
    /// It has more than [`MAX_KEY`] bytes.
    Long,
    /// It is neither an address nor a network.
    NoAddress,
}

impl BadKey {
    /// Returns the fault in words.
    pub fn text(self) -> &'static str {
        match self {
            BadKey::Empty => "the key is empty",
            BadKey::Long => "the key has more than 1024 bytes",
            BadKey::NoAddress => "the key is neither an address nor a network",
        }
    }
}

/// A network in the form in which it is kept: the number of its bits, and its address. IPv4 and IPv6 differ in the length.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Network {
    bytes: [u8; 17],
    v4: bool,
}

impl Network {
    /// Reads an address or a network in any form of writing. An IPv4 address that is written as IPv6 (`::ffff:10.0.0.1`) is IPv4.
    pub(super) fn parse(text: &[u8]) -> Option<Network> {
        // `Cidr` takes this address for the lack of one.
        if text == b"255.255.255.255" || text == b"255.255.255.255/32" {
            return Some(Network::new(IpAddr::V4(Ipv4Addr::BROADCAST), 32));
        }
        match Cidr::parse(text)?.0 {
            Cidr::V4(address, bits) => Some(Network::new(IpAddr::V4(Ipv4Addr::from_bits(address)), bits)),
            Cidr::V6(address, bits) => {
                let address = Ipv6Addr::from_bits(address);
                match (address.to_ipv4_mapped(), bits.checked_sub(96)) {
                    (Some(v4), Some(bits)) => Some(Network::new(IpAddr::V4(v4), bits)),
                    _ => Some(Network::new(IpAddr::V6(address), bits)),
                }
            }
            Cidr::Unix => None,
        }
    }

    /// Makes a network of an address whose other bits are zero.
    fn new(address: IpAddr, bits: u8) -> Network {
        let mut bytes = [0; 17];
        let [first, rest @ ..] = &mut bytes;
        *first = bits;
        match address {
            IpAddr::V4(a) => rest.iter_mut().zip(a.octets()).for_each(|(to, from)| *to = from),
            IpAddr::V6(a) => *rest = a.octets(),
        }
        Network { bytes, v4: address.is_ipv4() }
    }

    /// Returns `true` for IPv4.
    pub(super) fn is_v4(&self) -> bool {
        self.v4
    }

    /// Returns the number of bits that count.
    pub(super) fn bits(&self) -> u8 {
        self.bytes[0]
    }

    /// Returns the network around it with a smaller number of bits.
    pub(super) fn shortened(&self, bits: u8) -> Network {
        let [_, address @ ..] = self.bytes;
        let mask = u128::MAX.checked_shl(128 - u32::from(bits.min(128))).unwrap_or(0);
        let address = (u128::from_be_bytes(address) & mask).to_be_bytes();
        let mut bytes = [bits; 17];
        let [_, rest @ ..] = &mut bytes;
        *rest = address;
        Network { bytes, v4: self.v4 }
    }

    /// Returns the bytes of the key.
    pub(super) fn bytes(&self) -> &[u8] {
        let length = if self.v4 { V4_LENGTH } else { self.bytes.len() };
        self.bytes.get(..length).unwrap_or(&self.bytes)
    }
}

/// Length of the key of an IPv4 network in bytes.
const V4_LENGTH: usize = 5;

/// Makes the key of a record from its text.
///
/// # Errors
/// If the text is not a key of this type.
pub(super) fn of_record(kind: Kind, text: &[u8]) -> Result<Box<[u8]>, BadKey> {
    match text.len() {
        0 => return Err(BadKey::Empty),
        n if n > MAX_KEY => return Err(BadKey::Long),
        _ => {}
    }
    match kind {
        Kind::String | Kind::Prefix => Ok(text.into()),
        Kind::Ip => Network::parse(text).map(|n| n.bytes().into()).ok_or(BadKey::NoAddress),
    }
}

/// Returns the text of a record's key. Addresses have one form of writing.
pub(super) fn text(kind: Kind, key: &[u8]) -> String {
    let (Kind::Ip, [bits, address @ ..]) = (kind, key) else {
        return String::from_utf8_lossy(key).into_owned();
    };
    let v4 = <[u8; 4]>::try_from(address).map(|a| (IpAddr::from(a), 32));
    let v6 = <[u8; 16]>::try_from(address).map(|a| (IpAddr::from(a), 128));
    match v4.or(v6) {
        Ok((address, all)) if *bits == all => address.to_string(),
        Ok((address, _)) => format!("{address}/{bits}"),
        Err(_) => String::new(),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn addresses_have_one_form_of_writing() {
        for (written, kept) in [
            ("10.0.0.1", "10.0.0.1"),
            ("10.0.0.1/32", "10.0.0.1"),
            ("::ffff:10.0.0.1", "10.0.0.1"),
            ("::ffff:10.0.0.0/104", "10.0.0.0/8"),
            ("10.1.2.3/8", "10.0.0.0/8"),
            ("0.0.0.0/0", "0.0.0.0/0"),
            ("255.255.255.255", "255.255.255.255"),
            ("2001:DB8:0:0::1", "2001:db8::1"),
            ("2001:db8::/32", "2001:db8::/32"),
            ("::/0", "::/0"),
        ] {
            let key = of_record(Kind::Ip, written.as_bytes()).expect(written);
            assert_eq!(text(Kind::Ip, &key), kept, "{written}");
        }
        for bad in ["10.0.0", "10.0.0.1/33", "10.0.0.1/", "unix:", "a", "[::1]", "10.0.0.1:80", "::/129"] {
            assert_eq!(of_record(Kind::Ip, bad.as_bytes()), Err(BadKey::NoAddress), "{bad}");
        }
    }

    #[test]
    fn keys_have_a_length() {
        assert_eq!(of_record(Kind::String, b""), Err(BadKey::Empty));
        assert_eq!(of_record(Kind::Prefix, &[b'a'; MAX_KEY + 1]), Err(BadKey::Long));
        assert!(of_record(Kind::String, &[b'a'; MAX_KEY]).is_ok());
        assert!(BadKey::Long.text().contains(&MAX_KEY.to_string()));
    }

    #[test]
    fn a_network_is_shortened() {
        let host = Network::parse(b"10.1.2.3").expect("an address");
        assert_eq!(host.shortened(12), Network::parse(b"10.0.0.0/12").expect("a network"));
        assert_eq!(host.shortened(0), Network::parse(b"0.0.0.0/0").expect("a network"));
        assert_eq!(host.shortened(32), host);
        let host = Network::parse(b"2001:db8::1").expect("an address");
        assert_eq!(host.shortened(32), Network::parse(b"2001:db8::/32").expect("a network"));
    }
}
