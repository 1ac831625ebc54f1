use super::balance::Picker;
use super::*;
use std::net::SocketAddr;

fn group(weights: &[i64], change: impl FnOnce(&mut [Server])) -> Group {
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
                source: Source::Fixed,
                found: vec![Found::plain(addr)],
                template,
            }
        })
        .collect();
    change(&mut servers);
    let g = Group::new(b"u".to_vec(), true, Keepalive::default());
    g.set_servers(servers);
    g
}

/// One request after the other: chosen, and over at once.
fn choose(g: &Group, tried: &[usize], now: Instant) -> Option<usize> {
    let mut p = Picker::new(GroupState::default().local(g));
    tried.iter().for_each(|t| p.give_up(*t));
    let i = p.choose(g, now)?;
    g.end(&p.local, i, now);
    Some(i)
}

fn order(g: &Group, n: usize) -> String {
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
    assert!(g.fail(&g.set(), 0, now) && g.fail(&g.set(), 1, now));
    assert_eq!(choose(&g, &[], now), Some(2));
    let later = now + Duration::from_secs(11);
    assert_eq!(choose(&g, &[], later), Some(0));
    g.succeed(&g.set(), 0, later);
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
    let mut g = group(&[1, 2], |_| ());
    g.method = Method::Least(balance::Load::Connections);
    let now = Instant::now();
    let mut state = GroupState::default();
    let held: Vec<usize> = (0..6).filter_map(|_| Picker::new(state.local(&g)).choose(&g, now)).collect();
    assert_eq!(held.iter().filter(|i| **i == 1).count(), 4);
    assert_eq!(g.status(now)[1].active, 4);
}

#[test]
fn max_conns_limits() {
    let g = group(&[1, 1], |s| s.iter_mut().for_each(|s| s.template.max_conns = 1));
    let now = Instant::now();
    let mut state = GroupState::default();
    let local = state.local(&g);
    let first = Picker::new(local.clone()).choose(&g, now);
    assert!(first.is_some() && Picker::new(local.clone()).choose(&g, now).is_some());
    assert_eq!(Picker::new(local.clone()).choose(&g, now), None);
    g.end(&local, 0, now);
    assert_eq!(Picker::new(local).choose(&g, now), Some(0));
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
    g.fail(&g.set(), 0, now);
    let id = g.set().peers[0].live.id;
    let other = Found::plain(PeerAddr::Inet(SocketAddr::from(([127, 0, 0, 2], 80))));
    assert!(g.found(1, vec![other.clone()]));
    assert!(!g.found(1, vec![other]));
    assert_eq!(g.set().peers[0].live.id, id);
    assert_eq!(order(&g, 2), "bb");
    let next = group(&[1, 1], |_| ());
    next.adopt(&g);
    assert_eq!(next.set().peers[0].live.id, id);
    assert_eq!(order(&next, 2), "bb");
}

#[test]
fn sticky_requests_reach_a_drained_server() {
    let mut g = group(&[1, 1], |s| {
        (s[0].template.drain, s[0].template.routed, s[0].template.sid) = (true, true, b"a".to_vec());
    });
    g.sticky = Some(sticky::Sticky::Route(Vec::new()));
    g.rebuild(&[]);
    let now = Instant::now();
    assert_eq!(order(&g, 2), "bb");
    let mut p = Picker::new(GroupState::default().local(&g));
    p.sticky = Some(b"a".to_vec());
    assert_eq!(p.choose(&g, now), Some(0));
}

#[test]
fn the_faster_server_wins() {
    let mut g = group(&[1, 1], |_| ());
    g.method = Method::Least(balance::Load::Time { timed: balance::Timed::LastByte, inflight: false });
    let (now, set) = (Instant::now(), g.set());
    let took = |i, ms| g.measure(&set, i, Some(Duration::ZERO), Some(Duration::from_millis(ms)), now);
    took(0, 4000);
    took(1, 3);
    assert_eq!(order(&g, 5), "bbbbb");
    // After a rest of fail_timeout the slow one is tried once.
    let later = now + Duration::from_secs(11);
    let mut seen: Vec<_> = (0..4).filter_map(|_| choose(&g, &[], later)).collect();
    seen.sort_unstable();
    assert_eq!(seen.iter().filter(|i| **i == 0).count(), 1, "{seen:?}");
}
