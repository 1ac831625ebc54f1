//! The command that measures loads beside nginx, on a few of them (interop/loads/README.md).

use std::path::Path;
use std::process::Command;

/// Loads with each generator and each backend.
const FEW: &str =
    "^(http-1k|https-cps-ecdsa|h2-10k|proxy-1k|proxy-10k|fastcgi-1k|proxy-https-1k|grpc-unary)$";

/// Runs the command with nginx and this program. `None`: there is no nginx.
fn run(work: &Path, more: &[&str]) -> Option<(bool, String)> {
    let Some(nginx) = std::env::var("FOREBAY_TEST_NGINX").ok().filter(|n| !n.is_empty()) else {
        assert!(std::env::var_os("CI").is_none(), "FOREBAY_TEST_NGINX names no nginx");
        println!("skipped: FOREBAY_TEST_NGINX names no nginx");
        return None;
    };
    let out = Command::new(Path::new(env!("CARGO_MANIFEST_DIR")).join("../../interop/loads/run"))
        .args(["--nginx", &nginx, "--forebay", env!("CARGO_BIN_EXE_forebay")])
        .arg("--work")
        .arg(work)
        .args(more)
        .output()
        .expect("python3 starts");
    let text = String::from_utf8_lossy(&out.stdout).into_owned() + &String::from_utf8_lossy(&out.stderr);
    if text.contains("programs are missing") || text.contains("two processors are needed") {
        assert!(std::env::var_os("CI").is_none(), "{text}");
        println!("skipped: {text}");
        return None;
    }
    Some((out.status.success(), text))
}

#[test]
fn loads_are_compared_and_measured() {
    let work = tempfile::tempdir().expect("a directory");
    let Some((good, text)) = run(work.path(), &["--check", "--cases", FEW]) else { return };
    assert!(good, "{text}");
    assert_eq!(text.lines().filter(|line| line.ends_with(" same")).count(), 8, "{text}");

    // The table takes the place of the one before, and nothing else changes.
    let page = work.path().join("page.md");
    std::fs::write(&page, "before\n<!-- loads -->\nold\n<!-- /loads -->\nafter\n").expect("write");
    let options =
        ["--cases", "^(http-1k|proxy-10k)$", "--rounds", "2", "--seconds", "0.1", "--floor", "--out"];
    let (good, text) =
        run(work.path(), &[&options[..], &[page.to_str().expect("a path")]].concat()).expect("nginx");
    assert!(good, "{text}");
    let page = std::fs::read_to_string(&page).expect("read");
    assert!(page.starts_with("before\n<!-- loads -->\nnginx "), "{page}");
    assert!(page.ends_with("<!-- /loads -->\nafter\n"), "{page}");
    for name in ["http-1k", "proxy-10k"] {
        let row = page.lines().find(|line| line.starts_with(&format!("| {name} | request | ")));
        let cells = row.map(|row| row.split('|').map(str::trim).collect::<Vec<_>>()).unwrap_or_default();
        assert!(cells.len() == 10 && cells[3..7].iter().all(|cell| *cell != "-"), "{page}");
    }
}
