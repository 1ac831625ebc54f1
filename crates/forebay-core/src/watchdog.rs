//! Notices threads of connections that stay in one turn of their event loop. All connections of such a thread wait.
//!
//! A thread changes a number when a turn begins and when it ends ([`Progress`]), so it is odd during a turn. The watchdog is a
//! thread of its own, since tokio's could be held up, too. It looks at these numbers, and counts the time between two of its looks, but
//! not more than half a second: where the process was stopped, by a signal, a debugger or a suspended machine, the watchdog was, too.
//!
//! A turn of a second is logged and counted. A thread that spends `worker_stall_timeout` of CPU time in one turn, or waits that long for a
//! lock, will not come back: the process ends, and the master starts another. A thread that waits for a disk is only logged, since
//! another process would wait for the same disk.
//!
//! It takes no stack of the thread. Handlers of signals that walk the stack are not safe while the thread holds the lock of the
//! allocator or of the linker, and the program is stripped. The end by abort() leaves a core file with all stacks.

use crate::counters::Counters;
use crate::essential;
use forebay_net::reactor::Progress;
use std::fs::File;
use std::io::{self, Read, Seek};
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Weak};
use std::time::{Duration, Instant};

/// Time between two looks.
const PERIOD: Duration = Duration::from_millis(250);
/// Most time that counts between two looks.
const MOST: Duration = Duration::from_millis(500);
/// Length of a turn that is logged.
const LONG: Duration = Duration::from_secs(1);

/// Bound after which a process ends, in milliseconds; 0: never.
#[derive(Debug, Default)]
pub struct Settings(AtomicU64);

impl Settings {
    /// Sets the bound (`worker_stall_timeout`).
    pub fn set(&self, bound: Duration) {
        self.0.store(u64::try_from(bound.as_millis()).unwrap_or(u64::MAX), Ordering::Relaxed);
    }

    fn bound(&self) -> Option<Duration> {
        Some(self.0.load(Ordering::Relaxed)).filter(|ms| *ms > 0).map(Duration::from_millis)
    }
}

/// Condition of a thread at a look.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
struct Condition {
    /// CPU time that it has taken in all.
    cpu: Duration,
    /// Function of the kernel that it waits in; empty if it runs or that is unknown.
    waits: String,
}

impl Condition {
    /// It waits for a lock. The kernel's functions for that begin with this word.
    fn is_locked(&self) -> bool {
        self.waits.starts_with("futex")
    }
}

/// A thread that is watched.
struct Watched {
    number: usize,
    counters: Arc<Counters>,
    progress: Arc<Progress>,
    /// Number of the thread in the kernel.
    kernel_id: u64,
    /// Opened before descriptors can run short.
    stat: Option<File>,
    turn: Turn,
}

/// The turn that a thread is in.
#[derive(Debug, Default)]
struct Turn {
    /// Value of [`Progress::turns`].
    number: u64,
    /// Time for which it has been seen.
    lasted: Duration,
    /// Part of it that counts for the bound.
    charged: Duration,
    /// CPU time of the thread at the last look, once it was looked at.
    cpu: Option<Duration>,
    /// Time at which it is logged, next.
    tell: Duration,
}

/// Consequence of a look at a thread.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Finding {
    /// There is nothing to log.
    Nothing,
    /// The turn is long; it is the first line about it.
    Long,
    /// The turn is still going on.
    Still,
    /// A long turn of this time has ended.
    Over(Duration),
    /// The thread will not come back.
    Lost,
}

impl Turn {
    /// Counts the time since the last look. `condition` is asked for in a turn that goes on.
    fn look(
        &mut self,
        number: u64,
        passed: Duration,
        bound: Option<Duration>,
        condition: impl FnOnce() -> Condition,
    ) -> Finding {
        if number.is_multiple_of(2) || number != self.number {
            let lasted = self.lasted;
            *self = Turn { number, tell: LONG, ..Turn::default() };
            return if lasted >= LONG { Finding::Over(lasted) } else { Finding::Nothing };
        }
        let passed = passed.min(MOST);
        self.lasted += passed;
        let now = condition();
        let before = self.cpu.replace(now.cpu).unwrap_or(now.cpu);
        self.charged += if now.is_locked() { passed } else { now.cpu.saturating_sub(before) };
        if bound.is_some_and(|bound| self.charged >= bound) {
            return Finding::Lost;
        }
        if self.lasted < self.tell {
            return Finding::Nothing;
        }
        let first = self.tell == LONG;
        self.tell *= 2;
        if first { Finding::Long } else { Finding::Still }
    }
}

impl Watched {
    /// Returns `None` if the thread has not begun.
    fn new(number: usize, counters: Arc<Counters>) -> Option<Watched> {
        let (progress, kernel_id) = counters.watched().cloned()?;
        let stat = File::open(format!("/proc/self/task/{kernel_id}/stat")).ok();
        let turn = Turn { tell: LONG, ..Turn::default() };
        Some(Watched { number, counters, progress, kernel_id, stat, turn })
    }

    fn look(&mut self, passed: Duration, bound: Option<Duration>) {
        let (number, place) = (self.progress.turns(), self.progress.place());
        let mut seen = Condition::default();
        let found = self.turn.look(number, passed, bound, || {
            seen = condition(self.stat.as_mut(), self.kernel_id);
            seen.clone()
        });
        if found == Finding::Nothing {
            return;
        }
        let (thread, lasted) = (self.number, seconds(self.turn.lasted));
        let doing = match seen.waits.as_str() {
            "" => format!("{place}, it runs"),
            waits => format!("{place}, it waits in the kernel: {waits}"),
        };
        let of = format!("worker thread {thread}");
        match found {
            Finding::Nothing => {}
            Finding::Long => {
                self.counters.long_turns.add(1);
                essential::report(&format!(
                    "{of} has been in one turn of its event loop for {lasted}, its connections wait ({doing})"
                ));
            }
            Finding::Still => essential::report(&format!(
                "{of} is still in the same turn of its event loop, for {lasted} ({doing})"
            )),
            Finding::Over(lasted) => {
                essential::report(&format!("{of} goes on after a turn of {}", seconds(lasted)));
            }
            Finding::Lost => essential::end(&format!(
                "{of} does not come back from a turn of its event loop, after {lasted} ({doing}), the process ends"
            )),
        }
    }
}

fn seconds(time: Duration) -> String {
    format!("{:.1} s", time.as_secs_f64())
}

/// Looks at a thread by the files of proc(5).
fn condition(stat: Option<&mut File>, kernel_id: u64) -> Condition {
    let read = |stat: &mut File| -> io::Result<Vec<u8>> {
        let mut bytes = Vec::with_capacity(512);
        stat.rewind()?;
        stat.read_to_end(&mut bytes)?;
        Ok(bytes)
    };
    let Some((running, cpu)) = stat.and_then(|stat| read(stat).ok()).and_then(|bytes| parse_stat(&bytes))
    else {
        return Condition::default();
    };
    let mut waits = String::new();
    if !running {
        let name = std::fs::read_to_string(format!("/proc/self/task/{kernel_id}/wchan")).unwrap_or_default();
        waits = if name.is_empty() || name == "0" { "unknown".to_owned() } else { name };
    }
    Condition { cpu, waits }
}

/// Reads the line of a thread (proc_pid_stat(5)): whether it runs, and its CPU time.
fn parse_stat(line: &[u8]) -> Option<(bool, Duration)> {
    // The name is in brackets, and may have any bytes.
    let end = line.iter().rposition(|b| *b == b')')?;
    let mut fields = line.get(end + 1..)?.split(|b| *b == b' ').skip(1);
    let running = fields.next()? == b"R";
    let mut ticks = fields.skip(10).map(|f| std::str::from_utf8(f).ok()?.parse::<u64>().ok());
    let ticks = ticks.next()??.saturating_add(ticks.next()??);
    let of_second = rustix::param::clock_ticks_per_second().max(1);
    Some((running, Duration::from_millis(ticks.saturating_mul(1000) / of_second)))
}

/// Starts the watchdog of the threads with these counters, which ends with the settings.
///
/// # Errors
/// If the kernel cannot create a thread.
pub(crate) fn start(all: &[Arc<Counters>], settings: &Arc<Settings>) -> io::Result<()> {
    let mut threads: Vec<Watched> = all
        .iter()
        .enumerate()
        .filter_map(|(number, counters)| Watched::new(number, counters.clone()))
        .collect();
    let settings: Weak<Settings> = Arc::downgrade(settings);
    essential::spawn("watchdog".into(), None, move || {
        let mut before = Instant::now();
        loop {
            std::thread::sleep(PERIOD);
            let Some(settings) = settings.upgrade() else { return };
            let now = Instant::now();
            let passed = now.saturating_duration_since(before);
            before = now;
            threads.iter_mut().for_each(|thread| thread.look(passed, settings.bound()));
        }
    })?;
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    const BOUND: Option<Duration> = Some(Duration::from_secs(10));

    fn ms(n: u64) -> Duration {
        Duration::from_millis(n)
    }

    /// Looks at a turn `count` times, a period apart; the thread is in the condition that `of` gives for the time.
    fn looks(turn: &mut Turn, number: u64, count: u32, of: impl Fn(Duration) -> Condition) -> Vec<Finding> {
        let findings = (1..=count).map(|n| turn.look(number, PERIOD, BOUND, || of(PERIOD * n)));
        findings.filter(|f| *f != Finding::Nothing).collect()
    }

    fn spins(t: Duration) -> Condition {
        Condition { cpu: t, waits: String::new() }
    }

    fn waits(place: &str) -> impl Fn(Duration) -> Condition {
        let waits = place.to_owned();
        move |_| Condition { cpu: ms(70), waits: waits.clone() }
    }

    fn turn() -> Turn {
        Turn { tell: LONG, ..Turn::default() }
    }

    #[test]
    fn short_turns_and_waiting_threads_are_no_finding() {
        let mut t = turn();
        for number in 0..100 {
            assert_eq!(t.look(number, PERIOD, BOUND, || spins(PERIOD)), Finding::Nothing);
        }
        assert!(looks(&mut t, 100, 1000, spins).is_empty(), "an even number waits for events");
    }

    #[test]
    fn a_long_turn_is_told_as_often_as_its_time_doubles() {
        let mut t = turn();
        assert_eq!(looks(&mut t, 1, 4, spins), [], "the first look only remembers the turn");
        assert_eq!(looks(&mut t, 1, 1, spins), [Finding::Long]);
        assert_eq!(looks(&mut t, 1, 12, spins), [Finding::Still; 2]);
        assert_eq!(t.look(3, PERIOD, BOUND, || spins(PERIOD)), Finding::Over(ms(4000)));
        assert_eq!(t.look(4, PERIOD, BOUND, || spins(PERIOD)), Finding::Nothing);
    }

    #[test]
    fn a_thread_that_spins_or_waits_for_a_lock_is_lost() {
        for of in [Box::new(spins) as Box<dyn Fn(Duration) -> Condition>, Box::new(waits("futex_do_wait"))] {
            let mut t = turn();
            assert!(!looks(&mut t, 1, 40, &of).contains(&Finding::Lost), "before the bound");
            let found: Vec<_> = (41..45).map(|n| t.look(1, PERIOD, BOUND, || of(PERIOD * n))).collect();
            assert!(found.contains(&Finding::Lost), "{found:?}");
        }
    }

    /// Another process would wait for the same disk.
    #[test]
    fn a_thread_that_waits_for_a_disk_is_kept() {
        for place in ["folio_wait_bit_common", "unknown"] {
            let found = looks(&mut turn(), 1, 10_000, waits(place));
            assert!(!found.contains(&Finding::Lost) && found.contains(&Finding::Still), "{found:?}");
        }
    }

    /// While the process was stopped, the watchdog did not look either: a day between two looks is no day of the thread.
    #[test]
    fn time_in_which_the_process_was_stopped_does_not_count() {
        let (mut t, day) = (turn(), Duration::from_secs(24 * 3600));
        assert_eq!(t.look(1, PERIOD, BOUND, || spins(ms(0))), Finding::Nothing);
        assert_eq!(t.look(1, day, BOUND, || waits("futex_do_wait")(day)), Finding::Nothing);
        assert_eq!(t.lasted, MOST);
    }

    #[test]
    fn without_a_bound_nothing_is_lost() {
        let settings = Settings::default();
        assert_eq!(settings.bound(), None);
        settings.set(ms(60_000));
        assert_eq!(settings.bound(), Some(ms(60_000)));
        let mut t = turn();
        assert!((0..10_000).all(|n| t.look(1, PERIOD, None, || spins(PERIOD * n)) != Finding::Lost));
    }

    /// A thread of this test that spins, then waits.
    #[test]
    fn the_kernel_tells_what_a_thread_does() {
        let id = rustix::thread::gettid().as_raw_nonzero().get() as u64;
        let mut stat = File::open(format!("/proc/self/task/{id}/stat")).expect("proc");
        let before = condition(Some(&mut stat), id);
        assert_eq!(before.waits, "", "the thread that looks runs");
        let begun = Instant::now();
        while condition(Some(&mut stat), id).cpu < before.cpu + ms(100) {
            assert!(begun.elapsed() < Duration::from_secs(20), "its CPU time grows");
        }
        assert_eq!(parse_stat(b"1 (a) b) R 1 2 3 4 5 6 7 8 9 10 100 50 0"), Some((true, ms(1500))));
        assert_eq!(parse_stat(b"1 (a) S 1 2 3"), None);
        assert_eq!(condition(None, id), Condition::default());
    }
}
