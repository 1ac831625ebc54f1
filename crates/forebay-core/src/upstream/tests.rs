use super::balance::{Key, Load, Method, Picker, Timed};
use super::conn::Conn;
use super::group::{Group, Keepalive};
use super::lease::Lease;
use super::local::{LocalGroups, LocalSet};
use super::peer::{Figures, Peer};
use super::servers::{Discovery, Found, Server};
use crate::tasks::{Log, Tasks};
use forebay_net::addr::{PeerAddr, Place};
use forebay_net::io::Io;
use forebay_net::wire::{Watch, Wire};
use rustix::io::Errno;
use std::net::SocketAddr;
use std::rc::Rc;
use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::task::{Context, Poll, Waker};
use std::time::{Duration, Instant};

fn group(weights: &[i64], change: impl FnOnce(&mut [Server])) -> Arc<Group> {
    balanced(Method::RoundRobin, weights, change)
}

fn balanced(method: Method, weights: &[i64], change: impl FnOnce(&mut [Server])) -> Arc<Group> {
    let mut g = Group::new(b"u".to_vec(), true, Keepalive::default());
    g.method = method;
    g.set_servers(servers(weights, change));
    Arc::new(g)
}

/// The servers of a group as the only thread sees them.
fn local(g: &Arc<Group>) -> Rc<LocalSet> {
    LocalGroups::default().local(g)
}

fn picker(local: Rc<LocalSet>) -> Picker {
    Picker::new(local, Key::default())
}

fn servers(weights: &[i64], change: impl FnOnce(&mut [Server])) -> Vec<Server> {
    let mut servers: Vec<Server> = weights
        .iter()
        .enumerate()
        .map(|(i, w)| {
            let addr = PeerAddr::Inet(SocketAddr::from(([127, 0, 0, 1], 8001 + i as u16)));
            let mut template = Peer::new(addr.clone());
            template.weight = *w;
            Server {
                place: Place::Host(b"127.0.0.1".to_vec(), Some(8001 + i as u16)),
                default_port: 80,
                source: Discovery::Fixed,
                found: vec![Found::plain(addr)],
                template,
            }
        })
        .collect();
    change(&mut servers);
    servers
}

/// One request after the other: chosen, and over at once.
fn choose(g: &Arc<Group>, tried: &[usize], now: Instant) -> Option<usize> {
    let mut p = picker(local(g));
    tried.iter().for_each(|t| p.give_up(*t));
    let i = p.choose(now)?;
    p.local.end(i);
    Some(i)
}

fn order(g: &Arc<Group>, n: usize) -> String {
    let now = Instant::now();
    (0..n).filter_map(|_| choose(g, &[], now)).map(|i| char::from(b'a' + i as u8)).collect()
}

#[test]
fn weights_are_spread_smoothly() {
    assert_eq!(order(&group(&[1, 1, 1], |_| ()), 6), "abcabc");
    assert_eq!(order(&group(&[5, 1, 1], |_| ()), 7), "aabacaa");
}

#[test]
fn backups_wait_and_failures_count() {
    let g = group(&[1, 1, 1], |s| s[2].template.backup = true);
    let now = Instant::now();
    assert_eq!(choose(&g, &[0, 1], now), Some(2));
    assert_eq!(choose(&g, &[0, 1, 2], now), None);
    assert!(local(&g).fail(0, now) && local(&g).fail(1, now));
    assert_eq!(choose(&g, &[], now), Some(2));
    let later = now + Duration::from_secs(11);
    assert_eq!(choose(&g, &[], later), Some(0));
    local(&g).succeed(0, later);
    assert_eq!(choose(&g, &[0], later), Some(1));
}

#[test]
fn a_server_alone_is_not_counted() {
    let g = group(&[1], |_| ());
    assert!(g.set().lone);
    assert_eq!(order(&g, 3), "aaa");
    assert_eq!(choose(&g, &[0], Instant::now()), None);
    assert_eq!(g.status(Instant::now())[0].requests, 3);
    assert_eq!(g.status(Instant::now())[0].active, 0);
    assert!(!group(&[1], |s| s[0].template.drain = true).set().lone);
    assert_eq!(order(&group(&[1], |s| s[0].template.down = true), 2), "");
}

#[test]
fn least_conn_goes_by_weight() {
    let g = balanced(Method::Least(Load::Connections), &[1, 2], |_| ());
    let now = Instant::now();
    let groups = LocalGroups::default();
    let held: Vec<usize> = (0..6).filter_map(|_| picker(groups.local(&g)).choose(now)).collect();
    assert_eq!(held.iter().filter(|i| **i == 1).count(), 4);
    assert_eq!(g.status(now)[1].active, 4);
}

/// With `inflight`, requests that wait for longer than the mean of a server count as its time, until they are answered.
#[test]
fn requests_that_wait_make_a_server_slow() {
    let load = Load::Time { timed: Timed::Header, inflight: true };
    let g = balanced(Method::Least(load), &[1, 1], |_| ());
    let now = Instant::now();
    let local = local(&g);
    let lease = |at| {
        let mut picker = picker(local.clone());
        let peer = picker.choose(at).expect("a server");
        (peer, Lease::new(&picker, peer, at, 0))
    };
    let (first, slow) = lease(now);
    let later = now + Duration::from_millis(500);
    let others: Vec<_> = (0..4).map(|_| lease(later)).collect();
    assert!(others.iter().all(|(peer, _)| *peer != first), "it has not answered");
    slow.reached(Timed::Connect);
    assert_ne!(lease(later).0, first, "another time than the one that counts");
    slow.reached(Timed::Header);
    assert_eq!(lease(later).0, first, "fewer requests than the other");
}

#[test]
fn max_conns_limits() {
    let g = group(&[1, 1], |s| s.iter_mut().for_each(|s| s.template.max_conns = 1));
    let now = Instant::now();
    let local = local(&g);
    let first = picker(local.clone()).choose(now);
    assert!(first.is_some() && picker(local.clone()).choose(now).is_some());
    assert_eq!(picker(local.clone()).choose(now), None);
    local.end(0);
    assert_eq!(picker(local).choose(now), Some(0));
}

#[test]
fn a_slow_start_grows() {
    let g = group(&[10, 10], |s| s[0].template.slow_start = Duration::from_secs(10));
    let set = g.set();
    let p = &set.peers[0];
    p.live.up_since.store(5_000, Ordering::Relaxed);
    assert_eq!([5_000, 6_000, 10_000, 20_000].map(|t| p.weight_now(set.scale, t)), [1, 100, 500, 1000]);
}

#[test]
fn state_stays_when_servers_change() {
    let g = group(&[1, 1], |_| ());
    let now = Instant::now();
    local(&g).fail(0, now);
    let id = g.set().peers[0].live.id;
    let other = Found::plain(PeerAddr::Inet(SocketAddr::from(([127, 0, 0, 2], 80))));
    g.found(1, vec![other.clone()]);
    let set = g.set();
    g.found(1, vec![other]);
    assert!(Arc::ptr_eq(&set, &g.set()), "nothing has changed");
    assert_eq!(g.set().peers[0].live.id, id);
    assert_eq!(order(&g, 2), "bb");
    let next = group(&[1, 1], |_| ());
    next.adopt(&g);
    assert_eq!(next.set().peers[0].live.id, id);
    assert_eq!(order(&next, 2), "bb");
}

/// A name stays resolved over a reload, also if the line has another port then.
#[test]
fn resolved_addresses_are_kept_with_the_new_port() {
    let at = |port| {
        group(&[1], |s| {
            s[0].place = Place::Host(b"name.example".to_vec(), Some(port));
            s[0].source = Discovery::Resolve(None);
            s[0].found.clear();
        })
    };
    let addrs = |g: &Group| g.settings(|p| p.addr.clone());
    let old = at(8001);
    let found = SocketAddr::from(([127, 0, 0, 9], 8001));
    old.found(0, vec![Found::plain(PeerAddr::Inet(found))]);
    let next = at(8002);
    assert_eq!(addrs(&next), []);
    next.adopt(&old);
    assert_eq!(addrs(&next), [PeerAddr::Inet(SocketAddr::new(found.ip(), 8002))]);
}

#[test]
fn servers_of_a_controller_are_replaced_at_once_and_keep_their_state() {
    let of_controller = || {
        group(&[1], |s| {
            s[0].source = Discovery::External;
            s[0].found.clear();
        })
    };
    let at = |host: u8| Found::plain(PeerAddr::Inet(SocketAddr::from(([10, 0, 0, host], 80))));
    let names = |g: &Group| g.settings(|p| String::from_utf8_lossy(&p.server).into_owned());
    let g = of_controller();
    assert!(g.set().vacant);
    assert!(g.set_external(vec![at(1), at(2)]));
    assert_eq!(names(&g), ["10.0.0.1:80", "10.0.0.2:80"]);
    let second = g.set().peers[1].live.id;
    assert!(g.set_external(vec![at(2), at(3)]));
    assert_eq!(g.set().peers[0].live.id, second);
    // With the next configuration come the servers of that time.
    let next = of_controller();
    assert!(next.set_external(vec![at(2)]));
    next.adopt(&g);
    assert_eq!(names(&next), ["10.0.0.2:80"]);
    assert_eq!(next.set().peers[0].live.id, second);
    assert!(!group(&[1], |_| ()).set_external(vec![at(1)]), "its servers are in the configuration");
}

#[test]
fn sticky_requests_reach_a_drained_server() {
    let mut g = Group::new(b"u".to_vec(), true, Keepalive::default());
    g.sticky = true;
    g.set_servers(servers(&[1, 1], |s| {
        (s[0].template.drain, s[0].template.routed, s[0].template.sid) = (true, true, b"a".to_vec());
    }));
    let g = Arc::new(g);
    let now = Instant::now();
    assert_eq!(order(&g, 2), "bb");
    let key = Key { sticky: Some(b"a".to_vec()), ..Key::default() };
    assert_eq!(Picker::new(local(&g), key).choose(now), Some(0));
}

#[test]
fn strict_sessions_reach_no_other_server() {
    let mut g = Group::new(b"u".to_vec(), true, Keepalive::default());
    g.sticky = true;
    g.set_servers(servers(&[1, 1], |s| {
        (s[0].template.routed, s[0].template.sid) = (true, b"a".to_vec());
    }));
    let g = Arc::new(g);
    let now = Instant::now();
    let picker = |sid: Option<&[u8]>| {
        let key = Key { sticky: sid.map(<[u8]>::to_vec), strict: true, ..Key::default() };
        Picker::new(local(&g), key)
    };
    let mut bound = picker(Some(b"a"));
    assert_eq!(bound.choose(now), Some(0));
    bound.give_up(0);
    assert_eq!(bound.choose(now), None);
    assert_eq!(picker(Some(b"unknown")).choose(now), None);
    // A session that is not bound yet goes anywhere.
    assert!(picker(None).choose(now).is_some());
}

#[test]
fn the_faster_server_wins() {
    let method = Method::Least(Load::Time { timed: Timed::LastByte, inflight: false });
    let g = balanced(method, &[1, 1], |_| ());
    let (now, local) = (Instant::now(), local(&g));
    let took = |i, ms| {
        let (header, response) = (Some(Duration::ZERO), Some(Duration::from_millis(ms)));
        local.measure(i, &Figures { header, response, ..Figures::default() }, now);
    };
    took(0, 4000);
    took(1, 3);
    assert_eq!(order(&g, 5), "bbbbb");
    // After a rest of fail_timeout the slow one is tried once.
    let later = now + Duration::from_secs(11);
    let mut seen: Vec<_> = (0..4).filter_map(|_| choose(&g, &[], later)).collect();
    seen.sort_unstable();
    assert_eq!(seen.iter().filter(|i| **i == 0).count(), 1, "{seen:?}");
}

/// Uses a connection for a request, as a front end would; returns whether it was kept from an earlier one.
fn use_connection(groups: &LocalGroups, g: &Arc<Group>, io: &Rc<Io>, to: SocketAddr) -> bool {
    let now = io.poller.now();
    let mut p = picker(groups.local(g));
    let peer = p.choose(now).expect("a server");
    let mut lease = Lease::new(&p, peer, now, 0);
    let conn = lease.take_idle(io, 0).unwrap_or_else(|| {
        let socket = std::net::TcpStream::connect(to).expect("connected");
        socket.set_nonblocking(true).expect("nonblocking");
        Conn::opened(io, Wire::Plain(io.poller.insert(socket.into())), now)
    });
    assert_eq!(conn.peek(), Err(Errno::AGAIN), "nothing has come");
    let reused = conn.reused;
    lease.conn = Some(conn);
    lease.keep();
    reused
}

#[test]
fn a_connection_is_kept() {
    let listener = std::net::TcpListener::bind("127.0.0.1:0").expect("bound");
    let to = listener.local_addr().expect("bound");
    let io = Rc::new(Io::new().expect("epoll"));
    let (g, groups) = (group(&[1], |_| ()), LocalGroups::new(0, 1));
    assert_eq!([(); 3].map(|()| use_connection(&groups, &g, &io, to)), [false, true, true]);
    assert_eq!((g.idle.count(), g.status(io.poller.now())[0].active), (1, 0));
    // Under a new configuration, requests that are still running keep no more.
    groups.close(&io);
    assert_eq!(g.idle.count(), 0);
    assert_eq!([(); 2].map(|()| use_connection(&groups, &g, &io, to)), [false; 2]);
    assert_eq!(g.idle.count(), 0);
}

/// Connections beyond the limit stay for a moment where requests come many at a time, and are used again by the next burst.
#[test]
fn a_burst_uses_the_connections_of_the_one_before() {
    let listener = std::net::TcpListener::bind("127.0.0.1:0").expect("bound");
    let to = listener.local_addr().expect("bound");
    let io = Rc::new(Io::new().expect("epoll"));
    let g = Group::new(b"u".to_vec(), true, Keepalive { connections: 2, ..Keepalive::default() });
    g.set_servers(servers(&[1], |_| ()));
    let (g, groups) = (Arc::new(g), LocalGroups::new(0, 1));
    let burst = |count: usize| {
        let now = io.poller.now();
        let mut opened = 0;
        let mut leases: Vec<Lease> = Vec::new();
        for _ in 0..count {
            let mut p = picker(groups.local(&g));
            let peer = p.choose(now).expect("a server");
            let mut lease = Lease::new(&p, peer, now, 0);
            lease.conn = Some(lease.take_idle(&io, 0).unwrap_or_else(|| {
                opened += 1;
                let socket = std::net::TcpStream::connect(to).expect("connected");
                socket.set_nonblocking(true).expect("nonblocking");
                let conn = Conn::opened(&io, Wire::Plain(io.poller.insert(socket.into())), now);
                assert_eq!(conn.peek(), Err(Errno::AGAIN), "nothing has come");
                conn
            }));
            leases.push(lease);
        }
        for mut lease in leases {
            lease.keep();
        }
        opened
    };
    assert_eq!((burst(8), burst(8), burst(8)), (8, 1, 1), "the last one of a burst is alone");
    // Requests one after the other are no burst: the list has its limit.
    assert_eq!((burst(1), burst(1)), (0, 0));
    let (idle, _) = g.idle.clear(0);
    let now = io.poller.now();
    let lasting = idle.iter().filter(|i| i.deadline > now + Duration::from_secs(1)).count();
    assert!(lasting <= 2 && idle.len() > 2, "{lasting} of {}", idle.len());
}

/// A group whose only name has no addresses yet.
fn unresolved() -> Arc<Group> {
    group(&[1], |servers| {
        servers[0].source = Discovery::Resolve(None);
        servers[0].found.clear();
    })
}

/// Addresses that come after the choice that has failed, and before the request would wait for them.
#[test]
fn addresses_that_come_just_before_a_wait_are_used() {
    let io = Rc::new(Io::new().expect("epoll"));
    let (g, groups) = (unresolved(), LocalGroups::new(0, 1));
    let unanswered = g.ask(0).expect("no addresses");
    let mut picker = picker(groups.local(&g));
    assert_eq!(picker.choose(io.poller.now()), None);
    g.found(0, vec![Found::plain(PeerAddr::Inet(SocketAddr::from(([127, 0, 0, 1], 8001))))]);
    drop(unanswered);
    let mut watch = Watch::Nothing;
    let mut wait = std::pin::pin!(picker.wait(&groups, &io, &mut watch));
    let polled = wait.as_mut().poll(&mut Context::from_waker(Waker::noop()));
    assert!(matches!(polled, Poll::Ready(Ok(Some(0)))), "{polled:?}");
}

/// The threads take requests as soon as the tasks are started, and before these run.
#[test]
fn requests_wait_for_names_before_the_first_question() {
    let tokio = tokio::runtime::Builder::new_current_thread().enable_all().build().expect("a runtime");
    let (g, mut tasks) = (unresolved(), Tasks::default());
    let log: Log = Arc::new(|_, _| ());
    super::resolve::start(&g, &mut tasks, tokio.handle(), &log);
    assert!(g.is_unanswered());
    // The task ends, because there is no resolver.
    tokio.block_on(tokio::task::yield_now());
    assert!(!g.is_unanswered());
}
