//! Scenarios that a seed determines.

use crate::app::{App, Load, Work};
use crate::network::Faults;
use crate::node::{Host, Node, config, refusing_tls, server_tls};
use crate::other::Other;
use crate::random::{self, Random};
use crate::transport::End;
use crate::world::{Change, World};
use forebay_quic::congestion::Algorithm;
use forebay_quic::connection::Config;
use forebay_quic::id::Side;
use forebay_quic::version::Version;
use std::time::Duration;

/// What the second connection of a client finds.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Again {
    /// There is none.
    Never,
    /// The server takes early data.
    Accepted,
    /// The server knows the session, but takes no early data.
    Refused,
    /// The server does not know the session.
    Forgotten,
}

/// How the first connection ends.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Close {
    Client,
    Server,
    Both,
    /// Before everything is done.
    Early(Side, Duration),
}

#[derive(Clone, Debug)]
pub struct Scenario {
    pub seed: u64,
    pub version: Version,
    pub faults: Faults,
    pub changes: Vec<(Duration, Change)>,
    pub configs: [Config; 2],
    pub retries: bool,
    pub again: Again,
    pub close: Close,
    pub work: Work,
    /// The path may fail for good.
    pub may_fail: bool,
}

const MILLI: fn(u64) -> Duration = Duration::from_millis;

fn faults(random: &mut Random) -> Faults {
    let some = |random: &mut Random, most: u64| if random.happens(400) { random.below(most) } else { 0 };
    let delay = Duration::from_micros(100 + random.below(80_000));
    let jitter = match random.below(3) {
        0 => Duration::ZERO,
        1 => delay / 10,
        _ => delay * 2,
    };
    Faults {
        delay,
        jitter,
        loss: some(random, 200),
        bursts: some(random, 30),
        duplicates: some(random, 200),
        corrupt: some(random, 60),
        marked: some(random, 100),
        bleaches: random.happens(200),
        mtu: if random.happens(300) { 1200 + random.below(300) as usize } else { 1500 },
    }
}

fn any_config(random: &mut Random) -> Config {
    let mut config = config();
    config.congestion = [Algorithm::NewReno, Algorithm::Cubic, Algorithm::Bbr][random.below(3) as usize];
    config.is_paced = random.happens(700);
    config.searches_mtu = random.happens(700);
    config.gives_token = random.happens(300);
    config.datagrams = if random.happens(500) { 65_535 } else { 0 };
    config.ids = 2 + random.below(6);
    config.keep_alive = random.happens(200).then_some(MILLI(500));
    let limits = &mut config.limits;
    if random.happens(400) {
        limits.stream_window = 1000 + random.below(20_000);
        limits.window = limits.stream_window + random.below(60_000);
    }
    if random.happens(300) {
        limits.send_window = 2000 + random.below(30_000);
    }
    (limits.bi, limits.uni) = (1 + random.below(10), 1 + random.below(5));
    config
}

fn changes(random: &mut Random) -> (Vec<(Duration, Change)>, bool) {
    let mut all = Vec::new();
    let at = |random: &mut Random| MILLI(random.below(3000));
    for _ in 0..random.below(4) {
        if random.happens(300) {
            all.push((at(random), Change::Port));
        }
        if random.happens(300) {
            all.push((at(random), Change::Address));
        }
        if random.happens(200) {
            all.push((at(random), Change::Stall(at(random))));
        }
    }
    if random.happens(200) {
        all.push((at(random), Change::Mtu(1200 + random.below(200) as usize)));
    }
    let is_dead = random.happens(100);
    if is_dead {
        let begin = at(random);
        all.push((begin, if random.happens(500) { Change::Port } else { Change::Address }));
        all.push((begin, Change::Dead(true)));
        all.push((begin + at(random), Change::Dead(false)));
    }
    // A path that cannot be proved in time is given up.
    let has = |f: fn(&Change) -> bool| all.iter().any(|(_, change)| f(change));
    let may_fail = is_dead
        || has(|c| matches!(c, Change::Stall(_))) && has(|c| matches!(c, Change::Port | Change::Address));
    (all, may_fail)
}

impl Scenario {
    pub fn new(seed: u64) -> Scenario {
        let mut random = Random::new(seed ^ 0x5cec_a210);
        let load = |random: &mut Random| Load {
            streams: [random.below(6), random.below(4)],
            gap: MILLI(if random.happens(500) { random.below(400) } else { 0 }),
            datagrams: if random.happens(300) { random.below(30) } else { 0 },
        };
        let (changes, may_fail) = changes(&mut random);
        let mut configs = [any_config(&mut random), any_config(&mut random)];
        if changes
            .iter()
            .any(|(_, change)| matches!(change, Change::Port | Change::Address | Change::Dead(_)))
        {
            // Servers do not reach a client that has moved before it sends something.
            configs[0].keep_alive = Some(MILLI(500));
        }
        let most = if random.happens(200) { 300_000 } else { 40_000 };
        Scenario {
            seed,
            version: if random.happens(300) { Version::V2 } else { Version::V1 },
            faults: faults(&mut random),
            changes,
            configs,
            retries: random.happens(250),
            again: [
                Again::Never,
                Again::Never,
                Again::Never,
                Again::Accepted,
                Again::Refused,
                Again::Forgotten,
            ][random.below(6) as usize],
            close: match random.below(8) {
                0 => Close::Early(Side::Client, MILLI(random.below(1000))),
                1 => Close::Early(Side::Server, MILLI(random.below(1000))),
                2 => Close::Both,
                3 | 4 => Close::Server,
                _ => Close::Client,
            },
            work: Work { seed, loads: [load(&mut random), load(&mut random)], most },
            may_fail,
        }
    }

    /// Runs it, with the crate on both sides.
    pub fn run(&self) {
        random::seed_shared(self.seed);
        let [client, server] = &self.configs;
        let mut client = Node::new(Side::Client, client.clone(), self.work.clone());
        let mut server = Node::new(Side::Server, server.clone(), self.work.clone());
        client.version = self.version;
        server.retries = self.retries;
        self.connection(&mut client, &mut server, 0);
        if self.again == Again::Never {
            return;
        }
        server.server_tls = match self.again {
            Again::Refused => refusing_tls(true),
            Again::Forgotten => refusing_tls(false),
            _ => server_tls(),
        };
        self.connection(&mut client, &mut server, 1);
    }

    /// Returns it with fewer losses, and without the claim that the connection outlives a change of the address: how another implementation
    /// bears that is not the question here.
    pub fn milder(&self) -> Scenario {
        let mut milder = self.clone();
        let faults = &mut milder.faults;
        (faults.loss, faults.bursts, faults.corrupt) =
            (faults.loss / 4, faults.bursts / 4, faults.corrupt / 2);
        milder.may_fail |= self.changes.iter().any(|(_, c)| matches!(c, Change::Port | Change::Address));
        milder
    }

    /// Runs it, with another implementation on one side.
    pub fn run_with_other(&self, of_other: Side) {
        random::seed_shared(self.seed);
        let [mut client, mut server] = self.configs.clone();
        client.keep_alive = client.keep_alive.or(Some(MILLI(500)));
        server.keep_alive = server.keep_alive.or(Some(MILLI(500)));
        let mut other = Other::new(of_other, self.seed, self.work.clone(), self.retries);
        if of_other.is_server() {
            let mut client = Node::new(Side::Client, client, self.work.clone());
            self.connection(&mut client, &mut other, 0);
            if self.again != Again::Never {
                self.connection(&mut client, &mut other, 1);
            }
        } else {
            let mut server = Node::new(Side::Server, server, self.work.clone());
            server.retries = self.retries;
            self.connection(&mut other, &mut server, 0);
            if self.again != Again::Never {
                self.connection(&mut other, &mut server, 1);
            }
        }
    }

    /// Lets one connection happen, from its begin until nothing is left of it.
    pub fn connection(&self, client: &mut dyn Host, server: &mut dyn Host, round: u64) {
        let server_is_other = server.is_other();
        let mut world = World::new(self.seed + round, self.faults.clone(), client, server);
        (0..round).for_each(|_| world.change_port());
        world.trusts_all = server_is_other || round > 0 && self.configs[1].gives_token;
        world.plan(&self.changes);
        let (to, now) = (world.server.addr(), world.now);
        world.client.connect(now, to);
        let limit = match self.close {
            Close::Early(_, after) if round == 0 => after,
            _ => Duration::from_secs(600),
        };
        let done = world.run(limit, |world| is_over(&*world.client) && is_over(&*world.server));
        let is_early = limit < Duration::from_secs(600);
        assert!(done || is_early || self.may_fail, "stuck {}", world.describe());
        self.end(&mut world);
    }

    /// Closes the connection.
    fn end(&self, world: &mut World<'_>) {
        if !self.may_fail {
            for host in [&*world.client, &*world.server] {
                let mut apps = host.apps().into_iter().filter(|app| app.is_connected);
                assert!(apps.all(|app| app.end.is_none()), "it failed {}", world.describe());
            }
        }
        let (code, now) = (self.seed & 0xffff, world.now);
        if !matches!(self.close, Close::Server | Close::Early(Side::Server, _)) {
            world.client.close(now, code, b"bye");
        }
        if !matches!(self.close, Close::Client | Close::Early(Side::Client, _)) {
            world.server.close(now, code, b"bye");
        }
        if !world.run(Duration::from_secs(10), |world| world.client.is_empty() && world.server.is_empty()) {
            // The other side has not heard of it.
            let now = world.now;
            world.client.close(now, code, b"bye");
            world.server.close(now, code, b"bye");
            let done = world.run(Duration::from_secs(600), |w| w.client.is_empty() && w.server.is_empty());
            assert!(done, "never drained {}", world.describe());
        }
        for app in world.client.apps().into_iter().chain(world.server.apps()) {
            match &app.end {
                None | Some(End::TimedOut | End::Reset | End::ClosedEarly) => {}
                Some(End::Closed(c, reason)) => assert_eq!((*c, &reason[..]), (code, &b"bye"[..])),
                Some(End::Other(other)) => panic!("{other} {}", world.describe()),
            }
        }
    }
}

/// Tells whether an application of the host has done everything, or cannot go on.
fn is_over(host: &dyn Host) -> bool {
    let apps: Vec<&App> = host.apps();
    let done = apps.iter().any(|app| app.is_connected && (app.is_done() || app.end.is_some()));
    done || apps.iter().any(|app| app.end.as_ref().is_some_and(|end| matches!(end, End::Other(_))))
}
