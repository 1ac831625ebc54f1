//! Logs: lines of the error log and of access logs, buffers, files, syslog.

pub mod access;
pub mod buffers;
pub mod error;
pub mod files;
pub mod syslog;
pub mod write;
