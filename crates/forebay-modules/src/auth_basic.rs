//! `auth_basic` (nginx: ngx_http_auth_basic_module; RFC 7617).

use crate::password;
use crate::password::remembered::{Pair, Remembered};
use forebay_conf::error::{Error, Level};
use forebay_conf::tree::Directive;
use forebay_core::config::value::{OptionalSetting, once};
use forebay_core::vars::Template;
use forebay_server::config::Scope;
use forebay_server::module::levels::LocationSettings;
use forebay_server::module::{Module, Phase, PhaseHook, Step, Verdict};
use forebay_server::request::Request;
use forebay_server::request::credentials::{credentials, is_proxy};
use forebay_sys::errno::errno;
use forebay_sys::files;
use std::cell::RefCell;
use std::collections::HashMap;
use std::ffi::OsStr;
use std::io;
use std::os::unix::ffi::OsStrExt;
use std::path::Path;
use std::rc::Rc;
use std::sync::Arc;
use std::time::{Duration, SystemTime, UNIX_EPOCH};

forebay_server::module_settings! {
    /// `auth_basic`: the realm, or `off`.
    "auth_basic" => realm: Option<Template> = None;
    /// `auth_basic_user_file`.
    "auth_basic_user_file" => user_file: Option<UserFile> = None;
}

/// Path of a user file, and the directory for a relative path.
#[derive(Clone, Debug)]
pub struct UserFile {
    path: Template,
    /// Directory of the configuration file, with its slash.
    dir: Arc<[u8]>,
    /// Users of a file that came with the configuration, as the file of a Secret does. Nothing is read from the disk then.
    users: Option<Arc<Users>>,
}

impl OptionalSetting<forebay_server::config::HttpContext> for UserFile {
    fn read(previous: Option<Self>, d: &Directive, cx: &mut Scope<'_>) -> Result<Self, Error> {
        once(&previous, d, cx)?;
        let path = Template::read(None, d, cx)?;
        let dir = cx.conf_path(b"").into_os_string();
        let dir = dir.as_bytes();
        let dir = if dir.ends_with(b"/") { dir.into() } else { [dir, b"/"].concat().into() };
        let constant = path.as_const().map(|name| cx.conf_path(name));
        let users = constant.and_then(|path| cx.files.of_record(&path)).map(|text| Arc::new(parse(&text)));
        Ok(UserFile { path, dir, users })
    }
}

/// Returns `true` if a location requires a password.
fn enabled(s: &LocationSettings) -> bool {
    let a = SETTINGS.of(s);
    a.realm.as_ref().is_some_and(|r| r.as_const() != Some(b"off")) && a.user_file.is_some()
}

/// `auth_basic`.
pub static MODULE: Module = Module {
    settings: &[&SETTINGS],
    hooks: &[PhaseHook::new(Phase::Access, enabled, check)],
    ..Module::NONE
};

/// Checks user and password.
fn check(req: &mut Request) -> Step<'_> {
    let http = req.http();
    let settings = SETTINGS.of(&http.location(req).settings);
    let (Some(realm), Some(file)) = (&settings.realm, &settings.user_file) else {
        return Verdict::Declined.into();
    };
    let Ok(realm) = realm.value(req) else { return Verdict::Status(500).into() };
    // The realm may have variables, so a location that requires a password in general may still let this
    // request pass.
    if realm == b"off" {
        return Verdict::Declined.into();
    }
    let Some((user, pass)) = credentials(&req.head).filter(|(user, _)| !user.is_empty()) else {
        req.log(Level::Info, "no user/password was provided for basic authentication");
        return ask(req, &realm).into();
    };
    let Ok(name) = file.path.value(req) else { return Verdict::Status(500).into() };
    let path = if name.first() == Some(&b'/') { name } else { [&file.dir, name.as_slice()].concat() };
    let shown = String::from_utf8_lossy(&path).into_owned();
    let loaded;
    let users = match &file.users {
        Some(users) => &**users,
        None => match load(&path) {
            Ok(users) => {
                loaded = users;
                &*loaded
            }
            Err((call, e)) => return unreadable(req, &format!("{call}() \"{shown}\""), &e).into(),
        },
    };
    let Some(hash) = users.get(user.as_slice()) else {
        req.log(
            Level::Error,
            &format!("user \"{}\" was not found in \"{shown}\"", String::from_utf8_lossy(&user)),
        );
        // The answer is the same as to a wrong password, and does not say which users exist.
        return ask(req, &realm).into();
    };
    let hash = hash.clone();
    // A comparison or one digest takes less time than the way to another thread and back.
    if !password::is_slow(&hash) {
        return judge(req, password::verify(&pass, &hash), &user, &realm).into();
    }
    let pair = RIGHT.with_borrow(|right| right.pair(&pass, &hash));
    let now = req.thread.io.poller.now();
    if pair.is_some_and(|pair| RIGHT.with_borrow_mut(|right| right.is_right(&pair, now))) {
        return Verdict::Allowed.into();
    }
    // Other requests of the thread do not wait for the computation.
    let verified = tokio::task::spawn_blocking(move || password::verify(&pass, &hash));
    Step::later(async move {
        // The computation has no result if it panicked, or if the process ends meanwhile.
        let Ok(right) = verified.await else { return Verdict::Status(500) };
        remember(req, pair.filter(|_| right));
        judge(req, right, &user, &realm)
    })
}

/// Remembers a password whose check has succeeded.
fn remember(req: &Request, pair: Option<Pair>) {
    let Some(pair) = pair else { return };
    let now = req.thread.io.poller.now();
    RIGHT.with_borrow_mut(|right| right.insert(pair, now));
}

/// Turns the result of a password check into a verdict.
fn judge(req: &mut Request, right: bool, user: &[u8], realm: &[u8]) -> Verdict {
    if right {
        return Verdict::Allowed;
    }
    req.log(Level::Error, &format!("user \"{}\": password mismatch", String::from_utf8_lossy(user)));
    ask(req, realm)
}

fn ask(req: &mut Request, realm: &[u8]) -> Verdict {
    let value = [b"Basic realm=\"", realm, b"\""].concat();
    // RFC 9110, section 11.7: a proxy asks by fields of its own, since `Authorization` belongs to the origin
    // server.
    if is_proxy(&req.head) {
        req.resp.fields.set(b"Proxy-Authenticate", &value);
        return Verdict::Status(407);
    }
    req.resp.fields.set(b"WWW-Authenticate", &value);
    Verdict::Status(401)
}

/// Hashes by user.
pub type Users = HashMap<Box<[u8]>, Box<[u8]>>;

/// Version of a file: device, inode, size, `mtime` and `ctime`.
#[derive(Clone, Copy, PartialEq, Eq)]
struct FileState(u64, u64, i64, (i64, i64), (i64, i64));

struct CachedUsers {
    state: FileState,
    /// `true` if the file was last changed more than two seconds before it was read. Otherwise a second change could
    /// leave the same times, so the file is read again.
    settled: bool,
    users: Rc<Users>,
}

/// Largest number of user files that a thread keeps in memory. Paths may contain variables that clients control, so there has to be a
/// limit.
const MAX_FILES: usize = 64;

thread_local! {
    static FILES: RefCell<HashMap<Box<[u8]>, CachedUsers>> = RefCell::default();
    /// Passwords that were right, of all files.
    static RIGHT: RefCell<Remembered> = RefCell::default();
}

/// Logs that the file of users cannot be read, and refuses the request.
#[cold]
fn unreadable(req: &mut Request, call: &str, e: &io::Error) -> Verdict {
    // As in nginx, a missing file means that nobody gets in, any other error is a fault of the server.
    let missing = e.kind() == io::ErrorKind::NotFound;
    let (level, status) = if missing { (Level::Error, 403) } else { (Level::Crit, 500) };
    req.log(level, &format!("{call} failed ({})", errno(e)));
    Verdict::Status(status)
}

/// Returns the users of a file that was read before, if it has not changed since.
fn kept(path: &[u8], state: &FileState) -> Option<Rc<Users>> {
    FILES.with_borrow(|files| {
        let f = files.get(path)?;
        (f.settled && f.state == *state).then(|| f.users.clone())
    })
}

/// Returns the users of a file. Reads it only if it has changed.
fn load(path: &[u8]) -> Result<Rc<Users>, (&'static str, io::Error)> {
    let stat = rustix::fs::stat(path).map_err(|e| ("open", e.into()))?;
    let state = state(&stat);
    if let Some(users) = kept(path, &state) {
        return Ok(users);
    }
    let mut text = Vec::new();
    // The message names the call that fails in nginx, which opens a directory without an error and then
    // cannot read it.
    let call = |e: &io::Error| if e.kind() == io::ErrorKind::IsADirectory { "pread" } else { "open" };
    // The path may contain variables that clients control, and reading a device such as `/dev/zero` would
    // never end.
    let file = files::open_regular(Path::new(OsStr::from_bytes(path))).map_err(|e| (call(&e), e))?;
    files::read_whole(&file, files::MAX_WHOLE, &mut text).map_err(|e| ("pread", e))?;
    let users = Rc::new(parse(&text));
    let changed = UNIX_EPOCH + Duration::from_secs(u64::try_from(stat.st_mtime).unwrap_or(0));
    // A file has changed, and some of its passwords may be of no use any more. Forgetting all of them costs a
    // check each.
    RIGHT.with_borrow_mut(Remembered::clear);
    let settled = SystemTime::now().duration_since(changed).is_ok_and(|d| d > Duration::from_secs(2));
    FILES.with_borrow_mut(|files| {
        if files.len() >= MAX_FILES {
            files.clear();
        }
        files.insert(path.into(), CachedUsers { state, settled, users: users.clone() });
    });
    Ok(users)
}

fn state(s: &rustix::fs::Stat) -> FileState {
    FileState(
        s.st_dev,
        s.st_ino,
        s.st_size,
        (s.st_mtime, s.st_mtime_nsec as i64),
        (s.st_ctime, s.st_ctime_nsec as i64),
    )
}

/// Reads lines of the form `user:hash` or `user:hash:comment`. The first line for a user counts.
fn parse(text: &[u8]) -> Users {
    let mut users = Users::new();
    for line in text.split(|b| *b == b'\n') {
        if matches!(line.first(), None | Some(b'#' | b'\r')) {
            continue;
        }
        // A line without a colon names a user without a hash, with whom no password could agree.
        let Some(colon) = memchr::memchr(b':', line) else { continue };
        let (user, rest) = line.split_at(colon);
        let hash =
            rest.get(1..).unwrap_or_default().split(|b| matches!(b, b':' | b'\r')).next().unwrap_or_default();
        users.entry(user.into()).or_insert_with(|| hash.into());
    }
    users
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::testing;

    #[test]
    fn user_files() {
        let users = parse(b"# x:y\n\r\nno colon\na:1\r\nb:2:comment\na:3\n:4\nlast:5");
        let of = |u: &str| users.get(u.as_bytes()).map(|h| String::from_utf8_lossy(h).into_owned());
        assert_eq!(of("a").as_deref(), Some("1"));
        assert_eq!(of("b").as_deref(), Some("2"));
        assert_eq!(of("last").as_deref(), Some("5"));
        assert_eq!(of("# x"), None);
    }

    /// The users of a file that came with the configuration count. No file of that name is on the disk.
    #[test]
    fn a_file_of_the_record_is_not_read_from_the_disk() {
        let conf = |file: &str| format!("server {{ auth_basic x; auth_basic_user_file {file}; }}");
        let files = [("/test/users", "plain:{PLAIN}pass\n"), ("/nowhere/users", "other:{PLAIN}pass\n")];
        let judged = |file: &str, given: &str| {
            let mut req = testing::request_with(&files, &conf(file), "");
            testing::head(&mut req, &format!("Authorization: Basic {given}\n"));
            check(&mut req).now()
        };
        let (right, wrong) = ("cGxhaW46cGFzcw==", "cGxhaW46ZmFpbA==");
        for file in ["users", "/test/users"] {
            assert_eq!(judged(file, right), Verdict::Allowed, "{file}");
            assert_eq!(judged(file, wrong), Verdict::Status(401), "{file}");
        }
        assert_eq!(judged("/nowhere/users", right), Verdict::Status(401));
        // Not in the record, nor on the disk: nobody gets in.
        assert_eq!(judged("/nowhere/absent", right), Verdict::Status(403));
        // A name with variables is known with the request only, and read then.
        assert_eq!(judged("/test/user$arg_none", right), Verdict::Status(403));
    }

    /// A slow hash is computed once for a right password and each time for a wrong one, also after the other kind.
    #[test]
    fn right_passwords_are_remembered() {
        let runtime = tokio::runtime::Builder::new_current_thread().build().unwrap();
        let _entered = runtime.enter();
        let (right, wrong) = ("YTpwYXNz", "YTpmYWls");
        let users = ["a:$1$saltsalt$hZR.9zfJXcVTsa9iTxnQR1", "a:abccBcrPOxnLU", "b:abccBcrPOxnLU"];
        let judged = |users: &str, given: &str| {
            let conf = "server { auth_basic x; auth_basic_user_file users; }";
            let mut req = testing::request_with(&[("/test/users", users)], conf, "");
            testing::head(&mut req, &format!("Authorization: Basic {given}\n"));
            match check(&mut req) {
                Step::Later(verdict) => (runtime.block_on(verdict), "checked"),
                Step::Now(verdict) => (verdict, "known"),
            }
        };
        let (allowed, refused) = (Verdict::Allowed, Verdict::Status(401));
        for (given, want) in
            [(wrong, (&refused, "checked")), (right, (&allowed, "checked")), (right, (&allowed, "known"))]
        {
            let (verdict, how) = judged(users[0], given);
            assert_eq!((&verdict, how), want, "{given}");
        }
        for _ in 0..2 {
            assert_eq!(judged(users[0], wrong), (Verdict::Status(401), "checked"));
        }
        // The same password under another hash is checked again, and nobody is let in whose name is gone.
        assert_eq!(judged(users[1], right), (Verdict::Allowed, "checked"));
        assert_eq!(judged(users[1], right), (Verdict::Allowed, "known"));
        assert_eq!(judged(users[2], right), (Verdict::Status(401), "known"));
        assert_eq!(RIGHT.with_borrow(|right| right.hits), 2);
    }

    #[test]
    fn a_changed_file_is_read_again() {
        let path = std::env::temp_dir().join(format!("forebay-users-{}", std::process::id()));
        let bytes = path.as_os_str().as_bytes();
        std::fs::write(&path, "a:{PLAIN}1").expect("write");
        assert_eq!(load(bytes).expect("there").len(), 1);
        std::fs::write(&path, "b:{PLAIN}1").expect("write");
        assert!(load(bytes).expect("there").contains_key(b"b".as_slice()));
        std::fs::remove_file(&path).expect("remove");
        assert!(matches!(load(bytes), Err(("open", e)) if e.kind() == io::ErrorKind::NotFound));
        let refused = |path: &str| load(path.as_bytes()).map(|_| ()).map_err(|(call, e)| (call, errno(&e)));
        assert_eq!(refused("/dev/zero"), Err(("open", "not a regular file".to_owned())));
        assert_eq!(refused("/"), Err(("pread", "21: Is a directory".to_owned())));
    }
}
