//! Tells the program which compiler built it, for `-V`.

use std::process::Command;

fn main() {
    println!("cargo::rerun-if-changed=build.rs");
    let rustc = std::env::var_os("RUSTC").unwrap_or_else(|| "rustc".into());
    let version = Command::new(rustc)
        .arg("--version")
        .output()
        .ok()
        .and_then(|output| String::from_utf8(output.stdout).ok())
        .unwrap_or_else(|| "rustc (unknown)".to_owned());
    println!("cargo::rustc-env=FOREBAY_RUSTC={}", version.trim());
}
