//! CPU time and memory of this machine and of the server's processes during a run, from /proc.

use crate::url::Address;
use std::collections::BTreeSet;
use std::path::Path;

/// Counters of a server's processes at one moment; the difference of two is the use in between.
#[derive(Clone, Debug, Default)]
pub struct Usage {
    /// ns of CPU time of all its threads, including those that have ended and child processes that have exited.
    pub cpu: u64,
    /// Context switches, of its own accord and not.
    pub switches: (u64, u64),
    /// Resident memory, bytes. Shared pages are counted in each process.
    pub memory: u64,
    /// Number of processes.
    pub processes: usize,
}

/// A process and its children. They are looked up at each reading, since workers come and go.
#[derive(Clone, Debug)]
pub struct Server {
    /// The oldest one.
    pub pid: u32,
}

fn text(path: &str) -> String {
    std::fs::read_to_string(path).unwrap_or_default()
}

fn family(pid: u32, into: &mut BTreeSet<u32>) {
    if !into.insert(pid) {
        return;
    }
    for task in tasks(pid) {
        for child in text(&format!("/proc/{pid}/task/{task}/children")).split_whitespace() {
            if let Ok(child) = child.parse() {
                family(child, into);
            }
        }
    }
}

fn tasks(pid: u32) -> Vec<u32> {
    let Ok(entries) = std::fs::read_dir(format!("/proc/{pid}/task")) else { return Vec::new() };
    entries.flatten().filter_map(|e| e.file_name().to_str()?.parse().ok()).collect()
}

fn number(text: &str, name: &str) -> Option<u64> {
    let line = text.lines().find_map(|l| l.strip_prefix(name)?.strip_prefix(':'))?;
    line.split_whitespace().next()?.parse().ok()
}

impl Server {
    /// Returns the server that was named by its pid: that process and its children.
    pub fn of(pid: u32) -> Option<Server> {
        Path::new(&format!("/proc/{pid}")).exists().then_some(Server { pid })
    }

    /// Returns the process that listens on a loopback address, or on all of them; the master when it is one of a
    /// family. `None` when it is not visible from here.
    pub fn listening(address: &Address) -> Option<Server> {
        let addr = address.socket_addr().filter(|addr| addr.ip().to_canonical().is_loopback())?;
        let (tables, state) = match address {
            Address::Udp(_) => (["udp", "udp6"], UNCONNECTED),
            _ => (["tcp", "tcp6"], LISTENING),
        };
        let inodes: BTreeSet<String> = tables
            .iter()
            .flat_map(|name| listeners(&text(&format!("/proc/net/{name}")), addr.port(), state))
            .collect();
        let mut holders = BTreeSet::new();
        for entry in std::fs::read_dir("/proc").ok()?.flatten() {
            let Some(pid) = entry.file_name().to_str().and_then(|n| n.parse::<u32>().ok()) else { continue };
            let Ok(fds) = std::fs::read_dir(entry.path().join("fd")) else { continue };
            let holds = fds.flatten().any(|fd| {
                let link = std::fs::read_link(fd.path()).unwrap_or_default();
                let link = link.to_string_lossy();
                link.strip_prefix("socket:[")
                    .and_then(|l| l.strip_suffix(']'))
                    .is_some_and(|n| inodes.contains(n))
            });
            if holds {
                holders.insert(pid);
            }
        }
        let parent = |pid: &u32| number(&text(&format!("/proc/{pid}/status")), "PPid").map(|p| p as u32);
        let eldest = holders.iter().find(|pid| !parent(pid).is_some_and(|p| holders.contains(&p)))?;
        (*eldest != std::process::id()).then_some(Server { pid: *eldest })
    }

    fn processes(&self) -> BTreeSet<u32> {
        let mut all = BTreeSet::new();
        if Path::new(&format!("/proc/{}", self.pid)).exists() {
            family(self.pid, &mut all);
        }
        all
    }

    /// Returns the name of the process.
    pub fn name(&self) -> String {
        text(&format!("/proc/{}/comm", self.pid)).trim().to_owned()
    }

    /// Returns the counters of all its processes.
    pub fn usage(&self) -> Usage {
        let mut usage = Usage::default();
        for pid in self.processes() {
            usage.processes += 1;
            let mut alive = 0;
            usage.memory += number(&text(&format!("/proc/{pid}/status")), "VmRSS").unwrap_or(0) * 1024;
            for task in tasks(pid) {
                let base = format!("/proc/{pid}/task/{task}");
                let cpu = text(&format!("{base}/schedstat"));
                alive += cpu.split_whitespace().next().and_then(|n| n.parse().ok()).unwrap_or(0);
                let status = text(&format!("{base}/status"));
                usage.switches.0 += number(&status, "voluntary_ctxt_switches").unwrap_or(0);
                usage.switches.1 += number(&status, "nonvoluntary_ctxt_switches").unwrap_or(0);
            }
            // This is in clock ticks only. The finer figure is preferred as long as no thread has ended.
            let (all, children) = ticks(&text(&format!("/proc/{pid}/stat")));
            let tick = 1_000_000_000 / rustix::param::clock_ticks_per_second().max(1);
            let all = all * tick;
            usage.cpu += children * tick + if all > alive + 3 * tick { all } else { alive };
        }
        usage
    }

    /// Returns CPUs on which its threads may run, taken together, without the ones that are free to run anywhere
    /// (masters mostly sleep and are not pinned).
    pub fn cpus(&self) -> BTreeSet<usize> {
        let all = forebay_sys::affinity::allowed().map_or(usize::MAX, |c| c.len());
        let mut used = BTreeSet::new();
        for pid in self.processes() {
            for task in tasks(pid) {
                let status = text(&format!("/proc/{pid}/task/{task}/status"));
                let list = status.lines().find_map(|l| l.strip_prefix("Cpus_allowed_list:"));
                let cpus = list.and_then(forebay_sys::affinity::parse_cpu_list).unwrap_or_default();
                if cpus.len() < all {
                    used.extend(cpus);
                }
            }
        }
        used
    }
}

/// Returns the ticks of CPU time of a process, and of its children that have ended, from its stat.
fn ticks(stat: &str) -> (u64, u64) {
    // The name may have spaces and parentheses in it.
    let rest = stat.rsplit_once(')').map_or("", |(_, rest)| rest);
    let n: Vec<u64> = rest.split_whitespace().skip(11).take(4).map(|w| w.parse().unwrap_or(0)).collect();
    let at = |i: usize| n.get(i).copied().unwrap_or(0);
    (at(0) + at(1), at(2) + at(3))
}

/// State of a TCP socket that listens, in /proc/net/tcp.
const LISTENING: &str = "0A";
/// State of a UDP socket without a peer, in /proc/net/udp.
const UNCONNECTED: &str = "07";

/// Returns the inodes of the sockets at a port that are in this state.
fn listeners(table: &str, port: u16, state: &str) -> Vec<String> {
    table
        .lines()
        .skip(1)
        .filter_map(|line| {
            let words: Vec<&str> = line.split_whitespace().collect();
            let (_, local) = words.get(1)?.rsplit_once(':')?;
            let listening = words.get(3) == Some(&state);
            let here = u16::from_str_radix(local, 16).ok()? == port;
            (listening && here).then(|| words.get(9).map(|inode| (*inode).to_owned()))?
        })
        .collect()
}

/// CPU times of the machine, in clock ticks: everything, idle, stolen by the hypervisor.
#[derive(Clone, Copy, Debug, Default)]
pub struct Machine {
    total: u64,
    idle: u64,
    steal: u64,
}

impl Machine {
    /// Reads the counters at this moment.
    pub fn now() -> Machine {
        let stat = text("/proc/stat");
        let line = stat.lines().next().unwrap_or_default();
        let n: Vec<u64> = line.split_whitespace().skip(1).take(8).filter_map(|w| w.parse().ok()).collect();
        let at = |i: usize| n.get(i).copied().unwrap_or(0);
        Machine { total: n.iter().sum(), idle: at(3) + at(4), steal: at(7) }
    }

    /// Shares of all CPU time since `before`: busy and stolen, 0 to 1.
    pub fn since(self, before: Machine) -> (f64, f64) {
        let total = self.total.saturating_sub(before.total).max(1) as f64;
        let idle = self.idle.saturating_sub(before.idle) as f64 / total;
        ((1.0 - idle).max(0.0), self.steal.saturating_sub(before.steal) as f64 / total)
    }
}

/// Returns the CPUs of this process in two sets: for a server that it starts, and for the load generator. A single CPU
/// is in both.
pub fn shares() -> (Vec<usize>, Vec<usize>) {
    let allowed = forebay_sys::affinity::allowed().unwrap_or_default();
    let (server, load) = allowed.split_at(allowed.len().div_ceil(2));
    if load.is_empty() { (allowed.clone(), allowed) } else { (server.to_vec(), load.to_vec()) }
}

/// Returns CPUs for `threads` threads (0: as seems right) that stay out of the server's way.
pub fn choose_cpus(server: Option<&Server>, threads: usize) -> Vec<usize> {
    let allowed = forebay_sys::affinity::allowed().unwrap_or_default();
    let Some(server) = server else {
        let n = if threads == 0 { allowed.len() } else { threads };
        return allowed.iter().copied().cycle().take(n).collect();
    };
    let taken = server.cpus();
    let apart: Vec<usize> = allowed.iter().copied().filter(|cpu| !taken.contains(cpu)).collect();
    // A server that is pinned nowhere, or everywhere, gets no more than its share.
    let chosen = if apart.is_empty() || taken.is_empty() { shares().1 } else { apart };
    let n = if threads == 0 { chosen.len() } else { threads };
    chosen.iter().copied().cycle().take(n).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn threads_that_have_ended_count() {
        let stat = "7 (a b) c) S 1 7 7 0 -1 4194304 1 2 3 4 50 60 7 8 20 0 1 0";
        assert_eq!(ticks(stat), (110, 15));
        let server = Server { pid: std::process::id() };
        let before = server.usage().cpu;
        let spin = || {
            let until = crate::thread_cpu() + 150_000_000;
            while crate::thread_cpu() < until {
                std::hint::spin_loop();
            }
        };
        std::thread::spawn(spin).join().expect("ends");
        let used = server.usage().cpu - before;
        assert!(used >= 120_000_000, "{used}");
    }

    #[test]
    fn tables_of_the_kernel() {
        let table = "  sl  local_address rem_address   st tx_queue rx_queue tr tm->when retrnsmt   uid  timeout inode\n   \
             0: 0100007F:1F90 00000000:0000 0A 00000000:00000000 00:00000000 00000000     0        0 4242 1 x\n   \
             1: 0100007F:1F90 0100007F:AAAA 01 00000000:00000000 00:00000000 00000000     0        0 99 1 x\n   \
             2: 00000000:0050 00000000:0000 0A 0:0 0:0 0 0 0 7 1 x\n";
        assert_eq!(listeners(table, 8080, LISTENING), ["4242"]);
        assert_eq!(listeners(table, 81, LISTENING), [""; 0]);
    }

    #[test]
    fn a_listener_is_found_with_its_use() {
        let mut child = std::process::Command::new("python3")
            .args(["-c", "import socket,time\ns=socket.create_server(('127.0.0.1',0))\nprint(s.getsockname()[1],flush=True)\ntime.sleep(60)"])
            .stdout(std::process::Stdio::piped())
            .spawn()
            .expect("python3");
        let mut line = String::new();
        let out = child.stdout.take().expect("piped");
        std::io::BufRead::read_line(&mut std::io::BufReader::new(out), &mut line).expect("a line");
        let port: u16 = line.trim().parse().expect("port");
        let found = Server::listening(&Address::Tcp(([127, 0, 0, 1], port).into()));
        let usage = found.as_ref().map(Server::usage).unwrap_or_default();
        let _ = child.kill();
        let _ = child.wait();
        assert_eq!(found.map(|s| s.pid), Some(child.id()));
        assert!(usage.cpu > 0 && usage.memory > 1 << 20 && usage.processes == 1, "{usage:?}");
        assert!(Server::listening(&Address::Tcp(([192, 0, 2, 1], port).into())).is_none());
    }
}
