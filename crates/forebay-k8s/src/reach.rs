//! Addresses that an object must not make Forebay connect to: itself, its link, and the API server.

use crate::options::Options;
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr};

/// Returns why a host must not be an upstream. Names are judged by their text; what they resolve to is not known here.
pub fn forbidden(host: &str, options: &Options) -> Option<&'static str> {
    let host = host.trim_end_matches('.').to_ascii_lowercase();
    if host.is_empty() {
        return Some("the host is missing");
    }
    if host.starts_with("unix") && !host.contains('.') {
        return Some("sockets of the file system are not allowed");
    }
    let bare = host.strip_prefix('[').and_then(|h| h.strip_suffix(']')).unwrap_or(&host);
    if options.api_server.iter().any(|a| a.trim_matches(['[', ']']).eq_ignore_ascii_case(bare)) {
        return Some("the API server is not allowed");
    }
    match bare.parse::<IpAddr>() {
        Ok(address) => address_forbidden(address),
        Err(_) => name_forbidden(bare),
    }
}

fn address_forbidden(address: IpAddr) -> Option<&'static str> {
    match address {
        IpAddr::V4(a) => v4(a),
        IpAddr::V6(a) => match a.to_ipv4_mapped().or_else(|| embedded(a)) {
            Some(a) => v4(a),
            None if a.is_loopback() || a.is_unspecified() => Some("loopback addresses are not allowed"),
            None if a.segments()[0] & 0xffc0 == 0xfe80 => Some("link-local addresses are not allowed"),
            None => None,
        },
    }
}

/// Returns the address in an IPv4-compatible or NAT64 address.
fn embedded(address: Ipv6Addr) -> Option<Ipv4Addr> {
    let s = address.segments();
    let compatible = s[..6] == [0; 6] && (s[6] != 0 || s[7] > 1);
    let nat64 = s[..6] == [0x64, 0xff9b, 0, 0, 0, 0];
    (compatible || nat64).then(|| {
        let [a, b] = s[6].to_be_bytes();
        let [c, d] = s[7].to_be_bytes();
        Ipv4Addr::new(a, b, c, d)
    })
}

fn v4(address: Ipv4Addr) -> Option<&'static str> {
    if address.is_loopback() || address.octets()[0] == 0 {
        return Some("loopback addresses are not allowed");
    }
    if address.is_link_local() {
        return Some("link-local addresses are not allowed");
    }
    None
}

fn name_forbidden(name: &str) -> Option<&'static str> {
    if name == "localhost"
        || name.ends_with(".localhost")
        || name == "ip6-localhost"
        || name == "localhost.localdomain"
    {
        return Some("loopback addresses are not allowed");
    }
    let api = ["kubernetes", "kubernetes.default", "kubernetes.default.svc"];
    if api.contains(&name)
        || name.starts_with("kubernetes.default.svc.")
        || name.starts_with("kubernetes.default.")
    {
        return Some("the API server is not allowed");
    }
    if name == "metadata" || name == "metadata.google.internal" {
        return Some("link-local addresses are not allowed");
    }
    // The C library reads 0x7f000001, 0177.1 and 2130706433 as addresses.
    let last = name.rsplit('.').next().unwrap_or_default();
    let number = !last.is_empty() && (last.bytes().all(|b| b.is_ascii_digit()) || last.starts_with("0x"));
    if number {
        return Some("the address is written in an unusual way");
    }
    None
}

/// Parts of a URL.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Url<'a> {
    /// `http` or `https`.
    pub scheme: &'a str,
    /// Host, an IPv6 address in brackets.
    pub host: &'a str,
    /// Port as written.
    pub port: Option<&'a str>,
    /// Path and query.
    pub rest: &'a str,
}

/// Cuts a URL with variables into its parts. `None`: it is none, or has a user in it.
pub fn split(url: &str) -> Option<Url<'_>> {
    let (scheme, rest) = url.split_once("://")?;
    // These variables begin with a slash.
    let paths = ["$request_uri", "$uri", "${request_uri}", "${uri}"];
    let end = [rest.find(['/', '?', '#'])].into_iter().chain(paths.map(|p| rest.find(p))).flatten().min();
    let end = end.unwrap_or(rest.len());
    let (authority, rest) = rest.split_at_checked(end)?;
    if authority.contains('@') || authority.is_empty() || authority.contains('\\') {
        return None;
    }
    let (host, port) = match authority.rfind(']') {
        Some(i) => (authority.get(..=i)?, authority.get(i + 1..)?.strip_prefix(':')),
        None => match authority.rsplit_once(':') {
            Some((host, port)) => (host, Some(port)),
            None => (authority, None),
        },
    };
    Some(Url { scheme, host, port, rest })
}

/// Returns `true` for what a client can be sent to: a path, or a URL of http or https whose host may be a variable.
pub fn is_link(text: &str) -> bool {
    if text.contains(|c: char| c.is_whitespace() || c.is_control() || "\"'<>;\\".contains(c)) {
        return false;
    }
    if text.starts_with('/') {
        return true;
    }
    let host = |c: char| c.is_ascii_alphanumeric() || "-._[]:$*".contains(c);
    let scheme = |s: &str| matches!(s, "http" | "https" | "$scheme" | "$pass_access_scheme");
    split(text).is_some_and(|u| scheme(u.scheme) && !u.host.is_empty() && u.host.chars().all(host))
}

/// Returns `true` for a name with a label of no letters, which no name server knows.
pub(crate) fn has_empty_label(host: &str) -> bool {
    host.strip_suffix('.').unwrap_or(host).split('.').any(str::is_empty)
}

/// Returns why a URL must not be fetched. `own_host`: `$host` is a name of the server, which clients cannot choose.
pub fn forbidden_url(url: &str, own_host: bool, options: &Options) -> Option<String> {
    let Some(parts) = split(url) else { return Some("it must be http://HOST... or https://HOST...".into()) };
    if !matches!(parts.scheme, "http" | "https" | "$scheme" | "$pass_access_scheme") {
        return Some(format!("the scheme \"{}\" is not allowed", parts.scheme.escape_debug()));
    }
    let digits = |p: &str| p.len() <= 5 && p.parse::<u16>().is_ok_and(|n| n > 0) && !p.starts_with('+');
    if parts.port.is_some_and(|p| !digits(p)) {
        return Some("its port is no number".into());
    }
    if parts.host.contains('$') {
        // Clients choose the field Host: a request for an absolute URI has any.
        let own = matches!(parts.host, "$host" | "${host}" | "$server_name");
        let why = "the host must not depend on the request; $host is the name of the server";
        return if own && own_host { None } else { Some(why.into()) };
    }
    let valid = |c: char| c.is_ascii_alphanumeric() || "-._[]:".contains(c);
    if !parts.host.chars().all(valid) || has_empty_label(parts.host) {
        return Some("its host is no name".into());
    }
    forbidden(parts.host, options).map(Into::into)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn hosts() {
        let options = Options { api_server: vec!["10.96.0.1".into()], ..Options::default() };
        for host in [
            "127.0.0.1",
            "127.9.9.9",
            "0.0.0.0",
            "169.254.169.254",
            "::1",
            "[::1]",
            "fe80::1",
            "::ffff:127.0.0.1",
            "localhost",
            "LOCALHOST.",
            "kubernetes.default",
            "kubernetes.default.svc.cluster.local",
            "10.96.0.1",
            "unix",
            "2130706433",
            "0x7f000001",
            "127.1",
            "64:ff9b::7f00:1",
            "::7f00:1",
            "",
        ] {
            assert!(forbidden(host, &options).is_some(), "{host}");
        }
        for host in [
            "10.0.0.1",
            "auth.example.com",
            "oauth2-proxy.auth.svc.cluster.local",
            "2001:db8::1",
            "unix.example.com",
        ] {
            assert_eq!(forbidden(host, &options), None, "{host}");
        }
    }

    #[test]
    fn urls() {
        let options = Options::default();
        let ok = |url: &str| forbidden_url(url, true, &options).is_none();
        assert!(
            ok("http://auth.example.com:8080/x?y=$host")
                && ok("https://$host/oauth2/auth")
                && ok("http://[2001:db8::1]:80/")
        );
        assert!(
            !ok("http://unix:/run/x.sock:/")
                && !ok("http://a@127.0.0.1/")
                && !ok("http://$arg_x/")
                && !ok("file:///etc/passwd")
        );
        assert!(!ok("http://127.0.0.1:10246/") && !ok("http://x:$arg_p/") && !ok("x") && !ok("http:///x"));
        assert!(!ok("http://$http_host/") && !ok("http://$best_http_host/"));
        assert!(forbidden_url("https://$host/", false, &options).is_some());
    }
}
