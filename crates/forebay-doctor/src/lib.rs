//! What in a configuration and on the host is wrong, stale, harmful or without effect, why, what to write instead, and the edits
//! that do it.
//!
//! - A rule is data: [`mod@rule`] reads `data/rules/*.rules`, from which docs/doctor.md is printed, too. What looks for the problem is a
//!   function of the same name in `checks`, and [`examine`] runs them all.
//! - [`Scene`] is the configuration as rules see it, `variables` what its variables can hold, `facts` describes the machine and the
//!   running server.
//! - [`Target`] is the server that is advised. A rule that does not hold for it is silent, and so is what is said about a directive
//!   that Forebay accepts without effect (the column `support` of the table of directives).
//! - [`fix`] has the edits of fixes, `mends` those that are more than a row of data, [`Surgery`] applies them in rounds.
//! - [`output`] has the formats for programs, [`manual`] the texts about the rules.
//!
//! Nothing here writes a file.

#![warn(unreachable_pub)]

mod checks;
mod facts;
pub mod fix;
pub mod manual;
mod mends;
pub mod output;
mod plain;
mod routes;
pub mod rule;
mod scene;
mod surgery;
mod target;
pub mod variables;

pub use checks::faults::of_refused as faults_of_refused;
pub use checks::general::Worst;
pub use facts::{Home, Host, Look, ReadOrders, directory_of, look_at_host, version_of_nginx};
pub use fix::{Edit, Fix, Safety};
pub use rule::{Rule, Severity, rule, rules};
pub use scene::{Scene, is_packaged};
pub use surgery::{Operation, Outcome, Surgery};
pub use target::{Holds, Target};

use checks::{Facts, disks, faults as cves, general, kernel, running};
use forebay_conf::error::Error;
use forebay_conf::files::Files;
use forebay_conf::grammar::Support;
use forebay_conf::parse::Parsed;
use forebay_conf::tree::{FileId, Span};
use forebay_conf::version::NginxVersion;
use std::collections::HashMap;

/// A place where a rule applies.
#[derive(Clone, Debug)]
pub struct Finding {
    /// The rule.
    pub rule: &'static Rule,
    /// The problem here.
    pub message: String,
    /// Its place in the configuration; `None` for the host.
    pub span: Option<Span>,
    /// Edits that mend it.
    pub fix: Option<Fix>,
}

/// Findings while they are collected.
struct Collection<'s, 't> {
    scene: &'s Scene<'t>,
    target: Target,
    found: Vec<Finding>,
    /// Findings of each place, by their numbers.
    at: HashMap<(FileId, u32), Vec<usize>>,
}

impl Collection<'_, '_> {
    /// Returns the rule of this name if it holds for the server.
    fn rule(&self, id: &str) -> Option<&'static Rule> {
        rule(id).filter(|rule| rule.holds.includes(self.target))
    }

    /// Adds a finding in the configuration, unless the server does not heed the directive.
    fn add(&mut self, rule: &'static Rule, span: Span, message: String) {
        let is_unseen = |reach| self.scene.node_at(span).is_some_and(|n| self.scene.is_unseen(n, reach));
        let is_void = self.target == Target::Forebay && rule.holds.is_general() && self.is_unheeded(span)
            || rule.absent.is_some_and(is_unseen);
        let there = self.at.entry((span.file, span.start)).or_default();
        let again = |f: &Finding| f.rule.id == rule.id && f.span == Some(span) && f.message == message;
        if is_void || there.iter().filter_map(|i| self.found.get(*i)).any(again) {
            return;
        }
        there.push(self.found.len());
        let fix = rule.fix.as_ref().and_then(|(safety, mend)| {
            Some(Fix { safety: *safety, edits: mend.edits(&rule.id, self.scene, span)? })
        });
        self.found.push(Finding { rule, message, span: Some(span), fix });
    }

    /// Returns `true` if Forebay accepts the directive at a place without effect.
    fn is_unheeded(&self, span: Span) -> bool {
        let node = self.scene.node_at(span).and_then(|n| self.scene.nodes.get(n));
        node.and_then(|n| n.d.row).is_some_and(|row| row.support == Support::Met)
    }

    fn add_plain(&mut self, rule: &'static Rule, message: String) {
        self.found.push(Finding { rule, message, span: None, fix: None });
    }
}

/// Looks at a configuration and a host, for the server that runs it. The worst comes first.
pub fn examine(scene: &Scene<'_>, host: &Host, target: Target) -> Vec<Finding> {
    let facts = Facts { host, target };
    let mut all = Collection { scene, target, found: Vec::new(), at: HashMap::new() };
    for (id, check) in checks::of_configurations() {
        let Some(rule) = all.rule(id) else { continue };
        check(scene, &facts, &mut |span, message| all.add(rule, span, message));
    }
    for (id, check) in disks::CHECKS {
        let Some(rule) = all.rule(id) else { continue };
        check(scene, &host.disks, &mut |span, message| all.add(rule, span, message));
    }
    for (id, name, text) in kernel::SETTINGS {
        let Some(rule) = all.rule(id) else { continue };
        kernel::wanted(host, name, text, &mut |message| all.add_plain(rule, message));
    }
    for (id, check) in kernel::CHECKS {
        let Some(rule) = all.rule(id) else { continue };
        check(scene, host, &mut |message| all.add_plain(rule, message));
    }
    for (running, (id, check)) in
        host.running.iter().flat_map(|r| running::CHECKS.iter().map(move |c| (r, c)))
    {
        let Some(rule) = all.rule(id) else { continue };
        check(running, &mut |message| all.add_plain(rule, message));
    }
    let mut found = all.found;
    found.sort_by_key(|f| (f.rule.severity, f.span.map_or((u32::MAX, 0), |s| (s.file.0, s.start))));
    found
}

/// Examines refused lines, which are not in the tree, for a problem that they would have in the right place.
pub fn refused_lines(errors: &[Error], files: &Files) -> Vec<Finding> {
    let rule = rule("method-list");
    let mut found = Vec::new();
    for span in errors.iter().filter_map(|e| e.span.or(e.at)) {
        let text = String::from_utf8_lossy(files.bytes(span.file)).into_owned();
        let line = text.lines().nth((span.line as usize).saturating_sub(1)).unwrap_or_default();
        if let Some(rule) = rule.filter(|_| line.contains("if") && general::forgets_patch(line)) {
            found.push(Finding {
                rule,
                message: general::PATCH_REFUSED.to_owned(),
                span: Some(span),
                fix: None,
            });
        }
    }
    found
}

/// Returns the number of faults that a version of nginx has and a configuration opens; 0 for a version of an unknown form.
pub fn faults(parsed: &Parsed, files: &Files, version: &str) -> usize {
    let Some(version) = NginxVersion::parse(version) else { return 0 };
    let host = Host::default();
    let facts = Facts { host: &host, target: Target::Nginx(Some(version)) };
    let scene = Scene::new(&parsed.tree);
    let mut opened = 0;
    for (_, check) in cves::CHECKS {
        check(&scene, &facts, &mut |_, _| opened += 1);
    }
    opened + cves::of_refused(&parsed.errors, files, version).len()
}

#[cfg(test)]
mod tests;
