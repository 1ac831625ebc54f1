//! `forebay proxy`: writes an nginx.conf that passes everything to one application, and runs it in the foreground.

use crate::cli::Options;
use crate::front_ends::load;
use crate::https::Endpoint;
use crate::master_log::errno;
use crate::serve::{lasting_pid, quoted};
use crate::subcommands::ProxyArgs;
use crate::{server, title};
use forebay_conf::files::Files;
use forebay_sys::files;
use forebay_terminal::print;
use std::ffi::OsString;
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
    let endpoint = Endpoint::choose(&args.https, listen)?;
    if args.print_config {
        print(configuration(&endpoint, &upstream, &lasting_pid(endpoint.address())));
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
    load(&environment, &mut files).map_err(|e| files.render(&e))?;
    print(greeting(&endpoint, &upstream)?);
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

    fn shown(&self) -> String {
        format!("{}://{}{}", if self.encrypted { "https" } else { "http" }, self.server, self.path)
    }
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

fn configuration(endpoint: &Endpoint, upstream: &Upstream, pid: &Path) -> String {
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
    format!(
        "# Written by `forebay proxy`; a start for a configuration of your own.
daemon off;
worker_processes auto;
pid {pid};
error_log stderr warn;

events {{
}}

http {{
    access_log off;

    map $http_upgrade $connection_upgrade {{
        default upgrade;
        '' '';
    }}

    upstream application {{
        server {server};
        keepalive 64;
    }}
{http}
    server {{
{server_lines}        client_max_body_size 0;

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
        pid = quoted(pid),
        server = upstream.server,
        http = endpoint.http_lines(),
        server_lines = endpoint.server_lines(),
        path = upstream.path,
    )
}

/// Fills the private directory. The worker may be another user: it may look in, not write.
fn prepare(directory: &Path, text: &str) -> std::io::Result<()> {
    std::fs::set_permissions(directory, std::fs::Permissions::from_mode(0o755))?;
    files::create_directory(&directory.join("logs"), files::PRIVATE_DIRECTORY)?;
    files::write(&directory.join("nginx.conf"), text.as_bytes(), files::READABLE)
}

#[cfg(test)]
mod tests {
    use super::*;

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
