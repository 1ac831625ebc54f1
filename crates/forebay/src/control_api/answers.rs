//! Documents of the control API, as its OpenAPI description has them.

use forebay_conf::files::Files;
use forebay_core::NGINX_VERSION;
use serde_json::{Value, json};
use std::sync::Arc;

/// Build that `/1/nginx` names.
const BUILD: &str = concat!("forebay-", env!("CARGO_PKG_VERSION"));

/// Answer of the master to a client's question.
#[derive(Debug)]
pub(crate) enum Answer {
    /// Facts about the server.
    Facts(Facts),
    /// Worker processes.
    Processes(Vec<Process>),
    /// Files of the configuration in memory.
    Config(Arc<Files>),
    /// Warnings of a reload that is in effect.
    Reloaded(Vec<String>),
    /// Lines of a reload that was refused.
    NotReloaded(Vec<String>),
}

/// Facts about the server.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Facts {
    /// Number of the master process.
    pub pid: u32,
    /// Number of the configuration, from 1.
    pub generation: u64,
    /// Time when the configuration was read.
    pub loaded: jiff::Timestamp,
}

/// A worker process.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Process {
    pub pid: i32,
    /// It serves its last requests.
    pub exiting: bool,
}

/// A response: status and document.
pub(super) struct Document {
    pub status: u16,
    pub value: Value,
}

impl Document {
    pub(super) fn ok(value: Value) -> Document {
        Document { status: 200, value }
    }

    /// Returns the document of an error, in the form of NGINX Plus.
    pub(super) fn error(status: u16, text: &str) -> Document {
        Document { status, value: json!({ "error": { "status": status, "text": text } }) }
    }
}

impl From<Answer> for Document {
    fn from(answer: Answer) -> Document {
        match answer {
            Answer::Facts(facts) => Document::ok(nginx(facts)),
            Answer::Processes(all) => Document::ok(all.into_iter().map(process).collect()),
            Answer::Config(files) => Document::ok(config(&files)),
            Answer::Reloaded(lines) => Document::ok(json!({ "logs": lines })),
            Answer::NotReloaded(lines) => Document { status: 422, value: json!({ "logs": lines }) },
        }
    }
}

/// The description has `version` and `build`. The other names are those of NGINX Plus for `/nginx` in its API.
fn nginx(facts: Facts) -> Value {
    json!({
        "version": NGINX_VERSION,
        "build": BUILD,
        "pid": facts.pid,
        "generation": facts.generation,
        "load_timestamp": facts.loaded.to_string(),
        "timestamp": jiff::Timestamp::now().to_string(),
    })
}

fn process(process: Process) -> Value {
    json!({ "name": "worker process", "pid": process.pid, "exiting": process.exiting })
}

fn config(files: &Files) -> Value {
    let file = |path: &std::path::Path, bytes: &[u8]| json!({ "name": path.to_string_lossy(), "content": String::from_utf8_lossy(bytes) });
    files.iter().map(|(_, path, bytes)| file(path, bytes)).collect()
}
