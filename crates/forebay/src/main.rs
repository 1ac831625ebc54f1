//! The forebay web server: nginx's command line, processes and signals.
//!
//! One program in three roles: [`server`] and its [`master`], started by people; [`worker`], started by the
//! master; and the subcommands `check`, `explain` and `serve`.

mod cli;
mod listen;
mod master;
mod master_log;
mod paths;
mod plan;
mod server;
mod signals;
mod state;
mod title;
mod wire;
mod worker;

use std::process::ExitCode;

fn main() -> ExitCode {
    if std::env::var_os(worker::ROLE).is_some() {
        return worker::main().into();
    }
    let (arguments, titled) = title::arguments();
    server::main(arguments, titled).into()
}
