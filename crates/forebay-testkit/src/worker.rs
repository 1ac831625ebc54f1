//! A worker thread in the thread of a test, which counts what it allocates.

use forebay_conf::files::Files;
use forebay_core::config::{self, Config, Environment};
use forebay_core::counters::Counters;
use forebay_core::front::FrontEnd;
use forebay_core::process::ThreadGeneration;
use forebay_core::worker::{self, Command, Mailbox, Setup};
use forebay_sys::log_area::{Area, Mapped};
use std::os::fd::OwnedFd;
use std::path::Path;
use std::sync::Arc;

/// Front ends of a program.
pub type FrontEnds = &'static [&'static dyn FrontEnd];

/// Writes a configuration into a directory and reads it.
pub fn load(dir: &Path, conf: &str, front_ends: FrontEnds) -> Config {
    std::fs::write(dir.join("nginx.conf"), conf).expect("write");
    let env = Environment {
        prefix: dir.join(""),
        conf_path: dir.join("nginx.conf"),
        globals: String::new(),
        error_log: Some("stderr".into()),
        access_log: "access.log".into(),
    };
    config::load(&env, &mut Files::disk(), front_ends).expect("a configuration").0
}

/// Runs a worker in this thread while another one calls `client`. `conf` has one listener, whose socket is `socket`, and one log,
/// `access.log` in `dir`. Calls `begin` before the worker starts.
pub fn serve(
    dir: &Path,
    conf: &str,
    front_ends: FrontEnds,
    socket: OwnedFd,
    begin: impl FnOnce(),
    client: impl FnOnce() + Send + 'static,
) {
    let config = load(dir, conf, front_ends);
    let log =
        std::fs::OpenOptions::new().create(true).append(true).open(dir.join("access.log")).expect("log");
    let share = ThreadGeneration {
        config: Arc::new(config),
        sockets: vec![Some((Arc::new(socket), false))],
        logs: vec![Arc::new(log.into())],
        generation: 1,
    };
    let area = Area::create().expect("shared memory");
    let mapped = Mapped::new(area.fd().try_clone_to_owned().expect("descriptor")).expect("mapped");
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().expect("runtime");
    let mailbox = Arc::new(Mailbox::default());
    let (started, ready) = std::sync::mpsc::channel();
    let (told, begun) = std::sync::mpsc::channel();
    told.send(()).expect("a receiver");
    let setup = Setup {
        number: 0,
        cpus: vec![],
        connections: 100,
        share,
        counters: Arc::new(vec![Arc::new(Counters::default())]),
        front_ends,
        mailbox: mailbox.clone(),
        log_area: Some(mapped),
        tokio: runtime.handle().clone(),
        started,
    };
    let client = std::thread::spawn(move || {
        let remote = ready.recv().expect("told").expect("started");
        // Also if the client panics: the worker would run without end, and the test with it.
        let _stop = OnDrop(|| {
            mailbox.push(Command::Stop);
            remote.wake();
        });
        client();
    });
    begin();
    worker::main(setup, &begun);
    client.join().expect("client");
}

/// Calls a function when it is dropped.
struct OnDrop<F: FnMut()>(F);

impl<F: FnMut()> Drop for OnDrop<F> {
    fn drop(&mut self) {
        (self.0)();
    }
}
