//! Accounts of a directory of files. An account belongs to the authority that has it and to a key, so each is kept with the URL of
//! the authority's directory and the thumbprint of the key: the `uri` and the `account_key` of an issuer may change, and issuers may
//! share their files.

use crate::settings::Order;
use crate::state_dir::StateDir;
use serde_json::{Map, Value, json};

/// File of the accounts' URLs by those of their directories and by the thumbprints of their keys.
const ACCOUNTS: &str = "accounts.json";
/// File of the URL of the account that was used last, for other programs.
const ACCOUNT: &str = "account.url";

/// Returns the URL of the account of a key at the authority with this directory, if there is one.
///
/// # Errors
/// Errors of [`StateDir::read`].
pub(crate) fn read(state: &StateDir, directory: &str, key: &str) -> Result<Option<String>, String> {
    if let Some(text) = state.read(ACCOUNTS)? {
        let accounts: Map<String, Value> = serde_json::from_slice(&text).unwrap_or_default();
        let url = accounts.get(directory).and_then(|keys| keys.get(key)).and_then(Value::as_str);
        return Ok(url.filter(|u| is_url(u)).map(str::to_owned));
    }
    former(state, directory)
}

/// Keeps the URL of an account.
///
/// # Errors
/// Errors of [`StateDir::write`].
pub(crate) fn write(state: &StateDir, directory: &str, key: &str, account: &str) -> Result<(), String> {
    let known = state.read(ACCOUNTS).ok().flatten();
    let mut accounts: Map<String, Value> =
        known.and_then(|text| serde_json::from_slice(&text).ok()).unwrap_or_default();
    match accounts.get_mut(directory).and_then(Value::as_object_mut) {
        Some(keys) => drop(keys.insert(key.to_owned(), json!(account))),
        None => drop(accounts.insert(directory.to_owned(), json!({key: account}))),
    }
    state.write(ACCOUNTS, Value::Object(accounts).to_string().as_bytes())?;
    state.write(ACCOUNT, account.as_bytes())
}

/// Returns the account of files that have not been used since accounts are kept with their directories. It counts for a directory
/// on the same host.
fn former(state: &StateDir, directory: &str) -> Result<Option<String>, String> {
    let url = state.read(ACCOUNT)?.map(|u| String::from_utf8_lossy(&u).trim().to_owned());
    Ok(url.filter(|u| is_url(u) && origin(u).eq_ignore_ascii_case(origin(directory))))
}

/// Returns the name of the files of an order that are there: those that an earlier version named count if the account is of the
/// same authority.
pub(crate) fn file_of(state: &StateDir, order: &Order) -> String {
    let (file, former_file) = (order.file(), order.former_file());
    let is_former = || {
        let has_none = matches!(state.read(ACCOUNTS), Ok(None));
        has_none && former(state, &order.issuer.uri).is_ok_and(|url| url.is_some())
    };
    if state.changed(&file).is_none() && state.changed(&former_file).is_some() && is_former() {
        return former_file;
    }
    file
}

fn is_url(text: &str) -> bool {
    text.starts_with("https://")
}

/// Returns scheme, host and port of a URL.
fn origin(url: &str) -> &str {
    let start = url.find("://").map_or(0, |at| at + 3);
    let end = url.get(start..).and_then(|rest| rest.find('/')).map_or(url.len(), |at| start + at);
    url.get(..end).unwrap_or_default()
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::settings::{Identifier, Issuer, KeyKind};
    use std::sync::Arc;

    const ONE: &str = "https://one.example/dir";
    const TWO: &str = "https://two.example/dir";

    #[test]
    fn each_authority_has_its_account() {
        let dir = tempfile::tempdir().expect("a directory");
        let state = StateDir::new(dir.path());
        assert_eq!(read(&state, ONE, "k"), Ok(None));
        write(&state, ONE, "k", "https://one.example/1").expect("written");
        assert_eq!(read(&state, ONE, "k").unwrap().as_deref(), Some("https://one.example/1"));
        assert_eq!(read(&state, TWO, "k"), Ok(None));
        // Another directory of the same authority may be that of other accounts.
        assert_eq!(read(&state, "https://one.example/other", "k"), Ok(None));
        write(&state, TWO, "k", "https://two.example/2").expect("written");
        assert_eq!(read(&state, ONE, "k").unwrap().as_deref(), Some("https://one.example/1"));
        assert_eq!(read(&state, TWO, "k").unwrap().as_deref(), Some("https://two.example/2"));
        // Another key has another account.
        assert_eq!(read(&state, TWO, "other"), Ok(None));
        write(&state, TWO, "other", "https://two.example/3").expect("written");
        assert_eq!(read(&state, TWO, "k").unwrap().as_deref(), Some("https://two.example/2"));
        assert_eq!(state.read(ACCOUNT).unwrap().unwrap().as_slice(), b"https://two.example/3");
    }

    #[test]
    fn files_of_an_earlier_version_belong_to_the_host_of_their_account() {
        let dir = tempfile::tempdir().expect("a directory");
        let state = StateDir::new(dir.path());
        let order = |uri: &str| Order {
            issuer: Arc::new(Issuer::new("a", uri)),
            identifiers: vec![Identifier::parse("a.example").expect("a name")],
            key: KeyKind::default(),
        };
        let (one, two) = (order(ONE), order(TWO));
        state.write_certificate(&one.former_file(), b"chain", b"key").expect("written");
        assert_eq!(file_of(&state, &one), one.file(), "of no account");
        state.write(ACCOUNT, b"https://one.example/acct/1\n").expect("written");
        assert_eq!(read(&state, ONE, "k").unwrap().as_deref(), Some("https://one.example/acct/1"));
        assert_eq!(read(&state, TWO, "k"), Ok(None));
        assert_eq!(file_of(&state, &one), one.former_file());
        assert_eq!(file_of(&state, &two), two.file());
        state.write_certificate(&one.file(), b"chain", b"key").expect("written");
        assert_eq!(file_of(&state, &one), one.file());
        assert_eq!(origin("https://a:1"), "https://a:1");
    }
}
