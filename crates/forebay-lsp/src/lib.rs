//! `forebay lsp`: a language server (LSP 3.17) for nginx.conf, on standard input and output.
//!
//! The parser, the checks of all stages and the rules of doctor are the program's own. `project.rs` reads the configuration that a
//! document belongs to, with the texts of open documents in place of the files. `symbols.rs` has the names in it, `cursor.rs` what is
//! around a place in a text that may not be complete, `checking.rs` the thread for what takes longer, and a file for each group of answers uses them.

#![warn(unreachable_pub)]

mod checking;
mod completion;
mod cursor;
mod diagnostics;
mod outline;
mod project;
mod server;
mod symbols;
mod text;
mod words;

pub use project::Check;

/// Serves the client at standard input and output until it ends the session. `check` finds the mistakes of all stages. Returns the exit
/// code: 0 after `shutdown` and `exit`, 1 if the connection breaks.
pub fn main(check: Check) -> u8 {
    let (connection, threads) = lsp_server::Connection::stdio();
    let served = server::serve(&connection, check);
    drop(connection);
    let ended = threads.join();
    match (served, ended) {
        (Ok(()), Ok(())) => 0,
        (Err(why), _) => {
            eprintln!("forebay lsp: {why}");
            1
        }
        (_, Err(e)) => {
            eprintln!("forebay lsp: {e}");
            1
        }
    }
}
