//! Threads and tasks that the process cannot do without.
//!
//! A panic while a request is served costs its connection (`reactor.rs`). A panic anywhere else would end a thread whose
//! share of the connections nobody answers from then on, or a task that nobody starts again. It is reported at level alert
//! and ends the process, which the master replaces.

use forebay_sys::sync::lock;
use std::cell::RefCell;
use std::future::Future;
use std::io;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::pin::Pin;
use std::sync::{Arc, Mutex, Once};
use std::task::{Context, Poll};
use std::thread::JoinHandle;

/// Writes a line at level alert.
type Report = Arc<dyn Fn(&str) + Send + Sync>;

static REPORT: Mutex<Option<Report>> = Mutex::new(None);

thread_local! {
    /// Place and words of the last panic of this thread.
    static LAST: RefCell<String> = const { RefCell::new(String::new()) };
}

/// Says where the last line of a process goes that ends by itself.
pub fn report_to(report: impl Fn(&str) + Send + Sync + 'static) {
    *lock(&REPORT) = Some(Arc::new(report));
}

/// Remembers place and words of each panic for [`last_panic`], beside what is printed.
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

/// Returns place and words of the last panic of this thread, on one line.
pub fn last_panic() -> String {
    let text = LAST.try_with(RefCell::take).unwrap_or_default();
    text.chars().map(|c| if c.is_control() { ' ' } else { c }).collect()
}

/// Starts a thread whose panic ends the process. `stack`: its size in bytes.
///
/// # Errors
/// When the kernel gives no thread.
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

/// Makes a task whose panic ends the process. `what` is what it does, for the log.
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

/// Runs `body`; after a panic `fail` has the last word.
fn guarded<T>(what: &str, body: impl FnOnce() -> T, fail: impl FnOnce(&str) -> T) -> T {
    // Data that a panic left inconsistent is not used again, since the process ends.
    catch_unwind(AssertUnwindSafe(body)).unwrap_or_else(|_| {
        fail(&format!("{what} has ended by a panic ({}), the process ends", last_panic()))
    })
}

/// Reports `text` at level alert and ends the process.
pub fn end(text: &str) -> ! {
    let report = lock(&REPORT).clone();
    // A panic while reporting must not keep the process from ending.
    let _ = catch_unwind(AssertUnwindSafe(|| match report {
        Some(report) => report(text),
        None => eprintln!("nginx: [alert] {text}"),
    }));
    // Other threads run, so nothing is tidied up; the master writes the lines of logs that are left.
    std::process::abort()
}

/// Panics where a test asks for it: `env FOREBAY_TEST_PANIC=NAME`, in the first worker process of a master. Not there in
/// releases.
#[inline]
pub fn panic_on_purpose(name: &str) {
    #[cfg(debug_assertions)]
    {
        let is = |variable, value: &str| std::env::var(variable).is_ok_and(|found| found == value);
        assert!(!(is("FOREBAY_TEST_PANIC", name) && is("FOREBAY_RESPAWNED", "0")), "on purpose");
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
