//! What in a configuration and on the host is wrong, stale, harmful or without effect, why, and what to
//! write instead. Nothing here changes a file. A rule is one entry of a table: [`conf_rules::RULES`] look at the
//! configuration, [`safety_rules::RULES`] at its safety, [`stream_rules::RULES`] at its stream block, [`quic_rules::RULES`] at HTTP/3, [`cve_rules::RULES`] at faults of nginx, [`acme_rules::RULES`] at its
//! certificates, [`host_rules::RULES`] at the kernel's settings and the machine, [`disk_rules::RULES`] at the file systems in use,
//! [`live_rules::RULES`] at the server that runs with it.
//!
//! `scene.rs` is the configuration as rules see it. `host.rs`, `disk.rs` and `live.rs` describe the machine and the server.
//! docs/doctor.md is printed from the tables of rules, and a test holds it to that.

#![warn(unreachable_pub)]

mod acme;
mod acme_rules;
mod conf_rules;
mod cve_rules;
mod disk;
mod disk_rules;
mod host;
mod host_rules;
mod live;
mod live_rules;
mod output;
mod quic_rules;
mod safety_rules;
mod scene;
mod stream_rules;
pub mod variables;

use forebay_conf::error::Error;
use forebay_conf::files::Files;
use forebay_conf::parse::Parsed;
use forebay_conf::tree::Span;
use forebay_conf::version::NginxVersion;
use forebay_core::config::{Config, Environment};
use forebay_sys::files;
use std::path::{Path, PathBuf};

pub use conf_rules::Worst;
pub use cve_rules::of_refused as faults_of_refused;
pub use host::{Host, version_of_nginx};
pub use output::{json, link, manual, refusal, sarif, security_manual};
pub use scene::Scene;

/// Severity of a finding.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum Severity {
    /// Breaks requests, loses safety, or makes things slower.
    Harm,
    /// Will hurt under conditions that the text names.
    Warning,
    /// Does nothing here: it can go.
    NoEffect,
    /// Could be better.
    Advice,
}

impl Severity {
    /// Returns its name in output for programs.
    pub fn name(self) -> &'static str {
        match self {
            Severity::Harm => "harm",
            Severity::Warning => "warning",
            Severity::NoEffect => "no-effect",
            Severity::Advice => "advice",
        }
    }
}

/// A rule.
pub struct Rule {
    /// Stable name, also of its section in docs/doctor.md.
    pub id: &'static str,
    /// Its severity.
    pub severity: Severity,
    /// The general problem.
    pub title: &'static str,
    /// Reason for the rule, with its source.
    pub why: &'static str,
    /// Advice.
    pub instead: &'static str,
}

/// A place where a rule applies.
#[derive(Debug)]
pub struct Finding {
    /// Id of the rule.
    pub rule: &'static Rule,
    /// The problem here.
    pub message: String,
    /// Its place in the configuration; `None` for the host.
    pub span: Option<Span>,
}

impl std::fmt::Debug for Rule {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str(self.id)
    }
}

/// A table of rules: id, severity, title, why, what to do instead, and what looks.
macro_rules! rule_table {
    ($check:ty; $($id:literal $severity:ident $title:literal $why:literal $instead:literal $look:expr,)*) => {
        /// The table.
        pub(super) const RULES: &[(super::Rule, $check)] = &[$((
            super::Rule { id: $id, severity: super::Severity::$severity, title: $title, why: $why, instead: $instead },
            $look,
        ),)*];
    };
}
use rule_table;

/// Rules for the configuration.
fn for_configuration() -> impl Iterator<Item = &'static (Rule, conf_rules::Check)> {
    conf_rules::RULES
        .iter()
        .chain(safety_rules::RULES)
        .chain(stream_rules::RULES)
        .chain(quic_rules::RULES)
        .chain(cve_rules::RULES)
}

/// Returns all rules, those for the configuration first.
pub fn rules() -> impl Iterator<Item = &'static Rule> {
    let host = host_rules::SETTINGS.iter().map(|(r, _)| r).chain(host_rules::RULES.iter().map(|(r, _)| r));
    let disk = disk_rules::RULES.iter().map(|(r, _)| r);
    for_configuration()
        .chain(acme_rules::RULES)
        .map(|(r, _)| r)
        .chain(host)
        .chain(disk)
        .chain(live_rules::RULES.iter().map(|(r, _)| r))
}

/// Looks at a configuration and a host.
pub fn examine(scene: &Scene<'_>, host: &Host) -> Vec<Finding> {
    let mut found = Vec::new();
    for (rule, check) in for_configuration().chain(acme_rules::RULES) {
        check(scene, host, &mut |span, message| found.push(Finding { rule, message, span: Some(span) }));
    }
    for (rule, check) in disk_rules::RULES {
        check(scene, &host.disks, &mut |span, message| {
            found.push(Finding { rule, message, span: Some(span) });
        });
    }
    let mut plain = |rule: &'static Rule, message: String| found.push(Finding { rule, message, span: None });
    for (rule, text) in host_rules::SETTINGS {
        host_rules::wanted(host, rule.title, text, &mut |message| plain(rule, message));
    }
    for (rule, check) in host_rules::RULES {
        check(scene, host, &mut |message| plain(rule, message));
    }
    for (running, (rule, check)) in
        host.running.iter().flat_map(|r| live_rules::RULES.iter().map(move |l| (r, l)))
    {
        check(running, &mut |message| plain(rule, message));
    }
    found.sort_by_key(|f| (f.rule.severity, f.span.map_or((u32::MAX, 0), |s| (s.file.0, s.start))));
    found
}

/// Examines refused lines, which are not in the tree, for a problem that they would have in the right place.
pub fn refused_lines(errors: &[Error], files: &Files) -> Vec<Finding> {
    let rule = rules().find(|r| r.id == "method-list");
    let mut found = Vec::new();
    for span in errors.iter().filter_map(|e| e.span.or(e.at)) {
        let text = String::from_utf8_lossy(files.bytes(span.file)).into_owned();
        let line = text.lines().nth((span.line as usize).saturating_sub(1)).unwrap_or_default();
        if let Some(rule) = rule.filter(|_| line.contains("if") && conf_rules::forgets_patch(line)) {
            found.push(Finding { rule, message: conf_rules::PATCH_REFUSED.to_owned(), span: Some(span) });
        }
    }
    found
}

/// Returns the directory of the configuration.
pub fn directory_of(environment: &Environment) -> PathBuf {
    environment.conf_path.parent().map_or_else(|| environment.prefix.clone(), Into::into)
}

/// Reads a configuration of this environment with all front ends of the program; see [`forebay_core::config::load_all`].
pub type Load = fn(&Environment, &mut Files) -> (Option<Config>, Vec<Error>);

/// What is to be looked at besides the configuration.
pub struct Look<'a> {
    /// Places of the configuration.
    pub environment: &'a Environment,
    /// The machine, and name servers.
    pub machine: bool,
    /// Files of kernel settings; those of the machine if there are none.
    pub sysctl: &'a [PathBuf],
    /// Reads the configuration, for what it orders by ACME.
    pub load: Load,
}

/// Looks at the machine, the running server and name servers.
///
/// # Errors
/// A file of kernel settings cannot be read.
pub fn look_at_host(scene: &Scene<'_>, look: &Look<'_>) -> Result<Host, String> {
    let Look { environment, sysctl, .. } = *look;
    let prefix = &environment.prefix;
    let mut host = if look.machine { Host::detect() } else { Host::default() };
    if look.machine {
        host.disks = disk::Disks::find(scene, prefix);
        host.certificates = host::Certificate::find(scene, &directory_of(environment));
        host.running = live::Running::find(scene, prefix);
        host.acme = acme::Acme::of(scene, environment, look.load);
        host.acme.look(scene, host.running.is_some());
        if sysctl.is_empty() {
            host.take_own_sysctl_files(Path::new("/etc"));
        }
    }
    for file in sysctl {
        let text = files::read_text(file, files::MAX_WHOLE)
            .map_err(|e| format!("cannot read {}: {e}", file.display()))?;
        host.take_sysctl_file(file, &text);
    }
    Ok(host)
}

/// Returns the number of faults that a version of nginx has and a configuration opens; 0 for a version of an unknown form.
pub fn faults(parsed: &Parsed, files: &Files, version: &str) -> usize {
    let Some(version) = NginxVersion::parse(version) else { return 0 };
    let host = Host { examined: Some(version), ..Host::default() };
    let scene = Scene::new(&parsed.tree);
    let mut opened = 0;
    for (_, check) in cve_rules::RULES {
        check(&scene, &host, &mut |_, _| opened += 1);
    }
    opened + cve_rules::of_refused(&parsed.errors, files, version).len()
}

#[cfg(test)]
mod tests;
