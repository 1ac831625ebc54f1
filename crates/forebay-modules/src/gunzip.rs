//! `gunzip` (nginx: ngx_http_gunzip_module): decompression of responses for clients that do not accept gzip.

use crate::compress;
use crate::gzip_accept;
use flate2::write::MultiGzDecoder;
use forebay_core::vars::VarError;
use forebay_http::request::Method;
use forebay_server::module::levels::LocationSettings;
use forebay_server::module::{HeaderFilter, Module};
use forebay_server::request::Request;
use forebay_server::response::{BodyFilter, FilterError};
use std::io::Write;

forebay_server::module_settings! {
    /// `gunzip`.
    "gunzip" => on: bool = false;
}

/// `gunzip`.
pub static MODULE: Module = Module {
    settings: &[&SETTINGS],
    header_filters: &[HeaderFilter::new(enabled, filter).included()],
    ..Module::NONE
};

/// Returns `true` if a location has `gunzip on`.
fn enabled(s: &LocationSettings) -> bool {
    SETTINGS.of(s).on
}

/// Decompresses the response if the client does not accept gzip.
///
/// # Errors
/// Never.
fn filter(req: &mut Request) -> Result<(), VarError> {
    let r = &req.resp;
    let zipped = r.fields.get(b"Content-Encoding").is_some_and(|c| c.eq_ignore_ascii_case(b"gzip"));
    if !zipped {
        return Ok(());
    }
    let http = req.http();
    let s = &http.location(req).settings;
    req.resp.server_fields.vary |= gzip_accept::SETTINGS.of(s).vary;
    // The body of a subrequest becomes part of another response, so it must not stay compressed.
    if !req.is_subrequest() && gzip_accept::accepted(req, s) {
        return Ok(());
    }
    compress::unknown_length(req);
    req.resp.fields.remove(b"Content-Encoding");
    if req.method == Method::Head {
        return Ok(());
    }
    req.resp.filters.body.push(Box::new(Gunzip { decoder: MultiGzDecoder::new(Vec::new()) }));
    Ok(())
}

/// Body filter that decompresses gzip. A body may have several members (RFC 1952, section 2.2).
struct Gunzip {
    decoder: MultiGzDecoder<Vec<u8>>,
}

impl BodyFilter for Gunzip {
    fn feed(&mut self, input: &[u8], last: bool, out: &mut Vec<u8>) -> Result<(), FilterError> {
        // The decoder owns the buffer into which it writes. For the call it gets the one of the caller, so
        // that nothing is copied.
        std::mem::swap(self.decoder.get_mut(), out);
        let mut done = self.decoder.write_all(input);
        if last && done.is_ok() {
            // The end of a body in the middle of a member is an error, so that a cut response does not pass
            // for a whole one.
            done = self.decoder.try_finish();
        } else if done.is_ok() {
            // Moves what was decoded out of the decoder's own buffer.
            done = self.decoder.flush();
        }
        std::mem::swap(self.decoder.get_mut(), out);
        done.map_err(|_| FilterError("inflate() failed"))
    }

    fn expands(&self) -> bool {
        true
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn zipped(text: &[u8]) -> Vec<u8> {
        let mut e = flate2::write::GzEncoder::new(Vec::new(), flate2::Compression::fast());
        e.write_all(text).expect("written");
        e.finish().expect("finished")
    }

    fn unzipped(bytes: &[u8], piece: usize) -> Result<Vec<u8>, FilterError> {
        let mut g = Gunzip { decoder: MultiGzDecoder::new(Vec::new()) };
        let mut out = Vec::new();
        for p in bytes.chunks(piece) {
            g.feed(p, false, &mut out)?;
        }
        g.feed(b"", true, &mut out).map(|()| out)
    }

    #[test]
    fn members_are_joined_however_they_are_cut() {
        let text = b"some text that is compressed ".repeat(1000);
        let both = [zipped(&text), zipped(b"end")].concat();
        for piece in [1, 7, 100, both.len()] {
            assert_eq!(unzipped(&both, piece), Ok([&text[..], b"end"].concat()));
        }
    }

    #[test]
    fn broken_or_cut_gzip_is_no_body() {
        let mut good = zipped(b"text");
        assert!(unzipped(&good[..good.len() - 3], 5).is_err());
        assert!(unzipped(b"no gzip at all", 5).is_err());
        let at = good.len() - 6;
        good[at] ^= 1;
        assert!(unzipped(&good, 5).is_err(), "checksum");
    }
}
