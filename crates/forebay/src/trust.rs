//! `forebay trust`: has the system and its browsers trust the authority of this machine, which certifies localhost and its like.

use crate::https::data_directory;
use clap::Args;
use forebay_acme::{LocalAuthority, pem_text};
use forebay_net::tls::pem;
use forebay_net::tls::verify::now;
use forebay_sys::{files, identity};
use forebay_terminal::print;
use std::path::{Path, PathBuf};
use std::process::Command;

/// Name of the certificate in the stores.
const NAME: &str = "forebay-local-authority";

/// Notice about an authority whose certificate has expired.
pub(crate) const REPLACED: &str = "the authority of this machine had expired and was replaced: browsers and systems have to trust the new one";

/// Stores of distributions: directory of additional roots, extension, program that follows a change.
const STORES: [(&str, &str, &[&str]); 4] = [
    ("/usr/local/share/ca-certificates", "crt", &["update-ca-certificates"]),
    ("/etc/pki/ca-trust/source/anchors", "pem", &["update-ca-trust", "extract"]),
    ("/etc/ca-certificates/trust-source/anchors", "crt", &["trust", "extract-compat"]),
    ("/usr/share/pki/trust/anchors", "pem", &["update-ca-certificates"]),
];

/// `forebay trust`.
#[derive(Args, Clone, Debug)]
pub(crate) struct TrustArgs {
    /// Certificate to trust (default: that of the authority, which is made if there is none)
    #[arg(long, value_name = "FILE")]
    certificate: Option<PathBuf>,
    /// End the trust
    #[arg(long)]
    remove: bool,
    /// Print the certificate, and change nothing
    #[arg(long, conflicts_with = "remove")]
    print: bool,
}

/// Runs `trust`. Returns the exit code.
pub(crate) fn main(args: &TrustArgs) -> u8 {
    match run(args) {
        Ok(()) => 0,
        Err(text) => {
            eprintln!("forebay trust: {text}");
            1
        }
    }
}

/// Reads the certificate of a file. What else is in the file is left out: the store of the system is open to all users, and the file
/// may be another user's, who makes it a link to a secret.
fn read(file: &Path) -> Result<Vec<u8>, String> {
    let text = files::read_file(file, files::MAX_WHOLE).map_err(|e| format!("{}: {e}", file.display()))?;
    match pem::certificates(&text).as_slice() {
        [only] => Ok(pem_text("CERTIFICATE", only).into_bytes()),
        other => Err(format!("{}: {} certificates instead of one", file.display(), other.len())),
    }
}

fn run(args: &TrustArgs) -> Result<(), String> {
    let file = match &args.certificate {
        Some(file) => file.clone(),
        None => {
            let directory = data_directory("local")?;
            if !args.remove && LocalAuthority::open(&directory, now())?.has_replaced() {
                eprintln!("forebay trust: {REPLACED}");
            }
            LocalAuthority::root_file(&directory)
        }
    };
    // Trust ends without the file, too.
    let text = if args.remove { Vec::new() } else { read(&file)? };
    if args.print {
        print(&text);
        return Ok(());
    }
    // Stores in a home are a user's, who may name a library in them: root does not touch them.
    if identity::is_root() {
        return system(&text, args.remove);
    }
    let browsers = browsers(&file, args.remove);
    let remove = if args.remove { " --remove" } else { "" };
    let file = word(&file.display().to_string());
    print(format!("For the whole system, as root:\n  sudo forebay trust{remove} --certificate {file}\n"));
    if browsers == 0 {
        return Err(
            "nothing was changed: certutil (libnss3-tools, nss-tools) changes the stores of your browsers"
                .into(),
        );
    }
    Ok(())
}

/// Returns a text as one word of a shell.
fn word(text: &str) -> String {
    let is_plain = |c: char| c.is_ascii_alphanumeric() || "/._-+:@%,=".contains(c);
    match !text.is_empty() && text.chars().all(is_plain) {
        true => text.to_owned(),
        false => format!("'{}'", text.replace('\'', "'\\''")),
    }
}

/// Adds the certificate to the store of the system, or removes it.
fn system(certificate: &[u8], remove: bool) -> Result<(), String> {
    let known = STORES.iter().find(|(directory, _, _)| Path::new(directory).is_dir());
    let (directory, extension, update) =
        known.ok_or("no known store of certificates (Debian's package: ca-certificates)")?;
    let path = Path::new(directory).join(format!("{NAME}.{extension}"));
    let failed = |e: std::io::Error| format!("{}: {e}", path.display());
    match remove {
        true if !path.exists() => {
            print("It was not trusted.\n");
            return Ok(());
        }
        true => std::fs::remove_file(&path).map_err(failed)?,
        false => files::write(&path, certificate, files::READABLE).map_err(failed)?,
    }
    let (program, arguments) = update.split_first().ok_or("no program")?;
    let ended = Command::new(program).args(arguments).output().map_err(|e| format!("{program}: {e}"))?;
    if !ended.status.success() {
        return Err(format!("{program}: {}", String::from_utf8_lossy(&ended.stderr).trim()));
    }
    let done = if remove { "no longer trusts" } else { "trusts" };
    print(format!("The system {done} {}.\n", path.display()));
    Ok(())
}

/// Adds the certificate to the stores of the user's browsers (Chromium, Firefox), or removes it. Returns the number of stores that
/// were changed.
fn browsers(certificate: &Path, remove: bool) -> usize {
    let stores = browser_stores();
    let change = |store: &PathBuf| {
        let place = format!("sql:{}", store.display());
        let mut certutil = Command::new("certutil");
        match remove {
            true => certutil.args(["-D", "-d", &place, "-n", NAME]),
            false => certutil.args(["-A", "-d", &place, "-t", "C,,", "-n", NAME, "-i"]).arg(certificate),
        };
        let changed = certutil.output().is_ok_and(|out| out.status.success());
        if changed {
            print(format!("Changed the store of browsers in {}.\n", store.display()));
        }
        changed
    };
    stores.iter().filter(|store| change(store)).count()
}

/// Returns the directories with stores of browsers (NSS).
fn browser_stores() -> Vec<PathBuf> {
    let Some(home) = std::env::var_os("HOME").map(PathBuf::from) else { return Vec::new() };
    let profiles = [".mozilla/firefox", "snap/firefox/common/.mozilla/firefox"];
    let profiles = profiles.iter().filter_map(|dir| std::fs::read_dir(home.join(dir)).ok()).flatten();
    let profiles = profiles.flatten().map(|entry| entry.path());
    let has_store = |dir: &PathBuf| dir.join("cert9.db").is_file();
    std::iter::once(home.join(".pki/nssdb")).chain(profiles).filter(has_store).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn paths_are_one_word_of_a_shell() {
        assert_eq!(word("/home/a.b/x_1-2+3"), "/home/a.b/x_1-2+3");
        for text in ["/home/a b/$(x)", "it's", "", "~/a", "a;b"] {
            let said = Command::new("sh").args(["-c", &format!("printf %s {}", word(text))]).output();
            assert_eq!(said.expect("a shell").stdout, text.as_bytes());
        }
    }

    #[test]
    fn only_the_certificate_of_a_file_is_trusted() {
        let dir = tempfile::tempdir().expect("a directory");
        LocalAuthority::open(dir.path(), now()).expect("an authority");
        let file = LocalAuthority::root_file(dir.path());
        let root = std::fs::read(&file).expect("a certificate");
        assert_eq!(read(&file), Ok(root.clone()));
        let mixed = dir.path().join("mixed");
        std::fs::write(&mixed, [b"root:secret\n", root.as_slice(), b"more"].concat()).expect("written");
        assert_eq!(read(&mixed), Ok(root.clone()));
        for other in [b"root:secret\n".to_vec(), root.repeat(2)] {
            std::fs::write(&mixed, other).expect("written");
            assert!(read(&mixed).expect_err("refused").contains("certificates instead of one"));
        }
        assert!(read(&dir.path().join("root.key")).is_err());
    }
}
