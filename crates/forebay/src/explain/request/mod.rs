//! `forebay explain URL`: the way of one request through the http block. The request is served by the code of the server, in this
//! process: nothing is written, and upstreams are asked in the place of a stand-in.

mod engine;
mod narrow;
mod places;
mod report;

use crate::cli::Options;
use crate::front_ends;
use crate::master_log::Log;
use crate::state;
use engine::Sent;
use forebay_bench::url::{Scheme, Url};
use forebay_compare::recorder::Scripted;
use forebay_conf::files::Files;
use forebay_core::config::{Config, ListenAddr};
use forebay_net::addr::Peer;
use forebay_terminal::print;
use places::Tree;
use std::net::{IpAddr, Ipv4Addr, SocketAddr};

/// A request that is to be explained.
pub(crate) struct Asked {
    /// URL.
    pub url: Url,
    /// Method.
    pub method: String,
    /// Field lines, `Name: value`. A line without a value takes a field away that is sent otherwise.
    pub fields: Vec<String>,
    /// Content.
    pub body: Option<String>,
    /// Client.
    pub client: Option<IpAddr>,
    /// Status of the stand-in for upstreams.
    pub answer: u16,
    /// Field lines of the stand-in's response.
    pub answer_fields: Vec<String>,
}

/// Form of the output.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Form {
    /// JSON in place of text.
    pub json: bool,
    /// Says where nginx would differ.
    pub nginx: bool,
}

/// Client of a request that names none: an address for documentation (RFC 5737).
const CLIENT: IpAddr = IpAddr::V4(Ipv4Addr::new(192, 0, 2, 1));

/// Prints the way of a request. Returns the exit code.
pub(crate) fn main(options: &Options, asked: &Asked, form: Form) -> u8 {
    let (environment, _) = options.places();
    let mut files = Files::disk();
    let names = asked.names();
    let narrow = |tree: &mut _| narrow::narrow(tree, &names);
    let Ok((config, tree)) = state::read_part(&environment, &mut files, &Log::default_console(), narrow)
    else {
        return 1;
    };
    match explain(asked, config, &Tree { tree: &tree, files: &files, conf: &environment.conf_path }, form) {
        Ok(text) => {
            print(text);
            0
        }
        Err(why) => {
            eprintln!("forebay explain: {why}");
            1
        }
    }
}

fn explain(asked: &Asked, config: Config, tree: &Tree<'_>, form: Form) -> Result<String, String> {
    let listener = asked.listener(&config)?;
    let local = asked.local(&config.listeners[listener].addr);
    let client = SocketAddr::new(asked.client.unwrap_or(CLIENT), 50_000);
    let listens = config.listeners[listener].text.clone();
    let encrypted = asked.url.scheme == Scheme::Https;
    let sent = Sent {
        listener,
        client: Peer::Inet(client),
        local,
        name: encrypted.then(|| asked.url.host.clone()),
        head: asked.head(),
        body: asked.body.clone().unwrap_or_default(),
        is_head: asked.method == "HEAD",
    };
    let fields = asked.answer_fields.iter().filter_map(|line| line.split_once(':'));
    let fields = fields.map(|(name, value)| (name.to_owned(), value.trim().to_owned())).collect();
    let stand_in = Scripted { status: asked.answer, fields, body: b"stand-in\n".to_vec() };
    let trip = engine::run(config, &sent, stand_in)?;
    let report = report::Report { asked, client: client.ip(), listens: &listens, trip: &trip, tree, form };
    Ok(if form.json { report.json() } else { report.text() })
}

impl Asked {
    /// Returns the names of servers that the request may be for: those of the URL and of the field `Host`.
    fn names(&self) -> Vec<String> {
        let hosts = self.fields.iter().filter_map(|line| line.split_once(':'));
        let hosts = hosts.filter(|(name, _)| name.trim().eq_ignore_ascii_case("host"));
        let hosts = hosts.map(|(_, value)| value.trim());
        let without_port = |host: &str| match host.rsplit_once(':') {
            Some((name, port)) if port.bytes().all(|b| b.is_ascii_digit()) => name.to_owned(),
            _ => host.to_owned(),
        };
        let names = std::iter::once(self.url.host.as_str()).chain(hosts).map(without_port);
        names.map(|name| name.trim_end_matches('.').to_owned()).collect()
    }

    /// Finds the listener that takes the connection: one with this address, or one of all addresses at this port.
    ///
    /// # Errors
    /// Nothing listens there, or only servers of another kind.
    fn listener(&self, config: &Config) -> Result<usize, String> {
        let (port, ip) = (self.url.port, self.ip());
        let here = |addr: &ListenAddr| match addr {
            ListenAddr::Inet(a) if a.port() == port => Some(a.ip()),
            _ => None,
        };
        let found = |fits: &dyn Fn(IpAddr) -> bool| {
            config.listeners.iter().position(|l| !l.outside && here(&l.addr).is_some_and(fits))
        };
        let own = ip.and_then(|ip| found(&|a| a == ip));
        let any = || found(&|a| a.is_unspecified());
        let only = || if ip.is_none() { found(&|_| true) } else { None };
        let number = own.or_else(any).or_else(only).ok_or_else(|| self.no_listener(config))?;
        match config.listeners.get(number) {
            Some(l) if l.front == front_ends::STREAM => {
                Err(format!("{}: a server of the stream block listens there; try tcp:// or tls://", self.url))
            }
            _ => Ok(number),
        }
    }

    fn no_listener(&self, config: &Config) -> String {
        let tcp = config.listeners.iter().filter(|l| !l.outside && !l.addr.is_udp());
        let names: Vec<&str> = tcp.map(|l| l.text.as_str()).collect();
        let names = if names.is_empty() { "no address at all".to_owned() } else { names.join(", ") };
        format!("{}: nothing listens there; the configuration listens on {names}", self.url)
    }

    /// Returns the address in the URL, if it names one.
    fn ip(&self) -> Option<IpAddr> {
        match self.url.host.as_str() {
            "localhost" => Some(IpAddr::V4(Ipv4Addr::LOCALHOST)),
            host => host.parse().ok(),
        }
    }

    /// Returns the address that the client has connected to.
    fn local(&self, listener: &ListenAddr) -> Option<SocketAddr> {
        let own = listener.inet()?;
        let ip = match self.ip() {
            _ if !own.ip().is_unspecified() => own.ip(),
            Some(ip) => ip,
            None => IpAddr::V4(Ipv4Addr::LOCALHOST),
        };
        Some(SocketAddr::new(ip, own.port()))
    }

    /// Returns the head of the request.
    fn head(&self) -> String {
        let named = |name: &str| {
            let is_named =
                |line: &&String| line.split(':').next().is_some_and(|n| n.trim().eq_ignore_ascii_case(name));
            self.fields.iter().any(|line| is_named(&line))
        };
        let mut head = format!("{} {} HTTP/1.1\r\n", self.method, self.url.path);
        let defaults =
            [("Host", self.url.authority()), ("User-Agent", "forebay".into()), ("Accept", "*/*".into())];
        for (name, value) in defaults {
            if !named(name) {
                head.push_str(&format!("{name}: {value}\r\n"));
            }
        }
        if let Some(body) = &self.body
            && !named("Content-Length")
        {
            head.push_str(&format!("Content-Length: {}\r\n", body.len()));
        }
        for line in
            self.fields.iter().filter(|line| line.split_once(':').is_some_and(|(_, v)| !v.trim().is_empty()))
        {
            head.push_str(line);
            head.push_str("\r\n");
        }
        head.push_str("\r\n");
        head
    }
}
