//! Work of modules for a configuration that goes on independently of requests. Tasks on the process's tokio thread.

use crate::config::http::Http;
use forebay_core::config::Config;
use forebay_core::outside::Outside;
use forebay_core::shared_store::Tells;
use forebay_core::tasks::{Log, Tasks};
use forebay_core::tls::ocsp::staple;
use std::sync::Arc;

/// Beginning of a configuration.
pub struct Beginning<'b> {
    /// Its http block.
    pub http: &'b Arc<Http>,
    /// The http block of the configuration before; `None` at the start of the process.
    pub former: Option<&'b Http>,
    /// All of it.
    pub config: &'b Config,
    /// The process.
    pub outside: &'b Outside,
    /// Number of the HTTP front end.
    pub front: u8,
    /// Error log.
    pub log: &'b Log,
    /// Tasks of the configuration. They end with it.
    pub tasks: Tasks,
    /// Receivers of messages that other machines send by the shared store.
    pub tells: Vec<Arc<dyn Tells>>,
}

/// Begins the work of all modules for a configuration.
pub fn begin(
    http: &Arc<Http>,
    former: Option<&Http>,
    config: &Config,
    outside: &Outside,
    front: u8,
) -> Tasks {
    let log: &Log = &{
        let outside = outside.clone();
        Arc::new(move |level, line: &str| outside.log(level, line))
    };
    let (tasks, tells) = (Tasks::default(), Vec::new());
    let mut beginning = Beginning { http, former, config, outside, front, log, tasks, tells };
    for begin in crate::module::list::all().iter().filter_map(|module| module.begin) {
        begin(&mut beginning);
    }
    let Beginning { mut tasks, tells, .. } = beginning;
    let tokio = &outside.tokio;
    http.shared_store.start(tells, &mut tasks, tokio, log);
    for stapling in &http.staplings {
        tasks.spawn(tokio, "asking responders", staple::start(stapling, log));
    }
    tasks
}
