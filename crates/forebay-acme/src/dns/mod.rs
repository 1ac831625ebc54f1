//! Answers to questions about the records of DNS-01 (RFC 8555, section 8.4). An NS record of `_acme-challenge.NAME` in the zone of
//! the name has the authority ask here.
//!
//! The sockets are there as long as a configuration has an issuer that needs them. `message.rs` makes the answers.

mod message;

pub use message::{DnsTransport, Served, answer};

use crate::challenge;
use crate::engine::Environment;
use crate::listening::{self, PAUSE, quits};
use crate::settings::{Identifier, Order};
use forebay_conf::error::Level;
use forebay_core::tasks::Tasks;
use forebay_sys::datagrams::{self, Batch, MOST};
use forebay_sys::errno::errno;
use forebay_sys::sync::{read, write};
use std::cell::RefCell;
use std::collections::{HashMap, HashSet};
use std::io;
use std::os::fd::OwnedFd;
use std::sync::{Arc, LazyLock, RwLock};
use tokio::io::{AsyncReadExt, AsyncWriteExt, Interest};
use tokio::net::{TcpStream, UdpSocket};

/// Begin of the names of records.
pub(crate) const PREFIX: &str = "_acme-challenge.";

/// Most queries of a connection.
const MAX_QUERIES: usize = 16;
/// Longest query over TCP, bytes. Those of an authority have less than 300.
const MAX_QUERY: usize = 4096;

/// Values of open proofs by the names of their records, in lower case. A wildcard and the name below it share a record name.
static RECORDS: LazyLock<RwLock<HashMap<String, Vec<String>>>> = LazyLock::new(RwLock::default);

thread_local! {
    /// Datagrams of the tokio thread.
    static BATCH: RefCell<Batch> = RefCell::new(Batch::new());
}

/// Record that is withdrawn when this is dropped.
pub(crate) struct Record {
    name: String,
    value: String,
}

impl Record {
    /// Answers questions about a record.
    pub(crate) fn publish(name: String, value: String) -> Record {
        let name = name.to_ascii_lowercase();
        write(&RECORDS).entry(name.clone()).or_default().push(value.clone());
        Record { name, value }
    }
}

impl Drop for Record {
    fn drop(&mut self) {
        challenge::remove(&mut write(&RECORDS), &self.name, &self.value);
    }
}

/// Socket on which questions arrive.
pub enum Socket {
    /// UDP.
    Datagrams(Arc<OwnedFd>),
    /// TCP.
    Connections(Arc<OwnedFd>),
}

/// Names of records that questions are answered about.
#[derive(Debug, Default)]
struct Zones {
    names: HashSet<Vec<u8>>,
    /// Seconds for which answers may be kept.
    ttl: u32,
}

impl Zones {
    fn of(orders: &[Order], ttl: u32) -> Zones {
        let orders = orders.iter().filter(|o| o.issuer.answers_dns());
        let record = |i: &Identifier| match i {
            Identifier::Dns(name) => {
                let name = name.strip_prefix("*.").unwrap_or(name);
                Some(format!("{PREFIX}{name}").into_bytes())
            }
            Identifier::Ip(_) => None,
        };
        let names = orders.flat_map(|o| &o.identifiers).filter_map(record).collect();
        Zones { names, ttl }
    }

    /// Returns the values of the record of a name. `None`: questions about the name are refused.
    fn find(&self, name: &[u8]) -> Option<Served> {
        let known = self.names.contains(name);
        let values = std::str::from_utf8(name).ok().and_then(|n| read(&RECORDS).get(n).cloned());
        known.then(|| Served { values: values.unwrap_or_default(), ttl: self.ttl })
    }

    fn answer(&self, query: &[u8], transport: DnsTransport) -> Option<Vec<u8>> {
        answer(query, transport, |name| self.find(name))
    }
}

/// Starts to answer questions about the names of these orders.
pub fn start(
    orders: &[Order],
    (sockets, ttl): (Vec<Socket>, u32),
    tasks: &mut Tasks,
    environment: &Environment<'_>,
) {
    let Environment { tokio, log, .. } = environment;
    let zones = Arc::new(Zones::of(orders, ttl));
    for socket in sockets {
        let (zones, log) = (zones.clone(), (*log).clone());
        let serve = async move {
            let served = match &socket {
                Socket::Datagrams(fd) => serve_datagrams(fd, &zones).await,
                Socket::Connections(fd) => {
                    let converse = |connection| converse(connection, zones.clone());
                    listening::serve_each(fd, converse).await
                }
            };
            if let Err(e) = served {
                log(Level::Alert, &format!("cannot answer questions about ACME challenges ({})", errno(&e)));
            }
        };
        tasks.spawn(tokio, "answering name servers", serve);
    }
}

/// Answers datagrams until the process quits.
async fn serve_datagrams(fd: &OwnedFd, zones: &Zones) -> io::Result<()> {
    let socket = UdpSocket::from_std(fd.try_clone()?.into())?;
    loop {
        socket.readable().await?;
        if quits() {
            return Ok(());
        }
        let answered = socket.try_io(Interest::READABLE, || {
            BATCH.with_borrow_mut(|batch| answer_batch(&socket, batch, zones))
        });
        match answered {
            Ok(()) => tokio::task::yield_now().await,
            Err(e) if e.kind() == io::ErrorKind::WouldBlock => {}
            // The kernel reports errors of earlier answers here, too.
            Err(_) => tokio::time::sleep(PAUSE).await,
        }
    }
}

/// Receives and answers the datagrams that are there.
fn answer_batch(socket: &UdpSocket, batch: &mut Batch, zones: &Zones) -> io::Result<()> {
    batch.clear();
    batch.receive(socket, MOST).map_err(io::Error::from)?;
    for n in 0..batch.len() {
        let (Some(query), Some(sender)) = (batch.get(n), batch.sender(n)) else { continue };
        if let Some(answer) = zones.answer(query.bytes, DnsTransport::Udp) {
            // A lost answer is asked for again.
            let _ = datagrams::send(socket, &answer, Some(&sender));
        }
    }
    Ok(())
}

/// Answers the queries of a connection (RFC 7766).
async fn converse(mut connection: TcpStream, zones: Arc<Zones>) -> io::Result<()> {
    for _ in 0..MAX_QUERIES {
        answer_next(&mut connection, &zones).await?;
    }
    Ok(())
}

async fn answer_next(connection: &mut TcpStream, zones: &Zones) -> io::Result<()> {
    let length = usize::from(connection.read_u16().await?);
    if length > MAX_QUERY {
        return Err(io::ErrorKind::InvalidData.into());
    }
    let mut query = vec![0; length];
    connection.read_exact(&mut query).await?;
    let answer = zones.answer(&query, DnsTransport::Tcp).ok_or(io::ErrorKind::InvalidData)?;
    let length = u16::try_from(answer.len()).map_err(io::Error::other)?;
    connection.write_all(&[&length.to_be_bytes(), answer.as_slice()].concat()).await
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::settings::{Challenge, Issuer, KeyKind, Program, Publication};
    use std::time::Duration;

    fn order(name: &str, issuer: Issuer) -> Order {
        let identifiers = vec![Identifier::parse(name).expect("a name")];
        Order { issuer: Arc::new(issuer), identifiers, key: KeyKind::P256 }
    }

    #[test]
    fn only_names_of_issuers_that_answer_are_known() {
        let dns = || Issuer { challenge: Challenge::Dns01, ..Issuer::new("a", "https://b/") };
        let program = Program { path: "/p".into(), arguments: Vec::new(), delay: Duration::ZERO };
        let orders = [
            order("*.A.example", dns()),
            order("b.example", Issuer::new("a", "https://b/")),
            order("c.example", Issuer { publication: Publication::Program(program), ..dns() }),
        ];
        let zones = Zones::of(&orders, 7);
        assert_eq!(zones.find(b"_acme-challenge.a.example").map(|s| (s.values, s.ttl)), Some((vec![], 7)));
        for other in ["_acme-challenge.b.example", "_acme-challenge.c.example", "a.example"] {
            assert!(zones.find(other.as_bytes()).is_none(), "{other}");
        }
    }

    #[test]
    fn two_proofs_share_a_name() {
        let zones = Zones::of(
            &[order(
                "shared.example",
                Issuer { challenge: Challenge::Dns01, ..Issuer::new("a", "https://b/") },
            )],
            1,
        );
        let values = || zones.find(b"_acme-challenge.shared.example").map(|s| s.values).unwrap_or_default();
        let first = Record::publish("_acme-challenge.Shared.example".into(), "one".into());
        let second = Record::publish("_acme-challenge.shared.example".into(), "two".into());
        assert_eq!(values(), ["one", "two"]);
        drop(first);
        assert_eq!(values(), ["two"]);
        drop(second);
        assert_eq!(values(), [""; 0]);
        assert!(!read(&RECORDS).contains_key("_acme-challenge.shared.example"));
    }
}
