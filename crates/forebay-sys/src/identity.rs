//! Users and groups (nginx: user).

use crate::errno::errno_text;
use nix::errno::Errno;
use nix::unistd::{Gid, Group, Uid, User};
use rustix::thread::{CapabilitySet, CapabilitySets};
use std::ffi::CString;
use std::fmt;
use std::io;

/// User and group of the worker process.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Identity {
    /// User name, for the supplementary groups.
    pub name: String,
    /// User number.
    pub uid: u32,
    /// Group number.
    pub gid: u32,
}

/// Failed look-up. Displays in nginx's words, `getpwnam("x") failed`, with errno if there is one.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct LookupError {
    call: &'static str,
    name: String,
    /// 0: the call worked, but there is no such name.
    errno: i32,
}

impl fmt::Display for LookupError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}(\"{}\") failed", self.call, self.name)?;
        if self.errno != 0 {
            write!(f, " ({}: {})", self.errno, Errno::from_raw(self.errno).desc())?;
        }
        Ok(())
    }
}

impl std::error::Error for LookupError {}

/// Looks up a user and a group. Without a group name, looks for a group with the name of the user, as nginx does.
///
/// # Errors
/// There is no such user or group.
pub fn lookup(user: &str, group: Option<&str>) -> Result<Identity, LookupError> {
    let found = user_by_name(user)?;
    let gid = group_by_name(group.unwrap_or(user))?;
    Ok(Identity { name: user.to_owned(), uid: found.uid.as_raw(), gid: gid.as_raw() })
}

/// Looks up a user, with the primary group that the user database has.
///
/// # Errors
/// There is no such user.
pub fn lookup_user(user: &str) -> Result<Identity, LookupError> {
    let found = user_by_name(user)?;
    Ok(Identity { name: user.to_owned(), uid: found.uid.as_raw(), gid: found.gid.as_raw() })
}

/// Returns the name of a user number, if there is one.
pub fn user_name(uid: u32) -> Option<String> {
    User::from_uid(Uid::from_raw(uid)).ok().flatten().map(|user| user.name)
}

fn user_by_name(name: &str) -> Result<User, LookupError> {
    let fail = |errno| LookupError { call: "getpwnam", name: name.to_owned(), errno };
    User::from_name(name).map_err(|e| fail(e as i32))?.ok_or_else(|| fail(0))
}

fn group_by_name(name: &str) -> Result<Gid, LookupError> {
    let fail = |errno| LookupError { call: "getgrnam", name: name.to_owned(), errno };
    Ok(Group::from_name(name).map_err(|e| fail(e as i32))?.ok_or_else(|| fail(0))?.gid)
}

/// Returns `true` if the process may become another user.
pub fn is_root() -> bool {
    Uid::effective().is_root()
}

/// Becomes another user for good: sets group, supplementary groups and user, in this order. Must be called while the process has
/// one thread. The process stays dumpable, so that `worker_rlimit_core` has an effect.
///
/// `transparent`: keeps CAP_NET_RAW, which sockets with foreign addresses need (ip(7), IP_TRANSPARENT).
///
/// # Errors
/// A text in nginx's words: `setgid(65534) failed (1: Operation not permitted)`.
pub fn become_user(identity: &Identity, transparent: bool) -> io::Result<()> {
    let fail =
        |call: String, e: Errno| io::Error::other(format!("{call} failed ({}: {})", e as i32, e.desc()));
    let name = CString::new(identity.name.as_str())?;
    let gid = Gid::from_raw(identity.gid);
    // The user last: without root's rights the groups could not be set any more.
    nix::unistd::setgid(gid).map_err(|e| fail(format!("setgid({gid})"), e))?;
    nix::unistd::initgroups(&name, gid)
        .map_err(|e| fail(format!("initgroups({}, {gid})", identity.name), e))?;
    let uid = Uid::from_raw(identity.uid);
    if transparent {
        // Otherwise the change of the user would take every capability.
        let kept = rustix::thread::set_keep_capabilities(true);
        kept.map_err(|e| io::Error::other(format!("prctl(PR_SET_KEEPCAPS, 1) failed {}", errno_text(e))))?;
    }
    nix::unistd::setuid(uid).map_err(|e| fail(format!("setuid({uid})"), e))?;
    if transparent {
        let only = CapabilitySet::NET_RAW;
        let sets = CapabilitySets { effective: only, permitted: only, inheritable: CapabilitySet::empty() };
        let set = rustix::thread::set_capabilities(None, sets);
        set.map_err(|e| io::Error::other(format!("capset() failed {}", errno_text(e))))?;
    }
    // The kernel clears it when the user changes.
    let _ = rustix::process::set_dumpable_behavior(rustix::process::DumpableBehavior::Dumpable);
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn texts_of_failed_look_ups() {
        let e = lookup("no-such-user-here", None).expect_err("no such user");
        assert_eq!(e.to_string(), "getpwnam(\"no-such-user-here\") failed");
        let e = lookup("root", Some("no-such-group-here")).expect_err("no such group");
        assert_eq!(e.to_string(), "getgrnam(\"no-such-group-here\") failed");
        assert_eq!(lookup("root", None).map(|i| (i.uid, i.gid)), Ok((0, 0)));
        assert_eq!(user_name(0).as_deref(), Some("root"));
    }
}
