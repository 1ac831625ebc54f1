//! Other programs, and files.

use std::io::Write;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};

/// Runs a program to its end. Returns code, standard output and standard error; `None` where it is not installed.
pub fn run(program: &str, args: &[&str]) -> Option<(i32, String, String)> {
    let output = Command::new(program).args(args).stdin(Stdio::null()).output().ok()?;
    let text = |b: &[u8]| String::from_utf8_lossy(b).into_owned();
    Some((output.status.code().unwrap_or(-1), text(&output.stdout), text(&output.stderr)))
}

/// Returns `true` if a program is installed. In CI it has to be.
pub fn tool(name: &str) -> bool {
    let found = Command::new("sh").args(["-c", &format!("command -v {name}")]).stdout(Stdio::null()).status();
    let found = found.is_ok_and(|s| s.success());
    if !found {
        assert!(std::env::var_os("CI").is_none(), "{name} is not installed");
        println!("skipped: {name} is not installed");
    }
    found
}

/// Returns what a program makes of bytes.
pub fn through(command: &[&str], bytes: &[u8]) -> Vec<u8> {
    let mut child = (Command::new(command[0]).args(&command[1..]))
        .stdin(Stdio::piped())
        .stdout(Stdio::piped())
        .spawn()
        .expect("the tool runs");
    let mut input = child.stdin.take().expect("piped");
    let bytes = bytes.to_vec();
    let writer = std::thread::spawn(move || drop(input.write_all(&bytes)));
    let out = child.wait_with_output().expect("output");
    writer.join().expect("writer");
    assert!(out.status.success(), "{command:?}");
    out.stdout
}

/// Returns the files below a directory.
pub fn files(dir: &Path) -> Vec<PathBuf> {
    let mut all = Vec::new();
    for entry in std::fs::read_dir(dir).into_iter().flatten().flatten() {
        match entry.path() {
            p if p.is_dir() => all.extend(files(&p)),
            p => all.push(p),
        }
    }
    all
}
