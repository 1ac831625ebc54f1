//! Bytes of a connection before its protocol: the PROXY protocol header and the beginning of TLS.

use crate::client::Client;
use crate::thread::ActiveConfig;
use forebay_http::proxy_protocol::{self, Broken, Parsed};
use forebay_net::tls::stream::Stream;
use forebay_net::wire::Wire;
use std::rc::Rc;

/// Progress of a connection.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Greeting {
    /// The header has not arrived completely.
    Partial,
    /// The header is complete, if the listener asks for one. TLS has begun, if the listener asks for that.
    Complete,
}

/// Takes the PROXY protocol header from `buf`, and begins TLS with the bytes after it, as far as the listener asks for these.
/// To be repeated with more bytes until the greeting is complete.
///
/// # Errors
/// The bytes in `buf` are no such header.
pub fn take(
    client: &mut Rc<Client>,
    wire: &mut Wire,
    active: &ActiveConfig,
    buf: &mut Vec<u8>,
) -> Result<Greeting, Broken> {
    let greeting = take_header(client, active, buf)?;
    if greeting == Greeting::Complete {
        begin_tls(client, wire, active, buf);
    }
    Ok(greeting)
}

/// Takes the PROXY protocol header from `buf`, as [`take`] does, but does not begin TLS.
///
/// # Errors
/// The bytes in `buf` are no such header.
pub fn take_header(
    client: &mut Rc<Client>,
    active: &ActiveConfig,
    buf: &mut Vec<u8>,
) -> Result<Greeting, Broken> {
    if !client.address(active).is_some_and(|a| a.options.proxy_protocol) {
        return Ok(Greeting::Complete);
    }
    if buf.is_empty() {
        return Ok(Greeting::Partial);
    }
    let Parsed::Complete(len, header) = proxy_protocol::parse(buf)? else { return Ok(Greeting::Partial) };
    buf.drain(..len);
    Rc::make_mut(client).proxied = header.map(Box::new);
    Ok(Greeting::Complete)
}

/// Begins TLS with the bytes in `buf`, if the listener asks for it.
pub fn begin_tls(client: &Client, wire: &mut Wire, active: &ActiveConfig, buf: &mut Vec<u8>) {
    let ssl = client.address(active).is_some_and(|a| a.options.ssl);
    // A listener of stream may have decrypted the connection that it passed on.
    if ssl && !wire.is_tls() {
        wire.encrypt(Stream::server(std::mem::take(buf)));
    }
}

/// Returns the text for the error log about a client that begins with these bytes instead of a header.
pub fn failure(broken: Broken, buf: &[u8]) -> String {
    let what = match broken {
        Broken::Header => {
            let line = buf.split(|b| matches!(b, b'\r' | b'\n')).next().unwrap_or_default();
            format!("broken header: \"{}\"", String::from_utf8_lossy(line))
        }
        Broken::TooLarge => "header is too large".to_owned(),
        Broken::Version(v) => format!("unknown PROXY protocol version: {v}"),
    };
    format!("{what} while reading PROXY protocol")
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::config::listen::AddressOptions;
    use crate::config::{Address, Config, ListenAddr, Listener, SocketOptions};
    use forebay_net::reactor::Token;
    use std::sync::Arc;
    use std::time::Instant;

    /// Reads the parts one after the other, as they arrive. Returns the progress, the bytes that remain, and whether TLS has
    /// begun.
    fn read(
        options: AddressOptions,
        parts: &[&[u8]],
    ) -> (Result<Greeting, Broken>, Vec<u8>, bool, Rc<Client>) {
        let address = Address { options, ..Address::default() };
        let listener = Listener::new(ListenAddr::Unix("/s".into()), SocketOptions::default(), 0, address);
        let config = Config { listeners: vec![listener], ..Config::default() };
        let active = ActiveConfig { listeners: vec![Some(0)], ..ActiveConfig::new(Arc::new(config)) };
        let mut client = Rc::new(Client::none(Instant::now()));
        let mut wire = Wire::with(Token::NONE, None);
        let mut buf = Vec::new();
        let mut greeting = Ok(Greeting::Partial);
        for part in parts {
            buf.extend_from_slice(part);
            greeting = take(&mut client, &mut wire, &active, &mut buf);
        }
        let encrypted = wire.tls().is_some();
        (greeting, buf, encrypted, client)
    }

    #[test]
    fn plain_and_encrypted_connections() {
        let plain = AddressOptions::default();
        let (greeting, rest, encrypted, _) = read(plain, &[b"GET"]);
        assert_eq!((greeting, rest.as_slice(), encrypted), (Ok(Greeting::Complete), &b"GET"[..], false));
        let (greeting, rest, encrypted, _) = read(AddressOptions { ssl: true, ..plain }, &[b"\x16\x03"]);
        assert_eq!((greeting, rest.len(), encrypted), (Ok(Greeting::Complete), 0, true));
    }

    #[test]
    fn the_header_comes_first() {
        let options = AddressOptions { proxy_protocol: true, ssl: true, ..AddressOptions::default() };
        let (greeting, _, encrypted, _) = read(options, &[b"", b"PROXY TCP4 1.2.3.4"]);
        assert_eq!((greeting, encrypted), (Ok(Greeting::Partial), false));
        let parts: &[&[u8]] = &[b"PROXY TCP4 1.2.3.4", b" 5.6.7.8 9 10\r\n\x16"];
        let (greeting, rest, encrypted, client) = read(options, parts);
        assert_eq!((greeting, rest.len(), encrypted), (Ok(Greeting::Complete), 0, true));
        let proxied = client.proxied.as_ref().map(|header| header.client.to_string());
        assert_eq!(proxied.as_deref(), Some("1.2.3.4:9"));
        let (greeting, rest, encrypted, _) = read(options, &[b"GET / HTTP/1.1\r\n"]);
        assert_eq!((greeting, encrypted), (Err(Broken::Header), false));
        let text = "broken header: \"GET / HTTP/1.1\" while reading PROXY protocol";
        assert_eq!(failure(Broken::Header, &rest), text);
        let text = "unknown PROXY protocol version: 3 while reading PROXY protocol";
        assert_eq!(failure(Broken::Version(3), &[]), text);
    }
}
