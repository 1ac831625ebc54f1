use super::*;
use std::fs;

/// A file tree like a machine's.
struct Machine(tempfile::TempDir);

impl Machine {
    fn new(files: &[(&str, &str)]) -> Machine {
        let machine = Machine(tempfile::tempdir().expect("temporary directory"));
        for (name, text) in files {
            let path = machine.0.path().join(name);
            fs::create_dir_all(path.parent().expect("has a parent")).expect("directory");
            fs::write(path, text).expect("file");
        }
        machine
    }

    fn cpus(&self, affinity: usize) -> CpuBudget {
        detect_in(self.0.path(), affinity)
    }
}

const ONLINE: (&str, &str) = ("sys/devices/system/cpu/online", "0-7\n");
const V2: (&str, &str) =
    ("proc/self/mountinfo", "30 23 0:26 / /sys/fs/cgroup rw,nosuid - cgroup2 cgroup rw,nsdelegate\n");
const V1: (&str, &str) = (
    "proc/self/mountinfo",
    "31 23 0:27 / /sys/fs/cgroup/cpu,cpuacct rw - cgroup cgroup rw,cpu,cpuacct\n\
     32 23 0:28 / /sys/fs/cgroup/cpuset rw shared:1 - cgroup cgroup rw,cpuset\n\
     33 23 0:29 / /sys/fs/cgroup/memory rw - cgroup cgroup rw,memory\n",
);

#[test]
fn bare_machine() {
    let budget = Machine::new(&[ONLINE]).cpus(8);
    assert_eq!((budget.workers, budget.limiting, budget.pinnable), (8, "online CPUs", true));
    let budget = Machine::new(&[ONLINE]).cpus(3);
    assert_eq!((budget.workers, budget.limiting), (3, "CPU affinity"));
}

#[test]
fn nothing_is_readable() {
    let budget = Machine::new(&[]).cpus(4);
    assert_eq!((budget.workers, budget.online), (4, 4));
    assert_eq!(Machine::new(&[]).cpus(0).workers, 1);
}

#[test]
fn v2_quota_of_a_parent_counts_and_fractions_round_up() {
    let machine = Machine::new(&[
        ONLINE,
        V2,
        ("proc/self/cgroup", "0::/a.slice/b.service\n"),
        ("sys/fs/cgroup/a.slice/cpu.max", "250000 100000\n"),
        ("sys/fs/cgroup/a.slice/b.service/cpu.max", "max 100000\n"),
    ]);
    let budget = machine.cpus(8);
    assert_eq!((budget.workers, budget.quota, budget.limiting), (3, Some(2.5), "CPU quota"));
    assert!(!budget.pinnable);
    assert!(budget.source.expect("a file").ends_with("a.slice/cpu.max"));
}

#[test]
fn v2_whole_quota_is_not_rounded_up() {
    let machine =
        Machine::new(&[ONLINE, V2, ("proc/self/cgroup", "0::/\n"), ("sys/fs/cgroup/cpu.max", "30000 10000")]);
    assert_eq!(machine.cpus(8).workers, 3);
}

#[test]
fn tiny_quota_is_one_worker() {
    let machine = Machine::new(&[
        ONLINE,
        V2,
        ("proc/self/cgroup", "0::/x\n"),
        ("sys/fs/cgroup/x/cpu.max", "1000 100000"),
    ]);
    assert_eq!(machine.cpus(8).workers, 1);
}

#[test]
fn v2_cpuset() {
    let machine = Machine::new(&[
        ONLINE,
        V2,
        ("proc/self/cgroup", "0::/x\n"),
        ("sys/fs/cgroup/x/cpuset.cpus.effective", "0,2-3\n"),
    ]);
    let budget = machine.cpus(8);
    assert_eq!((budget.workers, budget.limiting), (3, "cpuset"));
}

#[test]
fn v1_quota_cpuset_and_memory() {
    let machine = Machine::new(&[
        ONLINE,
        V1,
        ("proc/self/cgroup", "4:memory:/docker/x\n3:cpuset:/docker/x\n1:cpuacct,cpu:/docker/x\n"),
        ("sys/fs/cgroup/cpu,cpuacct/docker/cpu.cfs_quota_us", "150000\n"),
        ("sys/fs/cgroup/cpu,cpuacct/docker/cpu.cfs_period_us", "100000\n"),
        ("sys/fs/cgroup/cpu,cpuacct/docker/x/cpu.cfs_quota_us", "-1\n"),
        ("sys/fs/cgroup/cpu,cpuacct/docker/x/cpu.cfs_period_us", "100000\n"),
        ("sys/fs/cgroup/cpuset/docker/x/cpuset.cpus", "0-3\n"),
        ("sys/fs/cgroup/memory/docker/x/memory.limit_in_bytes", "536870912\n"),
        ("sys/fs/cgroup/memory/memory.limit_in_bytes", "9223372036854771712\n"),
        ("proc/meminfo", "MemTotal:       16384000 kB\nMemFree: 1 kB\n"),
    ]);
    let budget = machine.cpus(8);
    assert_eq!((budget.workers, budget.quota, budget.limiting), (2, Some(1.5), "CPU quota"));
    let memory = memory_in(machine.0.path());
    assert_eq!((memory.bytes, memory.limiting), (536_870_912, "cgroup"));
}

#[test]
fn container_without_a_namespace_sees_its_part_of_the_tree() {
    let machine = Machine::new(&[
        ONLINE,
        ("proc/self/mountinfo", "30 23 0:26 /docker/x /sys/fs/cgroup ro - cgroup2 cgroup rw\n"),
        ("proc/self/cgroup", "0::/docker/x\n"),
        ("sys/fs/cgroup/cpu.max", "400000 100000\n"),
    ]);
    assert_eq!(machine.cpus(8).workers, 4);
}

#[test]
fn garbage_is_no_limit() {
    let machine = Machine::new(&[
        ("sys/devices/system/cpu/online", "zero\n"),
        ("proc/self/mountinfo", "30 23 - cgroup2\nx\n30 23 0:26 / /sys/fs/cgroup rw - cgroup2 cgroup rw\n"),
        ("proc/self/cgroup", "0::/../../y\nno\n:\n"),
        ("sys/fs/cgroup/cpu.max", "-5 0\n"),
        ("sys/fs/cgroup/cpuset.cpus.effective", "\n"),
        ("proc/meminfo", "MemTotal: lots kB\n"),
    ]);
    assert_eq!(machine.cpus(6).workers, 6);
    assert_eq!(memory_in(machine.0.path()).bytes, 0);
}

#[test]
fn memory_of_a_bare_machine() {
    let machine = Machine::new(&[("proc/meminfo", "MemTotal:       2048 kB\n")]);
    assert_eq!(
        memory_in(machine.0.path()),
        MemoryBudget { bytes: 2_097_152, limiting: "machine", source: None }
    );
}
