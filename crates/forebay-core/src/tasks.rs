//! Tasks of a configuration on the process's tokio thread.

use crate::essential::task;
use forebay_conf::error::Level;
use std::future::Future;
use std::sync::Arc;
use tokio::runtime::Handle;
use tokio::task::AbortHandle;

/// Function that writes a line to the error log from outside of the worker threads.
pub type Log = Arc<dyn Fn(Level, &str) + Send + Sync>;

/// Tasks that end when this is dropped.
#[derive(Debug, Default)]
pub struct Tasks(Vec<AbortHandle>);

impl Tasks {
    /// Starts a task. Its panic ends the process; `what` describes it in the log then.
    pub fn spawn(
        &mut self,
        tokio: &Handle,
        what: &'static str,
        f: impl Future<Output = ()> + Send + 'static,
    ) {
        self.0.push(tokio.spawn(task(what, f)).abort_handle());
    }
}

impl Drop for Tasks {
    fn drop(&mut self) {
        for task in &self.0 {
            task.abort();
        }
    }
}
