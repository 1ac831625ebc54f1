//! The kinds of servers of this program, and configurations for them.

use forebay_conf::error::Error;
use forebay_conf::files::Files;
use forebay_conf::tree::Tree;
use forebay_core::config::{Config, Environment, Memory};
use forebay_core::front::FrontEnd;

/// Front ends, in the order of their numbers.
pub(crate) static FRONT_ENDS: &[&dyn FrontEnd] = &[&forebay_modules::FRONT_END, &forebay_stream::FRONT_END];

/// Number of the front end of the stream block.
pub(crate) const STREAM: u8 = 1;

/// Reads, checks and builds a configuration (see [`forebay_core::config::load`]).
///
/// # Errors
/// The error that nginx would have reported first.
pub(crate) fn load(env: &Environment, files: &mut Files) -> Result<(Config, Vec<Error>), Error> {
    forebay_core::config::load(env, files, FRONT_ENDS)
}

/// Reads a configuration as [`load`] does, and takes over what has not changed since the one before.
///
/// # Errors
/// As [`load`].
pub(crate) fn load_after(
    memory: &mut Memory,
    env: &Environment,
    files: &mut Files,
) -> Result<(Config, Vec<Error>), Error> {
    memory.load(env, files, FRONT_ENDS)
}

/// Reads a part of a configuration (see [`forebay_core::config::load_part`]).
///
/// # Errors
/// As [`load`].
pub(crate) fn load_part(
    env: &Environment,
    files: &mut Files,
    narrow: impl FnOnce(&mut Tree),
) -> Result<(Config, Vec<Error>, Tree), Error> {
    forebay_core::config::load_part(env, files, FRONT_ENDS, narrow)
}

/// As [`load`], and finds all errors (see [`forebay_core::config::load_all`]).
pub(crate) fn load_all(env: &Environment, files: &mut Files) -> (Option<Config>, Vec<Error>) {
    forebay_core::config::load_all(env, files, FRONT_ENDS)
}
