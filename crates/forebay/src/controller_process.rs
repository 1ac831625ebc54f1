//! The controller process, which gives the master its configuration where that comes from no file (`forebay ingress`).
//!
//! It holds the credentials of the cluster and never sees a request; the worker sees requests and no credentials. The master reads
//! what the controller sends without waiting for it. A message has the form of those in [`crate::wire`].
//!
//! It delivers files that have changed, and the servers of groups with `peers external`. The master reports what was applied or
//! refused. The worker is another user, or gives up the files of credentials with Landlock (`forebay-sys/src/closed.rs`) before its
//! threads start.

#![cfg_attr(
    not(feature = "kubernetes"),
    allow(dead_code, reason = "only the ingress controller has such a process")
)]

use crate::master_log::{Log, errno};
use crate::wire::{self, Body, Endpoints, Rest};
use crate::worker_messages::Broken;
use forebay_conf::files::Files;
use forebay_sys::fds;
use nix::sys::signal::{Signal, kill};
use nix::unistd::Pid;
use std::collections::{BTreeMap, VecDeque};
use std::ffi::OsString;
use std::io;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::os::unix::net::UnixStream;
use std::os::unix::process::CommandExt;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use std::sync::Arc;
use std::time::{Duration, Instant};

/// Environment variable that makes the program a controller. Its standard input is the socket to the master.
pub(crate) const ROLE: &str = "FOREBAY_CONTROLLER";
/// Title that `ps` shows.
const TITLE: &str = "forebay: ingress controller";

/// Pauses before a new controller after one has ended: the first, and the longest.
const FIRST_PAUSE: Duration = Duration::from_millis(500);
const LONGEST_PAUSE: Duration = Duration::from_secs(30);
/// A controller that lived this long was healthy: the next one starts at once.
const HEALTHY: Duration = Duration::from_secs(60);
/// Bytes that are read from the controller at a time.
const PIECE: usize = 256 << 10;
/// Pieces that are read before workers and signals get their turn.
const PIECES: usize = 64;
/// Longest message, bytes. A configuration with 10,000 servers has about 20 MB.
const LONGEST: u64 = 1 << 30;
/// Time in which the controller has to take a report.
const REPORT_DEADLINE: Duration = Duration::from_secs(5);

/// Message of the controller.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum Delivery {
    /// Files of a new configuration.
    Configuration(Configuration),
    /// Servers of groups with `peers external`.
    Endpoints(Vec<Endpoints>),
}

/// New configuration, as a difference from the one before.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(crate) struct Configuration {
    /// Number by which the controller knows it.
    pub number: u64,
    /// Files and endpoints that are not named are removed.
    pub complete: bool,
    /// Files that are removed.
    pub removed: Vec<PathBuf>,
    /// Files that are new or have changed.
    pub files: Vec<(PathBuf, Arc<[u8]>)>,
    /// Groups that are new or have changed.
    pub endpoints: Vec<Endpoints>,
}

const CONFIGURATION: u8 = 1;
const ENDPOINTS: u8 = 2;

impl Delivery {
    /// Sends the message to the master. Waits for the master to take it.
    ///
    /// # Errors
    /// Errors of the socket.
    pub(crate) fn send(&self, socket: &UnixStream) -> io::Result<()> {
        let mut out = Body::default();
        let kind = match self {
            Delivery::Configuration(c) => {
                out.number(c.number);
                out.number(u64::from(c.complete));
                out.list(&c.removed, |out, path| out.path(path));
                out.list(&c.files, |out, (path, bytes)| {
                    out.path(path);
                    out.bytes(bytes);
                });
                out.list(&c.endpoints, Body::endpoints);
                CONFIGURATION
            }
            Delivery::Endpoints(endpoints) => {
                out.list(endpoints, Body::endpoints);
                ENDPOINTS
            }
        };
        wire::send(socket, kind, &out.0, &[])
    }

    /// Reads the content of a message; `None` if it does not fit its kind.
    fn decode(kind: u8, content: &[u8]) -> Option<Delivery> {
        let mut rest = Rest(content);
        let delivery = match kind {
            CONFIGURATION => Delivery::Configuration(Configuration {
                number: rest.number()?,
                complete: rest.flag()?,
                removed: rest.list(Rest::path)?,
                files: rest.list(|rest| Some((rest.path()?, rest.bytes()?.into())))?,
                endpoints: rest.list(Rest::endpoints)?,
            }),
            ENDPOINTS => Delivery::Endpoints(rest.list(Rest::endpoints)?),
            _ => return None,
        };
        rest.0.is_empty().then_some(delivery)
    }
}

/// Message of the master to the controller.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum Report {
    /// All threads use the configuration of this number.
    Applied(u64),
    /// The configuration of this number is not used, and why, in nginx's words with file and line.
    Refused(u64, String),
}

const APPLIED: u8 = 1;
const REFUSED: u8 = 2;

impl Report {
    fn send(&self, socket: &UnixStream) -> io::Result<()> {
        let mut out = Body::default();
        let kind = match self {
            Report::Applied(number) => {
                out.number(*number);
                APPLIED
            }
            Report::Refused(number, text) => {
                out.number(*number);
                out.bytes(text.as_bytes());
                REFUSED
            }
        };
        wire::send_until(socket, kind, &out.0, Instant::now() + REPORT_DEADLINE)
    }

    /// Waits for a report. `None` when the master is gone.
    ///
    /// # Errors
    /// Errors of the socket; `InvalidData` for bytes that are no report.
    pub(crate) fn receive(socket: &UnixStream) -> io::Result<Option<Report>> {
        let Some((kind, body, _)) = wire::receive(socket)? else { return Ok(None) };
        let mut rest = Rest(&body);
        let report = match kind {
            APPLIED => rest.number().map(Report::Applied),
            REFUSED => rest.number().and_then(|number| Some(Report::Refused(number, rest.text()?))),
            _ => None,
        };
        report.map(Some).ok_or_else(|| io::ErrorKind::InvalidData.into())
    }
}

/// Bytes of the controller that are no whole message yet.
#[derive(Debug, Default)]
struct Inbox(Vec<u8>);

impl Inbox {
    /// Takes all whole messages.
    ///
    /// # Errors
    /// The bytes are no message; nothing that follows can be read then.
    fn take_all(&mut self) -> Result<Vec<Delivery>, Broken> {
        let (mut taken, mut deliveries) = (0, Vec::new());
        while let Some(rest) = self.0.get(taken..)
            && let Some((head, content)) = rest.split_at_checked(wire::HEAD)
        {
            let (kind, mut lengths) =
                (head.first().copied().unwrap_or(0), Rest(head.get(1..).unwrap_or_default()));
            let (length, descriptors) = (lengths.number().ok_or(Broken)?, lengths.number().ok_or(Broken)?);
            if length > LONGEST || descriptors != 0 {
                return Err(Broken);
            }
            let length = usize::try_from(length).map_err(|_| Broken)?;
            let Some(content) = content.get(..length) else {
                self.0.reserve(length);
                break;
            };
            deliveries.push(Delivery::decode(kind, content).ok_or(Broken)?);
            taken += wire::HEAD + length;
        }
        self.0.drain(..taken);
        if self.0.is_empty() {
            // A whole configuration passes once at the start; its memory is not needed later.
            self.0 = Vec::new();
        }
        Ok(deliveries)
    }
}

/// Running controller process.
struct Child {
    pid: Pid,
    socket: UnixStream,
    inbox: Inbox,
    started: Instant,
}

/// The controller as the master sees it, and everything that it has delivered.
pub(crate) struct Controller {
    /// Command line of this program, without its name.
    arguments: Vec<OsString>,
    /// Directory that the paths of the files are relative to. It does not have to exist.
    prefix: PathBuf,
    /// Files and directories with credentials, which the worker gives up.
    credentials: Vec<PathBuf>,
    child: Option<Child>,
    /// Messages of the process that have not been acted on.
    arrived: VecDeque<Delivery>,
    respawn_at: Option<Instant>,
    pause: Duration,
    files: BTreeMap<PathBuf, Arc<[u8]>>,
    endpoints: BTreeMap<Vec<u8>, Endpoints>,
    /// Configurations that the worker has not applied yet: generation, and number of the controller.
    given: VecDeque<(u64, u64)>,
}

impl Controller {
    /// Creates it without a process. `arguments` is the command line of this program; `prefix` comes before the paths of its files;
    /// `credentials` are files and directories that only the controller may read.
    pub(crate) fn new(arguments: &[OsString], prefix: &Path, credentials: Vec<PathBuf>) -> Controller {
        Controller {
            arguments: arguments.iter().skip(1).cloned().collect(),
            prefix: prefix.to_owned(),
            credentials,
            child: None,
            arrived: VecDeque::new(),
            respawn_at: Some(Instant::now()),
            pause: Duration::ZERO,
            files: BTreeMap::new(),
            endpoints: BTreeMap::new(),
            given: VecDeque::new(),
        }
    }

    /// Returns the files and directories that only the controller may read.
    pub(crate) fn credentials(&self) -> &[PathBuf] {
        &self.credentials
    }

    /// Starts the process if it is time to. One that cannot be started is tried again later.
    pub(crate) fn start_if_due(&mut self, log: &Log) {
        if self.child.is_some() || self.respawn_at.is_none_or(|at| at > Instant::now()) {
            return;
        }
        self.respawn_at = None;
        match self.spawn() {
            Ok(child) => {
                log.notice(&format!("start controller process {}", child.pid));
                self.child = Some(child);
            }
            Err(e) => {
                log.alert(&format!("could not start a controller process: {}", errno(&e)));
                self.restart_later(Duration::ZERO);
            }
        }
    }

    fn spawn(&self) -> io::Result<Child> {
        let (ours, theirs) = UnixStream::pair()?;
        let mut command = Command::new("/proc/self/exe");
        command.arg0(TITLE).args(&self.arguments).stdin(Stdio::from(OwnedFd::from(theirs))).env(ROLE, "1");
        let process = command.spawn()?;
        let pid = Pid::from_raw(i32::try_from(process.id()).map_err(io::Error::other)?);
        Ok(Child { pid, socket: ours, inbox: Inbox::default(), started: Instant::now() })
    }

    /// Returns the time at which [`Controller::start_if_due`] has something to do.
    pub(crate) fn deadline(&self) -> Option<Instant> {
        self.respawn_at
    }

    /// Returns the socket to wait for.
    pub(crate) fn socket(&self) -> Option<BorrowedFd<'_>> {
        self.child.as_ref().map(|child| child.socket.as_fd())
    }

    /// Reads what the process has sent. Ends a process that sends no messages. Returns `false` if no whole message has come.
    pub(crate) fn read(&mut self, log: &Log) -> bool {
        let Some(child) = &mut self.child else { return false };
        let mut piece = vec![0; PIECE];
        for _ in 0..PIECES {
            match fds::read_ready(&child.socket, &mut piece) {
                Ok(Some(count)) if count > 0 => {
                    child.inbox.0.extend_from_slice(piece.get(..count).unwrap_or_default());
                }
                Ok(None) => break,
                // It is at its end: SIGCHLD says the rest. Its socket would be ready all the time.
                Ok(_) | Err(_) => {
                    let _ = kill(child.pid, Signal::SIGTERM);
                    let _ = child.socket.shutdown(std::net::Shutdown::Both);
                    break;
                }
            }
        }
        let deliveries = child.inbox.take_all().unwrap_or_else(|Broken| {
            log.alert(&format!("controller process {} sent a broken message and is killed", child.pid));
            let _ = kill(child.pid, Signal::SIGKILL);
            Vec::new()
        });
        let any = !deliveries.is_empty();
        self.arrived.extend(deliveries);
        any
    }

    /// Returns the next message.
    pub(crate) fn next_delivery(&mut self) -> Option<Delivery> {
        self.arrived.pop_front()
    }

    /// Returns the servers of the next message, and notes them, unless it is a configuration, which has to be acted on before.
    pub(crate) fn next_endpoints(&mut self) -> Option<Vec<Endpoints>> {
        let is_endpoints = |delivery: &mut Delivery| matches!(delivery, Delivery::Endpoints(_));
        let Delivery::Endpoints(endpoints) = self.arrived.pop_front_if(is_endpoints)? else { return None };
        self.take_endpoints(&endpoints);
        Some(endpoints)
    }

    /// Adds a configuration to those before.
    pub(crate) fn take(&mut self, c: Configuration) {
        if c.complete {
            self.files.clear();
            self.endpoints.clear();
        }
        for path in &c.removed {
            self.files.remove(path);
        }
        self.files.extend(c.files);
        self.take_endpoints(&c.endpoints);
    }

    /// Notes the servers of groups. A group without any is noted, too: it has none on purpose.
    fn take_endpoints(&mut self, endpoints: &[Endpoints]) {
        self.endpoints.extend(endpoints.iter().map(|e| (e.group.clone(), e.clone())));
    }

    /// Returns the files of the configuration.
    pub(crate) fn files(&self) -> Files {
        Files::shared(self.files.iter().map(|(path, bytes)| (self.prefix.join(path), bytes.clone())))
    }

    /// Returns the servers of all groups.
    pub(crate) fn endpoints(&self) -> Vec<Endpoints> {
        self.endpoints.values().cloned().collect()
    }

    /// Notes that the worker got the configuration `number` of the controller as this generation.
    pub(crate) fn given(&mut self, generation: u64, number: u64) {
        self.given.push_back((generation, number));
    }

    /// Reports what the worker has applied: all configurations up to a generation.
    pub(crate) fn applied(&mut self, generation: u64) {
        while let Some((_, number)) = self.given.pop_front_if(|(given, _)| *given <= generation) {
            self.report(&Report::Applied(number));
        }
    }

    /// Reports that the worker cannot use the last configuration.
    pub(crate) fn failed(&mut self, text: &str) {
        if let Some((_, number)) = self.given.pop_back() {
            self.refused(number, text);
        }
    }

    /// Reports that a configuration is not used, and why. The files are named as the controller did.
    pub(crate) fn refused(&mut self, number: u64, text: &str) {
        let prefix = format!("{}/", self.prefix.display());
        self.report(&Report::Refused(number, text.replace(&prefix, "")));
    }

    /// Sends a report. Ends a process that does not take it; the next one begins with everything.
    fn report(&mut self, report: &Report) {
        let Some(child) = &self.child else { return };
        if report.send(&child.socket).is_err() {
            let _ = kill(child.pid, Signal::SIGKILL);
        }
    }

    /// Notes the end of a process. Returns `false` if it was not that of the controller.
    pub(crate) fn ended(&mut self, pid: Pid) -> bool {
        let Some(child) = self.child.take_if(|child| child.pid == pid) else { return false };
        self.given.clear();
        self.arrived.clear();
        self.restart_later(child.started.elapsed());
        true
    }

    fn restart_later(&mut self, lived: Duration) {
        let pause = if lived >= HEALTHY { Duration::ZERO } else { self.pause };
        self.respawn_at = Some(Instant::now() + pause);
        self.pause = (pause * 2).clamp(FIRST_PAUSE, LONGEST_PAUSE);
    }

    /// Ends the process for good.
    pub(crate) fn dismiss(&mut self) {
        self.respawn_at = None;
        if let Some(child) = self.child.take() {
            let _ = kill(child.pid, Signal::SIGTERM);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::io::Read;

    fn configuration() -> Configuration {
        Configuration {
            number: 3,
            complete: true,
            removed: vec!["a".into()],
            files: vec![("forebay.conf".into(), b"events {}"[..].into()), ("b".into(), [0, 255].into())],
            endpoints: vec![Endpoints {
                group: b"shop".to_vec(),
                servers: vec![("10.0.0.1:80".parse().expect("address"), 1)],
            }],
        }
    }

    fn sent(deliveries: &[Delivery]) -> Vec<u8> {
        let (ours, mut theirs) = UnixStream::pair().expect("socket pair");
        deliveries.iter().for_each(|d| d.send(&ours).expect("send"));
        drop(ours);
        let mut bytes = Vec::new();
        theirs.read_to_end(&mut bytes).expect("read");
        bytes
    }

    #[test]
    fn deliveries_arrive_in_any_pieces() {
        let all = [Delivery::Configuration(configuration()), Delivery::Endpoints(configuration().endpoints)];
        let bytes = sent(&all);
        for piece in [1, 7, bytes.len()] {
            let (mut inbox, mut got) = (Inbox::default(), Vec::new());
            for bytes in bytes.chunks(piece) {
                inbox.0.extend_from_slice(bytes);
                got.extend(inbox.take_all().expect("whole messages"));
            }
            assert_eq!(got, all);
        }
    }

    #[test]
    fn broken_deliveries_are_errors() {
        let bytes = sent(&[Delivery::Configuration(configuration())]);
        for (at, value) in [(0, 9), (8, 255), (9, 1), (bytes.len() - 40, 255)] {
            let mut broken = bytes.clone();
            broken[at] = value;
            assert!(Inbox(broken).take_all().is_err(), "byte {at}");
        }
    }

    #[test]
    fn a_difference_changes_what_was_delivered() {
        let mut c = Controller::new(&["forebay".into(), "ingress".into()], Path::new("/run/x"), Vec::new());
        c.take(configuration());
        let read = |c: &Controller, path: &str| {
            c.files().read(Path::new(&format!("/run/x/{path}"))).map(|(_, b)| b.to_vec()).ok()
        };
        assert_eq!(read(&c, "b"), Some(vec![0, 255]));
        c.take(Configuration {
            removed: vec!["b".into()],
            files: vec![("c".into(), [1].into())],
            ..Default::default()
        });
        assert_eq!((read(&c, "b"), read(&c, "c")), (None, Some(vec![1])));
        assert!(read(&c, "forebay.conf").is_some());
        assert_eq!(c.endpoints().len(), 1);
        c.take_endpoints(&[Endpoints { group: b"shop".to_vec(), servers: vec![] }]);
        assert_eq!(c.endpoints()[0].servers, []);
        c.take(Configuration { complete: true, ..Default::default() });
        assert!(c.endpoints().is_empty() && read(&c, "c").is_none());
    }

    #[test]
    fn reports_arrive() {
        let (ours, theirs) = UnixStream::pair().expect("socket pair");
        for report in [Report::Applied(7), Report::Refused(8, "no in /a:1".into())] {
            report.send(&ours).expect("send");
            assert_eq!(Report::receive(&theirs).expect("receive"), Some(report));
        }
        drop(ours);
        assert_eq!(Report::receive(&theirs).expect("receive"), None);
    }
}
