//! Choice of the settings that a tuning tries, with a reason for each that it does not try.

use crate::cli::{RunArgs, cpus};
use crate::knobs::{KNOBS, Knob, Need, Place, level_text, statements};
use crate::program::Which;
use crate::rig::{Active, Goal};
use crate::sysctl::Journal;
use forebay_bench::observe::shares;
use forebay_conf::grammar::Support;
use forebay_copy::patch::{Edit, View};
use forebay_copy::scene::{self, Target};

/// Most settings of a tuning: the screening design has so many columns.
const MOST: usize = 23;

/// Settings that are not tried, and why.
pub(crate) type LeftOut = Vec<(&'static str, String)>;

/// Everything that decides whether a setting is tried.
pub(crate) struct Choice<'a> {
    pub(crate) args: &'a RunArgs,
    pub(crate) view: &'a View<'a>,
    pub(crate) targets: &'a [Target],
    pub(crate) journal: &'a Journal,
    /// Directives that others know to be set badly, `forebay doctor` for one: their settings come first.
    pub(crate) known: &'a [String],
    /// Numbers of locations whose answers may be stored, as far as some requests tell.
    pub(crate) storable: &'a [usize],
}

impl Choice<'_> {
    /// Returns the settings to try and those that are left out.
    ///
    /// # Errors
    /// `--only` or `--skip` name a setting that does not exist.
    pub(crate) fn make(&self) -> Result<(Vec<Active>, LeftOut), String> {
        for name in self.args.only.iter().chain(&self.args.skip) {
            if KNOBS.iter().all(|k| k.name != name) {
                return Err(format!("there is no setting \"{name}\"; --list shows all"));
            }
        }
        let mut active = Vec::new();
        let mut left_out: LeftOut = Vec::new();
        let mut knobs: Vec<&'static Knob> = KNOBS.iter().collect();
        knobs.sort_by_key(|k| self.turn(k));
        for knob in knobs {
            match self.levels(knob) {
                Ok(levels) => active.push(Active { knob, levels }),
                Err(why) => left_out.push((knob.name, why)),
            }
        }
        for a in active.drain(active.len().min(MOST)..) {
            let why = "more settings than one tuning can screen; name it with --only";
            left_out.push((a.knob.name, why.into()));
        }
        Ok((active, left_out))
    }

    /// Returns the turn of a knob: first what is known to be set badly, then what the configuration sets at all, then the rest.
    fn turn(&self, knob: &Knob) -> u8 {
        let mut names =
            knob.levels.iter().flat_map(|l| statements(l)).map(|(name, _)| name).chain([knob.name]);
        if names.clone().any(|name| self.known.iter().any(|k| k == name)) {
            return 0;
        }
        if names.any(|name| self.view.all(name).next().is_some()) { 1 } else { 2 }
    }

    /// Returns the levels of a knob that change something here.
    ///
    /// # Errors
    /// The reason for not trying the knob.
    fn levels(&self, knob: &'static Knob) -> Result<Vec<(String, Vec<Edit>)>, String> {
        if let Some(why) = self.why_not(knob) {
            return Err(why.to_owned());
        }
        if knob.place == Place::Sysctl {
            self.check_kernel(knob)?;
        }
        let mut levels: Vec<(String, Vec<Edit>)> = Vec::new();
        let mut void = false;
        for text in knob.levels {
            let Some(bare) = in_effect(self.args.server, knob.place, &level_text(text, cpus())) else {
                void = true;
                continue;
            };
            let text = with_needs(self.view, self.args.server, knob, &bare);
            let edits = match knob.place {
                Place::Cache => crate::patch::cache::store(self.view, &text, Some(self.storable)),
                _ => crate::patch::edits(self.view, knob, &text),
            };
            let known = levels.iter().any(|(t, e)| same(t, &text) || (!edits.is_empty() && *e == edits));
            let changes = !edits.is_empty() || knob.place == Place::Sysctl;
            if !known && changes && !self.is_set(knob, &bare) {
                levels.push((text, edits));
            }
        }
        match (levels.is_empty(), void) {
            (false, _) => Ok(levels),
            (true, true) => Err(NO_EFFECT.into()),
            (true, false) => Err("already so, or no place for it".into()),
        }
    }

    fn why_not(&self, knob: &Knob) -> Option<&'static str> {
        let named = |list: &[String]| list.iter().any(|n| n == knob.name);
        if !self.args.only.is_empty() && !named(&self.args.only) || named(&self.args.skip) {
            return Some("left out by --only or --skip");
        }
        if knob.place == Place::Sysctl && !self.args.sysctl {
            return Some("a setting of the machine, without --sysctl");
        }
        if knob.only.is_some_and(|server| server != self.args.server) {
            return Some(NO_EFFECT);
        }
        (!self.matters(knob.need)).then_some("without effect on this load")
    }

    /// Returns `true` if a setting with this need can have an effect.
    fn matters(&self, need: Need) -> bool {
        match need {
            Need::Nothing => true,
            Need::Cpus => shares().0.len() > 1,
            Need::Files => self.targets.iter().any(|t| !t.proxied),
            Need::LargeFiles => self.targets.iter().any(|t| t.size > 256 << 10),
            Need::Gzip => self.view.any_on("gzip"),
            Need::Transfer => self.args.goal == Goal::Transfer,
            Need::EncryptedPage => {
                let encrypted = self.targets.iter().any(|t| t.url.starts_with("https"));
                // Clients without encryption do not find out that HTTP/2 is spoken.
                let all = self.targets.iter().all(|t| t.url.starts_with("https"));
                self.args.goal == Goal::Transfer && encrypted && all && !self.args.http2 && !self.args.http3
            }
            Need::Proxy => self.targets.iter().any(|t| t.proxied),
            Need::FastCgi => self.args.real_upstreams && self.view.all("fastcgi_pass").next().is_some(),
            Need::RealUpstreams => self.args.real_upstreams && self.targets.iter().any(|t| t.proxied),
            Need::Tls => self.targets.iter().any(|t| t.url.starts_with("https")),
            Need::Http2 => self.args.http2,
            Need::Http3 => self.args.http3,
            // Over QUIC there are no records and no connections of TCP.
            Need::Tcp => !self.args.http3,
            // A proxied request takes two, and one worker may get them all.
            Need::ManyConnections => self.args.connections * 4 >= self.worker_connections(),
        }
    }

    fn worker_connections(&self) -> u64 {
        let set = self.view.all("worker_connections").last();
        set.and_then(|n| self.view.args(n).first()?.parse().ok()).unwrap_or(512)
    }

    /// Checks that a kernel setting can be changed, and that it does not lower a value of this machine.
    fn check_kernel(&self, knob: &Knob) -> Result<(), String> {
        let text = knob.levels.first().copied().unwrap_or_default();
        let (name, value) = text.split(';').next().and_then(|t| t.split_once(" = ")).unwrap_or_default();
        self.journal.can(name, value)?;
        if self.journal.get(name).is_ok_and(|now| lowers(name, &now, value)) {
            return Err("this machine has more already".to_owned());
        }
        Ok(())
    }

    /// Returns `true` if all directives of a knob's name are this one. A level may be equal to the present setting on the
    /// server's share of the CPUs.
    fn is_set(&self, knob: &Knob, text: &str) -> bool {
        let mut there = self.view.all(knob.name).peekable();
        let is_same = |n| same(&format!("{} {};", knob.name, self.view.args(n).join(" ")), text);
        there.peek().is_some() && there.all(is_same)
    }
}

/// Reason for not trying what a server accepts without doing anything.
const NO_EFFECT: &str = "without effect on this server";

/// Returns a level without the directives that the server accepts and does nothing for; `None` if nothing is left of it. For
/// Forebay the column `support` of forebay-conf's table of directives says so.
fn in_effect(server: Which, place: Place, level: &str) -> Option<String> {
    // Parameters, and settings of the kernel.
    let words = match place {
        Place::AccessLog | Place::Sysctl | Place::ErrorLog | Place::ListenThere => {
            return Some(level.to_owned());
        }
        Place::Listen => 1,
        _ => 0,
    };
    let kept: Vec<String> = statements(level)
        .into_iter()
        .enumerate()
        .filter(|(n, (name, _))| *n < words || server == Which::Nginx || acts(name))
        .map(|(_, (name, args))| format!("{name} {args}").trim().to_owned())
        .collect();
    if kept.is_empty() {
        return None;
    }
    // A parameter alone is no statement.
    let end = if level.trim_end().ends_with(';') && kept.len() > words { ";" } else { "" };
    Some(kept.join("; ") + end)
}

/// Returns a level with what it needs to have its effect: connections that are kept wait for acknowledgements with `tcp_nodelay off`,
/// and those that are closed soon do not.
fn with_needs(view: &View<'_>, server: Which, knob: &Knob, level: &str) -> String {
    let is_off = |n: usize| view.args(n).first().is_some_and(|a| a == "off");
    let waits = || view.all("tcp_nodelay").any(is_off) && (server == Which::Nginx || acts("tcp_nodelay"));
    if knob.name == "keepalive_requests" && waits() {
        return format!("{level} tcp_nodelay on;");
    }
    level.to_owned()
}

/// Returns `true` if a directive of `http`, `events` or the top of the file does something in Forebay.
fn acts(name: &str) -> bool {
    let of_others = |module: &str| module.starts_with("stream") || module.starts_with("mail");
    let rows = forebay_conf::grammar::rows(name.as_bytes());
    rows.iter().any(|row| !of_others(row.module) && row.support == Support::Yes)
}

/// Returns `true` if two statements are equal in the measured copy.
fn same(a: &str, b: &str) -> bool {
    scene::scaled(a) == scene::scaled(b)
}

/// Returns `true` if a queue or a buffer of the kernel would become smaller.
fn lowers(name: &str, now: &str, value: &str) -> bool {
    let grows = ["somaxconn", "max_backlog", "rmem", "wmem"].iter().any(|end| name.ends_with(end));
    let most = |text: &str| text.split(' ').filter_map(|n| n.parse::<u64>().ok()).max();
    grows && most(now) > most(value)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_a_server_accepts_without_effect_is_not_tried() {
        let level = |server, place, text| in_effect(server, place, text);
        let sendfile = "sendfile on; tcp_nopush on;";
        assert_eq!(level(Which::Forebay, Place::Http, sendfile), None);
        assert_eq!(level(Which::Nginx, Place::Http, sendfile).as_deref(), Some(sendfile));
        assert_eq!(level(Which::Forebay, Place::Http, "output_buffers 4 64k;"), None);
        let mixed = level(Which::Forebay, Place::Http, "sendfile on; keepalive_requests 100000;");
        assert_eq!(mixed.as_deref(), Some("keepalive_requests 100000;"));
        let listen = level(Which::Forebay, Place::Listen, "reuseport; multi_accept on;");
        assert_eq!(listen.as_deref(), Some("reuseport"));
        assert_eq!(
            level(Which::Forebay, Place::AccessLog, "buffer=64k flush=1s").as_deref(),
            Some("buffer=64k flush=1s")
        );
        for knob in KNOBS.iter().filter(|k| k.only != Some(Which::Nginx)) {
            let text = knob.levels.first().copied().unwrap_or_default();
            let kept = in_effect(Which::Forebay, knob.place, text).unwrap_or_default();
            assert!(!kept.contains("sendfile") && !kept.contains("multi_accept"), "{kept}");
        }
    }

    #[test]
    fn kept_connections_do_not_wait_for_acknowledgements() {
        let dir = tempfile::tempdir().expect("dir");
        let level = |name: &str, settings: &str| {
            let conf = dir.path().join("n.conf");
            std::fs::write(&conf, format!("events {{}}\nhttp {{ {settings} }}\n")).expect("written");
            let source = forebay_copy::patch::Source::read(&conf).expect("parses");
            let knob = KNOBS.iter().find(|k| k.name == name).expect("in the table");
            with_needs(&source.view(), Which::Nginx, knob, "x 1;")
        };
        assert_eq!(level("keepalive_requests", "tcp_nodelay off;"), "x 1; tcp_nodelay on;");
        assert_eq!(level("keepalive_requests", "tcp_nodelay on;"), "x 1;");
        assert_eq!(level("keepalive_timeout", "tcp_nodelay off;"), "x 1;");
    }

    #[test]
    fn limits_of_the_kernel_are_not_lowered() {
        let rmem = "net.ipv4.tcp_rmem";
        assert!(lowers(rmem, "4096 131072 67108864", "4096 131072 33554432"));
        assert!(!lowers(rmem, "4096 131072 6291456", "4096 131072 33554432"));
        assert!(lowers("net.core.somaxconn", "65535", "4096"));
        // Less is what these are tried for.
        assert!(!lowers("net.ipv4.tcp_notsent_lowat", "4294967295", "131072"));
        assert!(!lowers("net.ipv4.tcp_tw_reuse", "2", "1"));
    }
}
