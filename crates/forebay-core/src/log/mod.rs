//! Logs: lines of the error log and of access logs, buffers, files, syslog.
//!
//! The lines of access logs are in slots of a memfd (`forebay-sys/src/log_area.rs`), which the master made for the worker process. When
//! the process has ended, `forebay/src/log_recovery.rs` reads what is left and writes it to the file, and completes a line that was cut
//! off (`write.rs`). `error.rs` gathers lines in the thread's memory and writes them at the end of the turn. `error_log.rs` of
//! forebay-server describes the request in them.

pub mod access;
pub mod buffers;
pub mod error;
pub mod files;
pub mod json;
pub mod syslog;
pub mod write;
