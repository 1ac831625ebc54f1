//! Writes a configuration with many servers into a directory, for measurements (docs/performance-notes.md):
//! `cargo run -p forebay --example many_servers -- DIRECTORY COUNT PORT`.
//!
//! `one.conf` has everything, `nginx.conf` includes the files in `sites`, one for each server.

#![allow(clippy::disallowed_methods, reason = "a tool of developers makes files as they like")]

#[path = "../tests/harness/many.rs"]
mod many;

use std::path::PathBuf;

fn main() -> std::io::Result<()> {
    let arguments: Vec<String> = std::env::args().skip(1).collect();
    let [directory, count, port] = arguments.as_slice() else {
        return Err(std::io::Error::other("usage: many_servers DIRECTORY COUNT PORT"));
    };
    let directory = PathBuf::from(directory);
    let count: usize = count.parse().map_err(std::io::Error::other)?;
    let port: u16 = port.parse().map_err(std::io::Error::other)?;
    let sites = directory.join("sites");
    std::fs::create_dir_all(&sites)?;
    let mut all = String::new();
    for number in 0..count {
        let site = many::site(number, port, &many::backend(number));
        std::fs::write(sites.join(many::file_name(number)), &site)?;
        all.push_str(&site);
    }
    std::fs::write(directory.join("one.conf"), many::main(&directory, port, &all))?;
    std::fs::write(directory.join("nginx.conf"), many::main(&directory, port, "include sites/*.conf;"))
}
