//! The command line of `forebay bench`, and the load that it describes.

use crate::load::{Load, Order, Protocol, Stop, Wanted};
use crate::observe::{Server, choose_cpus};
use crate::raw::{Answer, RawArgs};
use crate::schedule::Rate;
use crate::tls::{Trust, config};
use crate::url::{Address, Scheme, Url, is_private};
use crate::{Error, sources, units};
use clap::{Args, ValueEnum};
use std::collections::BTreeSet;
use std::path::PathBuf;
use std::time::Duration;

/// Distribution of the times between requests of an open loop.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub(crate) enum Arrival {
    /// At random, as independent users do
    Poisson,
    /// Evenly
    Constant,
}

/// What to load and how.
#[derive(Args, Clone, Debug)]
pub(crate) struct LoadArgs {
    /// Connections
    #[arg(short, long, default_value = "50", value_parser = units::count)]
    pub connections: u64,
    /// Measured time
    #[arg(short, long, default_value = "10s", value_parser = units::duration)]
    pub duration: Duration,
    /// End after so many requests
    #[arg(short = 'n', long, value_name = "N", value_parser = units::count)]
    pub requests: Option<u64>,
    /// Time at the start that does not count (default: a tenth of the duration, 2 s at most; none with -n)
    #[arg(short, long, value_parser = units::duration)]
    pub warmup: Option<Duration>,
    /// Open loop: requests a second, or FROM..TO for a ramp
    #[arg(short, long, value_name = "RATE")]
    pub rate: Option<String>,
    /// How requests of an open loop come
    #[arg(long, value_enum, default_value = "poisson")]
    pub arrival: Arrival,
    /// Search the highest rate at which a quantile stays below a time, for instance p99=10ms
    #[arg(long, value_name = "pQ=TIME")]
    pub find_limit: Option<String>,
    /// HTTP/2: by ALPN for https, by prior knowledge for http
    #[arg(long)]
    pub http2: bool,
    /// HTTP/3, over QUIC, for https
    #[arg(long)]
    pub http3: bool,
    /// Streams on a connection (HTTP/2 and HTTP/3)
    #[arg(short = 'm', long, default_value = "1", value_parser = units::count)]
    pub streams: u64,
    /// Requests sent ahead on a connection (HTTP/1.1), or messages over tcp and tls
    #[arg(long, default_value = "1", value_parser = units::count)]
    pub pipeline: u64,
    /// A new connection for each request
    #[arg(long)]
    pub no_keepalive: bool,
    /// Requests on a connection before it is closed
    #[arg(long, value_name = "N", value_parser = units::count)]
    pub per_connection: Option<u64>,
    /// Pause of a connection after each answer
    #[arg(long, default_value = "0s", value_parser = units::duration)]
    pub think: Duration,
    /// Longest time for a connection or an answer
    #[arg(long, default_value = "10s", value_parser = units::duration)]
    pub timeout: Duration,
    /// Method
    #[arg(short = 'X', long)]
    pub method: Option<String>,
    /// A field, "Name: value"
    #[arg(short = 'H', long = "header", value_name = "FIELD")]
    pub headers: Vec<String>,
    /// Content to send, or @FILE
    #[arg(short, long)]
    pub body: Option<String>,
    /// File with lines `[METHOD] URL [WEIGHT]`
    #[arg(long = "urls", value_name = "FILE")]
    pub url_file: Option<PathBuf>,
    /// Access log (combined or common) whose requests are sent to the URL, in their mix
    #[arg(long, value_name = "FILE")]
    pub access_log: Option<PathBuf>,
    /// nginx.conf whose servers and static files are asked for
    #[arg(long, value_name = "FILE")]
    pub nginx_conf: Option<PathBuf>,
    /// Statuses that are right (default: 200 to 399)
    #[arg(long, value_name = "LIST", value_delimiter = ',')]
    pub expect_status: Vec<u16>,
    /// Length of content that is right
    #[arg(long, value_name = "BYTES")]
    pub expect_length: Option<u64>,
    /// Text that the content must contain
    #[arg(long, value_name = "TEXT")]
    pub expect_body: Option<String>,
    /// Take any certificate
    #[arg(long)]
    pub insecure: bool,
    /// Certificates to believe, PEM
    #[arg(long, value_name = "FILE")]
    pub ca: Option<PathBuf>,
    /// Resume TLS sessions (default: full handshakes)
    #[arg(long)]
    pub resume: bool,
    /// Threads (default: as many as there are CPUs apart from the server's)
    #[arg(short, long, default_value = "0")]
    pub threads: usize,
    /// CPUs of the client, for instance 2-3
    #[arg(long, value_name = "LIST")]
    pub cpus: Option<String>,
    /// The server's process, if it is not the one that listens there
    #[arg(long, value_name = "PID")]
    pub server_pid: Option<u32>,
    /// Seed of everything random
    #[arg(long, default_value = "1")]
    pub seed: u64,
    /// Allow more than one host
    #[arg(long)]
    pub many_hosts: bool,
    /// Allow addresses that are not of this machine or a private network
    #[arg(long)]
    pub i_own_this_target: bool,
    #[command(flatten)]
    pub raw: RawArgs,
    /// Content of a job that another machine sent, in place of `body`.
    #[arg(skip)]
    pub content: Option<Vec<u8>>,
}

impl LoadArgs {
    /// Returns the defaults, without a command line.
    pub(crate) fn plain() -> LoadArgs {
        use clap::FromArgMatches;
        let command = LoadArgs::augment_args(clap::Command::new("x"));
        // Every argument has a default or is optional.
        let matches = command.get_matches_from(["x"]);
        LoadArgs::from_arg_matches(&matches).unwrap_or_else(|e| e.exit())
    }

    /// Returns `true` if files are named.
    pub(crate) fn files(&self) -> bool {
        self.url_file.is_some()
            || self.access_log.is_some()
            || self.nginx_conf.is_some()
            || self.ca.is_some()
            || self.server_pid.is_some()
    }

    /// Returns the content to send.
    ///
    /// # Errors
    /// The file of the content cannot be read.
    pub(crate) fn bytes(&self) -> Result<Option<Vec<u8>>, Error> {
        if let Some(content) = &self.content {
            return Ok(Some(content.clone()));
        }
        let Some(text) = self.body.as_deref() else { return Ok(None) };
        Ok(Some(match text.strip_prefix('@') {
            Some(file) => std::fs::read(file).map_err(Error::io(file))?,
            None => text.as_bytes().to_vec(),
        }))
    }

    fn wanted(&self, urls: &[String]) -> Result<Vec<Wanted>, Error> {
        let mut all = self.sources(urls)?;
        if all.is_empty() {
            return Err(Error::Usage("there is no URL; see forebay bench --help".into()));
        }
        let fields = self.fields()?;
        let body = self.bytes()?;
        for wanted in &mut all {
            for field in &fields {
                wanted.fields.retain(|(name, _)| !(name == "Host" && field.0.eq_ignore_ascii_case("host")));
                wanted.fields.push(field.clone());
            }
            self.set_method(wanted, body.as_ref());
        }
        Ok(all)
    }

    /// Sets the body and the method of a request as the options say.
    fn set_method(&self, wanted: &mut Wanted, body: Option<&Vec<u8>>) {
        if let Some(body) = body {
            wanted.body.clone_from(body);
            wanted.method = "POST".into();
        }
        if let Some(method) = &self.method {
            wanted.method.clone_from(method);
        }
    }

    /// Returns the requests of the command line or of an access log.
    fn requests(&self, urls: &[String]) -> Result<Vec<Wanted>, Error> {
        let parsed = urls.iter().map(|u| Url::parse(u)).collect::<Result<Vec<_>, _>>()?;
        match (&self.access_log, parsed.as_slice()) {
            (Some(log), [base]) => sources::access_log(log, base),
            (Some(_), _) => {
                Err(Error::Usage("--access-log needs one URL: where its requests are sent".into()))
            }
            (None, _) => Ok(parsed.into_iter().map(Wanted::get).collect()),
        }
    }

    /// Returns the requests of the command line and of files.
    fn sources(&self, urls: &[String]) -> Result<Vec<Wanted>, Error> {
        let mut all = self.requests(urls)?;
        if let Some(file) = &self.url_file {
            all.extend(sources::list(file)?);
        }
        if let Some(file) = &self.nginx_conf {
            all.extend(sources::nginx_conf(file)?);
        }
        Ok(all)
    }

    fn fields(&self) -> Result<Vec<(String, String)>, Error> {
        let field = |text: &String| {
            let (name, value) = text
                .split_once(':')
                .ok_or_else(|| Error::Usage(format!("field \"{text}\": expected \"Name: value\"")))?;
            Ok((name.trim().to_owned(), value.trim().to_owned()))
        };
        self.headers.iter().map(field).collect()
    }

    /// Returns the rate of an open loop.
    ///
    /// # Errors
    /// A text that is none.
    pub(crate) fn rate(&self) -> Result<Option<Rate>, Error> {
        let Some(text) = &self.rate else { return Ok(None) };
        let (from, to) = text.split_once("..").unwrap_or((text, text));
        let number = |text: &str| {
            units::number(text).ok().filter(|n| *n > 0.0).ok_or_else(|| {
                Error::Usage(format!("--rate {text}: expected requests a second, or FROM..TO"))
            })
        };
        Ok(Some(Rate { from: number(from)?, to: number(to)?, poisson: self.arrival == Arrival::Poisson }))
    }

    /// Returns the load for these URLs, and the server's process if it is visible from here.
    ///
    /// # Errors
    /// Options that contradict each other or that no run can follow, and targets that are not allowed.
    pub(crate) fn load(&self, urls: &[String]) -> Result<(Load, Option<Server>), Error> {
        self.check()?;
        let mut load = match self.raw_urls(urls)? {
            Some(urls) => self.raw_load(&urls)?,
            None => self.http_load(urls)?,
        };
        self.check_targets(&load)?;
        load.rate = self.rate()?;
        self.set_course(&mut load);
        if load.is_encrypted() {
            load.tls = Some(config(&self.trust(), load.protocol)?);
        }
        let server = self.server(&load)?;
        load.cpus = self.cpus(server.as_ref())?;
        Ok((load, server))
    }

    /// Returns the load of HTTP requests.
    fn http_load(&self, urls: &[String]) -> Result<Load, Error> {
        if self.raw.are_given() {
            let text =
                "--size, --payload, --answer, --download and --upload are for tcp://, tls:// and udp://";
            return Err(Error::Usage(text.into()));
        }
        let mut wanted = self.wanted(urls)?;
        if self.requests_per_connection() == 1 && !self.has_streams() {
            Load::close_each(&mut wanted);
        }
        let order = if self.access_log.is_some() || wanted.len() > 1 { Order::Mixed } else { Order::Listed };
        let protocol = match () {
            () if self.http3 => Protocol::Http3,
            () if self.http2 => Protocol::Http2,
            () => Protocol::Http1,
        };
        let mut load = Load::new(&wanted, protocol, order, self.seed)?;
        load.checks.status = (!self.expect_status.is_empty()).then(|| self.expect_status.clone());
        load.per_connection = self.requests_per_connection();
        Ok(load)
    }

    /// Returns `true` if requests go on streams of their own.
    fn has_streams(&self) -> bool {
        self.http2 || self.http3
    }

    fn requests_per_connection(&self) -> u64 {
        if self.no_keepalive { 1 } else { self.per_connection.unwrap_or(0) }
    }

    /// Returns the targets of a load of bytes; `None` for HTTP.
    ///
    /// # Errors
    /// HTTP and other protocols together, or TCP and UDP.
    fn raw_urls(&self, urls: &[String]) -> Result<Option<Vec<Url>>, Error> {
        let schemes = ["tcp://", "tls://", "udp://"];
        let is_raw = |url: &&String| {
            schemes.iter().any(|s| url.get(..s.len()).is_some_and(|start| start.eq_ignore_ascii_case(s)))
        };
        match urls.iter().filter(is_raw).count() {
            0 => return Ok(None),
            n if n < urls.len() => {
                return Err(Error::Usage("HTTP and other protocols need runs of their own".into()));
            }
            _ => {}
        }
        let urls = urls.iter().map(|u| Url::parse(u)).collect::<Result<Vec<_>, _>>()?;
        let datagrams = urls.iter().filter(|u| u.scheme == Scheme::Udp).count();
        if datagrams > 0 && datagrams < urls.len() {
            return Err(Error::Usage("TCP and UDP need runs of their own".into()));
        }
        Ok(Some(urls))
    }

    /// Returns the load of bytes to these targets.
    fn raw_load(&self, urls: &[Url]) -> Result<Load, Error> {
        self.refuse_http_options()?;
        let scheme = urls.first().map_or(Scheme::Tcp, |url| url.scheme);
        let mut load = Load::raw(urls, self.raw.message(scheme)?, self.seed)?;
        load.per_connection = load.per_connection.max(self.requests_per_connection());
        self.check_messages(&load)?;
        Ok(load)
    }

    /// Checks that options fit the messages of a load of bytes.
    fn check_messages(&self, load: &Load) -> Result<(), Error> {
        if self.pipeline > 1 && load.has_datagrams() {
            let text = "--pipeline is not for udp: answers do not say which datagram they belong to; use more connections";
            return Err(Error::Usage(text.into()));
        }
        if self.pipeline > 1 && !matches!(load.answer, Answer::Bytes(_)) {
            return Err(Error::Usage("--pipeline needs answers of a known length: --answer BYTES".into()));
        }
        if load.answer == Answer::Close && load.per_connection > 1 {
            return Err(Error::Usage(
                "--per-connection: with --answer close a connection has one answer".into(),
            ));
        }
        Ok(())
    }

    /// Refuses options that only HTTP gives a sense.
    fn refuse_http_options(&self) -> Result<(), Error> {
        let given = [
            ("--http2", self.http2),
            ("--http3", self.http3),
            ("--streams", self.streams > 1),
            ("--method", self.method.is_some()),
            ("--header", !self.headers.is_empty()),
            ("--body (there is --payload)", self.body.is_some() || self.content.is_some()),
            ("--urls", self.url_file.is_some()),
            ("--access-log", self.access_log.is_some()),
            ("--nginx-conf", self.nginx_conf.is_some()),
            ("--expect-status", !self.expect_status.is_empty()),
        ];
        match given.iter().find(|(_, given)| *given) {
            Some((name, _)) => Err(Error::Usage(format!("{name} is for HTTP, not for tcp, tls and udp"))),
            None => Ok(()),
        }
    }

    /// Checks that options do not contradict each other.
    fn check(&self) -> Result<(), Error> {
        let usage = |text: &str| Err(Error::Usage(text.to_owned()));
        if self.http2 && self.http3 {
            return usage("--http2 and --http3 need runs of their own");
        }
        if self.streams > 1 && !self.has_streams() {
            return usage(
                "--streams is for HTTP/2 and HTTP/3: add --http2 or --http3 (HTTP/1.1 has --pipeline)",
            );
        }
        if self.pipeline > 1 && self.has_streams() {
            return usage("--pipeline is for HTTP/1.1; HTTP/2 and HTTP/3 have --streams");
        }
        if self.timeout.is_zero() || self.duration.is_zero() {
            return usage("times of 0 measure nothing");
        }
        Ok(())
    }

    /// Sets number, rate and duration of the requests, and the checks of responses.
    fn set_course(&self, load: &mut Load) {
        load.connections = usize::try_from(self.connections).unwrap_or(usize::MAX);
        let (stop, warmup) = match self.requests {
            Some(n) => (Stop::Count(n, None), Duration::ZERO),
            None => (Stop::After(self.duration), (self.duration / 10).min(Duration::from_secs(2))),
        };
        load.stop = stop;
        load.warmup = self.warmup.unwrap_or(warmup);
        load.timeout = self.timeout;
        load.think = self.think;
        load.parallel = if self.has_streams() { self.streams } else { self.pipeline }.min(100_000) as usize;
        load.resume = self.resume;
        load.checks.length = self.expect_length.or(load.checks.length);
        load.checks.contains = self.expect_body.as_ref().map(|t| t.as_bytes().to_vec());
    }

    fn trust(&self) -> Trust<'_> {
        match (&self.ca, self.insecure) {
            (_, true) => Trust::Anyone,
            (Some(file), _) => Trust::File(file),
            _ => Trust::System,
        }
    }

    /// Returns the server's process, if it is visible from here.
    fn server(&self, load: &Load) -> Result<Option<Server>, Error> {
        match (self.server_pid, load.origins.first().map(|o| &o.address)) {
            (Some(pid), _) => {
                let server = Server::of(pid);
                server.map(Some).ok_or_else(|| Error::Usage(format!("there is no process {pid}")))
            }
            (None, Some(address)) => Ok(Server::listening(address)),
            (None, None) => Ok(None),
        }
    }

    /// Returns the CPUs of the client.
    fn cpus(&self, server: Option<&Server>) -> Result<Vec<usize>, Error> {
        let Some(list) = &self.cpus else { return Ok(choose_cpus(server, self.threads)) };
        let cpus = forebay_sys::affinity::parse_cpu_list(list).filter(|c| !c.is_empty());
        let cpus =
            cpus.ok_or_else(|| Error::Usage(format!("--cpus {list}: expected a list such as 0-1,3")))?;
        let allowed = forebay_sys::affinity::allowed().unwrap_or_default();
        match cpus.iter().find(|c| !allowed.contains(c)) {
            Some(cpu) => Err(Error::Usage(format!("--cpus {list}: CPU {cpu} is not there for this process"))),
            None => Ok(cpus),
        }
    }

    fn check_targets(&self, load: &Load) -> Result<(), Error> {
        let host = |address: &Address| match address {
            Address::Tcp(addr) | Address::Udp(addr) => addr.ip().to_string(),
            Address::Unix(_) => "localhost".into(),
        };
        let hosts: BTreeSet<String> = load.origins.iter().map(|o| host(&o.address)).collect();
        if hosts.len() > 1 && !self.many_hosts {
            let names: Vec<&str> = hosts.iter().map(String::as_str).collect();
            return Err(Error::Usage(format!(
                "{} hosts would be loaded ({}); say --many-hosts if that is wanted",
                names.len(),
                names.join(", ")
            )));
        }
        for origin in &load.origins {
            if let Some(addr) = origin.address.socket_addr()
                && !is_private(addr.ip())
                && !self.i_own_this_target
            {
                return Err(Error::Usage(format!(
                    "{} is at {}, neither on this machine nor in a private network. Load on somebody else's server \
                     is an attack; if it is yours, say --i-own-this-target",
                    origin.name,
                    addr.ip()
                )));
            }
        }
        Ok(())
    }
}

/// Parses `p99=10ms`: a share and a time.
///
/// # Errors
/// Another text.
pub(crate) fn limit(text: &str) -> Result<(f64, Duration), Error> {
    let bad = || Error::Usage(format!("--find-limit {text}: expected for instance p99=10ms"));
    let (quantile, time) = text.strip_prefix('p').and_then(|t| t.split_once('=')).ok_or_else(bad)?;
    let quantile: f64 = quantile.parse().ok().filter(|q| *q > 0.0 && *q < 100.0).ok_or_else(bad)?;
    let time = units::duration(time).ok().filter(|t| !t.is_zero()).ok_or_else(bad)?;
    Ok((quantile / 100.0, time))
}
