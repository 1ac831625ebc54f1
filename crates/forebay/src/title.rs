//! The process title that `ps` shows, `nginx: master process nginx -c x`, and the process name.
//!
//! A title is argv, and argv is given at exec: the program starts itself once more in place, same process,
//! same descriptors, with the title as its only argument and the true arguments in the environment.

use nix::unistd::Pid;
use std::ffi::{CString, OsStr, OsString};
use std::os::unix::ffi::{OsStrExt, OsStringExt};
use std::os::unix::process::CommandExt;
use std::path::Path;
use std::process::Command;

/// Carries the true arguments, each in hexadecimal, joined by commas.
pub(crate) const ARGUMENTS: &str = "FOREBAY_ARGV";

/// Returns the true arguments, program name first, and whether the process has its title already.
pub(crate) fn arguments() -> (Vec<OsString>, bool) {
    let given: Vec<OsString> = std::env::args_os().collect();
    // Only a process with the title uses the variable, since it could be left in the environment of another.
    let titled = given.len() == 1 && given.iter().all(|arg| arg.as_bytes().starts_with(MASTER.as_bytes()));
    match std::env::var(ARGUMENTS).ok().filter(|_| titled).and_then(|text| decode(&text)) {
        Some(args) => (args, true),
        None => (given, false),
    }
}

/// Returns the true arguments of another process of this program, program name first, as far as they may be read.
pub(crate) fn arguments_of(process: Pid) -> Option<Vec<OsString>> {
    let environment = std::fs::read(format!("/proc/{process}/environ")).ok()?;
    let named = [ARGUMENTS.as_bytes(), b"="].concat();
    let value =
        environment.split(|byte| *byte == 0).find_map(|entry| entry.strip_prefix(named.as_slice()))?;
    decode(std::str::from_utf8(value).ok()?)
}

const MASTER: &str = "nginx: master process ";

/// Gives the process its title. Returns only when that failed, which does no harm.
pub(crate) fn set_master(args: &[OsString]) {
    let mut title = OsString::from(MASTER);
    title.push(args.join(" ".as_ref()));
    let _ = Command::new("/proc/self/exe").arg0(title).env(ARGUMENTS, encode(args)).exec();
}

/// Returns the name that the process has to have: the base name of the first argument.
///
/// It is what the kernel sets when a program is started by its path. Init scripts (`start-stop-daemon --name`), `killall`,
/// `pidof` and monitors look for it, so a copy or a link that is called `nginx` has to be found as `nginx`.
pub(crate) fn process_name(arguments: &[OsString]) -> OsString {
    let name = arguments.first().and_then(|program| Path::new(program).file_name());
    name.unwrap_or(OsStr::new("forebay")).to_owned()
}

/// Sets the name of the calling process (`/proc/PID/comm`). The kernel keeps the first 15 bytes.
///
/// Programs that start themselves by way of `/proc/self/exe` are called `exe` before.
pub(crate) fn set_process_name(name: &OsStr) {
    let name = CString::new(name.as_bytes()).unwrap_or_default();
    // It fails only where /proc and prctl(2) are forbidden. The server runs under another name then.
    let _ = rustix::thread::set_name(&name);
}

fn encode(args: &[OsString]) -> String {
    let hex = |arg: &OsString| arg.as_bytes().iter().map(|byte| format!("{byte:02x}")).collect::<String>();
    args.iter().map(hex).collect::<Vec<_>>().join(",")
}

fn decode(text: &str) -> Option<Vec<OsString>> {
    text.split(',').map(|arg| decode_one(arg.as_bytes())).collect()
}

fn decode_one(hex: &[u8]) -> Option<OsString> {
    let digit = |byte: u8| char::from(byte).to_digit(16).and_then(|digit| u8::try_from(digit).ok());
    let (pairs, rest) = hex.as_chunks::<2>();
    let bytes = pairs.iter().map(|[high, low]| Some(digit(*high)? << 4 | digit(*low)?));
    if rest.is_empty() { bytes.collect::<Option<Vec<u8>>>().map(OsString::from_vec) } else { None }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_name_is_the_base_name_of_the_program() {
        for (program, name) in [
            ("/usr/sbin/nginx", "nginx"),
            ("nginx", "nginx"),
            ("./target/forebay", "forebay"),
            ("", "forebay"),
            ("/", "forebay"),
        ] {
            assert_eq!(process_name(&[program.into()]), name, "{program}");
        }
        assert_eq!(process_name(&[]), "forebay");
    }

    #[test]
    fn arguments_survive() {
        let args: Vec<OsString> =
            ["nginx", "-g", "daemon off; # ,", ""].map(OsString::from).into_iter().collect();
        assert_eq!(decode(&encode(&args)), Some(args));
        assert_eq!(decode("6"), None);
        assert_eq!(decode("zz"), None);
    }
}
