//! Servers of tables that nginx and the program judge alike: both accept them, or both refuse them and say the same.

use super::Compared;
use crate::{Site, program, wrap};
use std::process::Stdio;

/// Compares the judgements about rows, each the content of a server.
pub(super) fn check(rows: &[String], compared: &Compared) {
    let Some(nginx) = compared.oracle() else { return };
    let mut differences = String::new();
    for row in rows {
        let site = Site::new(wrap(&format!("server {{ {row} }}")));
        let (theirs, ours) = (judgement(&site, &nginx), judgement(&site, program()));
        if theirs != ours {
            differences.push_str(&format!("== {row}\n-- nginx\n{theirs:?}\n-- forebay\n{ours:?}\n"));
        }
    }
    assert!(differences.is_empty(), "{differences}");
}

/// Returns the exit code of a program's check, and what it says but for warnings of its own.
fn judgement(site: &Site, program: &str) -> (Option<i32>, String) {
    let mut command = site.command(program, &["-e", "logs/error.log", "-t"]);
    let out = command.stdin(Stdio::null()).output().expect("runs");
    let text = String::from_utf8_lossy(&out.stderr).into_owned();
    let is_compared = |line: &&str| line.contains("[emerg]") || line.contains("[warn] duplicate");
    (out.status.code(), text.lines().filter(is_compared).collect::<Vec<_>>().join("\n"))
}
