//! Asking a name server: over UDP from a port of its own for each question, over TCP where the answer is cut
//! off. Runs on the process's tokio thread.

#![allow(clippy::disallowed_methods, reason = "not on a thread of connections: the tokio thread runs this")]

use super::message::{self, Kind, Response};
use super::{Failure, Resolver};
use std::net::SocketAddr;
use std::time::Duration;
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::{TcpStream, UdpSocket};
use tokio::sync::{Semaphore, SemaphorePermit};
use tokio::time::{Instant, sleep, sleep_until, timeout, timeout_at};

/// Time after which a question is asked again, of the next server.
const RESEND: Duration = Duration::from_secs(5);
/// Time to the next round when no server can be reached at all.
const PAUSE: Duration = Duration::from_secs(1);
/// Most times one question is asked.
const ATTEMPTS: usize = 12;

/// Most questions at a time that were asked a moment ago, and most that wait for longer: each takes a descriptor, and names
/// may come from clients. Names that are never answered take the places of the second kind only, so that others get
/// their turn.
static QUICK: Semaphore = Semaphore::const_new(256);
static SLOW: Semaphore = Semaphore::const_new(256);
/// Time after which a question is a slow one. Servers that have the answer are faster.
const MOMENT: Duration = Duration::from_millis(500);

/// What one attempt came to.
enum Got {
    Response(Response),
    /// Nobody is there.
    Unreachable,
    /// No (usable) answer in time.
    Silence,
}

impl Resolver {
    /// Asks until a server has answered. `first`: the server to begin with.
    /// `key`: the entry of the cache that it is for; when nobody waits for that any more, it ends.
    pub(super) async fn ask(
        &self,
        key: Option<&[u8]>,
        name: &[u8],
        kind: Kind,
        first: usize,
    ) -> Result<Response, Failure> {
        let n = self.servers.len();
        let (mut unreachable, mut refused) = (0, 0);
        for attempt in 0..ATTEMPTS {
            let Some(server) = self.servers.get((first + attempt) % n.max(1)) else { break };
            if attempt > 0 && key.is_some_and(|k| !self.is_wanted(k)) {
                break;
            }
            let id = forebay_sys::random::random_u64() as u16;
            let question = message::query(id, name, kind).ok_or(Failure::NotFound)?;
            let Ok(permit) = QUICK.acquire().await else { break };
            let until = Instant::now() + RESEND;
            let asked = udp(*server, &question, id, name, kind, until);
            let Some((got, permit)) = admitted(asked, permit, &SLOW, MOMENT).await else {
                // As if the server were silent: it may know the name by the time it is asked again.
                sleep_until(until).await;
                continue;
            };
            match got? {
                Got::Response(r) if r.truncated && r.code == 0 => {
                    match tcp(*server, &question, id, name, kind, until).await {
                        Some(r) => return r.ok_or(Failure::Format),
                        None => unreachable += 1,
                    }
                }
                // Such a server does not understand or does not want to: another one may.
                Got::Response(r) if matches!(r.code, 1 | 4 | 5) => {
                    refused += 1;
                    if refused >= n {
                        return Ok(r);
                    }
                    continue;
                }
                Got::Response(r) => return Ok(r),
                Got::Unreachable => unreachable += 1,
                Got::Silence => {}
            }
            if unreachable >= n {
                unreachable = 0;
                drop(permit);
                sleep(PAUSE).await;
            }
        }
        Err(Failure::Timeout)
    }
}

/// Waits for an answer: for `moment` with the permit that it has, then with one of `slow`. `None`: there is none.
async fn admitted<'p, T>(
    answer: impl Future<Output = T>,
    permit: SemaphorePermit<'p>,
    slow: &'p Semaphore,
    moment: Duration,
) -> Option<(T, SemaphorePermit<'p>)> {
    let mut answer = std::pin::pin!(answer);
    match timeout(moment, &mut answer).await {
        Ok(answer) => Some((answer, permit)),
        Err(_) => {
            drop(permit);
            let permit = slow.try_acquire().ok()?;
            Some((answer.await, permit))
        }
    }
}

async fn udp(
    server: SocketAddr,
    question: &[u8],
    id: u16,
    name: &[u8],
    kind: Kind,
    until: Instant,
) -> Result<Got, Failure> {
    let local: SocketAddr = match server {
        SocketAddr::V4(_) => ([0, 0, 0, 0], 0).into(),
        SocketAddr::V6(_) => ([0u16; 8], 0).into(),
    };
    // A connected socket takes datagrams of that server only.
    let Ok(socket) = UdpSocket::bind(local).await else { return Ok(Got::Unreachable) };
    if socket.connect(server).await.is_err() || socket.send(question).await.is_err() {
        return Ok(Got::Unreachable);
    }
    let mut buf = [0u8; 4096];
    loop {
        match timeout_at(until, socket.recv(&mut buf)).await {
            Err(_) => return Ok(Got::Silence),
            Ok(Err(_)) => return Ok(Got::Unreachable),
            Ok(Ok(len)) => {
                let m = buf.get(..len).unwrap_or_default();
                if message::answers(m, id, name, kind) {
                    return message::parse(m).map(Got::Response).ok_or(Failure::Format);
                }
            }
        }
    }
}

/// `None`: it cannot be asked; `Some(None)`: its answer is malformed.
async fn tcp(
    server: SocketAddr,
    question: &[u8],
    id: u16,
    name: &[u8],
    kind: Kind,
    until: Instant,
) -> Option<Option<Response>> {
    let talk = async {
        let mut stream = TcpStream::connect(server).await.ok()?;
        let mut out = u16::try_from(question.len()).ok()?.to_be_bytes().to_vec();
        out.extend_from_slice(question);
        stream.write_all(&out).await.ok()?;
        let len = stream.read_u16().await.ok()?;
        let mut m = vec![0; usize::from(len)];
        stream.read_exact(&mut m).await.ok()?;
        Some(m)
    };
    let m = timeout_at(until, talk).await.ok()??;
    if !message::answers(&m, id, name, kind) {
        return Some(None);
    }
    Some(message::parse(&m).filter(|r| !r.truncated))
}

#[cfg(test)]
mod tests {
    use super::super::both;
    use super::*;

    #[test]
    fn names_that_are_never_answered_leave_places_to_others() {
        let (quick, slow) = (Semaphore::new(2), Semaphore::new(1));
        let runtime = tokio::runtime::Builder::new_current_thread().enable_time().build().expect("runtime");
        runtime.block_on(async {
            let moment = Duration::from_millis(10);
            let ask = || async {
                let permit = quick.acquire().await.expect("open");
                admitted(std::future::pending::<()>(), permit, &slow, moment).await.is_some()
            };
            // Four questions that nobody answers: one of them waits on, the others are given up.
            let mut never = std::pin::pin!(both(both(ask(), ask()), both(ask(), ask())));
            for _ in 0..1000 {
                assert!(timeout(moment, &mut never).await.is_err(), "one waits for ever");
                if (quick.available_permits(), slow.available_permits()) == (2, 0) {
                    break;
                }
            }
            assert_eq!((quick.available_permits(), slow.available_permits()), (2, 0));
            let permit = quick.acquire().await.expect("open");
            assert!(admitted(async { 1 }, permit, &slow, moment).await.is_some_and(|(n, _)| n == 1));
        });
    }
}
