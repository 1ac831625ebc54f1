//! docs/directives.md says what the table of directives says.

#[path = "../examples/directives_md.rs"]
mod directives_md;

#[test]
fn the_page_is_up_to_date() {
    let path = concat!(env!("CARGO_MANIFEST_DIR"), "/../../docs/directives.md");
    let page = std::fs::read_to_string(path).expect("docs/directives.md");
    assert!(
        page == directives_md::render(),
        "docs/directives.md is out of date: \
         cargo run -q -p forebay-conf --example directives_md > docs/directives.md"
    );
}
