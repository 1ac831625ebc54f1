//! The way of a session through the stream block: its listener and server, its phases, what ends it, and the servers it is
//! passed to.

use super::levels::{Around, blocks, row_of, server_name, stream_rows};
use super::values::{Choice, Values, arg};
use super::{Places, Row, section};
use crate::front_ends::STREAM;
use crate::origin;
use forebay_bench::url::{Scheme, Url};
use forebay_conf::address::Address as Written;
use forebay_conf::files::Files;
use forebay_conf::grammar::{self, Contexts};
use forebay_conf::tree::{Block, Directive};
use forebay_conf::units;
use forebay_core::config::{Address, Config, ListenAddr, Listener};
use forebay_core::limit::cidr::Cidr;
use forebay_net::addr::Peer;
use std::net::{IpAddr, Ipv4Addr, SocketAddr};

/// A session that is to be explained.
pub(crate) struct Question {
    url: Url,
    /// Name in the ClientHello.
    sni: Option<String>,
    client: Option<IpAddr>,
}

impl Question {
    /// Reads the arguments. Without `sni`, the host of a `tls` URL is the name, unless it is an address.
    ///
    /// # Errors
    /// A target that is no URL of a stream server.
    pub(crate) fn new(target: &str, sni: Option<String>, client: Option<IpAddr>) -> Result<Question, String> {
        let url = Url::parse(target).map_err(|e| e.to_string())?;
        if !url.scheme.is_raw() {
            return Err(format!(
                "{target}: expected tcp://, tls:// or udp://; http has its servers in the list without a target"
            ));
        }
        let host =
            (url.scheme == Scheme::Tls && url.host.parse::<IpAddr>().is_err()).then(|| url.host.clone());
        let sni = sni.or(host).map(|name| name.to_ascii_lowercase());
        Ok(Question { url, sni, client })
    }

    /// Returns the local address of the session, unless the host is a name.
    fn local(&self) -> Option<SocketAddr> {
        let ip = match self.url.host.as_str() {
            "localhost" => Some(IpAddr::V4(Ipv4Addr::LOCALHOST)),
            host => host.parse().ok(),
        };
        ip.map(|ip| SocketAddr::new(ip, self.url.port))
    }

    fn address(&self, local: SocketAddr) -> ListenAddr {
        if self.url.scheme == Scheme::Udp { ListenAddr::Udp(local) } else { ListenAddr::Inet(local) }
    }

    /// Returns the listener of the port, for a host whose address is not known.
    ///
    /// # Errors
    /// There are several.
    fn only_listener<'c>(&self, config: &'c Config) -> Result<Option<&'c Listener>, String> {
        let is_at_port = |l: &&Listener| {
            l.addr.inet().is_some_and(|a| a.port() == self.url.port && l.addr == self.address(a))
        };
        let all: Vec<&Listener> = config.listeners.iter().filter(is_at_port).collect();
        if all.len() > 1 {
            let names: Vec<&str> = all.iter().map(|l| l.text.as_str()).collect();
            let names = names.join(", ");
            return Err(format!("{}: there are {names}; name one of these addresses, and --sni", self.url));
        }
        Ok(all.first().copied())
    }

    /// Finds the listener that takes the session, and its servers.
    fn listener<'c>(&self, config: &'c Config) -> Result<(&'c Listener, &'c Address), String> {
        let found = match self.local() {
            Some(local) => listener_at(config, &self.address(local)),
            None => self.only_listener(config)?,
        };
        let found = found.map(|l| (l, l.address(self.local()).unwrap_or(&l.default)));
        found.ok_or_else(|| format!("{}: nothing listens there", self.url))
    }
}

/// Finds the listener of an address: its own, or one of all addresses.
fn listener_at<'c>(config: &'c Config, addr: &ListenAddr) -> Option<&'c Listener> {
    let takes = |l: &&Listener| {
        let local = addr.inet().filter(|_| l.addr.is_udp() == addr.is_udp());
        local.is_some_and(|local| takes_all(l, local))
    };
    let own = config.listeners.iter().find(|l| l.addr == *addr);
    own.or_else(|| config.listeners.iter().find(takes))
}

/// Returns `true` if a socket of all addresses takes connections to this one.
fn takes_all(l: &Listener, local: SocketAddr) -> bool {
    let both = l.options.ipv6only == Some(false);
    l.addr.is_wildcard()
        && l.addr.inet().is_some_and(|a| a.port() == local.port())
        && l.addr.inet().is_some_and(|a| a.is_ipv4() == local.is_ipv4() || both && a.is_ipv6())
}

/// Returns the way of a session. `defaults`: also the settings that nothing sets.
///
/// # Errors
/// There is no such session.
pub(super) fn text(
    question: &Question,
    config: &Config,
    places: &Places<'_>,
    defaults: bool,
) -> Result<String, String> {
    let (listener, address) = question.listener(config)?;
    if listener.outside {
        return Err(format!("{}: challenges of ACME are answered there, and no server is", question.url));
    }
    if listener.front != STREAM {
        return Err(format!("{}: http listens there; try http:// or https://", question.url));
    }
    let stream = blocks(&places.tree.root, "stream").next().map(|(_, block)| block);
    let stream = stream.ok_or("there is no stream block")?;
    let around = Around { block: stream, outer: None };
    let server = |number: usize| {
        let (d, block) =
            blocks(stream, "server").nth(number).ok_or("the server is not in the configuration")?;
        Ok::<_, String>(Server { d, around: Around { block, outer: Some(&around) } })
    };
    let first = server(address.default_server)?;
    let name = question.sni.as_deref().filter(|_| address.options.ssl || first.is_on("ssl_preread"));
    let named = name.and_then(|name| Some(address.names.find(name.as_bytes()).ok()??.0));
    let chosen = server(named.unwrap_or(address.default_server))?;
    let way = Way { question, config, listener, address, first, chosen, name, stream, files: places.files };
    Ok(way.text(named.is_some(), defaults))
}

/// A server of the stream block.
#[derive(Clone, Copy)]
struct Server<'t> {
    d: &'t Directive,
    around: Around<'t>,
}

impl<'t> Server<'t> {
    /// Returns the directive of this name in effect.
    fn setting(&self, name: &str) -> Option<&'t Directive> {
        self.around.effective(&[name]).last().copied()
    }

    fn is_on(&self, name: &str) -> bool {
        self.setting(name).is_some_and(|d| arg(d, 0) == "on")
    }

    /// Returns the first word of a setting in effect, or its default.
    fn value(&self, name: &str) -> String {
        self.setting(name).map_or_else(|| default_of(name).to_owned(), |d| arg(d, 0))
    }
}

fn default_of(name: &str) -> &'static str {
    grammar::row(name.as_bytes(), Contexts::STREAM_SERVER).map_or("", |row| row.default)
}

/// Settings of connections to servers that are shown where they are set.
const UPSTREAM: [&str; 16] = [
    "proxy_bind",
    "proxy_ssl",
    "proxy_ssl_name",
    "proxy_ssl_server_name",
    "proxy_ssl_verify",
    "proxy_ssl_trusted_certificate",
    "proxy_ssl_certificate",
    "proxy_ssl_alpn",
    "proxy_protocol",
    "proxy_next_upstream",
    "proxy_next_upstream_tries",
    "proxy_next_upstream_timeout",
    "proxy_download_rate",
    "proxy_upload_rate",
    "proxy_socket_keepalive",
    "health_check",
];

/// Variables with the first bytes of a client, and the directive that reads them.
const FIRST_BYTES: [(&str, &str); 5] = [
    ("ssl_preread_protocol", "ssl_preread"),
    ("ssl_preread_alpn_protocols", "ssl_preread"),
    ("mqtt_preread_clientid", "mqtt_preread"),
    ("mqtt_preread_username", "mqtt_preread"),
    ("rdp_cookie", "rdp_preread"),
];

/// A session with all that its way depends on.
struct Way<'a> {
    question: &'a Question,
    config: &'a Config,
    listener: &'a Listener,
    address: &'a Address,
    /// Server of the phases before the name of the client is known.
    first: Server<'a>,
    /// Server of the phases after that.
    chosen: Server<'a>,
    /// Name of the client, if something reads it.
    name: Option<&'a str>,
    stream: &'a Block,
    files: &'a Files,
}

impl<'a> Way<'a> {
    fn text(&self, by_name: bool, defaults: bool) -> String {
        let mut text = format!("{}\n", self.question.url);
        section(&mut text, "session", &self.head(by_name));
        for (phase, rows) in self.phases() {
            section(&mut text, phase, &rows);
        }
        section(&mut text, "end of the session", &self.ends());
        self.add_upstream(&mut text);
        let title = format!("all settings of {}", self.name_of(&self.chosen));
        section(&mut text, &title, &stream_rows(&self.chosen.around, self.files, defaults));
        text
    }

    fn name_of(&self, server: &Server<'_>) -> String {
        server_name(server.d, server.around.block, self.files)
    }

    /// Returns listener and servers.
    fn head(&self, by_name: bool) -> Vec<Row> {
        let mut rows = vec![Row::new("listener", self.listener_text(), self.listen_place())];
        let reason = match (self.name, &self.question.sni) {
            (Some(name), _) if by_name => format!("by the name {name}"),
            (Some(name), _) => format!("the default of the address: no server has the name {name}"),
            (None, Some(_)) => "the default of the address: nothing reads the name".to_owned(),
            (None, None) => "the default of the address".to_owned(),
        };
        if self.first.d.ordinal != self.chosen.d.ordinal {
            rows.push(self.server_row(&self.first, "the default of the address, until the name is known"));
        }
        rows.push(self.server_row(&self.chosen, &reason));
        rows
    }

    /// Returns a server with the reason for which it has the session.
    fn server_row(&self, server: &Server<'_>, reason: &str) -> Row {
        let names = server.around.block.iter().filter(|d| d.name.text == b"server_name").flat_map(words);
        let names: Vec<String> = names.collect();
        let names = if names.is_empty() { "(no name)".to_owned() } else { names.join(" ") };
        Row::new("server", format!("{names}  {reason}"), origin::place(server.d, self.files))
    }

    fn listener_text(&self) -> String {
        let options = self.address.options;
        let listed = [
            (self.listener.addr.is_udp(), "udp"),
            (options.ssl, "ssl"),
            (options.proxy_protocol, "proxy_protocol"),
        ];
        let listed: Vec<&str> = listed.into_iter().filter(|(on, _)| *on).map(|(_, word)| word).collect();
        [&[self.listener.text.as_str()], listed.as_slice()].concat().join(" ")
    }

    /// Returns the place of the `listen` of the default server for the address.
    fn listen_place(&self) -> String {
        let address = match &self.listener.addr {
            ListenAddr::Inet(a) | ListenAddr::Udp(a) => self.question.local().unwrap_or(*a).to_string(),
            unix => unix.to_string(),
        };
        let address = Written::parse(&address, None);
        let takes = |d: &&Directive| {
            let udp = d.args.iter().any(|w| w.text == b"udp");
            let own = Written::parse(&arg(d, 0), None);
            udp == self.listener.addr.is_udp()
                && own.zip(address.as_ref()).is_some_and(|(own, a)| own.takes(a))
        };
        let listens = self.first.around.block.iter().filter(|d| d.name.text == b"listen");
        listens.into_iter().find(takes).map(|d| origin::place(d, self.files)).unwrap_or_default()
    }

    /// Returns the phases in order, with the settings that act in them.
    fn phases(&self) -> Vec<(&'static str, Vec<Row>)> {
        let options = self.address.options;
        let mut accept = Vec::new();
        if options.proxy_protocol {
            accept.push(Row::new("(header)", "PROXY protocol, version 1 or 2", self.listen_place()));
            accept.extend(self.always(&self.first, "proxy_protocol_timeout"));
            accept.extend(self.rows(&self.first, &["set_real_ip_from"]));
        }
        let limits = self.rows(&self.first, &["limit_conn", "limit_conn_dry_run"]);
        let mut access: Vec<Row> = self.rules().into_iter().map(|d| row_of(d, self.files)).collect();
        access.extend(self.judgement());
        vec![
            ("POST_ACCEPT", or_nothing(accept, "no PROXY protocol header is expected")),
            ("PREACCESS", or_nothing(limits, "no limit_conn")),
            ("ACCESS", or_nothing(access, "no allow and deny")),
            ("SSL", or_nothing(self.tls(), "the listener has no ssl")),
            ("PREREAD", or_nothing(self.preread(), "no ssl_preread, mqtt_preread or rdp_preread")),
            ("CONTENT", or_nothing(self.content(), "no proxy_pass, pass or return: the session is closed")),
            (
                "LOG",
                or_nothing(self.rows(&self.chosen, &["access_log"]), "no access_log: no line is written"),
            ),
        ]
    }

    /// Returns the directives of these names that are in effect.
    fn rows(&self, server: &Server<'_>, names: &[&str]) -> Vec<Row> {
        server.around.effective(names).into_iter().map(|d| row_of(d, self.files)).collect()
    }

    /// Returns a setting, with its default if nothing sets it.
    fn always(&self, server: &Server<'_>, name: &str) -> Vec<Row> {
        let rows = self.rows(server, &[name]);
        if rows.is_empty() { vec![Row::new(name, default_of(name), "default")] } else { rows }
    }

    /// Returns the address rules of the default server, and those of the server that a name chooses.
    fn rules(&self) -> Vec<&'a Directive> {
        let [first, chosen] =
            [&self.first, &self.chosen].map(|server| server.around.effective(&["allow", "deny"]));
        // Both may inherit the same.
        let own = chosen.into_iter().filter(|d| !first.iter().any(|known| std::ptr::eq(*known, *d)));
        let own: Vec<_> = own.collect();
        [first, own].concat()
    }

    /// Returns the verdict of `allow` and `deny` on the client, if its address is given.
    fn judgement(&self) -> Option<Row> {
        let client = self.question.client?;
        let peer = Peer::Inet((client, 0).into());
        let matches = |d: &&Directive| {
            arg(d, 0) == "all"
                || Cidr::parse(arg(d, 0).as_bytes()).is_some_and(|(cidr, _)| cidr.contains(peer))
        };
        let of = |server: &Server<'a>| server.around.effective(&["allow", "deny"]).into_iter().find(matches);
        let (first, chosen) = (of(&self.first), of(&self.chosen));
        let denies = |d: &&Directive| d.name.text == b"deny";
        let rule = first.filter(denies).or(chosen.filter(denies)).or(first).or(chosen)?;
        let verdict = if denies(&rule) { "is refused with status 403" } else { "may pass" };
        Some(Row::new(&format!("({client})"), verdict, origin::place(rule, self.files)))
    }

    fn tls(&self) -> Vec<Row> {
        if !self.address.options.ssl {
            return Vec::new();
        }
        // The handshake has the certificate of the server of the name.
        let of = &self.chosen;
        let mut rows = self.always(&self.first, "ssl_handshake_timeout");
        rows.extend(self.always(of, "ssl_protocols"));
        for name in [
            "ssl_certificate",
            "ssl_alpn",
            "ssl_verify_client",
            "ssl_client_certificate",
            "ssl_reject_handshake",
        ] {
            rows.extend(self.rows(of, &[name]));
        }
        rows
    }

    fn preread(&self) -> Vec<Row> {
        let readers = ["ssl_preread", "mqtt_preread", "rdp_preread"];
        let on: Vec<&str> = readers.into_iter().filter(|name| self.before_preread().is_on(name)).collect();
        let mut rows: Vec<Row> =
            on.iter().flat_map(|name| self.rows(self.before_preread(), &[*name])).collect();
        if !rows.is_empty() {
            rows.extend(self.always(self.before_preread(), "preread_buffer_size"));
            rows.extend(self.always(self.before_preread(), "preread_timeout"));
        }
        rows
    }

    /// Returns the server whose settings the phase PREREAD has: a handshake before it has chosen by name.
    fn before_preread(&self) -> &Server<'a> {
        if self.address.options.ssl { &self.chosen } else { &self.first }
    }

    fn content(&self) -> Vec<Row> {
        let own = |names: &[&str]| -> Vec<Row> {
            let here = self.chosen.around.block.iter();
            let listed = here.filter(|d| names.iter().any(|n| n.as_bytes() == d.name.text));
            listed.map(|d| row_of(d, self.files)).collect()
        };
        let mut rows = own(&["set"]);
        let handler = own(&["proxy_pass", "pass", "return"]);
        if handler.is_empty() {
            return Vec::new();
        }
        rows.extend(handler);
        if let Some((_, choices)) = self.target() {
            rows.extend(choices.iter().map(|c| self.choice(c)));
        }
        rows
    }

    fn choice(&self, choice: &Choice<'_>) -> Row {
        let name = format!(
            "({} {})",
            choice.table.name.as_str(),
            words(choice.table).last().cloned().unwrap_or_default()
        );
        let value = format!("{} {}", choice.entry.name.as_str(), arg(choice.entry, 0));
        Row::new(&name, value, origin::place(choice.entry, self.files))
    }

    /// Returns the directive that passes the session on.
    fn pass(&self) -> Option<&'a Directive> {
        let handlers = self.chosen.around.block.iter();
        handlers.into_iter().find(|d| matches!(d.name.text.as_slice(), b"proxy_pass" | b"pass"))
    }

    /// Returns the address or group that the session is passed to, with the choices that led there. `None` if it depends on
    /// values that are not known.
    fn target(&self) -> Option<(String, Vec<Choice<'a>>)> {
        let mut choices = Vec::new();
        let target = self.values().expand(&arg(self.pass()?, 0), &mut choices)?;
        Some((target, choices))
    }

    fn values(&self) -> Values<'a> {
        let protocol = if self.listener.addr.is_udp() { "UDP" } else { "TCP" };
        let mut known =
            vec![("protocol", protocol.to_owned()), ("server_port", self.question.url.port.to_string())];
        if let Some(local) = self.question.local() {
            known.push(("server_addr", local.ip().to_string()));
        }
        if let Some(client) = self.question.client {
            known.push(("remote_addr", client.to_string()));
        }
        known.extend(self.client_names());
        Values { known, stream: self.stream, server: self.chosen.around.block }
    }

    /// Returns the variables with the first bytes of the client: empty where nothing reads them. Those that are read are left out,
    /// except the name in the ClientHello if the question says it.
    fn client_names(&self) -> Vec<(&'static str, String)> {
        let ssl = self.address.options.ssl;
        let preread = !ssl && self.first.is_on("ssl_preread");
        let value = |is_read: bool| if is_read { self.question.sni.clone() } else { Some(String::new()) };
        let names = [("ssl_server_name", ssl), ("ssl_preread_server_name", preread)];
        let names = names.into_iter().filter_map(|(variable, is_read)| Some((variable, value(is_read)?)));
        let others = FIRST_BYTES.into_iter().filter(|(_, reader)| !self.before_preread().is_on(reader));
        names.chain(others.map(|(variable, _)| (variable, String::new()))).collect()
    }

    /// Returns the settings that end the session, in the order in which they act.
    fn ends(&self) -> Vec<Row> {
        let mut rows = self.timeouts();
        match self.pass() {
            Some(pass) if pass.name.text == b"pass" => {
                rows.push(Row::new("(pass)", "the listener there decides", origin::place(pass, self.files)));
            }
            Some(_) if self.listener.addr.is_udp() => rows.extend(self.datagrams()),
            Some(_) => rows.push(self.half_close()),
            None => {}
        }
        or_nothing(rows, "the end of the answer")
    }

    /// Returns the timeouts that act.
    fn timeouts(&self) -> Vec<Row> {
        let options = self.address.options;
        let proxies = self.pass().is_some_and(|d| d.name.text == b"proxy_pass");
        let connects = proxies && !self.listener.addr.is_udp();
        let preread = !self.preread().is_empty();
        let (first, chosen) = (&self.first, &self.chosen);
        let timeouts = [
            (options.proxy_protocol, first, "proxy_protocol_timeout", "for the PROXY protocol header"),
            (options.ssl, first, "ssl_handshake_timeout", "for the handshake"),
            (preread, self.before_preread(), "preread_timeout", "for the first bytes of the client"),
            (connects, chosen, "proxy_connect_timeout", "for the connection to each server that is tried"),
            (proxies, chosen, "proxy_timeout", "without a byte in either direction"),
        ];
        let acting = timeouts.into_iter().filter(|(acts, ..)| *acts);
        let row = |(_, server, name, meaning): (bool, &Server<'_>, &str, &str)| {
            let value = server.value(name);
            let zero = name == "proxy_timeout" && units::time_ms(value.as_bytes()) == Some(0);
            let meaning = if zero { "at once: 0 does not mean never" } else { meaning };
            self.meaning(server, name, &format!("{value}  {meaning}"))
        };
        acting.map(row).collect()
    }

    /// Returns the rule for a connection of which one side has closed.
    fn half_close(&self) -> Row {
        let name = "proxy_half_close";
        let ends = if self.chosen.is_on(name) { "both sides have closed" } else { "one side has closed" };
        self.meaning(
            &self.chosen,
            name,
            &format!("{}  when {ends} and the rest has been sent", self.chosen.value(name)),
        )
    }

    /// Returns a setting with what it means.
    fn meaning(&self, server: &Server<'_>, name: &str, text: &str) -> Row {
        let place = server.setting(name).map(|d| origin::place(d, self.files));
        Row::new(name, text, place.unwrap_or_else(|| "default".to_owned()))
    }

    /// Returns the settings that count datagrams.
    fn datagrams(&self) -> Vec<Row> {
        let number = |name: &str| self.chosen.setting(name).map(|d| arg(d, 0));
        let requests = match number("proxy_requests").as_deref() {
            None | Some("0") => "0  all datagrams of the client's port belong to the session".to_owned(),
            Some(n) => format!("{n}  the datagram after so many begins another session"),
        };
        let responses = match number("proxy_responses").as_deref() {
            None => {
                "(unset)  any number of answers may come, so only proxy_timeout ends the session".to_owned()
            }
            Some("0") => "0  the session ends when the datagram is passed on; answers are dropped".to_owned(),
            Some(n) => format!("{n}  the session ends after so many answers to each datagram"),
        };
        vec![
            self.meaning(&self.chosen, "proxy_requests", &requests),
            self.meaning(&self.chosen, "proxy_responses", &responses),
        ]
    }

    /// Adds the servers that the session is passed to.
    fn add_upstream(&self, text: &mut String) {
        let Some(pass) = self.pass() else { return };
        let Some((target, _)) = self.target() else {
            let value =
                format!("{}  depends on values that are not known here{}", arg(pass, 0), self.askable());
            let row = Row::new(&pass.name.as_str(), value, origin::place(pass, self.files));
            return section(text, "passed to", &[row]);
        };
        if pass.name.text == b"pass" {
            let row = Row::new("listener", self.passed_to(&target), origin::place(pass, self.files));
            return section(text, "passed to", &[row]);
        }
        let group = blocks(self.stream, "upstream").find(|(d, _)| arg(d, 0) == target);
        let (title, mut rows) = match group {
            Some((d, block)) => (
                format!("passed to the group {target} ({})", origin::place(d, self.files)),
                self.group(block),
            ),
            None => (format!("passed to {target}"), vec![self.address_row(pass, &target)]),
        };
        rows.extend(UPSTREAM.iter().flat_map(|name| self.rows(&self.chosen, &[name])));
        section(text, &title, &rows);
    }

    /// Returns the options, in parentheses, that would make more values known.
    fn askable(&self) -> String {
        let readers = self.address.options.ssl || self.first.is_on("ssl_preread");
        let options = [
            (readers && self.question.sni.is_none(), "--sni NAME"),
            (self.question.client.is_none(), "--client ADDRESS"),
        ];
        let missing: Vec<&str> =
            options.into_iter().filter(|(is_missing, _)| *is_missing).map(|(_, o)| o).collect();
        if missing.is_empty() { String::new() } else { format!(" ({})", missing.join(", ")) }
    }

    /// Returns the listener that `pass` hands the connection to.
    fn passed_to(&self, target: &str) -> String {
        let addr = match target.strip_prefix("unix:") {
            Some(path) => Some(ListenAddr::Unix(path.into())),
            None => target.parse().ok().map(ListenAddr::Inet),
        };
        match addr.and_then(|addr| listener_at(self.config, &addr)).filter(|l| !l.outside) {
            Some(l) if l.front == STREAM => format!("{target}  of stream: forebay explain tcp://{target}"),
            Some(_) => format!("{target}  of http"),
            None => format!("{target}  nothing listens there: the client is cut off"),
        }
    }

    fn group(&self, block: &Block) -> Vec<Row> {
        let methods = ["hash", "least_conn", "least_time", "random", "sticky"];
        let is_method = |d: &&Directive| methods.iter().any(|m| m.as_bytes() == d.name.text);
        let mut rows: Vec<Row> = block.iter().filter(is_method).map(|d| row_of(d, self.files)).collect();
        if rows.iter().all(|row| row.name == "sticky") {
            rows.push(Row::new("(balancing)", "round robin by weight", "default"));
        }
        rows.extend(block.iter().filter(|d| !is_method(d)).map(|d| row_of(d, self.files)));
        rows
    }

    /// Returns the server that an address without a group is.
    fn address_row(&self, pass: &Directive, target: &str) -> Row {
        let literal = match Written::parse(target, None) {
            Some(Written::Unix(_)) => true,
            _ => target.parse::<SocketAddr>().is_ok(),
        };
        let how = match (literal, arg(pass, 0).contains('$')) {
            (true, _) => "",
            (false, false) => "  its name is resolved when the configuration is read",
            (false, true) if self.chosen.setting("resolver").is_some() => {
                "  its name is resolved for the session, by resolver"
            }
            (false, true) => "  its name cannot be resolved: there is no resolver",
        };
        Row::new("server", format!("{target}{how}"), origin::place(pass, self.files))
    }
}

fn words(d: &Directive) -> Vec<String> {
    d.args.iter().map(|w| w.as_str().into_owned()).collect()
}

/// Returns rows, or one that says why there are none.
fn or_nothing(rows: Vec<Row>, why: &str) -> Vec<Row> {
    if rows.is_empty() { vec![Row::new("(nothing)", why, "")] } else { rows }
}

#[cfg(test)]
mod tests;
