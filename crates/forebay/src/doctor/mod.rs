//! `forebay doctor`: what in a configuration and on the host is wrong, stale, harmful or without effect, why, and what to
//! write instead. It reads and changes nothing. A rule is one entry of a table: [`conf_rules::RULES`] look at the
//! configuration, [`safety_rules::RULES`] at its safety, [`stream_rules::RULES`] at its stream block, [`quic_rules::RULES`] at HTTP/3, [`cve_rules::RULES`] at faults of nginx, [`acme_rules::RULES`] at its
//! certificates, [`host_rules::RULES`] at the kernel's settings and the machine, [`disk_rules::RULES`] at the file systems in use,
//! [`live_rules::RULES`] at the server that runs with it.
//!
//! `scene.rs` is the configuration as rules see it. `host.rs`, `disk.rs` and `live.rs` describe the machine and the server.
//! docs/doctor.md is printed from the tables of rules, and a test holds it to that.

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
pub(crate) mod scene;
mod stream_rules;
pub(crate) mod variables;

use crate::subcommands::{DoctorArgs, DoctorFormat};
use forebay_conf::error::{Error, Level};
use forebay_conf::files::Files;
use forebay_conf::parse::Parsed;
use forebay_conf::tree::Span;
use forebay_conf::version::NginxVersion;
use forebay_core::config::Environment;
use forebay_modules::parts::facts::Warning;
use forebay_sys::files;
use forebay_terminal::print;
use host::Host;
use scene::Scene;
use std::io::IsTerminal;
use std::path::{Path, PathBuf};

/// Severity of a finding.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) enum Severity {
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
    fn name(self) -> &'static str {
        match self {
            Severity::Harm => "harm",
            Severity::Warning => "warning",
            Severity::NoEffect => "no-effect",
            Severity::Advice => "advice",
        }
    }
}

/// A rule.
pub(crate) struct Rule {
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
pub(crate) struct Finding {
    /// Id of the rule.
    pub rule: &'static Rule,
    /// The problem here.
    pub message: String,
    /// Place in the configuration; `None` for the host.
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
pub(crate) fn rules() -> impl Iterator<Item = &'static Rule> {
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
pub(crate) fn examine(scene: &Scene<'_>, host: &Host) -> Vec<Finding> {
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
fn refused_lines(errors: &[Error], files: &Files) -> Vec<Finding> {
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
fn directory_of(environment: &Environment) -> PathBuf {
    environment.conf_path.parent().map_or_else(|| environment.prefix.clone(), Into::into)
}

/// Looks at the machine and asks name servers, unless `skip` says otherwise, and at the files of `--sysctl`.
fn look_at_host(
    skip: bool,
    sysctl: &[PathBuf],
    scene: &Scene<'_>,
    environment: &Environment,
) -> Result<Host, String> {
    let prefix = &environment.prefix;
    let mut host = if skip { Host::default() } else { Host::detect() };
    if !skip {
        host.disks = disk::Disks::find(scene, prefix);
        host.certificates = host::Certificate::find(scene, &directory_of(environment));
        host.running = live::Running::find(scene, prefix);
        host.acme = acme::Acme::of(scene, environment);
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

/// Returns the findings about a configuration, the worst first, without those about the machine.
pub(crate) fn of_configuration(environment: &Environment, files: &mut Files) -> Vec<Warning> {
    let directory = directory_of(environment);
    let parsed = forebay_conf::parse::parse(&environment.conf_path, &environment.globals, &directory, files);
    let findings = examine(&Scene::new(&parsed.tree), &Host::default());
    let place = |span: Span| format!("{}:{}", files.path(span.file).display(), span.line);
    let warning = |finding: Finding| Warning {
        rule: finding.rule.id.to_owned(),
        severity: finding.rule.severity.name(),
        place: finding.span.map(place).unwrap_or_default(),
        message: finding.message,
    };
    findings.into_iter().filter(|f| f.span.is_some()).map(warning).collect()
}

/// Returns the number of faults that a version of nginx has and a configuration opens; 0 for a version of an unknown form.
pub(crate) fn faults(parsed: &Parsed, files: &Files, version: &str) -> usize {
    let Some(version) = NginxVersion::parse(version) else { return 0 };
    let host = Host { examined: Some(version), ..Host::default() };
    let scene = Scene::new(&parsed.tree);
    let mut opened = 0;
    for (_, check) in cve_rules::RULES {
        check(&scene, &host, &mut |_, _| opened += 1);
    }
    opened + cve_rules::of_refused(&parsed.errors, files, version).len()
}

/// Runs the subcommand. Returns exit code 1 if it has found something harmful, 2 if the file cannot be read.
pub(crate) fn main(args: DoctorArgs) -> u8 {
    if let Some(id) = &args.explain {
        return output::explain(id);
    }
    let (environment, _) = args.which.options().places();
    let mut files = Files::disk();
    let dir = directory_of(&environment);
    let parsed = forebay_conf::parse::parse(&environment.conf_path, &environment.globals, &dir, &mut files);
    if let Some(e) =
        parsed.errors.iter().find(|e| e.level == Level::Emerg && e.span.is_none() && e.at.is_none())
    {
        eprintln!("forebay doctor: {}", e.message);
        return 2;
    }
    let scene = Scene::new(&parsed.tree);
    let mut host = match look_at_host(args.no_host, &args.sysctl, &scene, &environment) {
        Ok(host) => host,
        Err(text) => {
            eprintln!("forebay doctor: {text}");
            return 2;
        }
    };
    host.examined = match args.server.map(|_| host::version_of_nginx(args.program.as_deref())).transpose() {
        Ok(version) => version,
        Err(text) => {
            eprintln!("forebay doctor: {text}");
            return 2;
        }
    };
    let mut findings = examine(&scene, &host);
    // Lines that nginx itself would refuse come with the others.
    let mut errors: Vec<_> = parsed.errors.into_iter().filter(|e| e.level == Level::Emerg).collect();
    for e in errors.iter_mut().filter(|e| output::refusal(e).1 != Severity::Harm) {
        e.level = Level::Warn;
    }
    findings.extend(refused_lines(&errors, &files));
    findings.extend(host.examined.into_iter().flat_map(|v| cve_rules::of_refused(&errors, &files, v)));
    findings.retain(|f| args.all || f.rule.severity != Severity::Advice || f.span.is_some());
    let text = match args.format {
        DoctorFormat::Text => {
            let report = output::Report { findings: &findings, errors: &errors, files: &files };
            report.text(&scene, &host, std::io::stdout().is_terminal())
        }
        DoctorFormat::Json => output::json(&findings, &errors, &files),
        DoctorFormat::Sarif => output::sarif(&findings, &errors, &files),
    };
    print(text);
    u8::from(
        errors.iter().any(|e| e.level == Level::Emerg)
            || findings.iter().any(|f| f.rule.severity == Severity::Harm),
    )
}

#[cfg(test)]
mod tests;
