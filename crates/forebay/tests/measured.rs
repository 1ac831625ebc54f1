//! Tests of what measures: one at a time and in a program of their own, since `cargo test` runs programs one after the
//! other. Beside other tests they would measure those.
#![allow(missing_docs)]
#![allow(clippy::disallowed_methods, reason = "tests make files as they like")]

mod stalls;
mod tune;

use std::sync::{Mutex, MutexGuard, PoisonError};

/// The machine, for as long as the guard lives.
fn alone() -> MutexGuard<'static, ()> {
    static MACHINE: Mutex<()> = Mutex::new(());
    // A test that failed has no claim on it.
    MACHINE.lock().unwrap_or_else(PoisonError::into_inner)
}
