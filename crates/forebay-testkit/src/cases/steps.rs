//! Carries out sections of a case on its server.

use super::row::Row;
use super::section::Section;
use super::upstreams::Upstream;
use super::{Case, Compared, sides};
use crate::{DEADLINE, wait_for, wait_until};
use std::time::{Duration, Instant};

/// Pause between looks at what has to come.
const PAUSE: Duration = Duration::from_millis(5);

impl Case<'_> {
    pub(super) fn origin(&self, name: &str) -> &Upstream {
        self.origins.iter().find(|origin| origin.name == name).expect("an origin")
    }

    pub(super) fn requests(&self, section: &Section) {
        let compared = Compared::of(&section.argument);
        let theirs = self.theirs.as_ref().filter(|_| compared.nginx && compared.oracle().is_some());
        let fill = |text: &str| if compared.nginx { self.filled(text) } else { self.said(text) };
        let failed = |text: &String| match text.strip_prefix("until ") {
            None => Row::parse(&fill(text)).check(self.server(), theirs, &compared.form).err(),
            Some(text) => {
                let (row, end) = (Row::parse(&fill(text)), Instant::now() + DEADLINE);
                loop {
                    let failed = row.check(self.server(), theirs, &compared.form).err()?;
                    if Instant::now() > end {
                        return Some(failed);
                    }
                    std::thread::sleep(PAUSE);
                }
            }
        };
        let all: String = section.rows().iter().filter_map(failed).collect();
        assert!(all.is_empty(), "{all}\n{}", self.server().error_log());
    }

    pub(super) fn talk(&mut self, section: &Section) {
        let rows: Vec<String> = section.rows().iter().map(|row| self.said(row)).collect();
        let end = Instant::now() + DEADLINE;
        loop {
            let server = self.ours.as_ref().expect("a configuration");
            let failed = rows.iter().find_map(|row| self.talks.row(row, server, self.origins).err());
            let Some(failed) = failed else { return };
            assert!(section.argument == "until" && Instant::now() < end, "{failed}\n{}", server.error_log());
            std::thread::sleep(PAUSE);
        }
    }

    pub(super) fn access(&self, section: &Section) {
        let (name, compared) = section.argument.split_once(' ').unwrap_or((&section.argument, ""));
        let lines = self.said(&section.text);
        self.server().wait_for_lines(name, lines.lines().count());
        assert_eq!(self.server().read(name), lines);
        if let Some(theirs) = self.theirs.as_ref().filter(|_| compared == "nginx") {
            let site = theirs.site();
            wait_until("lines of nginx", || site.read(name).lines().count() >= lines.lines().count());
            assert_eq!(site.read(name), lines, "nginx");
        }
    }

    pub(super) fn log(&self, name: &str, text: &str) {
        let log = || self.server().read(name);
        if let Some(text) = text.strip_prefix('!') {
            return assert!(!log().contains(text), "{text:?} in {}", log());
        }
        let counted = text.split_once("x ").and_then(|(count, text)| {
            let most = count.strip_suffix('-').map(|most| most.parse::<usize>());
            if let Some(Ok(most)) = most {
                return Some((0, most, text));
            }
            let least = count.strip_suffix('+');
            let count = least.unwrap_or(count).parse::<usize>().ok()?;
            Some((count, if least.is_some() { usize::MAX } else { count }, text))
        });
        let (count, most, text) = counted.unwrap_or((1, usize::MAX, text));
        let end = Instant::now() + DEADLINE;
        while log().matches(text).count() < count {
            assert!(Instant::now() < end, "waited in vain for {count} times {text:?} in {name}: {}", log());
            std::thread::sleep(PAUSE);
        }
        assert!(log().matches(text).count() <= most, "{text:?} in {}", log());
    }

    pub(super) fn reload(&self, section: &Section) {
        let server = self.server();
        let mut conf = server.read("nginx.conf");
        for row in section.rows() {
            let row = self.said(&row);
            let (old, new) = sides(&row);
            assert!(conf.contains(old), "{old}");
            conf = conf.replace(old, new);
        }
        let before = server.error_log().matches("reconfigur").count();
        server.reload_with(conf);
        let end = Instant::now() + DEADLINE;
        wait_for("the reload", || {
            assert!(Instant::now() < end, "{}", server.error_log());
            (server.error_log().matches("reconfigur").count() > before).then_some(())
        });
    }
}
