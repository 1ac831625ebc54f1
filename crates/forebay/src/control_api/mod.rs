//! Control API of the master (nginx: `-l`): what runs, the configuration in memory, and reloads that answer with their result.
//!
//! The master accepts clients and decides; a thread for each client has the conversation (`exchange.rs`), so that the master waits for
//! no client. Documents are in `answers.rs`. `client.rs` is the other side, for `-s reload` and `forebay reload`.

mod address;
mod answers;
pub(crate) mod client;
mod exchange;

pub(crate) use address::Address;
pub(crate) use answers::{Answer, Facts, Process};

use crate::listen::Refused;
use crate::master_log::{Log, errno};
use socket2::{Domain, SockAddr, Socket, Type};
use std::io::{self, Write};
use std::os::fd::{AsFd, AsRawFd, BorrowedFd};
use std::os::unix::net::UnixStream;
use std::path::Path;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::mpsc::{Receiver, Sender, SyncSender, channel};
use std::time::Duration;

/// Environment variable with the number of the listening socket, for a new binary.
pub(crate) const VARIABLE: &str = "FOREBAY_CONTROL";

/// Most clients at a time. Others wait in the backlog of the socket.
const MOST_CLIENTS: usize = 4;
/// Clients that wait.
const BACKLOG: i32 = 16;
/// Longest time that a client waits for the result of a reload.
const RELOADED_WITHIN: Duration = Duration::from_secs(120);

/// Question of a client to the master.
#[derive(Debug)]
pub(crate) struct Question {
    /// What it wants to know, or to be done.
    pub wish: Wish,
    answer: SyncSender<Answer>,
}

impl Question {
    /// Answers it. The client may have gone away.
    pub(crate) fn answer(self, answer: Answer) {
        let _ = self.answer.try_send(answer);
    }
}

/// What a client wants of the master.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Wish {
    /// Version and times.
    Nginx,
    /// Worker processes.
    Processes,
    /// The configuration in memory.
    Config,
    /// A reload.
    Reload,
}

/// A reload whose configuration the worker has not applied yet.
#[derive(Debug)]
struct Reloading {
    generation: u64,
    lines: Vec<String>,
    question: Question,
}

/// The control API: its socket, and the conversations under way.
#[derive(Debug)]
pub(crate) struct Control {
    socket: Socket,
    address: Address,
    clients: Arc<AtomicUsize>,
    questions: (Sender<Question>, Receiver<Question>),
    /// Wakes the master: its side, and that of the threads.
    bell: (UnixStream, Arc<UnixStream>),
    reloading: Vec<Reloading>,
}

impl Control {
    /// Opens the socket of the API, or takes over that of the program before.
    ///
    /// # Errors
    /// The address cannot be bound; the log has the reason.
    pub(crate) fn open(address: Address, log: &Log) -> Result<Control, Refused> {
        let inherited = std::env::var(VARIABLE).ok().and_then(|number| number.parse().ok());
        let socket = inherited.and_then(forebay_sys::fds::inherited_listener).map(Socket::from);
        let made = socket.map_or_else(|| listen(&address), Ok).and_then(|socket| {
            socket.set_nonblocking(true)?;
            let (ours, theirs) = UnixStream::pair()?;
            ours.set_nonblocking(true)?;
            theirs.set_nonblocking(true)?;
            Ok((socket, (ours, Arc::new(theirs))))
        });
        let (socket, bell) = made.map_err(|e| {
            log.emerg(&format!("bind() to {address} for the control API failed ({})", errno(&e)));
            Refused
        })?;
        if matches!(address, Address::Tcp(_)) {
            log.warn(&format!(
                "the control API at {address} is open to every user of this machine: a unix socket is for the user of the server only"
            ));
        }
        Ok(Control {
            socket,
            address,
            clients: Arc::default(),
            questions: channel(),
            bell,
            reloading: Vec::new(),
        })
    }

    /// Returns the descriptors that say when [`Control::act`] has work. `accepting`: new clients are taken.
    pub(crate) fn sockets(&self, accepting: bool) -> impl Iterator<Item = BorrowedFd<'_>> {
        let room = accepting && self.clients.load(Ordering::Relaxed) < MOST_CLIENTS;
        std::iter::once(self.bell.0.as_fd()).chain(room.then(|| self.socket.as_fd()))
    }

    /// Takes new clients, and returns the questions of those that are there.
    pub(crate) fn act(&mut self, accepting: bool) -> Vec<Question> {
        let mut rings = [0; 64];
        while matches!(io::Read::read(&mut &self.bell.0, &mut rings), Ok(count) if count > 0) {}
        if accepting {
            while self.clients.load(Ordering::Relaxed) < MOST_CLIENTS && self.accept() {}
        }
        self.questions.1.try_iter().collect()
    }

    /// Takes one client. Returns `false` if there is none.
    fn accept(&self) -> bool {
        let Ok((client, _)) = self.socket.accept() else { return false };
        let place = Place::take(&self.clients, &self.bell.1);
        let to_master = ToMaster { questions: self.questions.0.clone(), bell: self.bell.1.clone() };
        let is_tcp = matches!(self.address, Address::Tcp(_));
        let converse = move || {
            let _place = place;
            exchange::converse(client, is_tcp, &to_master);
        };
        // Without a thread the client is closed, and its place is free again.
        let _ = std::thread::Builder::new().name("control".to_owned()).stack_size(256 << 10).spawn(converse);
        true
    }

    /// Has a client wait until the worker has applied a configuration.
    pub(crate) fn given(&mut self, generation: u64, lines: Vec<String>, question: Question) {
        self.reloading.push(Reloading { generation, lines, question });
    }

    /// Reports that the worker uses a configuration.
    pub(crate) fn applied(&mut self, generation: u64) {
        let (done, waiting) = std::mem::take(&mut self.reloading)
            .into_iter()
            .partition(|r: &Reloading| r.generation <= generation);
        self.reloading = waiting;
        for reload in done {
            reload.question.answer(Answer::Reloaded(reload.lines));
        }
    }

    /// Reports that the worker could not use what it was given.
    pub(crate) fn failed(&mut self, text: &str) {
        for mut reload in std::mem::take(&mut self.reloading) {
            reload.lines.push(format!("[emerg] {text}"));
            reload.question.answer(Answer::NotReloaded(reload.lines));
        }
    }

    /// Returns the socket for a new binary, and the value of [`VARIABLE`].
    pub(crate) fn to_inherit(&self) -> (BorrowedFd<'_>, String) {
        (self.socket.as_fd(), self.socket.as_raw_fd().to_string())
    }

    /// Removes the file of the socket.
    pub(crate) fn unlink(&self) {
        if let Address::Unix(path) = &self.address {
            let _ = std::fs::remove_file(path);
        }
    }
}

/// Way of a client's thread to the master.
struct ToMaster {
    questions: Sender<Question>,
    bell: Arc<UnixStream>,
}

impl ToMaster {
    /// Asks the master. `None` if it does not answer in time.
    fn ask(&self, wish: Wish) -> Option<Answer> {
        let (answer, answered) = std::sync::mpsc::sync_channel(1);
        self.questions.send(Question { wish, answer }).ok()?;
        let _ = (&*self.bell).write(&[0]);
        answered.recv_timeout(RELOADED_WITHIN).ok()
    }
}

/// Place of a client among the most that are served at a time.
struct Place(Arc<AtomicUsize>, Arc<UnixStream>);

impl Place {
    fn take(clients: &Arc<AtomicUsize>, bell: &Arc<UnixStream>) -> Place {
        clients.fetch_add(1, Ordering::Relaxed);
        Place(clients.clone(), bell.clone())
    }
}

impl Drop for Place {
    fn drop(&mut self) {
        self.0.fetch_sub(1, Ordering::Relaxed);
        // The master may have stopped to accept.
        let _ = (&*self.1).write(&[0]);
    }
}

fn listen(address: &Address) -> io::Result<Socket> {
    match address {
        Address::Unix(path) => listen_unix(path),
        Address::Tcp(address) => {
            let socket = Socket::new(Domain::for_address(*address), Type::STREAM, None)?;
            socket.set_reuse_address(true)?;
            socket.bind(&(*address).into())?;
            socket.listen(BACKLOG)?;
            Ok(socket)
        }
    }
}

/// Listens at a file that only the user of this process may connect to.
fn listen_unix(path: &Path) -> io::Result<Socket> {
    let address = SockAddr::unix(path)?;
    let socket = Socket::new(Domain::UNIX, Type::STREAM, None)?;
    // The file has the mode of the socket from its beginning, less the umask.
    rustix::fs::fchmod(&socket, rustix::fs::Mode::from_raw_mode(0o600))?;
    match socket.bind(&address) {
        Err(e) if e.kind() == io::ErrorKind::AddrInUse && is_stale(&address) => {
            std::fs::remove_file(path)?;
            socket.bind(&address)?;
        }
        other => other?,
    }
    // Fails closed on a file system that has modes of its own.
    if rustix::fs::stat(path)?.st_mode & 0o077 != 0 {
        let _ = std::fs::remove_file(path);
        return Err(io::Error::other("the file of the socket is open to other users"));
    }
    socket.listen(BACKLOG)?;
    Ok(socket)
}

/// Returns `true` if a killed server has left the socket file behind.
fn is_stale(address: &SockAddr) -> bool {
    let Ok(client) = Socket::new(Domain::UNIX, Type::STREAM, None) else { return false };
    let _ = client.set_nonblocking(true);
    matches!(client.connect(address), Err(e) if e.kind() == io::ErrorKind::ConnectionRefused)
}

/// Makes the socket inheritable by programs, or not.
pub(crate) fn inheritable(socket: BorrowedFd<'_>, flags: rustix::io::FdFlags) {
    let _ = rustix::io::fcntl_setfd(socket, flags);
}
