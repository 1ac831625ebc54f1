//! `forebay serve`: writes an nginx.conf for a folder, or for the demo site, and runs it in the foreground.

use crate::cli::Options;
use crate::front_ends::load;
use crate::https::{Endpoint, Purpose};
use crate::master_log::errno;
use crate::plan::Plan;
use crate::subcommands::ServeArgs;
use crate::{server, title};
use forebay_conf::files::Files;
use forebay_conf::print;
use forebay_sys::{files, identity};
use std::ffi::OsString;
use std::fmt::Write;
use std::io;
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr, SocketAddr, TcpListener};
use std::os::unix::ffi::OsStrExt;
use std::os::unix::fs::{MetadataExt, PermissionsExt};
use std::path::{Path, PathBuf};

/// The port that is tried first; when it is taken, the next ones are.
const PORT: u16 = 8080;
/// Number of ports to try.
const PORTS: u16 = 100;

/// The demo site, by path below its root.
const DEMO: [(&str, &[u8]); 11] = [
    ("index.html", include_bytes!("../demo/index.html")),
    ("about.html", include_bytes!("../demo/about.html")),
    ("404.html", include_bytes!("../demo/404.html")),
    ("docs/index.html", include_bytes!("../demo/docs/index.html")),
    ("docs/configuration.html", include_bytes!("../demo/docs/configuration.html")),
    ("docs/operation.html", include_bytes!("../demo/docs/operation.html")),
    ("assets/style.css", include_bytes!("../demo/assets/style.css")),
    ("assets/site.js", include_bytes!("../demo/assets/site.js")),
    ("assets/weir.svg", include_bytes!("../demo/assets/weir.svg")),
    ("assets/flow.png", include_bytes!("../demo/assets/flow.png")),
    ("favicon.svg", include_bytes!("../demo/favicon.svg")),
];

/// Types that a site needs; the rest is served as a download.
const TYPES: &str = "    types {
        text/html html htm;
        text/css css;
        text/xml xml;
        text/plain txt md log;
        text/javascript js mjs;
        application/json json map;
        application/wasm wasm;
        application/pdf pdf;
        application/zip zip;
        image/svg+xml svg svgz;
        image/png png;
        image/jpeg jpg jpeg;
        image/gif gif;
        image/webp webp;
        image/avif avif;
        image/x-icon ico;
        font/woff woff;
        font/woff2 woff2;
        video/mp4 mp4;
        video/webm webm;
        audio/mpeg mp3;
    }
    default_type application/octet-stream;
";

/// Compression of what shrinks by it.
const COMPRESSION: &str = "    gzip on;
    gzip_vary on;
    gzip_min_length 256;
    gzip_types text/css text/xml text/plain text/javascript application/json application/wasm image/svg+xml;
    brotli on;
    brotli_min_length 256;
    brotli_types text/css text/xml text/plain text/javascript application/json application/wasm image/svg+xml;
";

/// Path of the dashboard of `--dashboard`.
const DASHBOARD: &str = "/-/dashboard";

/// Returns the location of the dashboard, for this machine alone: a client here has one of its own addresses.
fn own_dashboard() -> String {
    let mut own = interface_addresses();
    own.extend([IpAddr::V4(Ipv4Addr::LOCALHOST), IpAddr::V6(Ipv6Addr::LOCALHOST)]);
    own.sort_unstable();
    own.dedup();
    let allow: String = own.iter().map(|ip| format!("            allow {ip};\n")).collect();
    format!(
        "\n        location ^~ {DASHBOARD} {{\n            dashboard;\n{allow}            deny all;\n        }}\n"
    )
}

/// A folder to serve, and the address.
struct Site {
    root: PathBuf,
    demo: bool,
    dot_files: bool,
    access_log: bool,
    dashboard: bool,
    endpoint: Endpoint,
    /// User of the worker, and group.
    user: Option<(String, Option<String>)>,
}

/// Runs `serve`. Returns the exit code.
pub(crate) fn main(args: &ServeArgs, arguments: Vec<OsString>, titled: bool) -> u8 {
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

fn run(args: &ServeArgs, arguments: Vec<OsString>) -> Result<u8, String> {
    let purpose = if args.print_config { Purpose::Print } else { Purpose::Serve };
    let endpoint = Endpoint::choose(&args.https, args.listen.as_deref(), purpose)?;
    let private = tempfile::Builder::new().prefix("forebay-").tempdir().map_err(|e| errno(&e))?;
    let directory = private.path();
    let ServeArgs { dot_files, access_log, dashboard, .. } = *args;
    let what = match &args.dir {
        Some(dir) => Site { dot_files, access_log, dashboard, ..folder(dir, endpoint)? },
        None => {
            let root = directory.join("site");
            Site { root, demo: true, dot_files, access_log, dashboard, endpoint, user: None }
        }
    };
    if args.print_config {
        return print_configuration(&what, private).map_err(|e| errno(&e));
    }
    let text = configuration(&what, &directory.join("nginx.pid"));
    prepare(&what, directory, &text).map_err(|e| format!("{}: {}", directory.display(), errno(&e)))?;
    let options = Options {
        prefix: Some(directory.to_string_lossy().into_owned()),
        conf: Some("nginx.conf".to_owned()),
        error_log: Some("stderr".to_owned()),
        ..Options::default()
    };
    announce(&what, &options, args.listen.is_some())?;
    // The directory is removed when `private` goes out of scope, after the server has ended.
    Ok(server::start(&options, arguments))
}

/// Prints the configuration. It has to start later, too: the demo site stays in the directory.
fn print_configuration(what: &Site, private: tempfile::TempDir) -> io::Result<u8> {
    let mut text = configuration(what, &lasting_pid(what.endpoint.address()));
    let second = text.iter().position(|b| *b == b'\n').map_or(0, |at| at + 1);
    text.splice(second..second, what.endpoint.printed_note().into_bytes());
    if what.demo {
        let directory = private.keep();
        std::fs::set_permissions(&directory, std::fs::Permissions::from_mode(0o755))?;
        write_demo(&what.root)?;
        let note = format!("# The demo site is in {} and stays there.\n", directory.display());
        text.splice(second..second, note.into_bytes());
    }
    forebay_terminal::print(text);
    Ok(0)
}

/// Returns the pid file of a configuration that is printed. It is in a folder where no other user can make one: root signals the process
/// that such a file names.
pub(crate) fn lasting_pid(listen: SocketAddr) -> PathBuf {
    let name = format!("forebay-{}.pid", listen.port());
    let folder = |variable| std::env::var_os(variable).map(PathBuf::from).filter(|dir| dir.is_absolute());
    if identity::is_root() {
        return Path::new("/run").join(name);
    }
    match (folder("XDG_RUNTIME_DIR"), folder("HOME")) {
        (Some(dir), _) => dir.join(name),
        (None, Some(home)) => home.join(format!(".{name}")),
        // Below the prefix.
        (None, None) => PathBuf::from(name),
    }
}

/// Returns the URLs under which an address can be opened: the addresses of all interfaces for one that stands for all.
pub(crate) fn urls(listen: SocketAddr) -> Vec<String> {
    let url = |host: &str| format!("http://{host}:{}/", listen.port());
    let of = |ip: IpAddr| match ip {
        IpAddr::V4(ip) => url(&ip.to_string()),
        IpAddr::V6(ip) => url(&format!("[{ip}]")),
    };
    match listen.ip() {
        ip if ip.is_loopback() => vec![url("localhost")],
        ip if ip.is_unspecified() => {
            let mut all = vec![url("localhost")];
            all.extend(own_addresses(ip.is_ipv6()).into_iter().map(of));
            all
        }
        ip => vec![of(ip)],
    }
}

/// Returns the addresses of this machine that others can reach it by. IPv6 sockets of nginx's configuration take no IPv4.
fn own_addresses(v6: bool) -> Vec<IpAddr> {
    let mut all = interface_addresses();
    // Addresses of one link need its name, which browsers do not take.
    let local = |ip: &IpAddr| matches!(ip, IpAddr::V6(ip) if ip.is_unicast_link_local());
    all.retain(|ip| ip.is_ipv6() == v6 && !ip.is_loopback() && !local(ip));
    all
}

/// Returns the addresses of all interfaces, each once.
pub(crate) fn interface_addresses() -> Vec<IpAddr> {
    let mut all = Vec::new();
    for interface in nix::ifaddrs::getifaddrs().into_iter().flatten() {
        let Some(address) = interface.address else { continue };
        let ip = match (address.as_sockaddr_in(), address.as_sockaddr_in6()) {
            (Some(v4), _) => IpAddr::V4(v4.ip()),
            (_, Some(v6)) => IpAddr::V6(v6.ip()),
            _ => continue,
        };
        if !all.contains(&ip) {
            all.push(ip);
        }
    }
    all
}

/// Returns the wanted address, or port 8080 of this machine only, or the next one that is free.
pub(crate) fn choose_address(wanted: Option<&str>) -> Result<SocketAddr, String> {
    let local = IpAddr::V4(Ipv4Addr::LOCALHOST);
    let Some(text) = wanted else {
        return (PORT..PORT + PORTS)
            .map(|port| SocketAddr::new(local, port))
            .find(|addr| is_free(*addr))
            .ok_or_else(|| format!("ports {PORT} to {} are all taken", PORT + PORTS - 1));
    };
    let port = |text: &str| text.parse::<u16>().ok().map(|port| SocketAddr::new(local, port));
    let all = |text: &str| {
        let port = text.strip_prefix("*:")?.parse().ok()?;
        Some(SocketAddr::new(IpAddr::V4(Ipv4Addr::UNSPECIFIED), port))
    };
    let addr = text.parse().ok().or_else(|| port(text)).or_else(|| all(text));
    let addr: SocketAddr = addr.ok_or_else(|| format!("{text}: not an address or a port"))?;
    match addr.port() {
        0 => TcpListener::bind(addr).and_then(|listener| listener.local_addr()).map_err(|e| errno(&e)),
        _ => Ok(addr),
    }
}

fn is_free(addr: SocketAddr) -> bool {
    TcpListener::bind(addr).is_ok()
}

fn folder(dir: &Path, endpoint: Endpoint) -> Result<Site, String> {
    let root = dir.canonicalize().map_err(|e| format!("{}: {}", dir.display(), errno(&e)))?;
    let about = std::fs::metadata(&root).map_err(|e| format!("{}: {}", dir.display(), errno(&e)))?;
    if !about.is_dir() {
        return Err(format!("{}: not a folder", dir.display()));
    }
    let user = identity::is_root().then(|| user_for(&root, about.uid())).flatten();
    Ok(Site { root, demo: false, dot_files: false, access_log: false, dashboard: false, endpoint, user })
}

/// Chooses the worker's user if root serves a folder: the owner of the folder, but root only if no other user may read it.
/// Returns `None` for the default user.
fn user_for(root: &Path, owner: u32) -> Option<(String, Option<String>)> {
    if owner != 0 {
        return identity::user_name(owner).map(|user| (user, None));
    }
    let open = |dir: &Path| std::fs::metadata(dir).is_ok_and(|d| d.permissions().mode() & 0o5 == 0o5);
    if root.ancestors().all(open) {
        return None;
    }
    eprintln!("forebay: only root can read {}: the worker keeps root's rights", root.display());
    Some(("root".to_owned(), Some("root".to_owned())))
}

/// Appends pieces of a configuration. Bytes that are not the program's own go through [`quoted`] or [`literal`].
pub(crate) fn append(text: &mut Vec<u8>, pieces: &[&[u8]]) {
    pieces.iter().for_each(|piece| text.extend_from_slice(piece));
}

/// Returns a path as a word of the configuration.
pub(crate) fn quoted(path: &Path) -> Vec<u8> {
    print::quoted(path.as_os_str().as_bytes())
}

/// Returns a path as the value of a directive that takes variables.
pub(crate) fn literal(path: &Path) -> Vec<u8> {
    print::literal(path.as_os_str().as_bytes())
}

/// Returns the line of `http` that [`literal`] needs for one of these paths.
pub(crate) fn dollar_line<'p>(paths: impl IntoIterator<Item = &'p Path>) -> String {
    let needed = paths.into_iter().any(|path| print::needs_dollar_sign(path.as_os_str().as_bytes()));
    if needed { format!("    {}\n", print::DOLLAR_SIGN) } else { String::new() }
}

fn configuration(what: &Site, pid: &Path) -> Vec<u8> {
    let mut text = b"# Written by `forebay serve`; a start for a configuration of your own.\n".to_vec();
    let log = if what.access_log { "/dev/stdout" } else { "off" };
    let user = what.user.as_ref().map(|(user, group)| match group {
        Some(group) => {
            [b"user ".as_slice(), &print::quoted(user), b" ", &print::quoted(group), b";\n"].concat()
        }
        None => [b"user ".as_slice(), &print::quoted(user), b";\n"].concat(),
    });
    append(
        &mut text,
        &[
            b"daemon off;\n",
            &user.unwrap_or_default(),
            b"worker_processes auto;\npid ",
            &quoted(pid),
            b";\nerror_log stderr warn;\n\nevents {\n}\n\nhttp {\n",
            TYPES.as_bytes(),
            COMPRESSION.as_bytes(),
            b"    sendfile on;\n    access_log ",
            log.as_bytes(),
            b";\n",
            dollar_line(what.endpoint.paths().into_iter().chain([what.root.as_path()])).as_bytes(),
        ],
    );
    let rest = if what.demo {
        "        index index.html;\n        error_page 404 /404.html;\n\n        location /assets/ {\n            \
         expires 1h;\n        }\n"
    } else {
        "        index index.html index.htm;\n        autoindex on;\n        autoindex_format page;\n        \
         autoindex_exact_size off;\n        autoindex_localtime on;\n"
    };
    // Repositories (.git), settings and keys (.env) are often among the pages.
    let hidden = if what.demo || what.dot_files {
        ""
    } else {
        "\n        location ~ /\\. {\n            return 404;\n        }\n\n        location ^~ /.well-known/ {\n            location ~ \
         /\\.well-known/(.*/)?\\. {\n                return 404;\n            }\n        }\n"
    };
    let dashboard = if what.dashboard { own_dashboard() } else { String::new() };
    append(
        &mut text,
        &[
            &what.endpoint.http_lines(),
            b"\n    server {\n",
            &what.endpoint.server_lines(),
            b"        root ",
            &literal(&what.root),
            b";\n        charset utf-8;\n",
            rest.as_bytes(),
            hidden.as_bytes(),
            dashboard.as_bytes(),
            b"    }\n}\n",
        ],
    );
    text
}

/// Fills the private directory. The worker may be another user: it may look in, not write.
fn prepare(what: &Site, directory: &Path, text: &[u8]) -> io::Result<()> {
    std::fs::set_permissions(directory, std::fs::Permissions::from_mode(0o755))?;
    files::create_directory(&directory.join("logs"), files::PRIVATE_DIRECTORY)?;
    files::write(&directory.join("nginx.conf"), text, files::READABLE)?;
    if what.demo { write_demo(&what.root) } else { Ok(()) }
}

fn write_demo(root: &Path) -> io::Result<()> {
    for (name, bytes) in DEMO {
        let path = root.join(name);
        if let Some(parent) = path.parent() {
            files::create_directories(parent, files::directory_mode(files::READABLE))?;
        }
        files::write(&path, bytes, files::READABLE)?;
    }
    Ok(())
}

/// Commands that `serve` proposes.
const NEXT_STEPS: &str = "
Go on:  forebay serve DIR             your own folder
        forebay serve --print-config  the nginx.conf behind this
        forebay -c /path/nginx.conf   a configuration that you have
        forebay explain               each setting and where it comes from
End it with Ctrl-C.
";

/// Prints the chosen settings and the next steps. `asked`: the user has chosen the address.
fn announce(what: &Site, options: &Options, asked: bool) -> Result<(), String> {
    let (environment, _) = options.places();
    let mut files = Files::disk();
    let (config, _) = load(&environment, &mut files).map_err(|e| files.render(&e))?;
    let plan = Plan::new(&config);
    let served = if what.demo { "the demo site".to_owned() } else { what.root.display().to_string() };
    let urls = what.endpoint.urls();
    let mut text = format!("Serving {served} on {}\n", urls.first().map_or("", String::as_str));
    urls.iter().skip(1).for_each(|url| text.push_str(&format!("  and {url}\n")));
    text.push_str(&what.endpoint.note());
    if what.dashboard {
        let url = urls.first().map_or("", String::as_str).trim_end_matches('/');
        let _ = writeln!(text, "  dashboard: {url}{DASHBOARD} (from this machine only)");
    }
    if !asked && !what.endpoint.has_tls() && what.endpoint.address().port() != PORT {
        let _ = writeln!(text, "  (port {PORT} is taken)");
    }
    let Plan { threads, threads_reason, connections_reason, descriptors, descriptors_reason, .. } = &plan;
    let _ = writeln!(text, "\n  workers      {:<8} {threads_reason}", threads.cpus.len());
    let _ = writeln!(text, "  connections  {:<8} a worker: {connections_reason}", threads.connections);
    let _ = writeln!(text, "  descriptors  {descriptors:<8} {descriptors_reason}");
    text.push_str(NEXT_STEPS);
    forebay_terminal::print(text);
    crate::acme::tell_of_arrivals(&config);
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn addresses() {
        assert_eq!(choose_address(Some("127.0.0.1:9")), Ok("127.0.0.1:9".parse().expect("address")));
        assert_eq!(choose_address(Some("81")), Ok("127.0.0.1:81".parse().expect("address")));
        assert_eq!(choose_address(Some("*:81")), Ok("0.0.0.0:81".parse().expect("address")));
        assert!(choose_address(Some("x")).is_err());
        assert_ne!(choose_address(Some("0")).expect("free").port(), 0);
    }

    /// The folder that a configuration serves is the one that was named, whatever its name.
    #[test]
    fn folders_of_any_name() {
        use std::os::unix::ffi::OsStrExt;
        let names: [&[u8]; 12] = [
            b"/srv/$arg_x",
            b"/srv/${arg_x}",
            b"/$",
            b"/a \"b\"\\",
            b"/a;b",
            b"/a{b}",
            b"/#a",
            b"/a\nroot /;",
            b"/'a'",
            b"/\xff\xfe",
            b"/a\\n",
            b"/dollar_sign}$",
        ];
        for name in names {
            let root = PathBuf::from(std::ffi::OsStr::from_bytes(name));
            let endpoint = Endpoint::choose(&Default::default(), Some("127.0.0.1:1"), Purpose::Print);
            let site = Site {
                root: root.clone(),
                demo: false,
                dot_files: false,
                access_log: false,
                dashboard: false,
                endpoint: endpoint.expect("an endpoint"),
                user: None,
            };
            let text = configuration(&site, &root);
            let shown = String::from_utf8_lossy(&text).into_owned();
            let mut files = Files::recorded([("/f/nginx.conf", text.as_slice())]);
            let parsed = forebay_conf::parse(Path::new("/f/nginx.conf"), "", Path::new("/f"), &mut files);
            assert_eq!(parsed.errors, [], "{shown}");
            let nodes = print::nodes(&parsed.tree.root);
            let find = |nodes: &[print::Node], name: &str| {
                nodes.iter().find(|n| n.name == name.as_bytes()).cloned().expect("a directive")
            };
            assert_eq!(find(&nodes, "pid").args, [name.to_vec()], "{shown}");
            let http = find(&nodes, "http").block.expect("a block");
            let server = find(&http, "server").block.expect("a block");
            assert_eq!(find(&server, "root").args, [print::without_variables(name)], "{shown}");
            let defined = http.iter().any(|n| n.name == b"geo");
            assert_eq!(defined, name.contains(&b'$'), "{shown}");
        }
    }
}
