//! The forebay web server: nginx's command line, processes and signals.
//!
//! One program in three roles: [`server`] and its [`master`], started by people; [`worker`], started by the
//! master; and the subcommands (`subcommands.rs`).

#![warn(unreachable_pub)]
#![warn(
    clippy::print_stdout,
    reason = "it panics if the reader has gone away; forebay_terminal::print does not"
)]
#![cfg_attr(test, allow(clippy::disallowed_methods, reason = "tests make files as they like"))]

mod acme;
mod building;
mod changes;
mod check;
mod cli;
#[cfg(feature = "kubernetes")]
mod cluster;
mod command_help;
mod control_api;
mod controller_process;
mod dashboard_facts;
mod doctor;
mod explain;
mod fmt;
mod front_ends;
mod healthcheck;
mod help;
mod https;
mod in_effect;
mod in_thread;
#[cfg(feature = "kubernetes")]
mod ingress;
mod listen;
mod log_recovery;
mod manual;
mod master;
mod master_log;
mod moving;
mod origin;
mod passwd;
mod paths;
mod plan;
mod proxy;
mod reload;
mod reports;
mod serve;
mod server;
mod service_manager;
mod signals;
mod state;
mod subcommands;
mod succession;
mod title;
mod top;
mod trust;
mod watch;
mod wire;
mod worker;
mod worker_messages;

use std::ffi::OsString;
use std::process::ExitCode;

#[global_allocator]
static ALLOCATOR: forebay_sys::heap::Allocator = forebay_sys::heap::Allocator;

fn main() -> ExitCode {
    if std::env::var_os(worker::ROLE).is_some() {
        return worker::main().into();
    }
    let (mut arguments, titled) = title::arguments();
    if is_plugin(&arguments) {
        arguments.insert(1, "ingress".into());
    }
    if is_subcommand(&arguments) {
        return subcommands::main(arguments, titled).into();
    }
    server::main(arguments, titled).into()
}

/// Returns `true` if kubectl started the program, as it does for `kubectl forebay`.
fn is_plugin(arguments: &[OsString]) -> bool {
    let name = arguments.first().map(std::path::Path::new).and_then(std::path::Path::file_name);
    name.is_some_and(|name| name == "kubectl-forebay")
}

/// Returns `true` if the first argument is a word, which names a subcommand or is a mistake: nginx's options begin with a dash.
fn is_subcommand(arguments: &[OsString]) -> bool {
    let word = arguments.get(1).map(|word| word.to_string_lossy()).unwrap_or_default();
    matches!(&*word, "--help" | "--version") || !(word.is_empty() || word.starts_with('-'))
}
