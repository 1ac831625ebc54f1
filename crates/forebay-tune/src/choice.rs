//! Choice of the settings that a tuning tries, with a reason for each that it does not try.

use crate::cli::{RunArgs, cpus};
use crate::knobs::{KNOBS, Knob, Need, Place, level_text};
use crate::rig::Active;
use crate::sysctl::Journal;
use forebay_bench::observe::shares;
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
        for knob in KNOBS {
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
        for text in knob.levels {
            let text = level_text(text, cpus());
            let edits = crate::patch::edits(self.view, knob, &text);
            let known = levels.iter().any(|(t, e)| same(t, &text) || (!edits.is_empty() && *e == edits));
            let changes = !edits.is_empty() || knob.place == Place::Sysctl;
            if !known && changes && !self.is_set(knob, &text) {
                levels.push((text, edits));
            }
        }
        if levels.is_empty() { Err("already so, or no place for it".into()) } else { Ok(levels) }
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
            return Some("without effect on this server");
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
            Need::Proxy => self.targets.iter().any(|t| t.proxied),
            Need::Tls => self.targets.iter().any(|t| t.url.starts_with("https")),
            Need::Http2 => self.args.http2,
            Need::Http3 => self.args.http3,
            // Over QUIC there are no records and no connections of TCP.
            Need::Tcp => !self.args.http3,
            // A proxied request takes two, and one worker may get them all.
            Need::ManyConnections => self.args.connections * 4 > self.worker_connections(),
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
