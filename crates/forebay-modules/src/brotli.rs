//! `brotli` and related directives, with the names of the ngx_brotli module. [`crate::compress`] does the compression.

use super::gzip::{Level, PowerOfTwo};
use super::gzip_static::Mode;
use forebay_core::config::value::Size;
use forebay_server::config::mime_types::MimeTypes;
use forebay_server::module::Module;

forebay_server::module_settings! {
    /// `brotli`.
    "brotli" => on: bool = false;
    /// `brotli_types`.
    "brotli_types" => types: MimeTypes = MimeTypes::of(&["text/html"]);
    /// `brotli_min_length`, bytes.
    "brotli_min_length" => min_length: Size = Size(20);
    /// `brotli_comp_level`.
    "brotli_comp_level" => level: Level<0, 11> = Level(6);
    /// `brotli_window`, as a power of two.
    "brotli_window" => window: PowerOfTwo<10, 24> = PowerOfTwo(19);
    /// `brotli_static`.
    "brotli_static" => ready: Mode = Mode::Off;
}

/// `brotli`.
pub static MODULE: Module = Module { settings: &[&SETTINGS], ..Module::NONE };
