//! Schedule of active health checks (nginx Plus: health_check). Each server has a task for each `health_check`, on the tokio
//! thread of the process, whatever the number of worker threads. The front end provides the [`Probe`], which checks once.

#![allow(clippy::disallowed_methods, reason = "not on a thread of connections: the tokio thread runs this")]

mod check;
mod visit;

pub use check::{HealthCheck, Matches, Refusal, invalid_line, parameters, time};
pub use visit::{Visit, step};

use super::group::Group;
use super::peer::{Health, Peer, clock, ms};
use crate::essential::task;
use crate::tasks::Log;
use forebay_conf::error::Level;
use forebay_net::blame::Blamed;
use forebay_sys::sync::lock;
use std::collections::HashMap;
use std::future::Future;
use std::sync::atomic::Ordering::Relaxed;
use std::sync::{Arc, Mutex};
use std::time::{Duration, Instant};
use tokio::time::sleep;

/// Times of checks, and numbers of results that change the health of a server.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Schedule {
    /// Pause after a check.
    pub interval: Duration,
    /// Longest random pause in addition, so that not all servers are checked at once.
    pub jitter: Duration,
    /// Failures in a row after which a server is unhealthy.
    pub fails: u32,
    /// Passed checks in a row after which an unhealthy server is healthy again.
    pub passes: u32,
    /// `mandatory`: a server gets no requests before it has passed its first check.
    pub mandatory: bool,
    /// `persistent`: after a reload, a server does not wait for a first check again.
    pub persistent: bool,
}

impl Default for Schedule {
    fn default() -> Schedule {
        Schedule {
            interval: Duration::from_secs(5),
            jitter: Duration::ZERO,
            fails: 1,
            passes: 1,
            mandatory: false,
            persistent: false,
        }
    }
}

/// Check of one server.
pub trait Probe: Send + 'static {
    /// Checks the server once.
    ///
    /// # Errors
    /// The step that failed, for the log: `connecting to upstream (timed out)`. [`Blamed::Own`] if the check could not be made, which
    /// says nothing about the server.
    fn check(&mut self) -> impl Future<Output = Result<(), Blamed<String>>> + Send;
}

/// Pause between two looks at the set of servers, which name resolution may change.
const LOOK: Duration = Duration::from_millis(500);

/// Time after which it is logged again that checks cannot be made.
const TELL_AGAIN: Duration = Duration::from_secs(60);

/// Checks the servers of a group until the future is dropped. `probe` makes the probe of a server for a `health_check`, given as
/// an index into [`Group::checks`].
pub async fn watch<P: Probe>(group: Arc<Group>, log: Log, probe: impl Fn(&Peer, usize) -> P + Send) {
    let mut tasks: HashMap<(u64, usize), Guard> = HashMap::new();
    loop {
        let set = group.set();
        // Dropping a guard ends the checks of a server that is gone.
        tasks.retain(|(id, _), _| set.peers.iter().any(|p| p.live.id == *id));
        for p in set.peers.iter().filter(|p| !p.down) {
            for (n, schedule) in group.checks.iter().enumerate() {
                tasks.entry((p.live.id, n)).or_insert_with(|| {
                    let group = String::from_utf8_lossy(&group.name).into_owned();
                    let subject = CheckedServer::new(p.clone(), group, *schedule, log.clone());
                    let checks = task("checking the health of a server", subject.check_forever(probe(p, n)));
                    Guard(tokio::spawn(checks).abort_handle())
                });
            }
        }
        sleep(LOOK).await;
    }
}

/// Aborts a task when dropped.
struct Guard(tokio::task::AbortHandle);

impl Drop for Guard {
    fn drop(&mut self) {
        self.0.abort();
    }
}

/// Server that is checked, and its results.
struct CheckedServer {
    peer: Peer,
    group: String,
    schedule: Schedule,
    log: Log,
    /// Failures in a row.
    fails: u32,
    /// Passed checks in a row.
    passes: u32,
}

impl CheckedServer {
    fn new(peer: Peer, group: String, schedule: Schedule, log: Log) -> CheckedServer {
        CheckedServer { peer, group, schedule, log, fails: 0, passes: 0 }
    }

    /// Checks the server again and again.
    async fn check_forever(mut self, mut probe: impl Probe) {
        loop {
            let jitter = ms(self.schedule.jitter);
            if jitter > 0 {
                let pause = u64::from(forebay_sys::random::quick()) % (jitter + 1);
                sleep(Duration::from_millis(pause)).await;
            }
            let result = probe.check().await;
            self.judge(result);
            sleep(self.schedule.interval).await;
        }
    }

    /// Counts the result of a check. One that could not be made leaves the state of the server as it is.
    fn judge(&mut self, result: Result<(), Blamed<String>>) {
        let l = &self.peer.live;
        match result {
            Ok(()) => {
                l.checks.fetch_add(1, Relaxed);
                self.passed();
            }
            Err(Blamed::Peer(why)) => {
                l.checks.fetch_add(1, Relaxed);
                self.failed(&why);
            }
            Err(Blamed::Own(why)) => self.not_made(&why),
        }
    }

    /// Logs that a check could not be made, at most once a minute for all servers.
    fn not_made(&self, why: &str) {
        static LOGGED: Mutex<Option<Instant>> = Mutex::new(None);
        let mut logged = lock(&LOGGED);
        if logged.is_some_and(|at| at.elapsed() < TELL_AGAIN) {
            return;
        }
        *logged = Some(Instant::now());
        drop(logged);
        self.log(Level::Alert, |peer, group| {
            format!(
                "check could not be made while {why}, health check of peer {peer} in upstream \"{group}\""
            )
        });
    }

    /// Counts a passed check.
    fn passed(&mut self) {
        let l = &self.peer.live;
        (self.fails, self.passes) = (0, self.passes.saturating_add(1));
        l.last_check.store(1, Relaxed);
        let was = l.health();
        // A server that waits for its first check (`mandatory`) needs to pass only that one.
        let enough = self.passes >= self.schedule.passes || was == Health::Checking;
        if enough && matches!(was, Health::Unhealthy | Health::Checking) {
            // Before the server gets requests: its weight depends on this time (`slow_start`).
            l.up_since.store(clock(Instant::now()), Relaxed);
            // Failures of requests before are forgotten, too.
            l.fails.store(0, Relaxed);
            l.deficit.store(0, Relaxed);
            l.set_health(Health::Healthy);
            l.up(clock(Instant::now()));
            self.log(Level::Notice, |peer, group| format!("peer {peer} is healthy in upstream \"{group}\""));
        }
    }

    /// Counts a failed check.
    fn failed(&mut self, why: &str) {
        let l = &self.peer.live;
        (self.fails, self.passes) = (self.fails.saturating_add(1), 0);
        l.check_fails.fetch_add(1, Relaxed);
        l.note_failure(&format!("health check failed while {why}"), Instant::now());
        l.last_check.store(2, Relaxed);
        if self.fails >= self.schedule.fails && l.health() != Health::Unhealthy {
            l.set_health(Health::Unhealthy);
            l.down(clock(Instant::now()));
            l.unhealthy.fetch_add(1, Relaxed);
            self.log(Level::Warn, |peer, group| {
                format!("peer is unhealthy while {why}, health check of peer {peer} in upstream \"{group}\"")
            });
        }
    }

    /// Logs a line made of the names of the peer and its group.
    fn log(&self, level: Level, line: impl FnOnce(&str, &str) -> String) {
        (self.log)(level, &line(&String::from_utf8_lossy(&self.peer.name), &self.group));
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use forebay_net::addr::PeerAddr;

    /// A server, and the lines logged about it.
    fn subject(schedule: Schedule) -> (CheckedServer, Arc<Mutex<Vec<String>>>) {
        let lines: Arc<Mutex<Vec<String>>> = Arc::default();
        let logged = lines.clone();
        let log: Log = Arc::new(move |_, line: &str| logged.lock().unwrap().push(line.to_owned()));
        let peer = Peer::new(PeerAddr::Inet(([127, 0, 0, 1], 80).into()));
        peer.live.set_health(Health::Healthy);
        (CheckedServer::new(peer, "u".to_owned(), schedule, log), lines)
    }

    #[test]
    fn results_in_a_row_change_the_health() {
        let (mut s, lines) = subject(Schedule { fails: 2, passes: 2, ..Schedule::default() });
        let mut health = |passed: bool| {
            if passed {
                s.passed()
            } else {
                s.failed("connecting to upstream")
            }
            s.peer.live.health()
        };
        assert_eq!([false, true, false].map(&mut health), [Health::Healthy; 3], "not in a row");
        assert_eq!(health(false), Health::Unhealthy);
        assert_eq!([true, false, true].map(&mut health), [Health::Unhealthy; 3]);
        assert_eq!(health(true), Health::Healthy);
        let want = [
            "peer is unhealthy while connecting to upstream, health check of peer 127.0.0.1:80 in upstream \"u\"",
            "peer 127.0.0.1:80 is healthy in upstream \"u\"",
        ];
        assert_eq!(*lines.lock().unwrap(), want);
    }

    /// A shortage of descriptors here is no failure there, neither of a healthy server nor of one that is not.
    #[test]
    fn a_check_that_could_not_be_made_changes_nothing() {
        let (mut s, lines) = subject(Schedule::default());
        let why = || Err(Blamed::Own("connecting to upstream (24: Too many open files)".to_owned()));
        for health in [Health::Healthy, Health::Unhealthy, Health::Checking] {
            s.peer.live.set_health(health);
            s.judge(why());
            s.judge(why());
            assert_eq!(s.peer.live.health(), health);
        }
        let l = &s.peer.live;
        assert_eq!(
            (l.checks.load(Relaxed), l.check_fails.load(Relaxed), l.unhealthy.load(Relaxed)),
            (0, 0, 0)
        );
        assert_eq!(
            *lines.lock().unwrap(),
            [
                "check could not be made while connecting to upstream (24: Too many open files), health check of \
              peer 127.0.0.1:80 in upstream \"u\""
            ],
        );
    }

    #[test]
    fn the_first_check_needs_to_pass_only_once() {
        let (mut s, _) = subject(Schedule { passes: 3, mandatory: true, ..Schedule::default() });
        s.peer.live.set_health(Health::Checking);
        s.passed();
        assert_eq!(s.peer.live.health(), Health::Healthy);
    }
}
