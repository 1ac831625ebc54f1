//! Facts about the certificates that a configuration gets by ACME: what DNS has about their names, and whether the authority
//! can get to the server. All questions are asked at a time, each with a deadline.

use crate::scene::Scene;
use forebay_acme::{Challenge, Identifier, Order, Publication};
use forebay_conf::address::{Address, Host};
use forebay_conf::error::Level;
use forebay_conf::files::Files;
use forebay_core::config::Environment;
use forebay_net::resolver::message::Caa;
use forebay_net::resolver::{Failure, Resolver};
use std::collections::BTreeMap;
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr, SocketAddr, TcpStream};
use std::sync::Arc;
use std::time::Duration;
use tokio::task::JoinHandle;
use tokio::time::{Instant, timeout_at};

/// Time limit of the questions to name servers.
const PATIENCE: Duration = Duration::from_secs(4);
/// Time limit of a connection to this machine.
const CONNECT: Duration = Duration::from_millis(500);
/// Most names that are asked about.
const MOST_NAMES: usize = 100;
/// Most listeners that are tried.
const MOST_LISTENERS: usize = 8;

/// Facts about certificates by ACME.
#[derive(Debug, Default)]
pub struct Acme {
    /// Certificates that are wanted.
    pub orders: Vec<Order>,
    /// Error for which the orders are not known.
    pub refused: Option<String>,
    /// Records of names in DNS.
    pub answers: BTreeMap<String, Answers>,
    /// Addresses of this machine.
    pub own: Vec<IpAddr>,
    /// Listeners for challenges to which no connection could be made, although the server runs.
    pub closed: Vec<(SocketAddr, String)>,
}

/// Answers of name servers about a name.
#[derive(Clone, Debug)]
pub struct Answers {
    /// Its addresses.
    pub addresses: Result<Vec<IpAddr>, Failure>,
    /// Rules about authorities in effect for it.
    pub rules: Result<Vec<Caa>, Failure>,
}

impl Acme {
    /// Reads the orders of a configuration that has any.
    pub fn of(scene: &Scene<'_>, environment: &Environment, read: crate::ReadOrders) -> Acme {
        let mut acme = Acme::default();
        if scene.all("acme").chain(scene.all("acme_certificate")).next().is_none() {
            return acme;
        }
        let mut files = Files::disk();
        let (orders, errors) = read(environment, &mut files);
        acme.refused = errors.iter().find(|e| e.level == Level::Emerg).map(|e| files.render(e));
        acme.orders = orders;
        acme.orders.retain(|order| order.issuer.enabled);
        acme
    }

    /// Asks name servers, and tries the listeners if the server runs.
    pub fn look(&mut self, scene: &Scene<'_>, is_running: bool) {
        self.answers = ask(&self.orders);
        self.own = own_addresses();
        let wanted = self.orders.iter().filter_map(Meeting::of);
        let mut ports: Vec<Meeting> = if is_running { wanted.collect() } else { Vec::new() };
        ports.sort_unstable();
        ports.dedup();
        let listeners = ports.into_iter().flat_map(|port| port.listeners(scene)).take(MOST_LISTENERS);
        self.closed = listeners.filter_map(refusal).collect();
    }
}

/// Challenge that the authority meets by connecting to the server.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) enum Meeting {
    /// HTTP-01.
    Http,
    /// TLS-ALPN-01.
    Tls,
}

impl Meeting {
    /// Returns that of an order. `None` if the authority does not connect, or another server answers it.
    pub(crate) fn of(order: &Order) -> Option<Meeting> {
        match order.issuer.challenge {
            _ if order.issuer.publication != Publication::Own => None,
            // Only chosen where the port for HTTP is there.
            Challenge::Http01 | Challenge::Either => Some(Meeting::Http),
            Challenge::TlsAlpn01 => Some(Meeting::Tls),
            Challenge::Dns01 => None,
        }
    }

    /// Returns the port that has to have a listener.
    pub(crate) fn port(self, s: &Scene<'_>) -> u16 {
        let moved = || s.all("acme_http_port").last().and_then(|n| s.arg(n, 0).parse().ok());
        match self {
            Meeting::Http => moved().unwrap_or(80),
            Meeting::Tls => 443,
        }
    }

    /// Returns the addresses to connect to for the listeners at which the challenge is answered.
    pub(crate) fn listeners(self, s: &Scene<'_>) -> Vec<SocketAddr> {
        let port = self.port(s);
        let address = |host: &Host| match host {
            Host::Any { v6: false } | Host::Name(_) => SocketAddr::from((Ipv4Addr::LOCALHOST, port)),
            Host::Any { v6: true } => SocketAddr::from((Ipv6Addr::LOCALHOST, port)),
            Host::Ip(ip) => SocketAddr::from((*ip, port)),
        };
        let fits = |a: &Address| match a {
            Address::Inet(host, ports) if ports.contains(&port) => Some(address(host)),
            _ => None,
        };
        self.addresses(s).iter().filter_map(fits).collect()
    }

    /// Returns the addresses of the listeners that speak the protocol of the challenge.
    fn addresses(self, s: &Scene<'_>) -> Vec<Address> {
        let mut found = Vec::new();
        for server in s.all("server").filter(|n| s.nodes.get(*n).is_some_and(|n| n.d.block.is_some())) {
            let http = s.parent(server).is_some_and(|p| s.is(p, "http"));
            let listens: Vec<usize> =
                s.level(Some(server)).iter().copied().filter(|n| s.is(*n, "listen")).collect();
            if http && listens.is_empty() && self == Meeting::Http {
                found.extend(Address::parse("*:80", None));
            }
            let speaks = |n: &usize| {
                let args = s.args(*n);
                let has = |word: &str| args.iter().any(|a| a == word);
                let tcp = !has("udp") && !has("quic");
                tcp && match self {
                    Meeting::Http => http && !has("ssl"),
                    Meeting::Tls => has("ssl"),
                }
            };
            let own = listens.iter().filter(|n| speaks(n));
            found.extend(own.filter_map(|n| Address::parse(s.arg(*n, 0), http.then_some(80))));
        }
        found
    }
}

/// Returns a listener with the error of a connection to it.
fn refusal(addr: SocketAddr) -> Option<(SocketAddr, String)> {
    let failed = TcpStream::connect_timeout(&addr, CONNECT).err()?;
    Some((addr, forebay_sys::errno::errno(&failed).to_string()))
}

/// Returns the addresses of this machine.
fn own_addresses() -> Vec<IpAddr> {
    let interfaces = nix::ifaddrs::getifaddrs().into_iter().flatten();
    let addresses = interfaces.filter_map(|i| i.address).filter_map(|address| {
        let v4 = address.as_sockaddr_in().map(|a| IpAddr::V4(a.ip()));
        v4.or_else(|| address.as_sockaddr_in6().map(|a| IpAddr::V6(a.ip())))
    });
    addresses.collect()
}

/// Asks about the names of orders, by the resolver of the configuration or else the system's name servers.
fn ask(orders: &[Order]) -> BTreeMap<String, Answers> {
    let mut questions = BTreeMap::new();
    let system = Arc::new(Resolver::name_servers());
    for order in orders {
        let resolver = order.issuer.resolver.as_ref().unwrap_or(&system);
        for identifier in &order.identifiers {
            if let (Identifier::Dns(name), true) = (identifier, questions.len() < MOST_NAMES) {
                questions.insert(name.clone(), resolver.clone());
            }
        }
    }
    let built = tokio::runtime::Builder::new_current_thread().enable_all().build();
    let Ok(runtime) = built else { return BTreeMap::new() };
    runtime.block_on(async {
        // All at once: the first that waits is no reason for the others to begin late.
        let tasks: Vec<_> =
            questions.into_iter().map(|(name, resolver)| Asked::new(name, &resolver)).collect();
        let mut all = BTreeMap::new();
        for task in tasks {
            let (name, answers) = task.answers().await;
            all.insert(name, answers);
        }
        all
    })
}

/// Questions about a name that are under way.
struct Asked {
    name: String,
    addresses: JoinHandle<Result<Vec<IpAddr>, Failure>>,
    rules: JoinHandle<Result<Vec<Caa>, Failure>>,
}

impl Asked {
    fn new(name: String, resolver: &Arc<Resolver>) -> Asked {
        let until = Instant::now() + PATIENCE;
        let bare: Vec<u8> = name.strip_prefix("*.").unwrap_or(&name).into();
        let (first, second) = (resolver.clone(), resolver.clone());
        let of_rules = bare.clone();
        let addresses = tokio::spawn(async move {
            let found = timeout_at(until, first.addresses(&bare, true)).await;
            found.unwrap_or(Err(Failure::Timeout)).map(|found| found.ips)
        });
        let rules = tokio::spawn(async move {
            timeout_at(until, second.authority_rules(&of_rules)).await.unwrap_or(Err(Failure::Timeout))
        });
        Asked { name, addresses, rules }
    }

    async fn answers(self) -> (String, Answers) {
        let addresses = self.addresses.await.unwrap_or(Err(Failure::Timeout));
        let rules = self.rules.await.unwrap_or(Err(Failure::Timeout));
        (self.name, Answers { addresses, rules })
    }
}
