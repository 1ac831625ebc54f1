//! `zstd` and related directives, with the names of the zstd-nginx-module. [`crate::compress`] does the compression.

use super::gzip::Level;
use super::gzip_static::Mode;
use forebay_core::config::value::Size;
use forebay_server::config::mime_types::MimeTypes;
use forebay_server::module::Module;

forebay_server::module_settings! {
    /// `zstd`.
    "zstd" => on: bool = false;
    /// `zstd_types`.
    "zstd_types" => types: MimeTypes = MimeTypes::of(&["text/html"]);
    /// `zstd_min_length`, bytes.
    "zstd_min_length" => min_length: Size = Size(20);
    /// `zstd_comp_level`.
    "zstd_comp_level" => level: Level<1, 22> = Level(1);
    /// `zstd_static`.
    "zstd_static" => ready: Mode = Mode::Off;
}

/// `zstd`.
pub static MODULE: Module = Module { settings: &[&SETTINGS], ..Module::NONE };
