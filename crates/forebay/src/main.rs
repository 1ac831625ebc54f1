//! The forebay web server.
fn main() {}
