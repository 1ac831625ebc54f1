//! Use of the machine: threads, CPUs, descriptors, connections, each with its reason.

use forebay_core::config::Config;
use forebay_core::config::main_settings::{Affinity, WorkerCount};
use forebay_core::process::ThreadPlan;
use forebay_sys::cpus::CpuBudget;
use forebay_sys::{affinity, cpus, limits};

/// Most connections of a thread by default: more would cost memory for slots that stay empty.
const MOST_CONNECTIONS: u64 = 65_536;
/// Fewest: below this the server is of no use and it is better to hit the limit visibly.
const FEWEST_CONNECTIONS: u64 = 64;
/// Descriptors for event loops, the control socket, standard streams and libraries.
const OWN: u64 = 64;
/// Descriptors for cached open files, when none is configured.
const FILE_CACHE: u64 = 1024;

/// The plan and the reasons for it.
#[derive(Clone, Debug)]
pub(crate) struct Plan {
    /// Threads and connections.
    pub threads: ThreadPlan,
    /// Reason for the number of threads.
    pub threads_reason: String,
    /// Reason for the number of connections.
    pub connections_reason: String,
    /// Reason for pinning the threads or not.
    pub pinning_reason: &'static str,
    /// Limit of open descriptors that the worker will have.
    pub descriptors: u64,
    /// Reason for the limit.
    pub descriptors_reason: &'static str,
    /// CPUs of the machine.
    pub cpus: CpuBudget,
}

impl Plan {
    /// Makes the plan for this machine.
    pub(crate) fn new(config: &Config) -> Plan {
        let (_, hard) = limits::descriptors();
        Plan::on(config, cpus::detect(), &affinity::allowed().unwrap_or_default(), hard)
    }

    /// Makes the plan for a machine with these CPUs and this hard limit of descriptors.
    pub(crate) fn on(config: &Config, cpus: CpuBudget, allowed: &[usize], hard: u64) -> Plan {
        let (count, threads_reason) = match config.main.worker_processes {
            Some(WorkerCount::Count(count)) => (count.max(1), "as configured".to_owned()),
            Some(WorkerCount::Auto) | None => (cpus.workers, cpu_reason(&cpus)),
        };
        let (descriptors, descriptors_reason) = match config.main.worker_rlimit_nofile {
            Some(limit) => (limit, "as configured"),
            None => (hard, "raised to the hard limit"),
        };
        let (connections, connections_reason) = match config.main.worker_connections {
            Some(connections) => (connections, "as configured".to_owned()),
            None => derive_connections(config, count, descriptors),
        };
        let (lists, pinning_reason) = pinning(&config.main.worker_cpu_affinity, &cpus, allowed, count);
        Plan {
            threads: ThreadPlan { cpus: lists, connections },
            threads_reason,
            connections_reason,
            pinning_reason,
            descriptors,
            descriptors_reason,
            cpus,
        }
    }

    /// Returns nginx's warning if more connections are configured than descriptors can be had.
    pub(crate) fn warning(&self) -> Option<String> {
        let connections = self.threads.connections;
        (connections as u64 > self.descriptors).then(|| {
            format!("{connections} worker_connections exceed open file resource limit: {}", self.descriptors)
        })
    }
}

fn cpu_reason(cpus: &CpuBudget) -> String {
    match (cpus.limiting, cpus.quota, &cpus.source) {
        ("CPU quota", Some(quota), Some(file)) => {
            format!("CPU quota of {quota:.2} in {}, {} CPUs online", file.display(), cpus.online)
        }
        ("cpuset", _, Some(file)) => format!("cpuset in {}, {} CPUs online", file.display(), cpus.online),
        (limiting, ..) => format!("{limiting}, {} CPUs online", cpus.online),
    }
}

/// Derives the number of connections: each takes two descriptors (client and file or upstream) of those that are left.
fn derive_connections(config: &Config, threads: usize, descriptors: u64) -> (usize, String) {
    let threads = threads as u64;
    let sockets = (config.listeners.len() as u64).saturating_mul(threads);
    let reserved =
        OWN.saturating_add(sockets).saturating_add(config.log_files.len() as u64).saturating_add(FILE_CACHE);
    let each = descriptors.saturating_sub(reserved) / threads.max(1) / 2;
    let connections = each.clamp(FEWEST_CONNECTIONS, MOST_CONNECTIONS);
    let reason = if each > MOST_CONNECTIONS {
        format!("{descriptors} descriptors would do for more")
    } else {
        format!("{descriptors} descriptors, {reserved} set aside, 2 a connection, {threads} threads")
    };
    (usize::try_from(connections).unwrap_or(usize::MAX), reason)
}

fn pinning(
    wish: &Affinity,
    cpus: &CpuBudget,
    allowed: &[usize],
    count: usize,
) -> (Vec<Vec<usize>>, &'static str) {
    let mask_cpus = |mask: &[bool]| -> Vec<usize> {
        mask.iter().enumerate().filter(|(_, on)| **on).map(|(cpu, _)| cpu).collect()
    };
    let one_each = |list: &[usize]| match list.len() {
        0 => vec![Vec::new(); count],
        len => (0..count).map(|thread| vec![list[thread % len]]).collect(),
    };
    match wish {
        Affinity::Masks(masks) => {
            let last = masks.last().map(Vec::as_slice).unwrap_or_default();
            let list = |thread: usize| mask_cpus(masks.get(thread).map_or(last, Vec::as_slice));
            ((0..count).map(list).collect(), "as configured")
        }
        Affinity::Auto(mask) => {
            let list: Vec<usize> = match mask {
                Some(mask) => mask_cpus(mask).into_iter().filter(|cpu| allowed.contains(cpu)).collect(),
                None => allowed.to_vec(),
            };
            (one_each(&list), "as configured")
        }
        Affinity::Unset if cpus.pinnable && count == allowed.len() => {
            (one_each(allowed), "one thread for each CPU")
        }
        // With a quota or fewer threads than CPUs, fixed CPUs would fight with other programs' fixed CPUs.
        Affinity::Unset => {
            (vec![Vec::new(); count], "not pinned: threads and CPUs differ in number, or a CPU quota")
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn budget(workers: usize, online: usize, quota: Option<f64>) -> CpuBudget {
        let limiting = if quota.is_some() { "CPU quota" } else { "online CPUs" };
        CpuBudget {
            workers,
            online,
            affinity: online,
            quota,
            limiting,
            source: None,
            pinnable: quota.is_none(),
        }
    }

    #[test]
    fn one_pinned_thread_a_cpu() {
        let plan = Plan::on(&Config::default(), budget(4, 4, None), &[0, 1, 2, 3], 1_048_576);
        assert_eq!(plan.threads.cpus, [[0], [1], [2], [3]]);
        assert_eq!(plan.threads.connections, 65_536);
    }

    #[test]
    fn a_quota_leaves_threads_free() {
        let plan = Plan::on(&Config::default(), budget(2, 4, Some(1.5)), &[0, 1, 2, 3], 4096);
        assert_eq!(plan.threads.cpus, [vec![], Vec::<usize>::new()]);
        assert_eq!(plan.threads.connections, (4096 - 64 - 1024) / 4);
    }

    #[test]
    fn the_configuration_decides_on_workers() {
        let mut config = Config::default();
        config.main.worker_processes = Some(WorkerCount::Count(3));
        config.main.worker_connections = Some(70_000);
        config.main.worker_cpu_affinity = Affinity::Masks(vec![vec![true], vec![false, true, true]]);
        let plan = Plan::on(&config, budget(4, 4, None), &[0, 1, 2, 3], 1024);
        assert_eq!(plan.threads.cpus, [vec![0], vec![1, 2], vec![1, 2]]);
        assert_eq!(
            plan.warning().as_deref(),
            Some("70000 worker_connections exceed open file resource limit: 1024")
        );
    }

    #[test]
    fn a_tiny_limit_still_serves() {
        let plan = Plan::on(&Config::default(), budget(1, 1, None), &[0], 100);
        assert_eq!(plan.threads.connections, 64);
    }
}
