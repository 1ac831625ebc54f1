//! Stream front end: connections that are passed on as bytes (nginx: ngx_stream_core_module and its modules).
//!
//! `config/` reads the block, `session.rs` runs the phases of a connection, `modules/` has a file for each module of nginx. What
//! HTTP has as well (upstream groups, variables, logs, TLS) is in `forebay_core`.

mod access_log;
mod config;
mod front;
mod modules;
mod passing;
mod rare_line;
mod session;
#[cfg(test)]
mod tests;
mod thread;
mod udp;
mod variables;

/// Returns the names of all variables of stream. A family ends in `*`.
pub fn variable_names() -> impl Iterator<Item = &'static str> {
    variables::all().map(|row| row.name)
}

/// The stream front end.
pub static FRONT_END: front::StreamFrontEnd = front::StreamFrontEnd;
