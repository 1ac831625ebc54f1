//! Commands of tables: `ARGUMENT... => EXPECTED[ | EXPECTED]...`.
//!
//! The program runs in the directory, where it has its temporary files and data, too. Arguments are separated by blanks and have the
//! escapes of strings. Expected are: `1`: the exit code; `out EXPECTED` and `err EXPECTED`: a text on a stream; `EXPECTED`: a text on both
//! together, see [`text`](super::text).

use super::{
    row::{split, unescape},
    text,
};
use crate::{Site, program};
use std::process::{Command, Stdio};

/// Output of a command.
struct Printed {
    code: String,
    out: String,
    err: String,
}

/// Runs a row.
///
/// # Errors
/// The difference to what is expected.
pub(super) fn check(row: &str, site: &Site) -> Result<(), String> {
    let sides = split(row, " => ");
    let done = (Command::new(program()).args(sides[0].split_whitespace().map(unescape)))
        .current_dir(site.dir())
        .env_remove("NGINX")
        .env("LC_ALL", "C")
        .env("TMPDIR", site.dir())
        .env("XDG_DATA_HOME", site.path("data"))
        .env("XDG_STATE_HOME", site.path("state"))
        .stdin(Stdio::null())
        .output()
        .expect("runs");
    let text = |bytes: &[u8]| String::from_utf8_lossy(bytes).into_owned();
    let code = done.status.code().map_or_else(|| done.status.to_string(), |code| code.to_string());
    let printed = Printed { code, out: text(&done.stdout), err: text(&done.stderr) };
    let expected = sides.get(1).unwrap_or_else(|| panic!("no => in {row}"));
    match split(expected, " | ").into_iter().find(|e| !printed.holds(e.trim())) {
        Some(failed) => {
            Err(format!("{}: not {failed}: {}\n{}{}", sides[0], printed.code, printed.out, printed.err))
        }
        None => Ok(()),
    }
}

impl Printed {
    fn holds(&self, expected: &str) -> bool {
        match (expected.split_once(' '), expected.parse::<i32>()) {
            (Some(("out", expected)), _) => text::holds(expected, &self.out),
            (Some(("err", expected)), _) => text::holds(expected, &self.err),
            (_, Ok(_)) => self.code == expected,
            _ => text::holds(expected, &format!("{}{}", self.out, self.err)),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::Printed;

    #[test]
    fn expectations_hold_or_do_not() {
        let printed = Printed { code: "1".into(), out: "one\n".into(), err: "two one".into() };
        for expected in ["1", r#"out "one\n""#, r#"err ..."one""#, r#"~"two""#, r#"2x "one""#] {
            assert!(printed.holds(expected), "{expected}");
        }
        for expected in ["0", r#"out "one""#, r#"err ~"one\n""#, r#"~"three""#, r#"!~"two""#] {
            assert!(!printed.holds(expected), "{expected}");
        }
    }
}
