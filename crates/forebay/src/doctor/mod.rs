//! `forebay doctor`: the findings of `forebay-doctor` about a configuration and this machine. It reads and changes nothing.

mod text;

use crate::front_ends;
use crate::subcommands::{DoctorArgs, DoctorFormat};
use forebay_conf::error::Level;
use forebay_conf::files::Files;
use forebay_conf::tree::Span;
use forebay_core::config::Environment;
use forebay_doctor::{Finding, Host, Look, Scene, Severity};
use forebay_modules::parts::facts::Warning;
use forebay_terminal::print;
use std::io::IsTerminal;

/// Returns the findings about a configuration, the worst first, without those about the machine.
pub(crate) fn of_configuration(environment: &Environment, files: &mut Files) -> Vec<Warning> {
    let directory = forebay_doctor::directory_of(environment);
    let parsed = forebay_conf::parse::parse(&environment.conf_path, &environment.globals, &directory, files);
    let findings = forebay_doctor::examine(&Scene::new(&parsed.tree), &Host::default());
    let place = |span: Span| format!("{}:{}", files.path(span.file).display(), span.line);
    let warning = |finding: Finding| Warning {
        rule: finding.rule.id.to_owned(),
        severity: finding.rule.severity.name(),
        place: finding.span.map(place).unwrap_or_default(),
        message: finding.message,
    };
    findings.into_iter().filter(|f| f.span.is_some()).map(warning).collect()
}

/// Runs the subcommand. Returns exit code 1 if it has found something harmful, 2 if the file cannot be read.
pub(crate) fn main(args: DoctorArgs) -> u8 {
    if let Some(id) = &args.explain {
        return text::explain(id);
    }
    let (environment, _) = args.place.options().places();
    let mut files = Files::disk();
    let dir = forebay_doctor::directory_of(&environment);
    let parsed = forebay_conf::parse::parse(&environment.conf_path, &environment.globals, &dir, &mut files);
    if let Some(e) =
        parsed.errors.iter().find(|e| e.level == Level::Emerg && e.span.is_none() && e.at.is_none())
    {
        eprintln!("forebay doctor: {}", e.message);
        return 2;
    }
    let scene = Scene::new(&parsed.tree);
    let look = Look {
        environment: &environment,
        machine: !args.no_host,
        sysctl: &args.sysctl,
        load: front_ends::load_all,
    };
    let mut host = match forebay_doctor::look_at_host(&scene, &look) {
        Ok(host) => host,
        Err(text) => {
            eprintln!("forebay doctor: {text}");
            return 2;
        }
    };
    host.examined =
        match args.server.map(|_| forebay_doctor::version_of_nginx(args.program.as_deref())).transpose() {
            Ok(version) => version,
            Err(text) => {
                eprintln!("forebay doctor: {text}");
                return 2;
            }
        };
    let mut findings = forebay_doctor::examine(&scene, &host);
    // Lines that nginx itself would refuse come with the others.
    let mut errors: Vec<_> = parsed.errors.into_iter().filter(|e| e.level == Level::Emerg).collect();
    for e in errors.iter_mut().filter(|e| forebay_doctor::refusal(e).1 != Severity::Harm) {
        e.level = Level::Warn;
    }
    findings.extend(forebay_doctor::refused_lines(&errors, &files));
    findings.extend(
        host.examined.into_iter().flat_map(|v| forebay_doctor::faults_of_refused(&errors, &files, v)),
    );
    findings.retain(|f| args.all || f.rule.severity != Severity::Advice || f.span.is_some());
    let text = match args.format {
        DoctorFormat::Text => {
            let report = text::Report { findings: &findings, errors: &errors, files: &files };
            report.text(&scene, &host, std::io::stdout().is_terminal())
        }
        DoctorFormat::Json => forebay_doctor::json(&findings, &errors, &files),
        DoctorFormat::Sarif => forebay_doctor::sarif(&findings, &errors, &files),
    };
    print(text);
    u8::from(
        errors.iter().any(|e| e.level == Level::Emerg)
            || findings.iter().any(|f| f.rule.severity == Severity::Harm),
    )
}
