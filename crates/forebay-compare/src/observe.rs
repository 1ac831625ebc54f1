//! One pass of requests over both servers, and what they differ in.

use crate::client::{Client, Tls, timed_out};
use crate::differ::{self, Beside, Difference, Normal, Part};
use crate::marks::MARKS;
use crate::pair::{ADDRESSES, Pair, nodes};
use crate::requests::Ask;
use forebay_bench::signals;
use std::collections::{BTreeSet, HashMap};
use std::sync::atomic::{AtomicU64, Ordering};

/// Most differences that are kept: a configuration that fails altogether has one for each request.
const MOST_FOUND: usize = 200_000;

/// Requests of a lane without an answer in time, after which its others are left out.
const MOST_SILENT: u32 = 3;

/// Most bytes of the heads of frames of a body over HTTP/3.
const MOST_FRAMES: usize = 16;

/// A difference in a request.
#[derive(Clone, Debug)]
pub(crate) struct Finding {
    /// Position of the request.
    pub(crate) at: usize,
    pub(crate) difference: Difference,
}

/// Results of a pass.
#[derive(Debug, Default)]
pub(crate) struct Observed {
    /// Requests that were sent to both.
    pub(crate) sent: u64,
    pub(crate) findings: Vec<Finding>,
    /// Blocks that each request went through in the first server.
    pub(crate) blocks: HashMap<usize, Vec<usize>>,
}

/// What is kept of each exchange until the logs are there.
#[derive(Clone, Copy, Debug)]
struct Exchange {
    at: usize,
    lengths: [[usize; 2]; 2],
    same_status: bool,
    status: u16,
}

/// Sends requests to both servers, ends them and compares everything.
pub(crate) fn pass(
    pair: &mut Pair,
    asks: &[Ask],
    threads: usize,
    tls: &[Tls; 2],
    same_files: bool,
) -> Observed {
    let normal = pair.normal();
    let count = AtomicU64::new(0);
    let shares = shares(asks, threads);
    let results: Vec<(Vec<Exchange>, Vec<Finding>)> = std::thread::scope(|scope| {
        let shared = (&*pair, &normal, &count);
        let spawn = |share: Vec<usize>| scope.spawn(move || send_all(shared, asks, &share, tls));
        let handles: Vec<_> = shares.into_iter().map(spawn).collect();
        handles.into_iter().map(|h| h.join().unwrap_or_default()).collect()
    });
    pair.end();
    let mut observed = Observed { sent: count.into_inner(), ..Observed::default() };
    let mut exchanges = Vec::new();
    for (done, found) in results {
        exchanges.extend(done);
        observed.findings.extend(found);
    }
    late_upstreams(pair, asks, &exchanges, &normal, &mut observed);
    logs(pair, &exchanges, asks, same_files, &normal, &mut observed);
    observed.findings.sort_by_key(|f| f.at);
    for exchange in observed.findings.chunk_by_mut(|f, g| f.at == g.at) {
        let beside = Beside::of(exchange.iter().map(|f| &f.difference));
        exchange.iter_mut().for_each(|f| f.difference.beside = beside);
    }
    observed
}

/// Shares requests out among threads, those of a lane to one.
fn shares(asks: &[Ask], threads: usize) -> Vec<Vec<usize>> {
    let mut lanes: HashMap<usize, Vec<usize>> = HashMap::new();
    for (i, ask) in asks.iter().enumerate() {
        lanes.entry(ask.lane).or_default().push(i);
    }
    let mut lanes: Vec<Vec<usize>> = lanes.into_values().collect();
    lanes.sort_by_key(|l| (std::cmp::Reverse(l.len()), l.first().copied()));
    let mut shares: Vec<Vec<usize>> = vec![Vec::new(); threads.max(1)];
    for lane in lanes {
        if let Some(least) = shares.iter_mut().min_by_key(|s| s.len()) {
            least.extend(lane);
        }
    }
    shares.retain(|s| !s.is_empty());
    shares
}

fn send_all(
    (pair, normal, count): (&Pair, &Normal, &AtomicU64),
    asks: &[Ask],
    share: &[usize],
    tls: &[Tls; 2],
) -> (Vec<Exchange>, Vec<Finding>) {
    let [first, second] = tls;
    let mut a = Client::new(ADDRESSES[0], first.clone());
    let mut b = Client::new(ADDRESSES[1], second.clone());
    let (mut exchanges, mut findings) = (Vec::with_capacity(share.len()), Vec::new());
    let mut silent: HashMap<usize, u32> = HashMap::new();
    for at in share.iter().copied() {
        let Some(ask) = asks.get(at) else { continue };
        if signals::interrupted() {
            break;
        }
        if silent.get(&ask.lane).is_some_and(|n| *n >= MOST_SILENT) {
            continue;
        }
        a.send(ask);
        b.send(ask);
        let first = a.receive(ask);
        let second = normal.answer(b.receive(ask));
        count.fetch_add(1, Ordering::Relaxed);
        if timed_out(&first) || timed_out(&second) {
            *silent.entry(ask.lane).or_default() += 1;
        }
        let same_status = first.status == second.status;
        let lengths = [[first.body.len(), first.wire], [second.body.len(), second.wire]];
        exchanges.push(Exchange { at, lengths, same_status, status: first.status });
        if findings.len() < MOST_FOUND {
            let differences = differ::answers(&first, &second).into_iter();
            findings.extend(differences.map(|difference| Finding { at, difference }));
            findings.extend(early_upstreams(pair, normal, ask, at));
        }
    }
    (exchanges, findings)
}

/// Compares what upstreams have received already. If one has received more than the other, the rest may be on its way.
fn early_upstreams(pair: &Pair, normal: &Normal, ask: &Ask, at: usize) -> Vec<Finding> {
    let [a, b] = &pair.sides;
    let (first, second) = (a.recorder.take(ask.number), b.recorder.take(ask.number));
    if first.len() != second.len() {
        a.recorder.put_back(ask.number, first);
        b.recorder.put_back(ask.number, second);
        return Vec::new();
    }
    let differences = differ::upstreams(&first, &normal.received(second)).into_iter();
    differences.map(|difference| Finding { at, difference }).collect()
}

fn late_upstreams(
    pair: &Pair,
    asks: &[Ask],
    exchanges: &[Exchange],
    normal: &Normal,
    observed: &mut Observed,
) {
    let [a, b] = &pair.sides;
    for exchange in exchanges.iter().filter(|e| e.same_status) {
        let Some(ask) = asks.get(exchange.at) else { continue };
        let (first, second) = (a.recorder.take(ask.number), b.recorder.take(ask.number));
        let differences = differ::upstreams(&first, &normal.received(second)).into_iter();
        observed.findings.extend(differences.map(|difference| Finding { at: exchange.at, difference }));
    }
    without_numbers(pair, normal, observed);
}

/// Compares requests to upstreams that have no number, as those to memcached.
fn without_numbers(pair: &Pair, normal: &Normal, observed: &mut Observed) {
    let [a, b] = &pair.sides;
    let lines = |list: Vec<crate::message::Received>| {
        let lines = list.into_iter().map(|r| format!("{} {}", r.protocol, r.line));
        lines.collect::<BTreeSet<String>>()
    };
    let (first, second) =
        (lines(a.recorder.take_without()), lines(normal.received(b.recorder.take_without())));
    let only = |x: &BTreeSet<String>, y: &BTreeSet<String>| x.difference(y).next().cloned();
    if first != second && observed.sent > 0 {
        let difference = Difference::new(Part::Upstreams, only(&first, &second), only(&second, &first));
        observed.findings.push(Finding { at: 0, difference });
    }
}

fn logs(
    pair: &Pair,
    exchanges: &[Exchange],
    asks: &[Ask],
    same_files: bool,
    normal: &Normal,
    observed: &mut Observed,
) {
    let [a, b] = &pair.sides;
    let (mut first, mut second) = (a.logs(), b.logs());
    let (marks_a, marks_b) =
        (first.remove(MARKS).unwrap_or_default(), second.remove(MARKS).unwrap_or_default());
    let none = Vec::new();
    let names: BTreeSet<String> = first.keys().chain(second.keys()).cloned().collect();
    for e in exchanges {
        let Some(number) = asks.get(e.at).map(|a| a.number) else { continue };
        let mut passed = nodes(marks_a.get(&number).unwrap_or(&none));
        if let Some(ask) = asks.get(e.at).filter(|a| a.front.stream && e.status > 0) {
            passed.extend(ask.aim);
        }
        let other = nodes(marks_b.get(&number).unwrap_or(&none));
        let set = |nodes: &[usize]| nodes.iter().copied().collect::<BTreeSet<_>>();
        let stream = asks.get(e.at).is_some_and(|a| a.front.stream);
        if same_files && e.same_status && e.status != 400 && !stream && set(&passed) != set(&other) {
            let text =
                |nodes: &[usize]| Some(nodes.iter().map(|n| format!("#{n}")).collect::<Vec<_>>().join(" "));
            let difference = Difference::new(Part::Blocks, text(&passed), text(&other));
            observed.findings.push(Finding { at: e.at, difference });
        }
        observed.blocks.insert(e.at, passed);
        if !e.same_status {
            continue;
        }
        // nginx counts frames of HTTP/3 as content in part.
        let slack = asks.get(e.at).map_or(0, |a| if a.front.quic { MOST_FRAMES } else { 0 });
        for name in &names {
            let lines = |logs: &HashMap<String, crate::pair::Lines>| {
                logs.get(name).and_then(|l| l.get(&number)).cloned().unwrap_or_default()
            };
            let ours: Vec<String> = lines(&second).iter().map(|l| normal.line(l)).collect();
            let theirs = lines(&first);
            // The number of a request that is refused early may not be known yet.
            if e.status == 400 && theirs.is_empty() != ours.is_empty() {
                continue;
            }
            if let Some(difference) = differ::lines(name, &theirs, &ours, (e.lengths, slack)) {
                observed.findings.push(Finding { at: e.at, difference });
            }
        }
    }
}
