//! `forebay proxy`: writes an nginx.conf that passes everything to one application, and runs it in the foreground.

use crate::cli::Options;
use crate::front_ends::load;
use crate::https::{Endpoint, Purpose};
use crate::master_log::errno;
use crate::serve::{append, dollar_line, interface_addresses, lasting_pid, quoted};
use crate::subcommands::ProxyArgs;
use crate::{server, title};
use forebay_conf::files::Files;
use forebay_sys::files;
use forebay_terminal::print;
use std::ffi::OsString;
use std::io::Write;
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr, SocketAddr, ToSocketAddrs};
use std::os::unix::fs::PermissionsExt;
use std::path::Path;

/// Runs `proxy`. Returns the exit code.
pub(crate) fn main(args: &ProxyArgs, arguments: Vec<OsString>, titled: bool) -> u8 {
    if !titled && !args.print_config {
        title::set_master(&arguments);
    }
    match run(args, arguments) {
        Ok(code) => code,
        Err(text) => {
            eprintln!("forebay: {text}");
            1
        }
    }
}

fn run(args: &ProxyArgs, arguments: Vec<OsString>) -> Result<u8, String> {
    let (listen, upstream) = match args.places.as_slice() {
        [listen, upstream] => (Some(listen.as_str()), upstream),
        [upstream] => (None, upstream),
        _ => return Err("an upstream is wanted".into()),
    };
    let upstream = Upstream::parse(upstream)?;
    let purpose = if args.print_config { Purpose::Print } else { Purpose::Serve };
    let endpoint = Endpoint::choose(&args.https, listen, purpose)?;
    upstream.differs_from(&endpoint)?;
    if args.print_config {
        let mut text = configuration(&endpoint, &upstream, &lasting_pid(endpoint.address()));
        let second = text.iter().position(|b| *b == b'\n').map_or(0, |at| at + 1);
        text.splice(second..second, endpoint.printed_note().into_bytes());
        print(text);
        return Ok(0);
    }
    let private = tempfile::Builder::new().prefix("forebay-").tempdir().map_err(|e| errno(&e))?;
    let directory = private.path();
    let text = configuration(&endpoint, &upstream, &directory.join("nginx.pid"));
    prepare(directory, &text).map_err(|e| format!("{}: {}", directory.display(), errno(&e)))?;
    let options = Options {
        prefix: Some(directory.to_string_lossy().into_owned()),
        conf: Some("nginx.conf".to_owned()),
        error_log: Some("stderr".to_owned()),
        ..Options::default()
    };
    let (environment, _) = options.places();
    let mut files = Files::disk();
    let (config, _) = load(&environment, &mut files).map_err(|e| files.render(&e))?;
    print(greeting(&endpoint, &upstream)?);
    crate::acme::tell_of_arrivals(&config);
    // The server reads its configuration by itself.
    drop(config);
    // The directory is removed when `private` goes out of scope, after the server has ended.
    Ok(server::start(&options, arguments))
}

/// Returns the text for the user who has started the program.
fn greeting(endpoint: &Endpoint, upstream: &Upstream) -> Result<String, String> {
    let urls = endpoint.urls();
    let (first, others) = urls.split_first().ok_or("no address")?;
    let mut text = format!("Passing {first} to {}\n", upstream.shown());
    others.iter().for_each(|url| text.push_str(&format!("    and {url}\n")));
    text.push_str(&endpoint.note());
    text.push_str("End it with Ctrl-C; --print-config shows the nginx.conf behind it.\n");
    Ok(text)
}

/// The server to which requests are passed.
#[derive(Debug, PartialEq, Eq)]
struct Upstream {
    encrypted: bool,
    /// The value of `server`.
    server: String,
    /// Name for the certificate; empty where there is none.
    host: String,
    /// Path that replaces the first slash; empty: none.
    path: String,
}

/// Returns whether an upstream is encrypted, and the text after the scheme; `None` for a scheme other than HTTP's.
fn scheme(text: &str) -> Option<(bool, &str)> {
    match text.split_once("://") {
        Some(("http", rest)) => Some((false, rest)),
        Some(("https", rest)) => Some((true, rest)),
        Some(_) => None,
        None => Some((false, text)),
    }
}

impl Upstream {
    /// Parses `PORT`, `HOST[:PORT]`, `unix:PATH` or a URL.
    fn parse(text: &str) -> Result<Upstream, String> {
        let bad = || Err(format!("{text}: not a port, an address or a URL"));
        let Some((encrypted, rest)) = scheme(text) else { return bad() };
        let safe = |c: char| c.is_ascii_graphic() && !"{};\"'\\$#".contains(c);
        if rest.is_empty() || !rest.chars().all(safe) {
            return bad();
        }
        if rest.starts_with("unix:") {
            return Ok(Upstream { encrypted, server: rest.into(), host: String::new(), path: String::new() });
        }
        let (place, path) = rest.find('/').map_or((rest, ""), |at| rest.split_at(at));
        if place.parse::<u16>().is_ok_and(|port| port > 0) {
            let (server, path) = (format!("127.0.0.1:{place}"), path.into());
            return Ok(Upstream { encrypted, server, host: String::new(), path });
        }
        let Some((host, port)) = host_and_port(place) else { return bad() };
        let server = format!("{host}:{}", port.unwrap_or(if encrypted { "443" } else { "80" }));
        Ok(Upstream { encrypted, server, host: host.into(), path: path.into() })
    }

    /// Refuses an upstream that is an address of the server itself: each request would come back until it is refused.
    fn differs_from(&self, endpoint: &Endpoint) -> Result<(), String> {
        let own = endpoint.addresses();
        let targets: Vec<SocketAddr> =
            self.server.to_socket_addrs().map(Iterator::collect).unwrap_or_default();
        let Some((target, listen)) =
            targets.iter().find_map(|t| own.iter().find(|l| is_same(*t, **l)).map(|l| (t, l)))
        else {
            return Ok(());
        };
        let free = listen.port().checked_add(1).unwrap_or(PORT);
        Err(format!(
            "{target} is where this server would listen ({listen}), so it would pass requests to itself; start the application \
             first, or name another address to listen on: forebay proxy {free} {}",
            target.port()
        ))
    }

    fn shown(&self) -> String {
        format!("{}://{}{}", if self.encrypted { "https" } else { "http" }, self.server, self.path)
    }
}

/// Port for a proposal where there is no better one.
const PORT: u16 = 8080;

/// Returns `true` if a connection to `target` reaches a socket that listens on `listen`.
fn is_same(target: SocketAddr, listen: SocketAddr) -> bool {
    if target.port() != listen.port() || target.is_ipv4() != listen.is_ipv4() {
        return false;
    }
    // The kernel takes an address that stands for all as the loopback address of this machine.
    let ip = match target.ip() {
        IpAddr::V4(ip) if ip.is_unspecified() => IpAddr::V4(Ipv4Addr::LOCALHOST),
        IpAddr::V6(ip) if ip.is_unspecified() => IpAddr::V6(Ipv6Addr::LOCALHOST),
        ip => ip,
    };
    ip == listen.ip()
        || listen.ip().is_unspecified() && (ip.is_loopback() || interface_addresses().contains(&ip))
}

/// Splits `HOST[:PORT]`; `None` where the host is a number or the port is none.
fn host_and_port(place: &str) -> Option<(&str, Option<&str>)> {
    let (host, port) = match place.rsplit_once(':') {
        Some((host, port)) if !port.ends_with(']') => (host, Some(port)),
        _ => (place, None),
    };
    let number = host.bytes().all(|b| b.is_ascii_digit());
    let refused = number || port.is_some_and(|p| !p.parse::<u16>().is_ok_and(|p| p > 0));
    (!refused).then_some((host, port))
}

fn configuration(endpoint: &Endpoint, upstream: &Upstream, pid: &Path) -> Vec<u8> {
    let scheme = if upstream.encrypted { "https" } else { "http" };
    // A server on another machine answers to its own name, a server on this one to the name that the client used.
    let foreign = upstream.encrypted && !upstream.host.is_empty();
    let host = if foreign { upstream.host.as_str() } else { "$http_host" };
    let tls = match foreign {
        true => {
            format!("            proxy_ssl_server_name on;\n            proxy_ssl_name {};\n", upstream.host)
        }
        false => String::new(),
    };
    let mut text = Vec::new();
    append(
        &mut text,
        &[
            b"# Written by `forebay proxy`; a start for a configuration of your own.
daemon off;
worker_processes auto;
pid ",
            &quoted(pid),
            b";
error_log stderr warn;

events {
}

http {
    access_log off;
",
            dollar_line(endpoint.paths()).as_bytes(),
        ],
    );
    // An upstream has no bytes that mean something in a configuration: see `Upstream::parse`.
    let _ = write!(
        text,
        "
    map $http_upgrade $connection_upgrade {{
        default upgrade;
        '' '';
    }}

    upstream application {{
        server {server};
        keepalive 64;
    }}
",
        server = upstream.server,
    );
    append(&mut text, &[&endpoint.http_lines(), b"\n    server {\n", &endpoint.server_lines()]);
    let _ = write!(
        text,
        "        client_max_body_size 0;

        location / {{
            proxy_pass {scheme}://application{path};
            proxy_set_header Host {host};
            proxy_set_header X-Real-IP $remote_addr;
            proxy_set_header X-Forwarded-For $proxy_add_x_forwarded_for;
            proxy_set_header X-Forwarded-Proto $scheme;
            proxy_set_header Upgrade $http_upgrade;
            proxy_set_header Connection $connection_upgrade;
{tls}        }}
    }}
}}
",
        path = upstream.path,
    );
    text
}

/// Fills the private directory. The worker may be another user: it may look in, not write.
fn prepare(directory: &Path, text: &[u8]) -> std::io::Result<()> {
    std::fs::set_permissions(directory, std::fs::Permissions::from_mode(0o755))?;
    files::create_directory(&directory.join("logs"), files::PRIVATE_DIRECTORY)?;
    files::write(&directory.join("nginx.conf"), text, files::READABLE)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_upstream_is_another_server() {
        let loops = |upstream: &str, listen: &str| {
            let endpoint =
                Endpoint::choose(&Default::default(), Some(listen), Purpose::Print).expect("an endpoint");
            Upstream::parse(upstream).expect("an upstream").differs_from(&endpoint).is_err()
        };
        for (upstream, listen) in [
            ("8080", "8080"),
            ("127.0.0.1:8080", "8080"),
            ("localhost:8080", "127.0.0.1:8080"),
            ("0.0.0.0:8080", "8080"),
            ("8080", "*:8080"),
            ("127.0.0.2:8080", "*:8080"),
            ("http://[::1]:8080/x", "[::]:8080"),
            ("[::1]:8080", "[::1]:8080"),
            ("[::]:8080", "[::1]:8080"),
            ("https://127.0.0.1:8080", "*:8080"),
        ] {
            assert!(loops(upstream, listen), "{upstream} {listen}");
        }
        for (upstream, listen) in [
            ("8081", "8080"),
            ("127.0.0.2:8080", "8080"),
            ("192.0.2.1:8080", "*:8080"),
            ("[::1]:8080", "*:8080"),
            ("unix:/run/app.sock", "*:8080"),
        ] {
            assert!(!loops(upstream, listen), "{upstream} {listen}");
        }
    }

    #[test]
    fn upstreams() {
        let shown = |text: &str| Upstream::parse(text).map(|u| u.shown());
        assert_eq!(shown("3000").as_deref(), Ok("http://127.0.0.1:3000"));
        assert_eq!(shown("app:3000").as_deref(), Ok("http://app:3000"));
        assert_eq!(shown("app").as_deref(), Ok("http://app:80"));
        assert_eq!(shown("https://example.com/x/").as_deref(), Ok("https://example.com:443/x/"));
        assert_eq!(shown("http://[::1]:81").as_deref(), Ok("http://[::1]:81"));
        assert_eq!(shown("[::1]").as_deref(), Ok("http://[::1]:80"));
        assert_eq!(shown("unix:/run/app.sock").as_deref(), Ok("http://unix:/run/app.sock"));
        for bad in ["", "ftp://x", "0", "x:0", "x:99999", ":80", "a;b", "a b", "x{"] {
            assert!(shown(bad).is_err(), "{bad}");
        }
    }
}
