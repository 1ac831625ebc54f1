//! CPUs and memory that this process may use.
//!
//! The answer is the minimum of online CPUs, affinity, cpuset and CFS quota at every level of the control
//! groups, v1 and v2. All file names are below a root directory, so that tests use trees of their own.

use crate::affinity;
use std::fs;
use std::path::{Component, Path, PathBuf};

/// CPUs that may be used, and why not more.
#[derive(Clone, Debug, PartialEq)]
pub struct CpuBudget {
    /// Threads worth running, at least 1: the minimum of the rest, fractions rounded up.
    pub workers: usize,
    /// CPUs that are online.
    pub online: usize,
    /// CPUs that this process may run on by its affinity (cpusets included).
    pub affinity: usize,
    /// CPUs' worth of time by the tightest CFS quota.
    pub quota: Option<f64>,
    /// Source of `workers`: `online CPUs`, `CPU affinity`, `cpuset` or `CPU quota`.
    pub limiting: &'static str,
    /// File of the tightest limit, when it came from a control group.
    pub source: Option<PathBuf>,
    /// The CPUs are this process's own as far as can be known: no quota below the affinity, so
    /// pinning threads does no harm.
    pub pinnable: bool,
}

/// Memory that may be used.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct MemoryBudget {
    /// Bytes, the minimum of the machine's memory and every control group's limit. 0 when unknown.
    pub bytes: u64,
    /// `machine` or `cgroup`.
    pub limiting: &'static str,
    /// File of the limit, when it came from a control group.
    pub source: Option<PathBuf>,
}

/// Detects the CPUs that this process may use, by asking the kernel.
pub fn detect() -> CpuBudget {
    let affinity = affinity::allowed().map_or(usize::MAX, |cpus| cpus.len());
    detect_in(Path::new("/"), affinity)
}

/// Returns the memory that this process may use, by the running kernel.
pub fn detect_memory() -> MemoryBudget {
    memory_in(Path::new("/"))
}

/// Does [`detect`] with the file system below `root` and a given number of CPUs in the affinity mask.
pub(crate) fn detect_in(root: &Path, affinity: usize) -> CpuBudget {
    let online = read_list(&root.join("sys/devices/system/cpu/online")).unwrap_or(affinity).max(1);
    let affinity = affinity.min(online).max(1);
    let groups = Groups::read(root);
    let cpuset = groups.cpuset().filter(|(count, _)| *count > 0);
    let quota = groups.quota();

    let mut budget = CpuBudget {
        workers: online,
        online,
        affinity,
        quota: quota.as_ref().map(|(cpus, _)| *cpus),
        limiting: "online CPUs",
        source: None,
        pinnable: true,
    };
    if affinity < budget.workers {
        (budget.workers, budget.limiting) = (affinity, "CPU affinity");
    }
    if let Some((count, file)) = cpuset
        && count < budget.workers
    {
        (budget.workers, budget.limiting, budget.source) = (count, "cpuset", Some(file));
    }
    if let Some((cpus, file)) = quota {
        let whole = whole_cpus(cpus);
        if whole < budget.workers {
            (budget.workers, budget.limiting, budget.source) = (whole, "CPU quota", Some(file));
        }
        budget.pinnable = cpus >= budget.affinity as f64;
    }
    budget
}

/// Does [`detect_memory`] with the file system below `root`.
pub(crate) fn memory_in(root: &Path) -> MemoryBudget {
    let total = fs::read_to_string(root.join("proc/meminfo")).ok().and_then(|text| {
        let line = text.lines().find_map(|line| line.strip_prefix("MemTotal:"))?.trim();
        line.strip_suffix("kB")?.trim().parse::<u64>().ok()?.checked_mul(1024)
    });
    let machine = MemoryBudget { bytes: total.unwrap_or(0), limiting: "machine", source: None };
    match Groups::read(root).memory() {
        Some((bytes, file)) if total.is_none_or(|total| bytes < total) => {
            MemoryBudget { bytes, limiting: "cgroup", source: Some(file) }
        }
        _ => machine,
    }
}

/// Rounds up, at least to 1.
fn whole_cpus(cpus: f64) -> usize {
    const MOST: f64 = 65_536.0;
    // A quota like 200000/100000 must not become 3 by a rounding error.
    (cpus - 1e-6).ceil().clamp(1.0, MOST) as usize
}

fn read_list(path: &Path) -> Option<usize> {
    Some(affinity::parse_cpu_list(&fs::read_to_string(path).ok()?)?.len())
}

fn read_number<T: std::str::FromStr>(path: &Path) -> Option<T> {
    fs::read_to_string(path).ok()?.trim().parse().ok()
}

/// The directories of this process's control groups, the own one first, then each parent up to the mount.
#[derive(Debug, Default)]
struct Groups {
    v2: Vec<PathBuf>,
    cpu: Vec<PathBuf>,
    cpuset: Vec<PathBuf>,
    memory: Vec<PathBuf>,
}

/// One line of mountinfo that matters.
struct Mount {
    /// Path inside the hierarchy that is mounted.
    base: PathBuf,
    /// Mount point.
    point: PathBuf,
    /// `None` for v2, the controllers for v1.
    controllers: Option<Vec<String>>,
}

impl Groups {
    fn read(root: &Path) -> Groups {
        let text = |name: &str| fs::read_to_string(root.join(name)).unwrap_or_default();
        let mounts = parse_mounts(&text("proc/self/mountinfo"));
        let mut groups = Groups::default();
        for line in text("proc/self/cgroup").lines() {
            let mut fields = line.splitn(3, ':');
            let (Some(_), Some(names), Some(path)) = (fields.next(), fields.next(), fields.next()) else {
                continue;
            };
            let names: Vec<&str> = names.split(',').filter(|name| !name.is_empty()).collect();
            if names.is_empty() {
                groups.v2 = directories(root, &mounts, None, path);
            }
            for (name, list) in
                [("cpu", &mut groups.cpu), ("cpuset", &mut groups.cpuset), ("memory", &mut groups.memory)]
            {
                if names.contains(&name) {
                    *list = directories(root, &mounts, Some(name), path);
                }
            }
        }
        groups
    }

    fn quota(&self) -> Option<(f64, PathBuf)> {
        let v2 = self.v2.iter().filter_map(|dir| {
            let file = dir.join("cpu.max");
            let text = fs::read_to_string(&file).ok()?;
            let mut words = text.split_whitespace();
            // "max" is no number and means no limit.
            let quota = words.next()?.parse::<f64>().ok()?;
            let period = words.next().map_or(Some(100_000.0), |word| word.parse::<f64>().ok())?;
            (quota > 0.0 && period > 0.0).then(|| (quota / period, file))
        });
        let v1 = self.cpu.iter().filter_map(|dir| {
            let file = dir.join("cpu.cfs_quota_us");
            let quota = read_number::<f64>(&file)?;
            let period = read_number::<f64>(&dir.join("cpu.cfs_period_us"))?;
            // -1 means no limit.
            (quota > 0.0 && period > 0.0).then(|| (quota / period, file))
        });
        v2.chain(v1).min_by(|a, b| a.0.total_cmp(&b.0))
    }

    fn cpuset(&self) -> Option<(usize, PathBuf)> {
        let v2 = self.v2.iter().map(|dir| dir.join("cpuset.cpus.effective"));
        let v1 = self
            .cpuset
            .iter()
            .flat_map(|dir| ["cpuset.effective_cpus", "cpuset.cpus"].iter().map(|name| dir.join(name)));
        v2.chain(v1).filter_map(|file| Some((read_list(&file)?, file))).filter(|(n, _)| *n > 0).min()
    }

    fn memory(&self) -> Option<(u64, PathBuf)> {
        // "max" (v2) is no number; v1 writes a number near 2^63 for no limit, which no machine undercuts.
        let v2 = self.v2.iter().map(|dir| dir.join("memory.max"));
        let v1 = self.memory.iter().map(|dir| dir.join("memory.limit_in_bytes"));
        v2.chain(v1).filter_map(|file| Some((read_number::<u64>(&file)?, file))).min()
    }
}

fn parse_mounts(text: &str) -> Vec<Mount> {
    text.lines()
        .filter_map(|line| {
            let (left, right) = line.split_once(" - ")?;
            let mut left = left.split(' ').skip(3);
            let (base, point) = (unescape(left.next()?), unescape(left.next()?));
            let mut right = right.split(' ');
            let controllers = match right.next()? {
                "cgroup2" => None,
                "cgroup" => Some(right.nth(1)?.split(',').map(str::to_owned).collect()),
                _ => return None,
            };
            Some(Mount { base, point, controllers })
        })
        .collect()
}

/// Decodes a path of mountinfo, which writes space, tab, line feed and backslash as three octal digits.
fn unescape(text: &str) -> PathBuf {
    let plain = [("\\040", " "), ("\\011", "\t"), ("\\012", "\n"), ("\\134", "\\")];
    plain.iter().fold(text.to_owned(), |text, (code, c)| text.replace(code, c)).into()
}

/// Returns the group's directory below its mount, then the parents up to the mount itself.
fn directories(root: &Path, mounts: &[Mount], controller: Option<&str>, path: &str) -> Vec<PathBuf> {
    let found = mounts.iter().find(|mount| match (&mount.controllers, controller) {
        (None, None) => true,
        (Some(list), Some(name)) => list.iter().any(|c| c == name),
        _ => false,
    });
    let Some(mount) = found else { return Vec::new() };
    // In a container without a namespace of its own the mount shows a part of the tree only: the part of
    // the path that is mounted is cut off. A path out of the namespace begins with `..`: take the mount.
    let path = Path::new(path);
    let inner = path.strip_prefix(&mount.base).or_else(|_| path.strip_prefix("/")).unwrap_or(path);
    let inner: PathBuf = inner.components().filter(|c| matches!(c, Component::Normal(_))).collect();
    let top = root.join(mount.point.strip_prefix("/").unwrap_or(&mount.point));
    let escaped = path.components().any(|c| c == Component::ParentDir);
    let own = if escaped { top.clone() } else { top.join(inner) };
    own.ancestors().take_while(|dir| dir.starts_with(&top)).map(Path::to_owned).collect()
}

#[cfg(test)]
mod tests;
