//! `gzip` and related directives (nginx: ngx_http_gzip_filter_module). [`crate::compress`] does the compression.

use crate::compress;
use forebay_conf::error::Error;
use forebay_conf::tree::Directive;
use forebay_conf::units;
use forebay_core::config::value::{Setting, Size, first, once};
use forebay_core::vars::RowSource;
use forebay_core::vars::VarError;
use forebay_server::config::Scope;
use forebay_server::config::mime_types::MimeTypes;
use forebay_server::module::Module;
use forebay_server::request::Request;
use forebay_server::response::coding::Coding;
use forebay_server::variables::Row;

forebay_server::module_settings! {
    /// `gzip`.
    "gzip" => on: bool = false;
    /// `gzip_types`.
    "gzip_types" => types: MimeTypes = MimeTypes::of(&["text/html"]);
    /// `gzip_min_length`, bytes.
    "gzip_min_length" => min_length: Size = Size(20);
    /// `gzip_comp_level`.
    "gzip_comp_level" => level: Level<1, 9> = Level(1);
    /// `gzip_window`, as a power of two.
    "gzip_window" => window: PowerOfTwo<9, 15> = PowerOfTwo(15);
    /// `gzip_hash`, as a power of two. Without effect: the encoder sizes its tables by the level.
    "gzip_hash" => hash: PowerOfTwo<9, 17> = PowerOfTwo(16);
}

/// A level of compression from `MIN` to `MAX`.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Level<const MIN: u8, const MAX: u8>(pub u8);

impl<const MIN: u8, const MAX: u8> Setting<forebay_server::config::HttpContext> for Level<MIN, MAX> {
    fn take(previous: Option<Self>, d: &Directive, cx: &mut Scope<'_>) -> Result<Self, Error> {
        once(&previous, d, cx)?;
        let n = units::number(first(d)).ok_or_else(|| cx.directive_error(d, "invalid number"))?;
        match u8::try_from(n) {
            Ok(n) if (MIN..=MAX).contains(&n) => Ok(Level(n)),
            _ => Err(cx.error(d, format!("value must be between {MIN} and {MAX}"))),
        }
    }
}

/// A size that is a power of two, kept as its exponent, from `MIN` to `MAX`.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct PowerOfTwo<const MIN: u8, const MAX: u8>(pub u8);

impl<const MIN: u8, const MAX: u8> Setting<forebay_server::config::HttpContext> for PowerOfTwo<MIN, MAX> {
    fn take(previous: Option<Self>, d: &Directive, cx: &mut Scope<'_>) -> Result<Self, Error> {
        once(&previous, d, cx)?;
        let n = units::size(first(d)).ok_or_else(|| cx.directive_error(d, "invalid value"))?;
        let exponent = n.checked_ilog2().filter(|_| n.is_power_of_two()).and_then(|e| u8::try_from(e).ok());
        match exponent {
            Some(e) if (MIN..=MAX).contains(&e) => Ok(PowerOfTwo(e)),
            _ => {
                // nginx lists all permitted sizes in its message, in the same words.
                let names: Vec<String> = (MIN..MAX).map(name).collect();
                let what = format!("must be {}, or {}", names.join(", "), name(MAX));
                Err(cx.directive_error(d, &what))
            }
        }
    }
}

/// Returns a power of two as nginx writes it.
fn name(exponent: u8) -> String {
    match exponent {
        0..10 => (1u32 << exponent).to_string(),
        10..20 => format!("{}k", 1u32 << (exponent - 10)),
        _ => format!("{}m", 1u32 << (exponent - 20).min(31)),
    }
}

/// `gzip`.
pub static MODULE: Module = Module { settings: &[&SETTINGS], variables: &[VARIABLES], ..Module::NONE };

const VARIABLES: &[Row] = &[
    Row { name: "gzip_ratio", get: RowSource::Get(gzip_ratio), settable: false },
    Row { name: "brotli_ratio", get: RowSource::Get(brotli_ratio), settable: false },
    Row { name: "zstd_ratio", get: RowSource::Get(zstd_ratio), settable: false },
];

fn gzip_ratio(r: &mut Request, out: &mut Vec<u8>) -> Result<bool, VarError> {
    Ok(compress::ratio(r, Coding::Gzip, out))
}

fn brotli_ratio(r: &mut Request, out: &mut Vec<u8>) -> Result<bool, VarError> {
    Ok(compress::ratio(r, Coding::Br, out))
}

fn zstd_ratio(r: &mut Request, out: &mut Vec<u8>) -> Result<bool, VarError> {
    Ok(compress::ratio(r, Coding::Zstd, out))
}

#[cfg(test)]
mod tests {
    use crate::testing;

    #[test]
    fn values_are_judged_as_nginx_does() {
        for (text, message) in [
            ("gzip_comp_level 10", "value must be between 1 and 9"),
            ("gzip_comp_level x", "\"gzip_comp_level\" directive invalid number"),
            ("gzip_window 3k", "\"gzip_window\" directive must be 512, 1k, 2k, 4k, 8k, 16k, or 32k"),
            ("gzip_window 256", "\"gzip_window\" directive must be 512, 1k, 2k, 4k, 8k, 16k, or 32k"),
            ("gzip_hash 256k", "\"gzip_hash\" directive must be 512, 1k, 2k, 4k, 8k, 16k, 32k, 64k, or 128k"),
            ("postpone_gzipping x", "\"postpone_gzipping\" directive invalid value"),
            ("gzip on; gzip off", "\"gzip\" directive is duplicate"),
            ("brotli_comp_level 12", "value must be between 0 and 11"),
            ("zstd_comp_level 0", "value must be between 1 and 22"),
            (
                "brotli_window 3k",
                "\"brotli_window\" directive must be 1k, 2k, 4k, 8k, 16k, 32k, 64k, 128k, 256k, 512k, 1m, 2m, \
                 4m, 8m, or 16m",
            ),
        ] {
            assert_eq!(testing::error(&format!("{text};")).as_deref(), Some(message), "{text}");
        }
        assert_eq!(
            testing::error("gzip_hash 128k; gzip_window 512; gzip_types *; brotli_comp_level 0;"),
            None
        );
    }
}
