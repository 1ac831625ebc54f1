//! Acts on the server of a table, and on its files:
//!
//! `signal NAME`, `exits CODE`, `restarts`, `kill worker`, `same worker` (as at the last such row), `remove FILE`, `rename FILE FILE`,
//! `copy FILE FILE`, `link TO NAME` (a symbolic one), `mode FILE OCTAL` (is that), `chmod FILE OCTAL`, `same FILE FILE` (have the same
//! text), `files DIRECTORY COUNT` (has so many, for which it waits), `gone FILE` (waits until there is none), `exists FILE`,
//! `upgrade`: another process of the program takes over, whose worker process is `{worker}`.

use super::talk::Talks;
use crate::{Server, Signal, files, quit, wait_for, wait_until};
use std::os::unix::fs::PermissionsExt;

/// Pid of the worker process at the last row about it.
pub(super) type Worker = Option<i32>;

/// Carries out a row.
pub(super) fn act(row: &str, server: &mut Server, worker: &mut Worker, talks: &mut Talks) {
    let words: Vec<&str> = row.split_whitespace().collect();
    let path = |name: &str| server.path(name);
    match words[..] {
        ["signal", name] => server.signal(format!("SIG{name}").parse::<Signal>().expect("a signal")),
        ["exits", code] => assert_eq!(server.wait_end(), code.parse().ok(), "{}", server.error_log()),
        ["restarts"] => server.restart(),
        ["kill", "worker"] => server.kill_worker(),
        ["same", "worker"] => {
            let now = server.worker();
            assert_eq!(*worker.get_or_insert(now), now, "the worker process");
        }
        ["upgrade"] => {
            let old = server.pid();
            let new = server.successor(old);
            let worker = wait_for("its worker", || server.workers(new).first().copied());
            talks.name("worker", worker.to_string());
            quit(old);
        }
        ["gone", name] => wait_until(row, || !path(name).exists()),
        ["exists", name] => assert!(path(name).exists(), "{name}"),
        ["remove", name] => std::fs::remove_file(path(name)).expect("removed"),
        ["rename", from, to] => std::fs::rename(path(from), path(to)).expect("renamed"),
        ["copy", from, to] => drop(std::fs::copy(path(from), path(to)).expect("copied")),
        ["link", to, name] => std::os::unix::fs::symlink(path(to), path(name)).expect("linked"),
        ["mode", name, octal] => {
            let mode = path(name).metadata().expect("a file").permissions().mode() & 0o777;
            assert_eq!(format!("{mode:o}"), octal, "{name}");
        }
        ["chmod", name, octal] => {
            let mode = PermissionsExt::from_mode(u32::from_str_radix(octal, 8).expect("a mode"));
            std::fs::set_permissions(path(name), mode).expect("changed");
        }
        ["same", one, other] => assert_eq!(server.read(one), server.read(other), "{row}"),
        ["files", directory, count] => {
            wait_until(row, || files(&path(directory)).len().to_string() == count);
        }
        _ => panic!("no act {row}"),
    }
}
