//! Parser of the CONNECT packet of MQTT 3.1, 3.1.1 and 5.0, up to the user name (MQTT 5.0, section 3.1; MQTT 3.1.1, section 3.1).

/// Identity of a client, as its CONNECT packet states it.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Connect {
    /// Client identifier. It may be empty; the server then assigns one.
    pub client_id: Vec<u8>,
    /// User name; `None` if the packet has none.
    pub user_name: Option<Vec<u8>>,
}

/// Failure: the bytes are no CONNECT packet of a known version.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct NotConnect;

/// First byte of a CONNECT packet: its type, and flags that are 0.
const CONNECT: u8 = 0x10;

/// Most bytes of a number of variable length.
const LONGEST_NUMBER: usize = 4;

/// Names and levels of the versions.
const VERSIONS: [(&[u8], u8); 3] = [(b"MQIsdp", 3), (b"MQTT", 4), (b"MQTT", 5)];

/// Bits of the connect flags.
mod flag {
    pub(super) const RESERVED: u8 = 1;
    pub(super) const WILL: u8 = 1 << 2;
    pub(super) const USER_NAME: u8 = 1 << 7;
}

/// Reads the packet with which a connection begins. Returns `None` until the fields are complete; the rest of the packet may
/// still be missing then. Allocates nothing before that, whatever lengths the packet announces.
///
/// # Errors
/// If the bytes cannot become such a packet.
pub fn parse(bytes: &[u8]) -> Result<Option<Connect>, NotConnect> {
    match Packet::begin(bytes).and_then(Packet::connect) {
        Ok(connect) => Ok(Some(connect)),
        Err(Stop::Partial) => Ok(None),
        Err(Stop::Malformed) => Err(NotConnect),
    }
}

/// Reason for which a packet is not read further.
enum Stop {
    /// Bytes are missing.
    Partial,
    /// No CONNECT packet.
    Malformed,
}

/// Packet that is being read.
struct Packet<'b> {
    /// Bytes that are here and have not been read. May go beyond the packet.
    rest: &'b [u8],
    /// Bytes of the packet that have not been read, as its header announces them.
    left: usize,
}

impl<'b> Packet<'b> {
    /// Reads the fixed header.
    fn begin(bytes: &'b [u8]) -> Result<Packet<'b>, Stop> {
        let mut packet = Packet { rest: bytes, left: 1 + LONGEST_NUMBER };
        if packet.byte()? != CONNECT {
            return Err(Stop::Malformed);
        }
        packet.left = packet.number()?;
        Ok(packet)
    }

    /// Reads the variable header and the payload up to the user name.
    fn connect(mut self) -> Result<Connect, Stop> {
        let level = self.version()?;
        let flags = self.byte()?;
        // The bit has no meaning in 3.1.
        if level > 3 && flags & flag::RESERVED != 0 {
            return Err(Stop::Malformed);
        }
        let _keep_alive = self.take(2)?;
        self.skip_properties(level)?;
        let client_id = self.text()?;
        if flags & flag::WILL != 0 {
            self.skip_properties(level)?;
            let _topic = self.text()?;
            let _message = self.text()?;
        }
        // In 3.1 the length of the packet prevails over the flag.
        let absent = flags & flag::USER_NAME == 0 || level == 3 && self.left == 0;
        let user_name = if absent { None } else { Some(self.text()?.to_vec()) };
        Ok(Connect { client_id: client_id.to_vec(), user_name })
    }

    /// Reads the name and the level of the protocol. Fails at the first byte that belongs to no version.
    fn version(&mut self) -> Result<u8, Stop> {
        let length = self.length()?;
        let here = self.rest.get(..length).unwrap_or(self.rest);
        if !VERSIONS.iter().any(|(name, _)| name.len() == length && name.starts_with(here)) {
            return Err(Stop::Malformed);
        }
        let name = self.take(length)?;
        // Bridges of mosquitto set the highest bit.
        let level = self.byte()? & 0x7f;
        if VERSIONS.contains(&(name, level)) { Ok(level) } else { Err(Stop::Malformed) }
    }

    /// Skips properties, which only 5.0 has.
    fn skip_properties(&mut self, level: u8) -> Result<(), Stop> {
        if level < 5 {
            return Ok(());
        }
        let length = self.number()?;
        self.take(length).map(|_| ())
    }

    /// Reads bytes. Those that the packet cannot have are an error at once, not once they have come.
    fn take(&mut self, n: usize) -> Result<&'b [u8], Stop> {
        self.left = self.left.checked_sub(n).ok_or(Stop::Malformed)?;
        let (taken, rest) = self.rest.split_at_checked(n).ok_or(Stop::Partial)?;
        self.rest = rest;
        Ok(taken)
    }

    fn byte(&mut self) -> Result<u8, Stop> {
        self.take(1)?.first().copied().ok_or(Stop::Partial)
    }

    /// Reads a number of two bytes.
    fn length(&mut self) -> Result<usize, Stop> {
        Ok(usize::from(self.byte()?) << 8 | usize::from(self.byte()?))
    }

    /// Reads a string or binary data, with its length in two bytes.
    fn text(&mut self) -> Result<&'b [u8], Stop> {
        let length = self.length()?;
        self.take(length)
    }

    /// Reads a number of variable length (MQTT 5.0, section 1.5.5).
    fn number(&mut self) -> Result<usize, Stop> {
        let mut number = 0;
        for place in 0..LONGEST_NUMBER {
            let byte = self.byte()?;
            number |= usize::from(byte & 0x7f) << (7 * place);
            if byte & 0x80 == 0 {
                return Ok(number);
            }
        }
        Err(Stop::Malformed)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn text(bytes: &[u8]) -> Vec<u8> {
        [&u16::try_from(bytes.len()).expect("short").to_be_bytes(), bytes].concat()
    }

    /// Returns a packet of a body that is shorter than 16,384 bytes.
    fn packet(body: &[u8]) -> Vec<u8> {
        let (low, high) = (body.len() % 128, body.len() / 128);
        let length = if high == 0 { vec![low as u8] } else { vec![low as u8 | 0x80, high as u8] };
        [&[CONNECT], length.as_slice(), body].concat()
    }

    /// Returns a packet of a version, with the parts behind the connect flags and the time to keep alive.
    fn connect(name: &[u8], level: u8, flags: u8, parts: &[&[u8]]) -> Vec<u8> {
        packet(&[&text(name), [level, flags, 0, 60].as_slice(), &parts.concat()].concat())
    }

    fn found(client_id: &[u8], user_name: Option<&[u8]>) -> Result<Option<Connect>, NotConnect> {
        Ok(Some(Connect { client_id: client_id.to_vec(), user_name: user_name.map(<[u8]>::to_vec) }))
    }

    #[test]
    fn all_versions_are_read_in_any_pieces() {
        let (id, will) = (text(b"sensor-1"), [text(b"topic"), text(b"gone")].concat());
        let (user, password) = (text(b"alice"), text(b"secret"));
        let properties: &[u8] = &[5, 0x11, 0, 0, 0, 10];
        let cases = [
            connect(b"MQIsdp", 3, 0xc6, &[&id, &will, &user, &password]),
            connect(b"MQTT", 4, 0xc6, &[&id, &will, &user, &password]),
            connect(b"MQTT", 0x84, 0x82, &[&id, &user]),
            connect(b"MQTT", 5, 0xc6, &[properties, &id, &[2, 1, 1], &will, &user, &password]),
            connect(b"MQTT", 5, 0x82, &[&[0], &id, &user]),
        ];
        for whole in cases {
            assert_eq!(parse(&whole), found(b"sensor-1", Some(b"alice")), "{whole:?}");
            let needed = (0..whole.len()).filter(|n| parse(&whole[..*n]) == Ok(None)).count();
            // Every beginning is incomplete up to the user name, and complete from there on.
            assert!((0..whole.len()).all(|n| parse(&whole[..n]) == Ok(None) || n >= needed));
            assert!(whole[..needed].ends_with(b"alice"), "{needed} of {whole:?}");
            assert_eq!(parse(&[whole.as_slice(), b"\x82\x05behind"].concat()), parse(&whole));
        }
    }

    #[test]
    fn fields_may_be_absent_or_empty() {
        let id = text(b"a");
        assert_eq!(parse(&connect(b"MQTT", 4, 2, &[&id])), found(b"a", None));
        assert_eq!(parse(&connect(b"MQTT", 5, 2, &[&[0], &text(b"")])), found(b"", None));
        assert_eq!(parse(&connect(b"MQTT", 4, 0x82, &[&id, &text(b"")])), found(b"a", Some(b"")));
        // MQTT 3.1 allows a packet that ends before the user name.
        assert_eq!(parse(&connect(b"MQIsdp", 3, 0x82, &[&id])), found(b"a", None));
        assert_eq!(parse(&connect(b"MQTT", 4, 0x82, &[&id])), Err(NotConnect));
    }

    #[test]
    fn other_protocols_are_known_by_their_first_bytes() {
        let others: [&[u8]; 9] = [
            b"G",
            b"\x16",
            b"\x20",
            // The type is right, the flags are not.
            b"\x11",
            b"\x10\x10\0\x05",
            b"\x10\x10\0\x04X",
            b"\x10\x10\0\x04MQTX",
            b"\x10\x10\0\x04MQTT\x03",
            b"\x10\x10\0\x06MQIsdp\x04",
        ];
        for bytes in others {
            assert_eq!(parse(bytes), Err(NotConnect), "{bytes:?}");
            assert_eq!(parse(&bytes[..bytes.len() - 1]), Ok(None), "{bytes:?}");
        }
        let reserved = connect(b"MQTT", 4, 3, &[&text(b"a")]);
        assert_eq!(parse(&reserved), Err(NotConnect));
    }

    #[test]
    fn lengths_that_lie_are_refused_at_once() {
        // Five bytes of remaining length.
        assert_eq!(parse(b"\x10\xff\xff\xff\xff"), Err(NotConnect));
        assert_eq!(parse(b"\x10\xff\xff\xff"), Ok(None));
        // The packet ends in the name, the client identifier, the properties.
        assert_eq!(parse(b"\x10\x05\0\x04"), Err(NotConnect));
        assert_eq!(parse(b"\x10\x0d\0\x04MQTT\x04\x02\0\x3c\xff\xff"), Err(NotConnect));
        assert_eq!(parse(b"\x10\x0f\0\x04MQTT\x05\x02\0\x3c\x7f"), Err(NotConnect));
        assert_eq!(parse(b"\x10\x20\0\x04MQTT\x05\x02\0\x3c\xff\xff\xff\xff"), Err(NotConnect));
        // Properties of 256 MB that the packet has room for are only waited for.
        assert_eq!(parse(b"\x10\xff\xff\xff\x7f\0\x04MQTT\x05\x02\0\x3c\xf0\xff\xff\x7f"), Ok(None));
    }
}
