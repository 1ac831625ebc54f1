//! Addresses of `forebay serve` and `forebay proxy`, with HTTPS for names: certificates by ACME for public ones, by the authority of
//! this machine for localhost and its like.

use crate::serve::{append, choose_address, literal, quoted, urls};
use crate::trust::REPLACED;
use clap::Args;
use forebay_acme::{Identifier, LocalAuthority, PairFiles, is_local};
use forebay_net::tls::verify::now;
use forebay_sys::{files, identity};
use std::io::ErrorKind;
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr, SocketAddr, TcpListener};
use std::path::{Path, PathBuf};

/// Ports of HTTPS that are tried for local names if 443 may not be used.
const LOCAL_PORTS: std::ops::Range<u16> = 8443..8543;

/// Directory of the system's accounts and certificates.
const SYSTEM: &str = "/var/lib/forebay";

/// Options of HTTPS.
#[derive(Args, Clone, Debug, Default)]
pub(crate) struct HttpsArgs {
    /// Serve this name over HTTPS, with a certificate that is got and renewed by ACME; for localhost and its like by an authority of this machine (see `forebay trust`). May be repeated
    #[arg(long = "domain", value_name = "NAME")]
    domains: Vec<String>,
    /// Address that redirects to HTTPS, or "off" (default: port 80)
    #[arg(long, value_name = "ADDR", requires = "domains")]
    redirect: Option<String>,
    /// Directory of the ACME authority, whose terms of service are accepted (default: Let's Encrypt)
    #[arg(long, value_name = "URL", requires = "domains")]
    acme_uri: Option<String>,
    /// Roots that the certificate of the ACME authority's own server is verified with (default: those of the system)
    #[arg(long, value_name = "FILE", requires = "acme_uri")]
    acme_ca: Option<PathBuf>,
    /// Mail address for the ACME authority
    #[arg(long, value_name = "ADDRESS", requires = "domains")]
    acme_contact: Option<String>,
}

/// Use of an endpoint.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Purpose {
    /// The server is started.
    Serve,
    /// The configuration is printed: nothing is made on disk.
    Print,
}

/// Addresses that a site is served on.
pub(crate) struct Endpoint {
    /// Addresses of the server; at least one.
    listen: Vec<SocketAddr>,
    https: Option<Https>,
}

/// HTTPS for names.
struct Https {
    names: Vec<Identifier>,
    /// Addresses that redirect to HTTPS.
    redirect: Vec<SocketAddr>,
    source: Source,
}

/// Source of the certificate.
enum Source {
    /// ACME, with lines of `http`.
    Acme(Vec<u8>),
    /// The authority of this machine.
    Local {
        directory: PathBuf,
        pair: PairFiles,
        /// The authority is a new one, in place of one that had expired.
        has_replaced: bool,
    },
}

impl Endpoint {
    /// Chooses the addresses. `listen`: the one that the user wants.
    ///
    /// # Errors
    /// If a name or an address is none, a port is taken or may not be used, or no local certificate can be made.
    pub(crate) fn choose(
        args: &HttpsArgs,
        listen: Option<&str>,
        purpose: Purpose,
    ) -> Result<Endpoint, String> {
        if args.domains.is_empty() {
            return Ok(Endpoint { listen: vec![choose_address(listen)?], https: None });
        }
        let names = args.domains.iter().map(|n| identifier(n)).collect::<Result<Vec<_>, _>>()?;
        let local = names.iter().filter(|n| is_local(n)).count();
        if local > 0 && local < names.len() {
            return Err("local and public names need different certificates: start it twice".into());
        }
        if let Some(wildcard) = names.iter().find(|n| n.is_wildcard() && local == 0) {
            return Err(format!(
                "{wildcard}: a wildcard needs a challenge by DNS, and so a configuration (\"acme_issuer\")"
            ));
        }
        let (listen, redirect) = addresses(args, listen, local > 0)?;
        let source = match local {
            0 => Source::Acme(args.acme_lines(purpose)?),
            _ if purpose == Purpose::Print => {
                let directory = data_directory("local")?;
                let pair = LocalAuthority::files_of(&directory, &names);
                Source::Local { directory, pair, has_replaced: false }
            }
            _ => {
                let directory = data_directory("local")?;
                let authority = LocalAuthority::open(&directory, now())?;
                let pair = authority.certificate(&names, now())?;
                Source::Local { directory, pair, has_replaced: authority.has_replaced() }
            }
        };
        Ok(Endpoint { listen, https: Some(Https { names, redirect, source }) })
    }

    /// Returns all addresses that the configuration listens on.
    pub(crate) fn addresses(&self) -> Vec<SocketAddr> {
        let redirect = self.https.as_ref().map(|https| https.redirect.as_slice()).unwrap_or_default();
        self.listen.iter().chain(redirect).copied().collect()
    }

    /// Returns the paths that the configuration has in directives that take variables.
    pub(crate) fn paths(&self) -> Vec<&Path> {
        match self.https.as_ref().map(|https| &https.source) {
            Some(Source::Local { pair, .. }) => vec![&pair.certificate, &pair.key],
            _ => Vec::new(),
        }
    }

    /// Returns a comment for a configuration that is printed: nothing is made for that.
    pub(crate) fn printed_note(&self) -> String {
        match self.https.as_ref().map(|https| &https.source) {
            Some(Source::Local { pair, .. }) if !pair.certificate.exists() => {
                "# The certificate does not exist yet: the same command without --print-config makes it.\n"
                    .into()
            }
            _ => String::new(),
        }
    }

    /// Returns the first address.
    pub(crate) fn address(&self) -> SocketAddr {
        self.listen.first().copied().unwrap_or(SocketAddr::new(IpAddr::V4(Ipv4Addr::LOCALHOST), 0))
    }

    /// Returns `true` for HTTPS.
    pub(crate) fn has_tls(&self) -> bool {
        self.https.is_some()
    }

    /// Returns the lines for the `http` block, before the server: nothing without HTTPS.
    pub(crate) fn http_lines(&self) -> Vec<u8> {
        let Some(https) = &self.https else { return Vec::new() };
        let mut text = Vec::new();
        if let Source::Acme(lines) = &https.source
            && !lines.is_empty()
        {
            append(&mut text, &[b"\n", lines]);
        }
        if !https.redirect.is_empty() {
            let port = match self.address().port() {
                443 => String::new(),
                port => format!(":{port}"),
            };
            text.extend_from_slice(b"\n    server {\n");
            https.redirect.iter().for_each(|addr| line(&mut text, &format!("listen {addr};")));
            line(&mut text, &format!("server_name {};", https.server_name()));
            line(&mut text, &format!("return 301 https://$host{port}$request_uri;"));
            text.extend_from_slice(b"    }\n");
        }
        text
    }

    /// Returns the first lines of the `server` block.
    pub(crate) fn server_lines(&self) -> Vec<u8> {
        let mut text = Vec::new();
        let ssl = if self.https.is_some() { " ssl" } else { "" };
        self.listen.iter().for_each(|addr| line(&mut text, &format!("listen {addr}{ssl};")));
        let Some(https) = &self.https else {
            line(&mut text, "server_name localhost;");
            return text;
        };
        line(&mut text, "http2 on;");
        line(&mut text, &format!("server_name {};", https.server_name()));
        match &https.source {
            Source::Acme(_) => line(&mut text, "acme on;"),
            Source::Local { pair, .. } => {
                directive(&mut text, "ssl_certificate", &literal(&pair.certificate));
                directive(&mut text, "ssl_certificate_key", &literal(&pair.key));
            }
        }
        text
    }

    /// Returns the URLs under which the site can be opened; at least one.
    pub(crate) fn urls(&self) -> Vec<String> {
        let Some(https) = &self.https else { return urls(self.address()) };
        let port = match self.address().port() {
            443 => String::new(),
            port => format!(":{port}"),
        };
        https.names.iter().map(|name| format!("https://{}{port}/", host(name))).collect()
    }

    /// Returns what the user has to know of the certificate. Empty without HTTPS.
    pub(crate) fn note(&self) -> String {
        match self.https.as_ref().map(|https| &https.source) {
            Some(Source::Acme(_)) => {
                "The certificate comes in some seconds; until then browsers warn of a provisional one.\n"
                    .into()
            }
            Some(Source::Local { directory, has_replaced, .. }) => {
                let replaced = if *has_replaced { format!("Note: {REPLACED}.\n") } else { String::new() };
                format!(
                    "{replaced}The certificate is by the authority of this machine. Browsers accept it after\n  forebay trust   \
                     (or import {})\n",
                    LocalAuthority::root_file(directory).display()
                )
            }
            None => String::new(),
        }
    }
}

impl Https {
    fn server_name(&self) -> String {
        self.names.iter().map(host).collect::<Vec<_>>().join(" ")
    }
}

impl HttpsArgs {
    /// Returns the lines of `http` for certificates by ACME.
    ///
    /// # Errors
    /// If there is no directory for accounts and certificates.
    fn acme_lines(&self, purpose: Purpose) -> Result<Vec<u8>, String> {
        let mut text = Vec::new();
        let directory = data_directory("acme")?;
        // Without the line it is the directory of the system.
        if !directory.starts_with(SYSTEM) {
            // The server makes the last directory of the path, for its worker.
            let parent = directory.parent().unwrap_or(&directory);
            let failed = |e| format!("{}: {}", parent.display(), crate::master_log::errno(&e));
            if purpose == Purpose::Serve {
                files::create_directories(parent, files::directory_mode(files::READABLE)).map_err(failed)?;
            }
            append(&mut text, &[b"    acme_client_path ", &quoted(&directory), b";\n"]);
        }
        if self.acme_uri.is_none() && self.acme_contact.is_none() {
            return Ok(text);
        }
        let uri = self.acme_uri.as_deref().unwrap_or(forebay_acme::LETS_ENCRYPT);
        append(&mut text, &[b"    acme_issuer default {\n        uri ", &quoted(Path::new(uri)), b";\n"]);
        if let Some(file) = &self.acme_ca {
            let file = file.canonicalize().unwrap_or_else(|_| file.clone());
            directive(&mut text, "ssl_trusted_certificate", &quoted(&file));
        }
        if let Some(contact) = &self.acme_contact {
            directive(&mut text, "contact", &quoted(Path::new(contact)));
        }
        text.extend_from_slice(b"        accept_terms_of_service;\n    }\n");
        Ok(text)
    }
}

/// Appends a line of a block in `http`.
fn line(text: &mut Vec<u8>, directive: &str) {
    append(text, &[b"        ", directive.as_bytes(), b"\n"]);
}

/// Appends a directive of a block in `http`, with a value as it is written there.
fn directive(text: &mut Vec<u8>, name: &str, value: &[u8]) {
    append(text, &[b"        ", name.as_bytes(), b" ", value, b";\n"]);
}

fn identifier(name: &str) -> Result<Identifier, String> {
    Identifier::parse(name).ok_or_else(|| format!("{name}: not a name of a server"))
}

/// Returns an identifier as in `server_name` and URLs.
fn host(name: &Identifier) -> String {
    match name {
        Identifier::Ip(ip @ IpAddr::V6(_)) => format!("[{ip}]"),
        other => other.to_string(),
    }
}

/// Returns the addresses for HTTPS, and those that redirect to it.
fn addresses(
    args: &HttpsArgs,
    listen: Option<&str>,
    local: bool,
) -> Result<(Vec<SocketAddr>, Vec<SocketAddr>), String> {
    let listen = match listen {
        Some(text) => vec![choose_address(Some(text))?],
        None if local => vec![local_address()?],
        None => everywhere(443)?,
    };
    let standard = listen.iter().all(|addr| addr.port() == 443);
    let redirect = match args.redirect.as_deref() {
        Some("off") => Vec::new(),
        Some(text) => vec![choose_address(Some(text))?],
        // A redirect is a convenience where the port of HTTPS has to be named anyway.
        None if !standard => Vec::new(),
        None if local => {
            let addr = SocketAddr::new(IpAddr::V4(Ipv4Addr::LOCALHOST), 80);
            if TcpListener::bind(addr).is_ok() { vec![addr] } else { Vec::new() }
        }
        None => everywhere(80)?,
    };
    Ok((listen, redirect))
}

/// Returns an address of this machine only.
fn local_address() -> Result<SocketAddr, String> {
    let local = |port| SocketAddr::new(IpAddr::V4(Ipv4Addr::LOCALHOST), port);
    std::iter::once(443)
        .chain(LOCAL_PORTS)
        .map(local)
        .find(|addr| TcpListener::bind(addr).is_ok())
        .ok_or_else(|| "ports 443 and 8443 to 8542 are all taken".into())
}

/// Returns the addresses of all interfaces.
fn everywhere(port: u16) -> Result<Vec<SocketAddr>, String> {
    let v4 = SocketAddr::new(IpAddr::V4(Ipv4Addr::UNSPECIFIED), port);
    match TcpListener::bind(v4) {
        Ok(_) => {}
        Err(e) if e.kind() == ErrorKind::PermissionDenied => {
            return Err(format!(
                "port {port} needs root or CAP_NET_BIND_SERVICE; --listen and --redirect choose other ports"
            ));
        }
        Err(e) => return Err(format!("port {port}: {}", crate::master_log::errno(&e))),
    }
    // The server opens a socket of IPv6 for this family only.
    let v6 = SocketAddr::new(IpAddr::V6(Ipv6Addr::UNSPECIFIED), port);
    let has_v6 = TcpListener::bind(SocketAddr::new(IpAddr::V6(Ipv6Addr::UNSPECIFIED), 0)).is_ok();
    Ok(std::iter::once(v4).chain(has_v6.then_some(v6)).collect())
}

/// Returns the directory for certificates of `serve` and `proxy`: that of the system for root, else of the user.
///
/// # Errors
/// If the user has no home.
pub(crate) fn data_directory(name: &str) -> Result<PathBuf, String> {
    if identity::is_root() && std::env::var_os("XDG_DATA_HOME").is_none() {
        return Ok(Path::new(SYSTEM).join(name));
    }
    let set = |variable| std::env::var_os(variable).map(PathBuf::from).filter(|path| path.is_absolute());
    let data = set("XDG_DATA_HOME").or_else(|| set("HOME").map(|home| home.join(".local/share")));
    Ok(data.ok_or("neither XDG_DATA_HOME nor HOME is set")?.join("forebay").join(name))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn args(domains: &[&str]) -> HttpsArgs {
        HttpsArgs { domains: domains.iter().map(|d| (*d).to_owned()).collect(), ..HttpsArgs::default() }
    }

    #[test]
    fn names_have_to_go_together() {
        let failed = |domains: &[&str]| {
            Endpoint::choose(&args(domains), Some("127.0.0.1:0"), Purpose::Print).err().unwrap_or_default()
        };
        assert!(failed(&["localhost", "example.org"]).contains("different certificates"));
        assert!(failed(&["*.example.org"]).contains("DNS"));
        assert!(failed(&["a b"]).contains("not a name"));
    }

    #[test]
    fn public_names_are_certified_by_acme_and_redirected() {
        let args = HttpsArgs {
            redirect: Some("127.0.0.1:8081".into()),
            acme_uri: Some("https://ca.example/dir".into()),
            acme_contact: Some("a@example.org".into()),
            ..args(&["example.org", "2001:db8::1"])
        };
        let endpoint = Endpoint::choose(&args, Some("127.0.0.1:8444"), Purpose::Print).expect("an endpoint");
        let http = String::from_utf8(endpoint.http_lines()).expect("text");
        assert!(
            http.contains("uri https://ca.example/dir;") && http.contains("accept_terms_of_service;"),
            "{http}"
        );
        assert!(
            http.contains("listen 127.0.0.1:8081;") && http.contains("https://$host:8444$request_uri"),
            "{http}"
        );
        let server = String::from_utf8(endpoint.server_lines()).expect("text");
        assert!(server.contains("listen 127.0.0.1:8444 ssl;") && server.contains("acme on;"), "{server}");
        assert!(server.contains("server_name example.org [2001:db8::1];"), "{server}");
        assert_eq!(endpoint.urls(), ["https://example.org:8444/", "https://[2001:db8::1]:8444/"]);
    }

    #[test]
    fn without_names_it_is_http() {
        let endpoint =
            Endpoint::choose(&args(&[]), Some("127.0.0.1:8444"), Purpose::Print).expect("an endpoint");
        assert_eq!(endpoint.http_lines(), b"");
        assert_eq!(
            endpoint.server_lines(),
            b"        listen 127.0.0.1:8444;\n        server_name localhost;\n"
        );
    }
}
