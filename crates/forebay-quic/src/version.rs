//! Versions of QUIC (RFC 9000, RFC 9369).

/// Version of QUIC that is spoken here.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Version {
    /// RFC 9000.
    V1,
    /// RFC 9369.
    V2,
}

impl Version {
    /// Returns the version with a number on the wire.
    pub const fn from_number(number: u32) -> Option<Version> {
        match number {
            1 => Some(Version::V1),
            0x6b33_43cf => Some(Version::V2),
            _ => None,
        }
    }

    /// Returns the number on the wire.
    pub const fn number(self) -> u32 {
        match self {
            Version::V1 => 1,
            Version::V2 => 0x6b33_43cf,
        }
    }

    /// Returns what rustls calls it.
    pub fn for_tls(self) -> rustls::quic::Version {
        match self {
            Version::V1 => rustls::quic::Version::V1,
            Version::V2 => rustls::quic::Version::V2,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn numbers() {
        for version in [Version::V1, Version::V2] {
            assert_eq!(Version::from_number(version.number()), Some(version));
        }
        assert_eq!(Version::from_number(0), None);
    }
}
