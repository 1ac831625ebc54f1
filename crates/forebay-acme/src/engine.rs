//! The task of an issuer: looks after its certificates one after the other, again and again.

use crate::accounts;
use crate::certificate::{self, Certificate, Phase, State};
use crate::failure::{Class, Failure};
use crate::history::{Asked, History};
use crate::issue::{Issuance, Issued};
use crate::key::Key;
use crate::listening;
use crate::protocol::{Session, text_of};
use crate::publish::{Hooks, Publisher};
use crate::rehearsal::{self, Results};
use crate::schedule::{self, Suggestion};
use crate::settings::{Issuer, Order, Retry};
use crate::state_dir::{Locked, Mark, StateDir};
use crate::substitute;
use forebay_conf::error::Level;
use forebay_core::tasks::{Log, Tasks};
use forebay_net::tls::verify::now;
use forebay_sys::random;
use forebay_sys::sync::lock;
use std::collections::BTreeMap;
use std::sync::{Arc, LazyLock, Mutex};
use std::time::Duration;
use tokio::runtime::Handle;

/// File of the account's key.
const ACCOUNT_KEY: &str = "account.key";
/// File of [`History`].
const HISTORY: &str = "history.json";
/// Seconds until another look at a lock that another process has.
const LOCKED: i64 = 5;

/// Key and URL of an account.
type Account = (Arc<Key>, Option<String>);

/// Accounts of issuers without a directory, which survive a reload, by [`account_id`].
static ACCOUNTS: LazyLock<Mutex<BTreeMap<String, Account>>> = LazyLock::new(Mutex::default);

fn account_id(issuer: &Issuer) -> String {
    format!("{} {}", issuer.name, issuer.uri)
}

/// Presents the certificates that are in the issuers' directories. Reads files: call it before worker threads use the
/// configuration. Forgets certificates that are no longer wanted.
pub fn load(orders: &[Order]) {
    certificate::keep_only(orders);
    for order in orders {
        if let Ok(certificate) = Certificate::of(order) {
            // The task reports files that cannot be read.
            let _ = read_files(order, &certificate);
            read_earlier(order, &certificate);
        }
    }
}

/// Presents an earlier certificate if there is none of the order.
fn read_earlier(order: &Order, certificate: &Certificate) {
    let Some(path) = order.issuer.state_path.as_ref().filter(|_| lock(&certificate.state).leaf.is_none())
    else {
        return;
    };
    if let Some(made) = substitute::find(order, &StateDir::new(path), now()) {
        certificate.present_earlier(made);
    }
}

/// Reads the files of an order if they have changed.
fn read_files(order: &Order, certificate: &Certificate) -> Result<(), String> {
    let Some(path) = &order.issuer.state_path else { return Ok(()) };
    let state = StateDir::new(path);
    let file = accounts::file_of(&state, order);
    let known = lock(&certificate.state).changed;
    if known.is_some() && state.changed(&file) == known {
        return Ok(());
    }
    let Some(files) = state.certificate(&file)? else { return Ok(()) };
    let presented = certificate.present(&order.identifiers, &files.chain, files.key, Some(files.changed));
    presented.map_err(|text| format!("\"{file}.crt\" in \"{}\" is not used: {text}", path.display()))
}

/// Means of the process that tasks use.
pub struct Environment<'e> {
    /// Runtime.
    pub tokio: &'e Handle,
    /// Error log.
    pub log: &'e Log,
    /// Worker threads, for hooks.
    pub hooks: Hooks,
}

/// Starts the tasks of a configuration, one for each issuer.
pub fn start(orders: &[Order], tasks: &mut Tasks, environment: &Environment<'_>) {
    let Environment { tokio, log, hooks } = environment;
    let mut issuers: Vec<(Arc<Issuer>, Vec<Wanted>)> = Vec::new();
    for order in orders {
        let Ok(certificate) = Certificate::of(order) else { continue };
        lock(&certificate.state).begin(&order.issuer);
        let wanted = Wanted { order: order.clone(), certificate };
        match issuers.iter_mut().find(|(i, _)| Arc::ptr_eq(i, &order.issuer)) {
            Some((_, all)) => all.push(wanted),
            None => issuers.push((order.issuer.clone(), vec![wanted])),
        }
    }
    for (issuer, wanted) in issuers {
        let state = issuer.state_path.as_deref().map(StateDir::new);
        let kept = lock(&ACCOUNTS).get(&account_id(&issuer)).filter(|_| state.is_none()).cloned();
        let (key, account) = kept.map_or((None, None), |(key, account)| (Some(key), account));
        let publisher = Publisher { issuer: issuer.clone(), hooks: hooks.clone(), log: (*log).clone() };
        let log = (*log).clone();
        let attendant = IssuerTask { issuer, publisher, wanted, state, log, key, account, history: None };
        tasks.spawn(tokio, "renewing certificates", attendant.attend());
    }
}

/// Returns a number from 0 to 1.
fn chance() -> f64 {
    f64::from(random::quick() >> 8) / f64::from(1 << 24)
}

/// A certificate that is looked after.
struct Wanted {
    order: Order,
    certificate: Arc<Certificate>,
}

/// Step that is due for a certificate.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Due {
    /// No step before this time, seconds since 1970.
    At(i64),
    /// The authority is asked for renewal information.
    Ask,
    /// A certificate is asked for.
    Request,
}

/// Task of an issuer.
struct IssuerTask {
    issuer: Arc<Issuer>,
    publisher: Publisher,
    wanted: Vec<Wanted>,
    state: Option<StateDir>,
    log: Log,
    /// Key of the account.
    key: Option<Arc<Key>>,
    /// URL of the account.
    account: Option<String>,
    /// Requests in the past, if there is no file of them.
    history: Option<History>,
}

impl State {
    /// Begins again with a configuration that has just been loaded.
    fn begin(&mut self, issuer: &Issuer) {
        self.next = 0;
        match self.phase {
            _ if !issuer.enabled => self.phase = Phase::Disabled,
            // The reload may have ended the cause of a failure.
            Phase::Refused => self.phase = Phase::Failed,
            Phase::Disabled => self.phase = Phase::Waiting,
            _ => {}
        }
        if issuer.renew_on_load {
            self.renew_now();
        }
    }

    /// Makes the renewal due.
    fn renew_now(&mut self) {
        (self.renewal, self.suggestion, self.next, self.failures) = (Some(0), None, 0, 0);
        (self.ask_at, self.issued_at) = (i64::MAX, 0);
    }

    /// Returns the step that is due.
    fn due(&mut self, issuer: &Issuer, now: i64) -> Due {
        if !issuer.enabled || self.phase == Phase::Refused {
            return Due::At(i64::MAX);
        }
        if now < self.next {
            return Due::At(self.next);
        }
        let Some(leaf) = &self.leaf else { return Due::Request };
        let (from, until) = (leaf.from, leaf.until);
        let own =
            *self.renewal.get_or_insert_with(|| schedule::renewal(from, until, issuer.renewal, chance()));
        if leaf.renewal_id.is_some() && self.ask_at <= now && self.failures == 0 {
            return Due::Ask;
        }
        let wanted = self.suggestion.map_or(own, |s| schedule::before_end(s.chosen, (from, until)));
        let at = wanted.max(schedule::earliest(self.issued_at, (from, until)));
        match now < at {
            true => Due::At(at.min(self.ask_at.max(now + 1))),
            false => Due::Request,
        }
    }
}

impl IssuerTask {
    async fn attend(mut self) {
        if let Some(state) = self.state.clone()
            && let Err(text) = blocking(move || state.create()).await
        {
            self.say(Level::Error, &format!("certificates are kept in memory only: {text}"));
            self.state = None;
        }
        while !listening::quits() {
            let mut next = i64::MAX;
            for at in 0..self.wanted.len() {
                next = next.min(self.look_after(at).await);
            }
            tokio::time::sleep(schedule::nap(next, now())).await;
        }
    }

    fn say(&self, level: Level, text: &str) {
        (self.log)(level, &format!("acme issuer \"{}\": {text}", self.issuer.name));
    }

    /// Takes the steps that are due for a certificate. Returns the time of the next one.
    async fn look_after(&mut self, at: usize) -> i64 {
        let Some(Wanted { order, certificate }) = self.wanted.get(at) else { return i64::MAX };
        let (order, certificate) = (order.clone(), certificate.clone());
        self.refresh(&order, &certificate).await;
        loop {
            let due = lock(&certificate.state).due(&self.issuer, now());
            let next = match due {
                Due::At(next) => next,
                Due::Ask => {
                    self.ask(&certificate).await;
                    continue;
                }
                Due::Request => match self.request(&order, &certificate).await {
                    Some(next) => next,
                    None => continue,
                },
            };
            lock(&certificate.state).next = next;
            return next;
        }
    }

    /// Reads what another process may have written, and the mark that asks for a renewal.
    async fn refresh(&self, order: &Order, certificate: &Arc<Certificate>) {
        let Some(state) = self.state.clone() else { return };
        let (o, c, file) = (order.clone(), certificate.clone(), order.file());
        let take = move || (state.take_mark(&file, Mark::Renew), state.take_mark(&file, Mark::Test));
        let read = blocking(move || read_files(&o, &c).map(|()| take())).await;
        let (renew, test) = read.unwrap_or_else(|text| {
            self.say(Level::Warn, &text);
            (false, false)
        });
        if renew {
            lock(&certificate.state).renew_now();
        }
        if test {
            self.test(order).await;
        }
    }

    /// Tries whether the authority would issue a certificate, and writes the result (`forebay acme test`).
    async fn test(&self, order: &Order) {
        let Some(state) = self.state.clone() else { return };
        let uri = self.issuer.staging_uri().unwrap_or(&self.issuer.uri);
        let mut tried =
            rehearsal::run(order, uri, self.issuer.challenge.of_attempt(0), &self.publisher).await;
        let other = self.issuer.challenge.of_attempt(1);
        if other != self.issuer.challenge.of_attempt(0) && tried.as_ref().is_ok_and(|t| !is_proven(t)) {
            let second = rehearsal::run(order, uri, other, &self.publisher).await;
            tried = if second.as_ref().is_ok_and(is_proven) { second } else { tried };
        }
        let (file, text) = (order.file(), rehearsal::report(uri, &tried));
        if let Err(text) = blocking(move || state.write_result(&file, &text)).await {
            self.say(Level::Error, &text);
        }
    }

    /// Tries another directory of the authority first if a proof has failed: failures there do not count against the limits.
    async fn rehearse(&self, order: &Order, certificate: &Certificate) -> Result<(), Failure> {
        let (rehearses, failures) = {
            let state = lock(&certificate.state);
            (state.rehearses, state.failures)
        };
        let Some(uri) = self.issuer.staging_uri().filter(|_| rehearses) else { return Ok(()) };
        let challenge = self.issuer.challenge.of_attempt(failures);
        let tried = rehearsal::run(order, uri, challenge, &self.publisher).await;
        match tried.and_then(|names| names.into_iter().try_for_each(|(_, proven)| proven)) {
            Err(f) if f.class == Class::Unproven => Err(f.during("at the staging directory")),
            // A failure of the other directory itself is no failure of the names.
            _ => Ok(()),
        }
    }

    /// Asks for renewal information (RFC 9773).
    async fn ask(&mut self, certificate: &Certificate) {
        let (leaf, last) = {
            let state = lock(&certificate.state);
            (state.leaf.clone(), state.suggestion)
        };
        let Some((leaf, id)) = leaf.and_then(|leaf| leaf.renewal_id.clone().map(|id| (leaf, id))) else {
            return;
        };
        let (suggestion, again) = match self.renewal_info(&id).await {
            Ok(Some((window, again))) => (Suggestion::choose(window.0, window.1, last, chance()), again),
            Ok(None) => (None, Duration::from_hours(24)),
            // The last answer stays in effect.
            Err(_) => (last, Duration::from_hours(1)),
        };
        let mut state = lock(&certificate.state);
        let again = schedule::ask_again(again, (leaf.from, leaf.until));
        (state.suggestion, state.ask_at) = (suggestion, now() + again);
    }

    /// Returns the suggested window, and the time until the next question. `None`: the authority suggests nothing.
    async fn renewal_info(&mut self, id: &str) -> Result<Option<((i64, i64), Duration)>, Failure> {
        let mut session = self.session().await?;
        let Some(base) = session.directory.renewal_info.clone() else { return Ok(None) };
        let answer = session.get(&format!("{}/{id}", base.trim_end_matches('/'))).await?;
        let json = answer.json()?;
        let time = |name: &str| {
            let text = json.get("suggestedWindow").and_then(|w| text_of(w, name))?;
            text.parse::<jiff::Timestamp>().ok().map(jiff::Timestamp::as_second)
        };
        let window = time("start").zip(time("end"));
        let window = window.ok_or_else(|| Failure::temporary("invalid renewal information"))?;
        Ok(Some((window, answer.retry_after().unwrap_or(schedule::ASK_EVERY))))
    }

    /// Asks for a certificate, unless another process does or a limit forbids it. Returns the time of the next attempt, or
    /// `None` if there is a certificate now.
    async fn request(&mut self, order: &Order, certificate: &Arc<Certificate>) -> Option<i64> {
        let _locked = match self.take_lock().await {
            Ok(Some(locked)) => locked,
            Ok(None) => return Some(now() + LOCKED),
            Err(text) => {
                self.failed(order, certificate, &Failure::temporary(text));
                return Some(lock(&certificate.state).next);
            }
        };
        // The process that had the lock may have got the certificate.
        self.refresh(order, certificate).await;
        if !matches!(lock(&certificate.state).due(&self.issuer, now()), Due::Request) {
            return None;
        }
        let mut history = self.read_history().await;
        if let Some(next) = self.barred(&history, order, certificate) {
            return Some(next);
        }
        lock(&certificate.state).phase = Phase::Requesting;
        if let Err(failure) = self.rehearse(order, certificate).await {
            self.failed(order, certificate, &failure);
            return Some(lock(&certificate.state).next);
        }
        history.ordered(now());
        let outcome = self.issue(order, certificate).await;
        match &outcome {
            Ok(()) => history.issued(&order.names(), now()),
            Err(f) if f.class == Class::Unproven => history.unproven(&order.names(), now()),
            Err(_) => {}
        }
        self.write_history(history).await;
        let failure = outcome.err()?;
        self.failed(order, certificate, &failure);
        Some(lock(&certificate.state).next)
    }

    /// Takes the lock of the directory. Without a directory there is nothing to lock.
    async fn take_lock(&self) -> Result<Option<Option<Locked>>, String> {
        let Some(state) = self.state.clone() else { return Ok(Some(None)) };
        blocking(move || state.lock()).await.map(|locked| locked.map(Some))
    }

    /// Returns the time until which a limit forbids a request, and logs that.
    fn barred(&self, history: &History, order: &Order, certificate: &Certificate) -> Option<i64> {
        let mut state = lock(&certificate.state);
        let asked = Asked {
            names: &order.names(),
            limited: self.issuer.is_lets_encrypt(),
            exempt: state.suggestion.is_some(),
        };
        let barred = history.barred(asked, now())?;
        state.error = format!("not asked for, to stay below the limit of {}", barred.limit);
        let text = format!("certificate for \"{}\" is {}", asked.names, state.error);
        drop(state);
        self.say(Level::Warn, &text);
        Some(barred.until)
    }

    /// Gets a certificate, presents it and writes it.
    async fn issue(&mut self, order: &Order, certificate: &Certificate) -> Result<(), Failure> {
        let mut session = self.session().await?;
        let (failures, replaces) = {
            let state = lock(&certificate.state);
            (state.failures, state.leaf.as_ref().and_then(|l| l.renewal_id.clone()))
        };
        let replaces = replaces.filter(|_| session.directory.renewal_info.is_some());
        let challenge = self.issuer.challenge.of_attempt(failures);
        let known = self.account.clone();
        let publisher = &self.publisher;
        let issued = Issuance { session: &mut session, order, publisher, challenge, replaces }.run().await;
        if session.account != known {
            self.keep_account(session.account.clone()).await?;
        }
        self.take_over(order, certificate, issued?).await
    }

    /// Presents and writes an issued certificate.
    async fn take_over(
        &self,
        order: &Order,
        certificate: &Certificate,
        issued: Issued,
    ) -> Result<(), Failure> {
        let Issued { chain, key } = issued;
        let mut changed = None;
        if let Some(state) = self.state.clone() {
            let (file, chain, key) = (order.file(), chain.clone(), key.clone());
            let written =
                blocking(move || state.write_certificate(&file, &chain, &key).map(|()| state.changed(&file)));
            match written.await {
                Ok(at) => changed = at,
                // A full disk is no reason not to use the certificate.
                Err(text) => self.say(Level::Error, &format!("the certificate is not kept: {text}")),
            }
        }
        let presented = certificate.present(&order.identifiers, &chain, key, changed);
        presented.map_err(Failure::temporary)?;
        let mut state = lock(&certificate.state);
        state.total_issued += 1;
        state.issued_at = now();
        let until = state.leaf.as_ref().map_or(0, |l| l.until);
        drop(state);
        let until = jiff::Timestamp::from_second(until).map(|t| t.to_string()).unwrap_or_default();
        self.say(Level::Notice, &format!("new certificate for \"{}\", valid until {until}", order.names()));
        Ok(())
    }

    /// Notes a failure and the time of the next attempt, and logs both.
    fn failed(&self, order: &Order, certificate: &Certificate, failure: &Failure) {
        let mut state = lock(&certificate.state);
        // The pauses grow to spare the authority, which has heard nothing of a failure of our own.
        if failure.class != Class::Own || state.failures == 0 {
            state.failures = state.failures.saturating_add(1);
        }
        state.total_failures += 1;
        let pause = match self.issuer.retry {
            Retry::Growing => schedule::pause(state.failures, state.suggestion.is_some(), chance()),
            Retry::After(seconds) => seconds,
            Retry::Never => 0,
        };
        let asked = failure.retry_after.and_then(|d| i64::try_from(d.as_secs()).ok()).unwrap_or(0);
        state.next = now().saturating_add(pause.max(asked));
        state.rehearses |= failure.class == Class::Unproven;
        let ends = failure.class == Class::Final || self.issuer.retry == Retry::Never;
        state.phase = if ends { Phase::Refused } else { Phase::Failed };
        state.error.clone_from(&failure.text);
        let next = match ends {
            true => "no other attempt before the next reload".to_owned(),
            false => format!("next attempt in {} s", pause.max(asked)),
        };
        let held = match state.leaf {
            Some(_) => "the old one stays in use",
            None if state.has_earlier => "an earlier one for other names is in use",
            None => "a self-signed one is in use",
        };
        drop(state);
        let text = format!("no certificate for \"{}\": {}; {held}, {next}", order.names(), failure.text);
        self.say(Level::Error, &text);
    }

    /// Begins a conversation with the authority.
    async fn session(&mut self) -> Result<Session, Failure> {
        let key = match &self.key {
            Some(key) => key.clone(),
            None => {
                let key = self.read_account().await.map_err(Failure::temporary)?;
                self.key.insert(key).clone()
            }
        };
        Session::begin(&self.issuer, key, self.account.clone()).await
    }

    /// Reads the account, or makes its key.
    async fn read_account(&mut self) -> Result<Arc<Key>, String> {
        let (issuer, state) = (self.issuer.clone(), self.state.clone());
        let (key, account) = blocking(move || account(&issuer, state.as_ref())).await?;
        self.account = account;
        Ok(Arc::new(key))
    }

    /// Keeps the account for the next configuration if there is no directory for it.
    fn remember_account(&self) {
        if let (None, Some(key)) = (&self.state, &self.key) {
            lock(&ACCOUNTS).insert(account_id(&self.issuer), (key.clone(), self.account.clone()));
        }
    }

    async fn keep_account(&mut self, account: Option<String>) -> Result<(), Failure> {
        self.account.clone_from(&account);
        self.remember_account();
        let (Some(state), Some(account)) = (self.state.clone(), account) else { return Ok(()) };
        let Some(key) = self.key.as_ref().map(|key| key.thumbprint()) else { return Ok(()) };
        let directory = self.issuer.uri.clone();
        let written = blocking(move || accounts::write(&state, &directory, &key, &account)).await;
        if let Err(text) = written {
            self.say(Level::Error, &format!("the account is not kept: {text}"));
        }
        Ok(())
    }

    async fn read_history(&mut self) -> History {
        let Some(state) = self.state.clone() else { return self.history.take().unwrap_or_default() };
        let text = blocking(move || state.read(HISTORY)).await.ok().flatten();
        let read = text.map(|t| History::from_text(&t, &self.issuer.uri));
        read.or_else(|| self.history.take()).unwrap_or_default()
    }

    async fn write_history(&mut self, history: History) {
        let (recent, directory) = (history.clone(), self.issuer.uri.clone());
        self.history = Some(history);
        if let Some(state) = self.state.clone() {
            let write = move || {
                let former = state.read(HISTORY).ok().flatten().unwrap_or_default();
                state.write(HISTORY, recent.into_text(&former, &directory, now()).as_bytes())
            };
            // Without the file the limits are counted by this process alone.
            let _ = blocking(write).await;
        }
    }
}

/// Returns `true` if control of all names was proven.
fn is_proven(results: &Results) -> bool {
    results.iter().all(|(_, proven)| proven.is_ok())
}

/// Reads key and URL of an account, or makes a key.
fn account(issuer: &Issuer, state: Option<&StateDir>) -> Result<(Key, Option<String>), String> {
    let read = |name| state.map_or(Ok(None), |s| s.read(name));
    let key = match (&issuer.account_key, read(ACCOUNT_KEY)?) {
        (Some(given), _) => Key::from_pem(given).map_err(|e| format!("account key: {e}"))?,
        (None, Some(text)) => Key::from_pem(&text).map_err(|e| format!("\"{ACCOUNT_KEY}\": {e}"))?,
        (None, None) => {
            let key = Key::generate(issuer.account_kind)?;
            if let Some(state) = state {
                state.write(ACCOUNT_KEY, &key.to_pem())?;
            }
            return Ok((key, None));
        }
    };
    let url = state.map_or(Ok(None), |s| accounts::read(s, &issuer.uri, &key.thumbprint()))?;
    Ok((key, url))
}

/// Works on the blocking pool.
async fn blocking<T: Send + 'static>(
    work: impl FnOnce() -> Result<T, String> + Send + 'static,
) -> Result<T, String> {
    tokio::task::spawn_blocking(work).await.unwrap_or_else(|e| Err(e.to_string()))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::x509::Leaf;

    const NOW: i64 = 1_800_000_000;

    fn issuer() -> Issuer {
        Issuer::new("a", "https://a.example/")
    }

    fn held(from: i64, until: i64) -> State {
        let renewal_id = Some("x.y".to_owned());
        State { leaf: Some(Leaf { from, until, renewal_id }), phase: Phase::Ready, ..State::default() }
    }

    #[test]
    fn a_certificate_is_asked_for_at_once_and_then_renewed() {
        assert_eq!(State::default().due(&issuer(), NOW), Due::Request);
        let day = schedule::DAY;
        let mut state = held(NOW, NOW + 90 * day);
        assert_eq!(state.due(&issuer(), NOW), Due::Ask);
        state.ask_at = NOW + 100;
        assert_eq!(state.due(&issuer(), NOW), Due::At(NOW + 100));
        state.ask_at = i64::MAX;
        let Due::At(renewal) = state.due(&issuer(), NOW) else { panic!("not yet") };
        assert!((58 * day..62 * day).contains(&(renewal - NOW)), "{renewal}");
        assert_eq!(state.due(&issuer(), renewal), Due::Request);
        state.suggestion = Suggestion::choose(NOW + 10, NOW + 20, None, 0.0);
        assert_eq!(state.due(&issuer(), NOW + 9), Due::At(NOW + 10));
        assert_eq!(state.due(&issuer(), NOW + 10), Due::Request);
    }

    /// The clock may be wrong, or the authority issues certificates that are due at once.
    #[test]
    fn a_new_certificate_is_not_renewed_at_once() {
        let day = schedule::DAY;
        let issued = || State { ask_at: i64::MAX, issued_at: NOW, ..held(NOW - 89 * day, NOW + day) };
        assert_eq!(issued().due(&issuer(), NOW), Due::At(NOW + schedule::HOUR));
        assert_eq!(issued().due(&issuer(), NOW + schedule::HOUR), Due::Request);
        let mut again = issued();
        again.renew_now();
        assert_eq!(again.due(&issuer(), NOW), Due::Request, "the user asks for it");
    }

    #[test]
    fn failures_wait_and_refusals_end() {
        let mut state = State { next: NOW + 60, failures: 1, ..State::default() };
        assert_eq!(state.due(&issuer(), NOW), Due::At(NOW + 60));
        assert_eq!(state.due(&issuer(), NOW + 60), Due::Request);
        state.phase = Phase::Refused;
        assert_eq!(state.due(&issuer(), NOW + 60), Due::At(i64::MAX));
        // A failing authority is not asked for renewal information before the certificate.
        let mut state = State { failures: 1, ..held(NOW - 100, NOW - 50) };
        assert_eq!(state.due(&issuer(), NOW), Due::Request);
    }

    #[test]
    fn an_account_keeps_its_key() {
        let dir = tempfile::tempdir().expect("a directory");
        let state = StateDir::new(dir.path());
        let made = account(&issuer(), Some(&state)).expect("an account");
        accounts::write(&state, "https://a.example/", &made.0.thumbprint(), "https://a.example/1")
            .expect("written");
        let again = account(&issuer(), Some(&state)).expect("the account");
        assert_eq!(made.0.thumbprint(), again.0.thumbprint());
        assert_eq!((made.1, again.1.as_deref()), (None, Some("https://a.example/1")));
        let given = Key::generate(crate::settings::KeyKind::P384).expect("a key");
        let issuer = Issuer { account_key: Some(given.to_pem()), ..issuer() };
        assert_eq!(account(&issuer, Some(&state)).expect("given").0.thumbprint(), given.thumbprint());
    }
}
