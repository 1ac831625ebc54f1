//! The swap and the way back: which way fits, and its commands.

use super::Facts;
use super::nginx::{ASIDE, Nginx, Origin};
use super::running::Server;
use super::steps::word;
use crate::paths::{self, Paths};
use std::path::{Path, PathBuf};

/// Way in which Forebay takes the place of nginx.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Way {
    /// The package forebay-nginx, which takes the sockets over.
    Debian,
    /// The package of that name, by which the service runs Forebay from its next start on.
    Rpm,
    /// Image of Forebay with the conventions of nginx's.
    Image,
    /// Image of Nginx Proxy Manager with one line more.
    ProxyManager,
    /// The program in its place, then USR2.
    Signal,
    /// End of nginx, then start of Forebay.
    Restart,
}

impl Way {
    /// Returns the way that fits.
    pub(super) fn of(facts: &Facts) -> Way {
        match &facts.origin {
            Origin::ProxyManager => Way::ProxyManager,
            Origin::Image => Way::Image,
            // The packages serve the configuration of nginx's package.
            Origin::Debian(_) if is_usual(facts) => Way::Debian,
            Origin::Rpm(_) if is_usual(facts) => Way::Rpm,
            _ if can_replace_itself(facts) => Way::Signal,
            _ => Way::Restart,
        }
    }

    /// Returns the name of the way, for people.
    pub(super) fn name(self) -> &'static str {
        match self {
            Way::Debian => "by the package forebay-nginx, without a refused client",
            Way::Rpm => "by the package forebay-nginx and a restart of nginx.service",
            Way::Image => {
                "by the image of Forebay on Debian: paths, user, port and entry point are those of nginx's image"
            }
            Way::ProxyManager => "by one line in the image of Nginx Proxy Manager",
            Way::Signal => "by USR2: Forebay starts on the sockets of nginx",
            Way::Restart => "by a restart, with a short gap",
        }
    }

    /// Returns the commands of the swap.
    pub(super) fn commands(self, facts: &Facts) -> Vec<String> {
        let version = env!("CARGO_PKG_VERSION");
        let arch = std::env::consts::ARCH;
        let debian = if arch == "aarch64" { "arm64" } else { "amd64" };
        let is_installed = facts.program == Path::new("/usr/sbin/forebay");
        let first = |package: String| if is_installed { String::new() } else { package };
        match self {
            Way::Debian => {
                let own = first(format!("./forebay_{version}-1_{debian}.deb "));
                vec![format!("apt install {own}./forebay-nginx_{version}-1_all.deb")]
            }
            Way::Rpm => {
                let own = first(format!("./forebay-{version}-1.{arch}.rpm "));
                vec![
                    format!("dnf install {own}./forebay-nginx-{version}-1.noarch.rpm"),
                    "systemctl restart nginx".to_owned(),
                ]
            }
            Way::Image => vec![format!(
                "skopeo copy oci-archive:forebay-{version}-debian-oci.tar docker-daemon:forebay:debian"
            )],
            Way::ProxyManager => vec![format!(
                "printf 'FROM jc21/nginx-proxy-manager\\nCOPY --chmod=755 forebay {}\\n' | docker build -t proxy-manager-forebay -f - .",
                word(&place(facts))
            )],
            Way::Signal => by_signal(facts),
            Way::Restart => restart(facts),
        }
    }

    /// Returns the commands that lead back.
    pub(super) fn back(self, facts: &Facts) -> Vec<String> {
        let running = facts.running.as_ref();
        if running.is_some_and(|running| running.has_former) {
            let pid = pid(facts);
            return vec![format!("kill -HUP $(cat {pid}.oldbin)"), format!("kill -QUIT $(cat {pid})")];
        }
        let place = word(&place(facts));
        match self {
            Way::Debian => vec!["apt remove forebay-nginx".to_owned()],
            Way::Rpm => {
                vec!["dnf remove forebay-nginx".to_owned(), "systemctl restart nginx".to_owned()]
            }
            Way::Image | Way::ProxyManager => {
                vec!["start the container from the image that it had".to_owned()]
            }
            Way::Signal if returns_by_place(facts) => {
                vec![format!("mv {place}{ASIDE} {place} && {}", upgrade(facts)), quit(facts)]
            }
            Way::Signal => vec![format!("mv {place}{ASIDE} {place} && {}{}", stop(facts), nginx(facts))],
            Way::Restart => vec![format!("{}{}", stop(facts), nginx(facts))],
        }
    }
}

/// Returns the place of nginx's program.
fn place(facts: &Facts) -> PathBuf {
    facts.nginx.as_ref().map_or_else(|| "/usr/sbin/nginx".into(), Nginx::place)
}

fn pid(facts: &Facts) -> String {
    word(&facts.configuration.pid)
}

fn is_usual(facts: &Facts) -> bool {
    facts.configuration.path == Path::new(paths::CONF) && place(facts) == Path::new("/usr/sbin/nginx")
}

/// Returns `true` if the master replaces itself on USR2 and Forebay finds its configuration then.
fn can_replace_itself(facts: &Facts) -> bool {
    let Some(running) = &facts.running else { return false };
    let foreground = running.is_in_foreground || facts.configuration.is_in_foreground;
    // A script has no room for words in quotes.
    let is_plain = !forebay(facts).contains('\'');
    !foreground && (starts_by_place(facts) || (finds_pid_file(facts) && is_plain))
}

/// Returns `true` if Forebay, started as nginx was, has the same configuration without further words.
fn starts_by_place(facts: &Facts) -> bool {
    let same = facts.nginx.as_ref().is_some_and(|nginx| {
        let Paths { prefix, conf, pid, .. } = Paths::new(None);
        nginx.paths.prefix == prefix && nginx.paths.conf == conf && nginx.paths.pid == pid
    });
    same || facts.running.as_ref().is_some_and(|running| running.names_configuration)
}

/// Returns `true` if Forebay starts what is in the place of nginx on USR2. Behind a script it starts itself again.
fn returns_by_place(facts: &Facts) -> bool {
    match &facts.running {
        Some(running) if running.server == Server::Forebay => running.program == place(facts),
        _ => starts_by_place(facts),
    }
}

/// Returns `true` if Forebay has the pid file of nginx when it is started with nginx's prefix.
fn finds_pid_file(facts: &Facts) -> bool {
    let prefix = facts.nginx.as_ref().map(|nginx| nginx.paths.prefix.to_string_lossy().into_owned());
    facts.configuration.names_pid || Paths::new(prefix.as_deref()).pid == facts.configuration.pid
}

fn upgrade(facts: &Facts) -> String {
    format!("kill -USR2 $(cat {})", pid(facts))
}

/// Returns the command that ends a master, to be followed by another one. It waits for the end: the pid file that goes with it must not
/// be that of the next master.
fn stop(facts: &Facts) -> String {
    let pid = pid(facts);
    format!("kill -TERM $(cat {pid}) && while [ -e {pid} ]; do sleep 0.1; done && ")
}

fn quit(facts: &Facts) -> String {
    format!("kill -QUIT $(cat {}.oldbin)  # when the new one serves", pid(facts))
}

fn by_signal(facts: &Facts) -> Vec<String> {
    let (place, own) = (word(&place(facts)), word(&facts.program));
    let put = if starts_by_place(facts) {
        format!("cp {own} {place}")
    } else {
        // The program is called without words: a script adds them.
        format!("printf '#!/bin/sh\\nexec {} \"$@\"\\n' > {place} && chmod 755 {place}", forebay(facts))
    };
    vec![format!("mv {place} {place}{ASIDE} && {put} && {}", upgrade(facts)), quit(facts)]
}

/// Returns the command that starts nginx.
fn nginx(facts: &Facts) -> String {
    if matches!(facts.origin, Origin::Debian(_) | Origin::Rpm(_)) {
        return "systemctl enable --now nginx".to_owned();
    }
    let conf = &facts.configuration.path;
    let is_own = facts.nginx.as_ref().is_some_and(|nginx| nginx.paths.conf == *conf);
    let conf = if is_own { String::new() } else { format!(" -c {}", word(conf)) };
    format!("{}{conf}", word(&place(facts)))
}

/// Returns the command that starts Forebay with the paths of nginx.
fn forebay(facts: &Facts) -> String {
    let (own, conf) = (word(&facts.program), word(&facts.configuration.path));
    match &facts.nginx {
        Some(nginx) if nginx.paths.prefix != Path::new(paths::PREFIX) => {
            format!("{own} -p {} -c {conf}", word(&nginx.paths.prefix))
        }
        _ => format!("{own} -c {conf}"),
    }
}

fn restart(facts: &Facts) -> Vec<String> {
    let stop = match (&facts.running, &facts.origin) {
        (None, _) => String::new(),
        (_, Origin::Debian(_) | Origin::Rpm(_)) => "systemctl disable --now nginx && ".to_owned(),
        _ => stop(facts),
    };
    vec![format!("{stop}{}", forebay(facts))]
}
