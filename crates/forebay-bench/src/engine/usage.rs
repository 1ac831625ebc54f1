//! CPU time, waiting time and context switches of a thread.

use crate::record::ThreadUse;
use crate::thread_cpu;

/// Counters of the calling thread at one moment.
#[derive(Clone, Copy)]
pub(super) struct ThreadCounters {
    cpu: u64,
    delay: u64,
    switches: (u64, u64),
}

impl ThreadCounters {
    /// Reads the counters. One that the kernel does not show is 0.
    pub(super) fn now() -> ThreadCounters {
        let text =
            |name: &str| std::fs::read_to_string(format!("/proc/thread-self/{name}")).unwrap_or_default();
        let delay = text("schedstat").split_whitespace().nth(1).and_then(|n| n.parse().ok()).unwrap_or(0);
        let status = text("status");
        let field = |name: &str| number_of(&status, name).unwrap_or(0);
        let switches = (field("voluntary_ctxt_switches"), field("nonvoluntary_ctxt_switches"));
        ThreadCounters { cpu: thread_cpu(), delay, switches }
    }

    /// Returns what the thread has used since these counters were read. The CPU and the time are left to the caller.
    pub(super) fn until_now(self) -> ThreadUse {
        let now = ThreadCounters::now();
        ThreadUse {
            cpu: None,
            cpu_time: now.cpu.saturating_sub(self.cpu),
            run_delay: now.delay.saturating_sub(self.delay),
            wall: 0,
            switches: (
                now.switches.0.saturating_sub(self.switches.0),
                now.switches.1.saturating_sub(self.switches.1),
            ),
        }
    }
}

/// Reads a number from a table of `name: value` lines.
fn number_of(table: &str, name: &str) -> Option<u64> {
    let line = table.lines().find_map(|l| l.strip_prefix(name))?;
    line.trim_start_matches(':').trim().parse().ok()
}
