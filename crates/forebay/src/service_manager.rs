//! The service manager that has started the program: messages to it (sd_notify(3)) and sockets from it (sd_listen_fds(3)).

use rustix::time::{ClockId, clock_gettime};
use std::ffi::OsStr;
use std::os::fd::RawFd;
use std::os::linux::net::SocketAddrExt;
use std::os::unix::ffi::OsStrExt;
use std::os::unix::net::{SocketAddr, UnixDatagram};
use std::time::Duration;

/// Environment variable with the address for messages.
const ADDRESS: &str = "NOTIFY_SOCKET";
/// Environment variables that describe passed sockets: the process that they are for, their number, and their names.
const PROCESS: &str = "LISTEN_PID";
const COUNT: &str = "LISTEN_FDS";
const NAMES: &str = "LISTEN_FDNAMES";
/// Number of the first passed descriptor.
const FIRST: RawFd = 3;
/// Longest wait for a manager that takes no message.
const PATIENCE: Duration = Duration::from_secs(1);

/// The service manager, if one waits for messages.
#[derive(Clone, Debug, Default)]
pub(crate) struct ServiceManager {
    address: Option<SocketAddr>,
}

impl ServiceManager {
    /// Returns the one that the environment names.
    pub(crate) fn of_environment() -> ServiceManager {
        ServiceManager { address: std::env::var_os(ADDRESS).as_deref().and_then(address) }
    }

    /// Returns `true` if messages have a receiver.
    pub(crate) fn is_there(&self) -> bool {
        self.address.is_some()
    }

    /// Reports that the server serves, that this process is the main one, and a sentence for people.
    pub(crate) fn ready(&self, status: &str) {
        self.send(&format!("READY=1\nMAINPID={}\n{}", std::process::id(), status_line(status)));
    }

    /// Reports that a configuration is being read.
    pub(crate) fn reloading(&self) {
        let now = clock_gettime(ClockId::Monotonic);
        let usec = now.tv_sec.saturating_mul(1_000_000).saturating_add(now.tv_nsec / 1000);
        let status = status_line("Reading the configuration again");
        self.send(&format!("RELOADING=1\nMONOTONIC_USEC={usec}\n{status}"));
    }

    /// Reports a sentence for people.
    pub(crate) fn status(&self, status: &str) {
        self.send(&status_line(status));
    }

    /// Reports that the server ends.
    pub(crate) fn stopping(&self) {
        self.send(&format!("STOPPING=1\n{}", status_line("Ending; requests that have begun are finished")));
    }

    /// Reports that another process is the main one.
    pub(crate) fn hand_to(&self, pid: i32) {
        self.send(&format!("MAINPID={pid}\n"));
    }

    /// Sends a message. A manager that is gone or takes none is no reason not to serve.
    fn send(&self, text: &str) {
        let Some(address) = &self.address else { return };
        let _ = UnixDatagram::unbound().and_then(|socket| {
            socket.set_write_timeout(Some(PATIENCE))?;
            socket.send_to_addr(text.as_bytes(), address)
        });
    }
}

/// Parses an address: a path, or `@` and the name of an abstract socket. Others (`vsock:`) have no receiver.
fn address(text: &OsStr) -> Option<SocketAddr> {
    match text.as_bytes() {
        [b'/', ..] => SocketAddr::from_pathname(text).ok(),
        [b'@', name @ ..] => SocketAddr::from_abstract_name(name).ok(),
        _ => None,
    }
}

/// Formats the assignment of a status, which is one line.
fn status_line(text: &str) -> String {
    format!("STATUS={}\n", text.replace(['\n', '\r'], " "))
}

/// Descriptors that the service manager has passed.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(crate) struct Passed {
    names: Vec<String>,
}

impl Passed {
    /// Returns what was passed to this process; `None` if nothing was.
    pub(crate) fn to_this_process() -> Option<Passed> {
        let variable = |name| std::env::var(name).ok();
        Passed::parse(&variable(PROCESS)?, &variable(COUNT)?, &variable(NAMES).unwrap_or_default())
    }

    /// Parses the variables. Those that are for another process have been left over in the environment.
    fn parse(process: &str, count: &str, names: &str) -> Option<Passed> {
        let count: usize = count.parse().ok().filter(|count| (1..=1 << 16).contains(count))?;
        let names = names.split(':').chain(std::iter::repeat("")).take(count);
        let ours = process.parse() == Ok(std::process::id());
        ours.then(|| Passed { names: names.map(|name| name.replace(char::is_control, " ")).collect() })
    }

    /// Numbers of the descriptors.
    pub(crate) fn numbers(&self) -> Vec<RawFd> {
        (FIRST..).take(self.names.len()).collect()
    }

    /// Returns the name of a descriptor, empty if it has none.
    pub(crate) fn name(&self, number: RawFd) -> &str {
        let index = usize::try_from(number - FIRST).ok();
        index.and_then(|index| self.names.get(index)).map_or("", String::as_str)
    }
}

/// Names of the variables that mean one process and not those that it starts.
pub(crate) const OWN_VARIABLES: [&str; 3] = [PROCESS, COUNT, NAMES];

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn addresses() {
        let path = address(OsStr::new("/run/notify")).expect("a path");
        assert_eq!(path.as_pathname(), Some(std::path::Path::new("/run/notify")));
        let name = address(OsStr::new("@a b")).expect("an abstract name");
        assert_eq!(name.as_abstract_name(), Some(&b"a b"[..]));
        for other in ["", "relative", "vsock:2:1234"] {
            assert!(address(OsStr::new(other)).is_none(), "{other}");
        }
    }

    #[test]
    fn passed_descriptors_are_for_one_process() {
        let own = std::process::id().to_string();
        let passed = Passed::parse(&own, "3", "web:\x1badmin").expect("ours");
        assert_eq!(passed.numbers(), [3, 4, 5]);
        assert_eq!([3, 4, 5, 6, 2].map(|number| passed.name(number)), ["web", " admin", "", "", ""]);
        for (process, count) in [("1", "3"), (&own, "0"), (&own, "x"), (&own, "99999999"), ("", "1")] {
            assert_eq!(Passed::parse(process, count, ""), None, "{process} {count}");
        }
    }

    #[test]
    fn a_status_is_one_line() {
        assert_eq!(status_line("a\nREADY=1\r"), "STATUS=a READY=1 \n");
    }
}
