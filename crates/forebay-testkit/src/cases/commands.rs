//! Commands of tables: `ARGUMENT... => EXPECTED[ | EXPECTED]...`.
//!
//! The program runs in the directory, where it has its temporary files and data, too. Arguments are separated by blanks and have the
//! escapes of strings. Expected are: `1`: the exit code; `out EXPECTED` and `err EXPECTED`: a text on a stream; `EXPECTED`: a text on both
//! together, see [`text`](super::text).

use super::{
    row::{split, unescape},
    text,
};
use crate::{Done, Site};

/// Runs a row.
///
/// # Errors
/// The difference to what is expected.
pub(super) fn check(row: &str, site: &Site) -> Result<(), String> {
    let sides = split(row, " => ");
    let done = Done::of(&mut site.subcommand(sides[0].split_whitespace().map(unescape)));
    let expected = sides.get(1).unwrap_or_else(|| panic!("no => in {row}"));
    match split(expected, " | ").into_iter().find(|e| !holds(e.trim(), &done)) {
        Some(failed) => Err(format!("{}: not {failed}: {}\n{}", sides[0], done.code, done.all())),
        None => Ok(()),
    }
}

fn holds(expected: &str, done: &Done) -> bool {
    match (expected.split_once(' '), expected.parse::<i32>()) {
        (Some(("out", expected)), _) => text::holds(expected, &done.out),
        (Some(("err", expected)), _) => text::holds(expected, &done.err),
        (_, Ok(code)) => done.code == code,
        _ => text::holds(expected, &done.all()),
    }
}

#[cfg(test)]
mod tests {
    use super::{Done, holds};

    #[test]
    fn expectations_hold_or_do_not() {
        let done = Done { code: 1, out: "one\n".into(), err: "two one".into() };
        for expected in ["1", r#"out "one\n""#, r#"err ..."one""#, r#"~"two""#, r#"2x "one""#] {
            assert!(holds(expected, &done), "{expected}");
        }
        for expected in ["0", r#"out "one""#, r#"err ~"one\n""#, r#"~"three""#, r#"!~"two""#] {
            assert!(!holds(expected, &done), "{expected}");
        }
    }
}
