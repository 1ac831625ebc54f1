//! Threads and tasks whose failure ends the process.
//!
//! A panic while a request is served closes its connection (forebay-net, `reactor/tasks.rs`). A panic anywhere else would end a
//! thread, whose connections would hang, or a task, which would never run again. Such a panic is logged at level alert and ends
//! the process, which the master replaces.

use forebay_sys::sync::lock;
use std::cell::RefCell;
use std::future::Future;
use std::io;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::pin::Pin;
use std::sync::{Arc, Mutex, Once};
use std::task::{Context, Poll};
use std::thread::JoinHandle;

/// Function that writes a line at level alert.
type Report = Arc<dyn Fn(&str) + Send + Sync>;

static REPORT: Mutex<Option<Report>> = Mutex::new(None);

thread_local! {
    /// Place and message of the last panic of this thread.
    static LAST: RefCell<String> = const { RefCell::new(String::new()) };
}

/// Sets the function that logs the reason before the process ends itself.
pub fn report_to(report: impl Fn(&str) + Send + Sync + 'static) {
    *lock(&REPORT) = Some(Arc::new(report));
}

/// Installs a hook that remembers each panic for [`last_panic`], in addition to printing it.
pub fn remember_panics() {
    static ONCE: Once = Once::new();
    ONCE.call_once(|| {
        let before = std::panic::take_hook();
        std::panic::set_hook(Box::new(move |info| {
            let words = info.payload_as_str().unwrap_or("no words");
            let text = match info.location() {
                Some(place) => format!("{words}, {}:{}", place.file(), place.line()),
                None => words.to_owned(),
            };
            // The thread may be ending, or be inside of this function.
            let _ = LAST.try_with(|last| last.try_borrow_mut().map(|mut last| *last = text));
            before(info);
        }));
    });
}

/// Returns place and message of the last panic of this thread, on one line.
pub fn last_panic() -> String {
    let text = LAST.try_with(RefCell::take).unwrap_or_default();
    text.chars().map(|c| if forebay_sys::printable::is_hidden(c) { ' ' } else { c }).collect()
}

/// Starts a thread whose panic ends the process. `stack`: its size in bytes.
///
/// # Errors
/// If the kernel cannot create a thread.
pub fn spawn(
    name: String,
    stack: Option<usize>,
    body: impl FnOnce() + Send + 'static,
) -> io::Result<JoinHandle<()>> {
    let mut builder = std::thread::Builder::new().name(name.clone());
    if let Some(stack) = stack {
        builder = builder.stack_size(stack);
    }
    builder.spawn(move || guarded(&format!("thread \"{name}\""), body, |text| end(text)))
}

/// Wraps a task so that its panic ends the process. `what` describes it in the log.
pub fn task<F: Future<Output = ()>>(what: &'static str, future: F) -> Task<F> {
    Task { what, future: Box::pin(future) }
}

/// A task whose panic ends the process: see [`task`].
#[derive(Debug)]
pub struct Task<F> {
    what: &'static str,
    future: Pin<Box<F>>,
}

impl<F: Future<Output = ()>> Future for Task<F> {
    type Output = ();

    fn poll(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<()> {
        let what = self.what;
        let me = &mut *self;
        guarded(what, || me.future.as_mut().poll(cx), |text| end(text))
    }
}

/// Runs `body`; after a panic, returns the result of `fail`.
fn guarded<T>(what: &str, body: impl FnOnce() -> T, fail: impl FnOnce(&str) -> T) -> T {
    // Data that a panic left inconsistent is not used again, since the process ends.
    catch_unwind(AssertUnwindSafe(body)).unwrap_or_else(|_| {
        fail(&format!("{what} has ended by a panic ({}), the process ends", last_panic()))
    })
}

/// Reports `text` at level alert, from any thread.
pub fn report(text: &str) {
    let report = lock(&REPORT).clone();
    // A panic while reporting must not keep the process from ending.
    let _ = catch_unwind(AssertUnwindSafe(|| match report {
        Some(report) => report(text),
        None => eprintln!("nginx: [alert] {text}"),
    }));
}

/// Reports `text` at level alert and ends the process.
pub fn end(text: &str) -> ! {
    report(text);
    // Abort without cleanup, since other threads are running. The master writes the remaining log lines.
    std::process::abort()
}

/// Panics if a test asks for it by `env FOREBAY_TEST_PANIC=NAME`, in the first worker process of a master. Does nothing
/// in release builds.
#[inline]
pub fn panic_on_purpose(name: &str) {
    #[cfg(debug_assertions)]
    {
        use std::sync::LazyLock;
        static ASKED: LazyLock<Option<String>> = LazyLock::new(|| {
            let first = std::env::var("FOREBAY_RESPAWNED").is_ok_and(|n| n == "0");
            std::env::var("FOREBAY_TEST_PANIC").ok().filter(|_| first)
        });
        assert!(ASKED.as_deref() != Some(name), "on purpose");
    }
    #[cfg(not(debug_assertions))]
    let _ = name;
}

/// Holds up the thread if a test asks for it by `env FOREBAY_TEST_STALL=NAME:MILLISECONDS`, in the first worker process of a master: it
/// spins without an end for `spin`, else it sleeps. Does nothing in release builds.
#[inline]
pub fn stall_on_purpose(name: &[u8]) {
    #[cfg(debug_assertions)]
    {
        use std::sync::LazyLock;
        static ASKED: LazyLock<Option<(String, String)>> = LazyLock::new(|| {
            let first = std::env::var("FOREBAY_RESPAWNED").is_ok_and(|n| n == "0");
            let asked = std::env::var("FOREBAY_TEST_STALL").ok().filter(|_| first)?;
            asked.split_once(':').map(|(name, how)| (name.to_owned(), how.to_owned()))
        });
        if let Some((at, how)) = ASKED.as_ref().filter(|(at, _)| at.as_bytes() == name) {
            match how.parse() {
                Ok(ms) => std::thread::sleep(std::time::Duration::from_millis(ms)),
                Err(_) => loop {
                    std::hint::black_box(at);
                },
            }
        }
    }
    #[cfg(not(debug_assertions))]
    let _ = name;
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_panic_is_caught_and_told_with_its_place() {
        remember_panics();
        let told = RefCell::new(String::new());
        let fail = |text: &str| {
            told.replace(text.to_owned());
            2
        };
        assert_eq!(guarded("it", || 1, fail), 1);
        assert!(told.borrow().is_empty());
        assert_eq!(guarded("it", || panic!("ba\nd"), fail), 2);
        let told = told.take();
        assert!(
            told.starts_with("it has ended by a panic (ba d, ") && told.contains("essential.rs:"),
            "{told}"
        );
        assert_eq!(last_panic(), "", "it is told once");
    }

    #[test]
    fn threads_and_tasks_without_a_panic_run() {
        let (tell, told) = std::sync::mpsc::channel();
        let thread = spawn("x".into(), Some(1 << 20), move || {
            let _ = tell.send(7);
        })
        .expect("a thread");
        thread.join().expect("it ends");
        assert_eq!(told.recv(), Ok(7));
        let runtime = tokio::runtime::Builder::new_current_thread().build().expect("a runtime");
        let (tell, told) = std::sync::mpsc::channel();
        runtime.block_on(task("it", async move {
            let _ = tell.send(8);
        }));
        assert_eq!(told.recv(), Ok(8));
    }
}
