//! `forebay passwd`: users of `auth_basic_user_file`, with hashes of bcrypt.

use crate::fmt::replace;
use crate::master_log::errno;
use crate::subcommands::PasswdArgs;
use forebay_modules::password;
use forebay_sys::files;
use forebay_terminal::{hidden_line, print};
use std::io::{BufRead, IsTerminal, Write};
use std::os::unix::fs::PermissionsExt;
use std::path::Path;

/// Longest password, bytes: bcrypt does not look at more.
const LONGEST_PASSWORD: usize = 72;
/// Longest name, bytes, as htpasswd has it.
const LONGEST_USER: usize = 255;
/// Mode of a new file: its owner and group, which the worker's user should be in.
const MODE: u32 = 0o640;

/// Runs `passwd`. Returns the exit code.
pub(crate) fn main(args: &PasswdArgs) -> u8 {
    match run(args) {
        Ok(text) => {
            print(text);
            0
        }
        Err(text) => {
            eprintln!("forebay passwd: {text}");
            1
        }
    }
}

fn run(args: &PasswdArgs) -> Result<String, String> {
    let user = checked(&args.user)?;
    let path = args.file.as_path();
    let shown = path.display();
    // Asked before the lock: somebody may take long to answer.
    let password = if args.delete { String::new() } else { password_of(args)? };
    let _lock = lock(path).map_err(|e| format!("{shown}: {}", errno(&e)))?;
    let old = match files::read_file(path, files::MAX_WHOLE) {
        Ok(bytes) => Some(bytes),
        Err(e) if e.kind() == std::io::ErrorKind::NotFound => None,
        Err(e) => return Err(format!("{shown}: {}", errno(&e))),
    };
    let lines = old.as_deref().unwrap_or_default();
    let known = with(lines, user, None);
    let missing = || format!("{shown} has no user {user}");
    if args.delete {
        let without = known.ok_or_else(missing)?;
        write(path, old.is_some(), &without).map_err(|e| format!("{shown}: {}", errno(&e)))?;
        return Ok(format!("{user} was taken from {shown}\n"));
    }
    if args.verify {
        let hash = hash_of(lines, user).ok_or_else(missing)?;
        let right = password::verify(password.as_bytes(), hash);
        return if right {
            Ok("the password is right\n".to_owned())
        } else {
            Err("the password is wrong".to_owned())
        };
    }
    let hash = password::bcrypt(&password)?;
    let new = with(lines, user, Some(&hash)).unwrap_or_else(|| {
        let mut new = lines.to_vec();
        if !new.is_empty() && !new.ends_with(b"\n") {
            new.push(b'\n');
        }
        new.extend_from_slice(format!("{user}:{hash}\n").as_bytes());
        new
    });
    write(path, old.is_some(), &new).map_err(|e| format!("{shown}: {}", errno(&e)))?;
    let done = if known.is_some() { "has a new password in" } else { "was added to" };
    Ok(format!("{user} {done} {shown}\n"))
}

/// Locks the folder of a file, so that of two commands at a time none loses the other's user.
fn lock(path: &Path) -> std::io::Result<std::fs::File> {
    let folder = std::fs::File::open(folder(path))?;
    folder.lock()?;
    Ok(folder)
}

fn folder(path: &Path) -> &Path {
    path.parent().filter(|p| !p.as_os_str().is_empty()).unwrap_or(Path::new("."))
}

/// Refuses names that a line of the file cannot have.
fn checked(user: &str) -> Result<&str, String> {
    let refused = user.is_empty()
        || user.len() > LONGEST_USER
        || user.starts_with('#')
        || user.contains(|c: char| c == ':' || c.is_control());
    if refused {
        return Err(format!(
            "\"{}\" is no name of a user: 1 to 255 bytes without \":\"",
            user.escape_debug()
        ));
    }
    Ok(user)
}

/// Returns the hash of a user.
fn hash_of<'l>(lines: &'l [u8], user: &str) -> Option<&'l [u8]> {
    lines.split(|b| *b == b'\n').find_map(|line| {
        // As the server reads it.
        let rest = line.strip_prefix(user.as_bytes())?.strip_prefix(b":")?;
        rest.split(|b| matches!(b, b':' | b'\r')).next()
    })
}

/// Returns the lines with another hash for a user, or without the user's line. A comment behind the hash stays. `None` if there is
/// no such user.
fn with(lines: &[u8], user: &str, hash: Option<&str>) -> Option<Vec<u8>> {
    let mut found = false;
    let mut out = Vec::new();
    for line in lines.split_inclusive(|b| *b == b'\n') {
        let rest = line.strip_prefix(user.as_bytes()).and_then(|rest| rest.strip_prefix(b":"));
        let Some(rest) = rest else {
            out.extend_from_slice(line);
            continue;
        };
        // The first line of a user counts, for nginx too: another one would count once the first is gone.
        let is_first = !std::mem::replace(&mut found, true);
        if let Some(hash) = hash.filter(|_| is_first) {
            let end = rest.iter().position(|b| matches!(b, b':' | b'\n' | b'\r')).unwrap_or(rest.len());
            out.extend_from_slice(format!("{user}:{hash}").as_bytes());
            out.extend_from_slice(rest.get(end..).unwrap_or_default());
        }
    }
    found.then_some(out)
}

/// Reads the password: twice from a terminal, or the first line of standard input.
fn password_of(args: &PasswdArgs) -> Result<String, String> {
    let input = std::io::stdin();
    let password = if input.is_terminal() {
        let asked = |prompt: &str| hidden_line(prompt).map_err(|e| format!("no password: {}", errno(&e)));
        let password = asked(&format!("Password for {}: ", args.user))?;
        if !args.verify && asked("Again: ")? != password {
            return Err("the passwords differ; nothing was changed".to_owned());
        }
        password
    } else {
        let mut line = String::new();
        input.lock().read_line(&mut line).map_err(|e| format!("standard input: {}", errno(&e)))?;
        line.trim_end_matches(['\n', '\r']).to_owned()
    };
    match password.len() {
        0 => Err("an empty password is not accepted".to_owned()),
        len if len > LONGEST_PASSWORD => {
            Err(format!("the password has {len} bytes; bcrypt looks at {LONGEST_PASSWORD} only"))
        }
        _ => Ok(password),
    }
}

/// Writes the file at once. One that was there keeps its mode and owner.
fn write(path: &Path, exists: bool, bytes: &[u8]) -> std::io::Result<()> {
    if exists {
        return replace(path, bytes);
    }
    let mut file = tempfile::NamedTempFile::new_in(folder(path))?;
    file.write_all(bytes)?;
    file.as_file().set_permissions(std::fs::Permissions::from_mode(MODE))?;
    file.as_file().sync_all()?;
    // Another command may have made the file meanwhile: its users must not be lost.
    file.persist_noclobber(path).map_err(|e| e.error)?;
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn lines_of_users() {
        let lines = b"# users\nann:x:a comment\nbob:y\r\nann:z\nannabel:q";
        let text = |bytes: Option<Vec<u8>>| bytes.map(|b| String::from_utf8(b).expect("text"));
        assert_eq!(
            text(with(lines, "ann", Some("H"))).as_deref(),
            Some("# users\nann:H:a comment\nbob:y\r\nannabel:q")
        );
        assert_eq!(
            text(with(lines, "bob", Some("H"))).as_deref(),
            Some("# users\nann:x:a comment\nbob:H\r\nann:z\nannabel:q")
        );
        assert_eq!(
            text(with(lines, "bob", None)).as_deref(),
            Some("# users\nann:x:a comment\nann:z\nannabel:q")
        );
        assert_eq!(
            text(with(lines, "annabel", Some("H"))).as_deref(),
            Some("# users\nann:x:a comment\nbob:y\r\nann:z\nannabel:H")
        );
        assert_eq!(text(with(lines, "ann", None)).as_deref(), Some("# users\nbob:y\r\nannabel:q"));
        assert_eq!(hash_of(lines, "bob"), Some(&b"y"[..]), "without the end of the line");
        assert_eq!(with(lines, "an", None), None);
        assert_eq!(hash_of(lines, "ann"), Some(&b"x"[..]));
        assert_eq!(hash_of(lines, "x"), None);
    }

    #[test]
    fn names_that_no_line_can_have() {
        for user in ["", "a:b", "a\nb", "#a", &"x".repeat(256)] {
            assert!(checked(user).is_err(), "{user:?}");
        }
        assert!(checked("ann@example.com").is_ok());
    }
}
