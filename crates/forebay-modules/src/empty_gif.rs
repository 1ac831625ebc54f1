//! `empty_gif` (nginx: ngx_http_empty_gif_module).

use forebay_http::request::Method;
use forebay_server::module::{Content, Module, Needs, Page, Verdict};
use forebay_server::request::Request;
use forebay_server::response::Part;

/// `empty_gif`.
pub static MODULE: Module = Module {
    location_directives: &[("empty_gif", |_, l, _| {
        l.content = Content::of(Page { answer: handle, needs: Needs::default() });
        Ok(())
    })],
    ..Module::NONE
};

/// A transparent pixel in GIF89a (sections 17 ff.).
const PIXEL: &[u8; 43] = &[
    b'G', b'I', b'F', b'8', b'9', b'a', // signature
    1, 0, 1, 0, // screen of 1 by 1
    0x80, 1, 0, // global table of two colours; background is the second; no aspect ratio
    0, 0, 0, 0xff, 0xff, 0xff, // black, white
    0x21, 0xf9, 4, 1, 0, 0, 1, 0, // graphic control: colour 1 is transparent
    0x2c, 0, 0, 0, 0, 1, 0, 1, 0, 0, // image of 1 by 1 at the origin
    2, 2, 0x4c, 1, 0,    // two bits a code: clear, colour 1, end
    0x3b, // trailer
];

/// `Last-Modified` of the pixel: Mon, 28 Sep 1970 06:00:00 GMT.
const MODIFIED: i64 = 23_349_600;

/// Answers with the pixel.
fn handle(req: &mut Request) -> Verdict {
    if !matches!(req.method, Method::Get | Method::Head) {
        return Verdict::Status(405);
    }
    let r = &mut req.resp;
    r.status = 200;
    r.content_type = b"image/gif".to_vec();
    r.content_length = Some(PIXEL.len() as u64);
    r.validators.last_modified = Some(MODIFIED);
    r.body.clear();
    r.body.push(Part::Static(PIXEL));
    Verdict::Done
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_date_is_the_known_one() {
        assert_eq!(&forebay_http::date::imf(MODIFIED), b"Mon, 28 Sep 1970 06:00:00 GMT");
    }

    #[test]
    fn the_pixel_is_whole() {
        assert!(PIXEL.starts_with(b"GIF89a") && PIXEL.last() == Some(&0x3b));
    }
}
