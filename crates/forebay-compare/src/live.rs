//! `--live`: the comparison of requests as they come, from nginx's `mirror` or from the lines of a log that grows.

use crate::client::{Client, Tls};
use crate::differ::{self, Beside, Difference, Part};
use crate::known::Knowledge;
use crate::pair::{ADDRESSES, Pair};
use crate::report::{Group, count, thousands};
use crate::requests::log::Follower;
use crate::requests::{Ask, Content, Front, is_masked};
use crate::wire::{self, Framing};
use crate::{message, recorder};
use forebay_bench::signals;
use forebay_terminal::print;
use std::collections::{BTreeMap, HashMap};
use std::io::{self, BufReader, Write};
use std::net::{SocketAddr, TcpListener, TcpStream};
use std::sync::atomic::{AtomicU32, AtomicU64, AtomicUsize, Ordering};
use std::sync::mpsc::{Receiver, SyncSender, TrySendError, sync_channel};
use std::sync::{Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

/// Requests that wait to be sent; others are left out while there are so many.
const MOST_WAITING: usize = 1000;

/// Differences that are kept, each of another kind.
const MOST_KEPT: usize = 500;

/// Largest content of a request that is sent; others are left out.
const MOST_CONTENT: usize = 1 << 20;

/// Connections of the mirror at a time.
const MOST_CONNECTIONS: usize = 256;

/// Time between two lines.
const MINUTE: Duration = Duration::from_secs(60);

/// Fields that say how a message came, and not what was asked.
const HOP_BY_HOP: [&str; 8] = [
    "connection",
    "keep-alive",
    "transfer-encoding",
    "content-length",
    "host",
    "te",
    "expect",
    "proxy-connection",
];

/// Sources of the requests, and the addresses that they go to.
#[derive(Debug)]
pub(crate) struct Live {
    /// Address for the mirror; `None`: the log alone.
    pub(crate) listen: Option<SocketAddr>,
    /// Log whose new lines are sent.
    pub(crate) log: Option<Follower>,
    /// Methods that may change something are sent, too.
    pub(crate) all_methods: bool,
    /// Addresses of the copies by host.
    pub(crate) fronts: HashMap<String, Front>,
    /// Address for other hosts.
    pub(crate) front: Front,
    /// Host of requests without one, as those of a log.
    pub(crate) host: Option<String>,
    /// Time between two lines.
    pub(crate) every: Option<Duration>,
    pub(crate) knowledge: Knowledge,
}

/// Numbers of a comparison that goes on.
#[derive(Debug, Default)]
struct Counts {
    knowledge: Knowledge,
    number: AtomicU32,
    requests: AtomicU64,
    left_out: AtomicU64,
    connections: AtomicUsize,
    /// Differences by cause.
    causes: Mutex<BTreeMap<String, Group>>,
}

impl Counts {
    fn causes(&self) -> MutexGuard<'_, BTreeMap<String, Group>> {
        self.causes.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Returns the line of a minute. Differences are counted by cause.
    fn line(&self) -> String {
        let requests = self.requests.load(Ordering::Relaxed);
        let (explained, unexplained): (Vec<_>, Vec<_>) =
            self.causes().values().map(|g| g.known.is_some()).partition(|known| *known);
        let left = self.left_out.load(Ordering::Relaxed);
        let left = if left == 0 { String::new() } else { format!(", {} left out", thousands(left)) };
        let (unexplained, explained) = (unexplained.len(), explained.len());
        format!("{}, {unexplained} unexplained, {explained} explained{left}\n", count(requests))
    }

    /// Counts a request by its differences, and keeps one difference of each cause.
    fn note(&self, ask: &Ask, mut differences: Vec<Difference>) {
        self.requests.fetch_add(1, Ordering::Relaxed);
        if differences.is_empty() {
            return;
        }
        let beside = Beside::of(differences.iter());
        differences.iter_mut().for_each(|d| d.beside = beside);
        let mut causes = self.causes();
        for difference in differences {
            let known = self.knowledge.explained(ask, &difference);
            let cause = known.map_or_else(|| difference.part.text(), |known| known.key().to_owned());
            if let Some(group) = causes.get_mut(&cause) {
                group.requests += 1;
            } else if causes.len() < MOST_KEPT {
                let (ask, difference) = (without_secrets(ask), masked(difference));
                let (place, others) = (String::new(), 0);
                let group = Group { known, repeated: true, requests: 1, difference, ask, place, others };
                causes.insert(cause, group);
            }
        }
    }
}

/// Compares until ^C. Returns the differences, one of each kind, and the number of requests.
///
/// # Errors
/// The address is taken.
pub(crate) fn run(
    mut live: Live,
    pair: &Pair,
    threads: usize,
    tls: &[Tls; 2],
) -> io::Result<(Vec<Group>, u64)> {
    let counts = Counts { knowledge: live.knowledge, ..Counts::default() };
    let listener = live.listen.map(TcpListener::bind).transpose()?;
    if let Some(listener) = &listener {
        listener.set_nonblocking(true)?;
        print(format!("Waits for requests at {}.\n", listener.local_addr()?));
    }
    let (sender, receiver) = sync_channel::<Ask>(MOST_WAITING);
    let receiver = Mutex::new(receiver);
    let log = live.log.take();
    let every = live.every.unwrap_or(MINUTE);
    std::thread::scope(|scope| {
        for _ in 0..threads {
            scope.spawn(|| work(pair, &receiver, &counts, tls));
        }
        if let Some(log) = log {
            let (sender, live, counts) = (sender.clone(), &live, &counts);
            scope.spawn(move || follow(log, live, &sender, counts));
        }
        let mut next = Instant::now() + every;
        while !signals::interrupted() {
            if let Some(Ok((stream, _))) = listener.as_ref().map(TcpListener::accept) {
                if counts.connections.load(Ordering::Relaxed) < MOST_CONNECTIONS {
                    counts.connections.fetch_add(1, Ordering::Relaxed);
                    let (sender, live, counts) = (sender.clone(), &live, &counts);
                    scope.spawn(move || {
                        let _ = mirrored(stream, live, &sender, counts);
                        counts.connections.fetch_sub(1, Ordering::Relaxed);
                    });
                }
                continue;
            }
            if Instant::now() >= next {
                print(counts.line());
                next += every;
            }
            std::thread::sleep(Duration::from_millis(5));
        }
        drop(sender);
    });
    print(counts.line());
    let requests = counts.requests.load(Ordering::Relaxed);
    let causes = counts.causes.into_inner().unwrap_or_else(PoisonError::into_inner);
    Ok((causes.into_values().collect(), requests))
}

/// Returns a request without the values of secrets in its query. Those in its fields are masked where they are shown.
fn without_secrets(ask: &Ask) -> Ask {
    let mut ask = ask.clone();
    if let Some((path, query)) = ask.target.split_once('?') {
        let argument = |word: &str| match word.split_once('=') {
            Some((name, value)) if is_masked(name, value) => format!("{name}=(masked)"),
            _ => word.to_owned(),
        };
        ask.target = format!("{path}?{}", query.split('&').map(argument).collect::<Vec<_>>().join("&"));
    }
    if ask.content.is_some() {
        ask.content = Some(Content::Length(b"(masked)".to_vec()));
    }
    ask
}

/// Returns a difference without content of users.
fn masked(d: Difference) -> Difference {
    let secret = match &d.part {
        Part::Field(name) | Part::UpstreamField(name) => is_masked(name, ""),
        Part::Body | Part::UpstreamBody => true,
        _ => false,
    };
    // The lengths of bodies, and the place of the difference, tell nothing.
    let hide = |value: Option<String>| {
        let value = value?;
        let shown = value.split(": ").next().filter(|v| secret && v.contains(" bytes, at "));
        Some(if secret { shown.unwrap_or("(masked)").to_owned() } else { value })
    };
    Difference { first: hide(d.first), second: hide(d.second), ..d }
}

/// Sends requests to both servers until there are no more senders.
fn work(pair: &Pair, receiver: &Mutex<Receiver<Ask>>, counts: &Counts, tls: &[Tls; 2]) {
    let [first, second] = tls;
    let mut a = Client::new(ADDRESSES[0], first.clone());
    let mut b = Client::new(ADDRESSES[1], second.clone());
    let normal = pair.normal();
    let [one, two] = &pair.sides;
    loop {
        let next =
            receiver.lock().unwrap_or_else(PoisonError::into_inner).recv_timeout(Duration::from_millis(100));
        let ask = match next {
            Ok(ask) => ask,
            Err(_) if signals::interrupted() => return,
            Err(_) => continue,
        };
        a.send(&ask);
        b.send(&ask);
        let (mine, other) = (a.receive(&ask), normal.answer(b.receive(&ask)));
        let mut differences = differ::answers(&mine, &other);
        let (x, y) = (one.recorder.take(ask.number), two.recorder.take(ask.number));
        // The rest of a background request may be on its way.
        if x.len() == y.len() {
            differences.extend(differ::upstreams(&x, &normal.received(y)));
        }
        counts.note(&ask, differences);
    }
}

/// Reads requests of a mirror and answers each at once, since nobody looks at the answers.
fn mirrored(stream: TcpStream, live: &Live, sender: &SyncSender<Ask>, counts: &Counts) -> io::Result<()> {
    stream.set_nonblocking(false)?;
    stream.set_read_timeout(Some(Duration::from_millis(500)))?;
    let mut writer = stream.try_clone()?;
    let mut reader = BufReader::new(stream);
    let idle_until = Instant::now() + Duration::from_secs(75);
    loop {
        match io::BufRead::fill_buf(&mut reader) {
            Ok([]) => return Ok(()),
            Ok(_) => {}
            Err(e) if e.kind() == io::ErrorKind::WouldBlock => {
                if signals::interrupted() || Instant::now() > idle_until {
                    return Ok(());
                }
                continue;
            }
            Err(e) => return Err(e),
        }
        reader.get_ref().set_read_timeout(Some(Duration::from_secs(5)))?;
        let ask = one(&mut reader, live, counts)?;
        reader.get_ref().set_read_timeout(Some(Duration::from_millis(500)))?;
        writer.write_all(b"HTTP/1.1 204 No Content\r\n\r\n")?;
        pass_on(ask, sender, counts);
    }
}

fn pass_on(ask: Option<Ask>, sender: &SyncSender<Ask>, counts: &Counts) {
    let Some(ask) = ask else { return };
    if let Err(TrySendError::Full(_) | TrySendError::Disconnected(_)) = sender.try_send(ask) {
        counts.left_out.fetch_add(1, Ordering::Relaxed);
    }
}

/// Reads a request. `None`: it is not to be sent.
fn one(reader: &mut BufReader<TcpStream>, live: &Live, counts: &Counts) -> io::Result<Option<Ask>> {
    let line = message::text(&wire::line(reader)?);
    let fields = wire::fields(reader)?;
    let body = wire::body(reader, wire::framing(&fields, Framing::Nothing))?.bytes;
    let mut words = line.split(' ');
    let (method, target) = (words.next().unwrap_or_default(), words.next().unwrap_or_default());
    if body.len() > MOST_CONTENT {
        counts.left_out.fetch_add(1, Ordering::Relaxed);
        return Ok(None);
    }
    let host = message::field(&fields, "host").map(str::to_owned);
    let ours =
        |name: &str| name.eq_ignore_ascii_case(recorder::NUMBER) || name.eq_ignore_ascii_case(recorder::WISH);
    let kept = |name: &str| !HOP_BY_HOP.contains(&name.to_ascii_lowercase().as_str()) && !ours(name);
    let ask = Ask {
        method: method.to_owned(),
        target: target.to_owned(),
        host,
        content: (!body.is_empty()).then_some(Content::Length(body)),
        fields: fields.into_iter().filter(|(name, _)| kept(name)).collect(),
        ..Ask::default()
    };
    Ok(prepared(ask, live, counts))
}

/// Gives a request its number and address. `None`: its method may change something.
fn prepared(mut ask: Ask, live: &Live, counts: &Counts) -> Option<Ask> {
    let safe = matches!(ask.method.as_str(), "GET" | "HEAD" | "OPTIONS");
    if !(safe || live.all_methods) || ask.target.is_empty() {
        counts.left_out.fetch_add(1, Ordering::Relaxed);
        return None;
    }
    ask.host = ask.host.or_else(|| live.host.clone());
    ask.number = counts.number.fetch_add(1, Ordering::Relaxed).wrapping_add(1).max(1);
    ask.front = ask.host.as_deref().and_then(|h| live.fronts.get(h)).copied().unwrap_or(live.front);
    Some(ask)
}

/// Sends the requests of new lines of a log.
fn follow(mut log: Follower, live: &Live, sender: &SyncSender<Ask>, counts: &Counts) {
    while !signals::interrupted() {
        match log.next() {
            Some(ask) => {
                if let Some(ask) = prepared(ask, live, counts) {
                    // A log is patient: it waits for room.
                    let mut waiting = Some(ask);
                    while let Some(ask) = waiting.take() {
                        match sender.try_send(ask) {
                            Err(TrySendError::Full(ask)) if !signals::interrupted() => {
                                waiting = Some(ask);
                                std::thread::sleep(Duration::from_millis(5));
                            }
                            _ => {}
                        }
                    }
                }
            }
            None => std::thread::sleep(Duration::from_millis(100)),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn secrets_are_masked() {
        let ask = Ask {
            target: "/a?x=1&access_token=abc".into(),
            fields: vec![("Cookie".into(), "sid=secret".into())],
            content: Some(Content::Length(b"password=1".to_vec())),
            ..Ask::default()
        };
        let shown = without_secrets(&ask).curl(ADDRESSES[0]);
        assert!(shown.contains("access_token=(masked)") && shown.contains("x=1"), "{shown}");
        assert!(!shown.contains("secret") && !shown.contains("password"), "{shown}");
        let body = Difference::new(Part::Body, Some("12 bytes, at 3: name".into()), None);
        assert_eq!(masked(body).first.as_deref(), Some("12 bytes, at 3"));
        let cookie = Difference::new(Part::Field("set-cookie".into()), Some("sid=1".into()), None);
        assert_eq!(masked(cookie).first.as_deref(), Some("(masked)"));
    }

    #[test]
    fn only_safe_methods_are_sent() {
        let live = |all_methods: bool| Live {
            listen: None,
            log: None,
            all_methods,
            fronts: HashMap::from([("a.example".to_owned(), Front { port: 7, ..Front::default() })]),
            front: Front { port: 8, ..Front::default() },
            host: Some("a.example".into()),
            every: None,
            knowledge: Knowledge::default(),
        };
        let counts = Counts::default();
        let ask = |method: &str, host: &str| Ask {
            method: method.into(),
            target: "/".into(),
            host: Some(host.into()),
            ..Ask::default()
        };
        let sent = prepared(ask("GET", "a.example"), &live(false), &counts).expect("sent");
        assert_eq!((sent.front.port, sent.number), (7, 1));
        let hostless = Ask { host: None, ..ask("GET", "") };
        assert_eq!(prepared(hostless, &live(false), &counts).map(|a| a.front.port), Some(7));
        assert!(prepared(ask("POST", "b.example"), &live(false), &counts).is_none());
        assert_eq!(prepared(ask("POST", "b.example"), &live(true), &counts).map(|a| a.front.port), Some(8));
        assert_eq!(counts.line(), "0 requests, 0 unexplained, 0 explained, 1 left out\n");
    }
}
