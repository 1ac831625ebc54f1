//! Replicas and a store in simulated time.

use super::*;
use std::collections::{HashMap, VecDeque};

const MS: i64 = 1_000_000;
const SECOND: i64 = 1000 * MS;

/// The script of the store, in Rust.
#[derive(Default)]
struct Store(HashMap<Box<[u8]>, i64>);

impl Store {
    fn grant(&mut self, ask: &Ask, now: i64) -> Answer {
        let (interval, tolerance, debt, want) = cells(ask);
        let due = self.0.get(&ask.key).copied().unwrap_or(now);
        let spent = i64::from(debt) * interval;
        let due = if debt > 0 { due.max(now) + spent } else { (due + spent).max(now) };
        let free = (now + tolerance - due).div_euclid(interval) + 1;
        let granted = free.clamp(0, i64::from(want));
        let next = due + granted * interval;
        self.0.insert(ask.key.clone(), next);
        Answer { granted: granted as u32, first: due - now, due: next - now }
    }
}

/// Returns interval, tolerance, debt and number of a question.
fn cells(ask: &Ask) -> (i64, i64, i32, u32) {
    let Question::Cells { interval, tolerance, debt, want } = ask.question else { panic!("{ask:?}") };
    (interval, tolerance, debt, want)
}

struct Random(u64);

impl Random {
    /// Returns a number from 0 to 1.
    fn fraction(&mut self) -> f64 {
        self.0 ^= self.0 << 13;
        self.0 ^= self.0 >> 7;
        self.0 ^= self.0 << 17;
        (self.0 >> 11) as f64 / (1u64 << 53) as f64
    }
}

fn replica(rate: u64, link: &Arc<Link>) -> SharedRate {
    let d = Definition { name: b"z", key: b"k", size: 1 << 20, rate: rate * 1000, exact: false };
    SharedRate::over(Arc::new(Mutex::new(Table::new(d.size))), &d, link.clone())
}

fn up() -> Arc<Link> {
    let link = Arc::new(Link::default());
    link.set_up(true);
    link
}

/// Answers under way, with the time at which they arrive.
type UnderWay = VecDeque<(i64, Ask, Answer)>;

/// Replicas with requests at random times.
struct World {
    replicas: Vec<(SharedRate, UnderWay)>,
    store: Store,
    random: Random,
    calls: u64,
    /// Requests so far.
    sent: u64,
    /// Whether the store answers no more.
    hangs: bool,
}

impl World {
    fn new(rate: u64, count: usize, link: &Arc<Link>) -> World {
        World {
            replicas: (0..count).map(|_| (replica(rate, link), UnderWay::new())).collect(),
            store: Store::default(),
            random: Random(0x9e37_79b9_7f4a_7c15),
            calls: 0,
            sent: 0,
            hangs: false,
        }
    }

    /// Sends so many requests a second to each replica. Returns the times of those that were admitted.
    fn run(&mut self, loads: &[f64], burst: u64, from: i64, until: i64) -> Vec<i64> {
        let step = MS / 4;
        let mut admitted = Vec::new();
        for now in (from..until).step_by(step as usize) {
            for ((zone, under_way), load) in self.replicas.iter_mut().zip(loads) {
                // The chance of a second request in a step is small.
                if self.random.fraction() < load * step as f64 / SECOND as f64 {
                    self.sent += 1;
                    let passed = zone.account_at(b"client", burst * 1000, now, true).0;
                    admitted.extend(passed.is_ok().then_some(now));
                }
                // The answer comes 1 ms after the question; meanwhile none is asked.
                if !self.hangs && under_way.front().is_some_and(|(at, ..)| *at <= now) {
                    for (_, ask, answer) in under_way.drain(..) {
                        zone.answer_at(ask, answer, now);
                    }
                }
                if under_way.is_empty() {
                    let mut asks = Vec::new();
                    zone.take_asks_at(&mut asks, now);
                    for ask in asks {
                        self.calls += 1;
                        let answer = self.store.grant(&ask, now);
                        under_way.push_back((now + MS, ask, answer));
                    }
                }
            }
        }
        admitted
    }
}

/// Returns the most times in any second.
fn worst_second(times: &[i64]) -> usize {
    let within = |n: usize| times.iter().skip(n).take_while(|t| **t < times[n] + SECOND).count();
    (0..times.len()).map(within).max().unwrap_or(0)
}

#[test]
fn replicas_admit_the_limit_together() {
    for (rate, burst, loads) in [
        (100, 20, &[100.0, 100.0, 100.0][..]),
        (100, 20, &[270.0, 15.0, 15.0]),
        (50, 10, &[50.0, 50.0, 50.0]),
        (50, 10, &[135.0, 7.5, 7.5]),
        (50, 0, &[135.0, 7.5, 7.5]),
        (1000, 200, &[500.0; 10]),
        (1000, 200, &[1800.0, 100.0, 100.0]),
    ] {
        let mut world = World::new(rate, loads.len(), &up());
        let (warm, seconds) = (2 * SECOND, 20);
        world.run(loads, burst, SECOND, warm + SECOND);
        world.calls = 0;
        let times = world.run(loads, burst, warm + SECOND, warm + (1 + seconds) * SECOND);
        let admitted = times.len() as f64 / seconds as f64;
        let off = admitted / rate as f64 - 1.0;
        let worst = worst_second(&times);
        println!(
            "{rate}/s burst {burst}, loads {loads:?}: {admitted:.1}/s, {:+.1} %, worst second {worst}, {} calls/s",
            off * 100.0,
            world.calls / seconds as u64
        );
        assert!(off.abs() < 0.05, "{rate}/s with burst {burst} and loads {loads:?}: {admitted}/s");
        assert!(worst as u64 <= rate + rate / 4 + burst, "{worst}");
    }
}

#[test]
fn clients_below_the_limit_are_not_refused() {
    for (rate, burst, loads) in
        [(100, 20, &[72.0, 4.0, 4.0][..]), (100, 20, &[27.0, 27.0, 27.0]), (10, 10, &[7.0, 0.5, 0.5])]
    {
        let mut world = World::new(rate, loads.len(), &up());
        let seconds = 60;
        let times = world.run(loads, burst, SECOND, (1 + seconds) * SECOND);
        let (admitted, sent) = (times.len() as f64 / seconds as f64, world.sent as f64 / seconds as f64);
        println!(
            "{rate}/s burst {burst}, loads {loads:?}: {admitted:.1}/s of {sent}, {} calls/s",
            world.calls / 60
        );
        assert!(admitted > sent * 0.99, "{rate}/s, loads {loads:?}: {admitted} of {sent}");
    }
}

#[test]
fn small_limits_hold_together() {
    // The seconds before count, too: the burst is admitted once.
    let mut world = World::new(1, 3, &up());
    let times = world.run(&[20.0, 20.0, 20.0], 5, SECOND, 61 * SECOND);
    println!("1/s burst 5: {} in 60 s", times.len());
    assert!((60..=60 + 3 * 6 + 6).contains(&times.len()), "{}", times.len());
}

#[test]
fn a_burst_on_an_unknown_key_passes_at_once_and_is_counted() {
    let zone = replica(100, &up());
    let mut passed = 0;
    for _ in 0..50 {
        passed += u32::from(zone.account_at(b"c", 20_000, SECOND, true).0.is_ok());
    }
    assert_eq!(passed, 21);
    let mut asks = Vec::new();
    zone.take_asks_at(&mut asks, SECOND);
    let [ask] = asks.try_into().expect("one question");
    assert_eq!((cells(&ask).2, ask.key.as_ref()), (21, b"c".as_slice()));
    // Another replica learns it.
    let mut store = Store::default();
    let answer = store.grant(&ask, SECOND);
    zone.answer_at(ask, answer, SECOND);
    let question = Question::Cells { interval: 10 * MS, tolerance: 200 * MS, debt: 0, want: 1 };
    let other = Ask { key: b"c"[..].into(), question, client: Client::Zone };
    let late = store.grant(&other, SECOND);
    assert_eq!(late.granted, 0);
}

#[test]
fn without_the_store_each_replica_has_its_share() {
    let link = Arc::new(Link::default());
    link.set_replicas(Some(4));
    let mut world = World::new(200, 4, &link);
    let times = world.run(&[300.0, 300.0, 300.0, 300.0], 20, SECOND, 11 * SECOND);
    assert_eq!(world.calls, 0);
    assert!((1900..=2100).contains(&times.len()), "{}", times.len());
}

/// Until the store is known to be away, leases and the shares of replicas serve.
#[test]
fn a_store_that_hangs_unnoticed() {
    let link = up();
    link.set_replicas(Some(3));
    let loads = [100.0, 100.0, 100.0];
    let mut world = World::new(100, 3, &link);
    world.run(&loads, 20, SECOND, 4 * SECOND);
    world.hangs = true;
    let admitted = world.run(&loads, 20, 4 * SECOND, 5 * SECOND).len();
    assert!((70..=170).contains(&admitted), "{admitted}");
}

#[test]
fn a_store_that_fails_and_comes_back() {
    let link = up();
    let loads = [100.0, 100.0, 100.0];
    let mut world = World::new(100, 3, &link);
    world.run(&loads, 20, SECOND, 4 * SECOND);
    link.set_up(false);
    link.set_replicas(Some(3));
    let alone = world.run(&loads, 20, 4 * SECOND, 14 * SECOND).len();
    assert!((850..=1100).contains(&alone), "{alone}");
    link.set_up(true);
    let back = world.run(&loads, 20, 14 * SECOND, 24 * SECOND).len();
    assert!((950..=1080).contains(&back), "{back}");
}

#[test]
fn leased_cells_that_are_not_spent_are_given_back() {
    let zone = replica(100, &up());
    for n in 0..20 {
        let _ = zone.account_at(b"c", 50_000, SECOND + n * MS, true);
    }
    let mut asks = Vec::new();
    zone.take_asks_at(&mut asks, SECOND + 20 * MS);
    let [ask] = asks.try_into().expect("one question");
    let wanted = cells(&ask).3;
    assert!(wanted > 0);
    let answer = Answer { granted: wanted, first: 0, due: 100 * MS };
    let want = wanted as i32;
    zone.answer_at(ask, answer, SECOND + 20 * MS);
    // One request a second later finds the lease expired.
    assert!(zone.account_at(b"c", 50_000, 2 * SECOND, true).0.is_ok());
    let mut asks = Vec::new();
    zone.take_asks_at(&mut asks, 2 * SECOND);
    assert_eq!(asks.first().map(|a| cells(a).2), Some(1 - want));
}

#[test]
fn a_strange_answer_does_not_block_a_key_for_ever() {
    let zone = replica(10, &up());
    assert!(zone.account_at(b"c", 0, SECOND, true).0.is_ok());
    let mut asks = Vec::new();
    zone.take_asks_at(&mut asks, SECOND);
    let ask = asks.pop().expect("a question");
    zone.answer_at(ask, Answer { granted: 0, first: i64::MAX, due: i64::MAX }, SECOND);
    assert!(zone.account_at(b"c", 0, 2 * SECOND, true).0.is_err());
    assert!(zone.account_at(b"c", 0, 22 * SECOND, true).0.is_ok());
}

#[test]
fn requests_may_wait_for_the_store() {
    let link = up();
    let zone = replica(10, &link);
    let now = Instant::now();
    let mut receiver = zone.ask(b"c", 0, now).expect("the store is asked");
    let mut asks = Vec::new();
    let at = Clock::nanos(now);
    zone.take_asks_at(&mut asks, at);
    let ask = asks.pop().expect("a question");
    assert_eq!((cells(&ask).3, cells(&ask).1, asks.len()), (1, 0, 0));
    let answer = Answer { granted: 1, first: 0, due: 100 * MS };
    zone.answer_at(ask, answer, at);
    let answer = receiver.try_recv().expect("an answer");
    assert_eq!(zone.judge(&answer), Ok(0));
    // The next one is known to be too early.
    assert!(zone.ask(b"c", 0, now).is_none());
    assert_eq!(zone.account_at(b"c", 0, at, true).0, Err(1000));
    link.set_up(false);
    assert!(zone.ask(b"d", 0, now).is_none());
}

#[test]
fn zones_are_bounded() {
    let zone = replica(10, &up());
    for n in 0..100_000u32 {
        let _ = zone.account_at(&n.to_le_bytes(), 0, SECOND, true);
    }
    let table = lock(&zone.table);
    assert!(table.keys.used() <= 1 << 20);
    assert!(table.waiting.len() <= MAX_WAITING + 64);
}
