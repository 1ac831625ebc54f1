//! Address of the control API.

use std::fmt;
use std::net::{IpAddr, Ipv4Addr, SocketAddr};
use std::path::{Path, PathBuf};

/// Address of the control API.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum Address {
    /// File of a unix socket.
    Unix(PathBuf),
    /// Loopback address with a port.
    Tcp(SocketAddr),
}

impl Address {
    /// Reads the word of `-l`: `unix:PATH`, a port, or an address of this machine with a port. A relative path begins at the prefix.
    ///
    /// # Errors
    /// The text for people.
    pub(crate) fn parse(word: &str, prefix: &Path) -> Result<Address, String> {
        if let Some(path) = word.strip_prefix("unix:") {
            return match path {
                "" => Err(format!("no path in \"-l {word}\"")),
                path => Ok(Address::Unix(prefix.join(path))),
            };
        }
        let address = match word.parse::<u16>() {
            Ok(port) => Ok(SocketAddr::new(IpAddr::V4(Ipv4Addr::LOCALHOST), port)),
            Err(_) => word.parse::<SocketAddr>(),
        };
        match address {
            Ok(address) if address.port() == 0 => Err(format!("invalid port in \"-l {word}\"")),
            // There are no users and no passwords: everyone who reaches it may read the configuration.
            Ok(address) if !address.ip().is_loopback() => Err(format!(
                "\"-l {word}\" is not an address of this machine alone: use \"unix:PATH\" or a port"
            )),
            Ok(address) => Ok(Address::Tcp(address)),
            Err(_) => Err(format!("invalid address in \"-l {word}\": use \"unix:PATH\" or a port")),
        }
    }
}

impl fmt::Display for Address {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Address::Unix(path) => write!(f, "unix:{}", path.display()),
            Address::Tcp(address) => address.fmt(f),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn words() {
        let parse = |word| Address::parse(word, Path::new("/srv"));
        assert_eq!(parse("unix:/run/c.sock"), Ok(Address::Unix("/run/c.sock".into())));
        assert_eq!(parse("unix:c.sock"), Ok(Address::Unix("/srv/c.sock".into())));
        assert_eq!(parse("8081").map(|a| a.to_string()), Ok("127.0.0.1:8081".to_owned()));
        assert_eq!(parse("[::1]:8081").map(|a| a.to_string()), Ok("[::1]:8081".to_owned()));
        for word in ["", "unix:", "0", "70000", "localhost", "0.0.0.0:8081", "[::]:8081", "192.0.2.1:80"] {
            assert!(parse(word).is_err(), "{word}");
        }
    }
}
