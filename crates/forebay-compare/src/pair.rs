//! The two servers under comparison: their private copies, programs and recorders.

use crate::differ::Normal;
use crate::marks;
use crate::recorder::Recorder;
use forebay_bench::ports::free_port;
use forebay_copy::patch::Source;
use forebay_copy::program::{Process, Program};
use forebay_copy::scene::{Copy, CopyPlace, Upstreams};
use std::collections::{BTreeMap, HashMap};
use std::net::Ipv4Addr;
use std::path::{Path, PathBuf};

/// Addresses of the first and the second server. They have the same ports.
pub(crate) const ADDRESSES: [Ipv4Addr; 2] = [Ipv4Addr::new(127, 0, 0, 1), Ipv4Addr::new(127, 0, 0, 2)];

/// Access logs of the copies.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Logs {
    /// They have the numbers of requests.
    Compared,
    /// There are none, as nobody would empty them.
    Off,
}

/// A program and its configuration.
#[derive(Debug)]
pub(crate) struct Side {
    /// Executable.
    pub(crate) program: PathBuf,
    /// Prefix of relative paths.
    pub(crate) prefix: PathBuf,
    /// Its configuration.
    pub(crate) source: Source,
}

/// A server that runs.
#[derive(Debug)]
pub(crate) struct Running {
    process: Option<Process>,
    pub(crate) copy: Copy,
    pub(crate) recorder: Recorder,
}

/// Both servers.
#[derive(Debug)]
pub(crate) struct Pair {
    pub(crate) sides: [Running; 2],
}

impl Pair {
    /// Starts both in a directory. `ports` are those of an earlier pair, by original address.
    ///
    /// # Errors
    /// A copy cannot be made, or a program does not take or start it.
    pub(crate) fn start(
        sides: &[Side; 2],
        dir: &Path,
        ports: BTreeMap<String, u16>,
        logs: Logs,
    ) -> Result<Pair, String> {
        let port = free_port().map_err(|e| e.to_string())?;
        let [a, b] = sides;
        let first = start(a, &dir.join("a"), (ADDRESSES[0], port), ports, logs)?;
        let ports = first.copy.ports.clone();
        let second = start(b, &dir.join("b"), (ADDRESSES[1], port), ports, logs)?;
        Ok(Pair { sides: [first, second] })
    }

    /// Returns what makes texts of the second comparable with those of the first.
    pub(crate) fn normal(&self) -> Normal {
        let [a, b] = &self.sides;
        let dir = |r: &Running| r.copy.place.dir.display().to_string();
        let address = |i: usize| ADDRESSES[i].to_string();
        let escaped = |text: String| text.replace('.', "%2E");
        let replaced =
            vec![(address(1), address(0)), (dir(b), dir(a)), (escaped(address(1)), escaped(address(0)))];
        Normal { replaced }
    }

    /// Ends both programs: their logs are complete then.
    pub(crate) fn end(&mut self) {
        self.sides.iter_mut().for_each(Running::end);
    }
}

/// Starts a side at an address, with the recorder at a port of it.
///
/// # Errors
/// A copy cannot be made, or the program does not take or start it.
pub(crate) fn start(
    side: &Side,
    dir: &Path,
    recorder: (Ipv4Addr, u16),
    ports: BTreeMap<String, u16>,
    logs: Logs,
) -> Result<Running, String> {
    let (address, port) = recorder;
    let name = side.program.display();
    let recorder = Recorder::start(address, port).map_err(|e| format!("{address}:{port}: {e}"))?;
    let place = CopyPlace {
        address,
        ports,
        upstreams: Upstreams::Recorder(port),
        ..CopyPlace::new(dir.to_owned(), side.prefix.clone())
    };
    let copy = Copy::new(&side.source, place)?;
    let edits = match logs {
        Logs::Compared => marks::edits(&side.source, dir),
        Logs::Off => marks::quiet(&side.source, dir),
    };
    let conf = copy.write(&side.source, &edits)?;
    let program =
        Program { path: side.program.clone(), prefix: dir.to_owned(), cpus: Vec::new(), is_bound: true };
    program
        .test(&conf)
        .map_err(|e| format!("{name} refuses {}: {}", side.source.path.display(), original(&e, side, dir)))?;
    let started = program.start(&conf, &copy.addresses(&side.source), &dir.join("stderr"));
    let process = started.map_err(|e| format!("{name} does not start: {}", original(&e, side, dir)))?;
    Ok(Running { process: Some(process), copy, recorder })
}

/// Returns a message with the names of the user's files in place of their copies.
fn original(message: &str, side: &Side, dir: &Path) -> String {
    let mut text = message.to_owned();
    // Longer names first: `1.conf` ends `11.conf`.
    let files: Vec<_> = side.source.files.iter().collect();
    for (id, path, _) in files.into_iter().rev() {
        let copy = dir.join("conf").join(format!("{}.conf", id.0));
        text = text.replace(&copy.display().to_string(), &path.display().to_string());
    }
    text
}

/// Lines of logs by the number of the request.
pub(crate) type Lines = HashMap<u32, Vec<String>>;

impl Running {
    /// Ends the program: its logs are complete then.
    pub(crate) fn end(&mut self) {
        self.process = None;
    }

    /// Reads the lines of the logs that have numbers, by the names of the logs.
    pub(crate) fn logs(&self) -> HashMap<String, Lines> {
        let mut logs = HashMap::new();
        let Ok(entries) = std::fs::read_dir(self.copy.place.dir.join("logs")) else { return logs };
        for entry in entries.flatten() {
            let Ok(bytes) = std::fs::read(entry.path()) else { continue };
            let mut lines = Lines::new();
            for line in bytes.split(|b| *b == b'\n') {
                let line = crate::message::text(line);
                if let Some((number, rest)) = line.split_once('\t')
                    && let Ok(number) = number.parse()
                {
                    lines.entry(number).or_default().push(rest.to_owned());
                }
            }
            if !lines.is_empty() {
                logs.insert(entry.file_name().to_string_lossy().into_owned(), lines);
            }
        }
        logs
    }
}

/// Returns the nodes that a mark names.
pub(crate) fn nodes(marks: &[String]) -> Vec<usize> {
    let text = marks.first().map_or("", String::as_str);
    text.trim_end_matches('\t').split('.').filter_map(|n| n.parse().ok()).collect()
}
