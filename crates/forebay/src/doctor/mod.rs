//! `forebay doctor`: the findings of `forebay-doctor` about a configuration and this machine, and its fixes.

mod fixing;
mod part;
mod text;

use crate::front_ends;
use crate::subcommands::{DoctorArgs, DoctorFormat};
use forebay_acme::Order;
use forebay_conf::error::{Error, Level};
use forebay_conf::files::Files;
use forebay_conf::parse::{Parsed, parse};
use forebay_conf::tree::Span;
use forebay_conf::version::NginxVersion;
use forebay_core::config::Environment;
use forebay_doctor::output::{Report, refusal};
use forebay_doctor::{Finding, Home, Host, Look, Scene, Severity, Surgery, Target, directory_of, manual};
use forebay_modules::parts::acme_orders;
use forebay_modules::parts::facts::Warning;
use forebay_terminal::print;
use std::io::IsTerminal;
use std::path::Path;

/// Exit code for what cannot be read or is not accepted.
const FAILED: u8 = 2;

/// Returns the findings about a configuration, the worst first, without those about the machine.
pub(crate) fn of_configuration(environment: &Environment, files: &mut Files) -> Vec<Warning> {
    let parsed = parse(&environment.conf_path, &environment.globals, &directory_of(environment), files);
    let findings = forebay_doctor::examine(&Scene::new(&parsed.tree), &here(), Target::Forebay);
    let place = |span: Span| format!("{}:{}", files.path(span.file).display(), span.line);
    let warning = |finding: Finding| Warning {
        rule: finding.rule.id.clone(),
        severity: finding.rule.severity.name(),
        place: finding.span.map(place).unwrap_or_default(),
        message: finding.message,
    };
    findings.into_iter().filter(|f| f.span.is_some() && !f.rule.is_optional).map(warning).collect()
}

/// Returns the host of a configuration of this machine, of which nothing else is known.
fn here() -> Host {
    Host { home: Home::Here, ..Host::default() }
}

/// Returns the settings of `forebay tune` that findings about a configuration speak of.
pub(crate) fn knobs(conf: &Path) -> Vec<String> {
    let mut files = Files::disk();
    let parsed = parse(conf, "", conf.parent().unwrap_or(Path::new("/")), &mut files);
    let findings = forebay_doctor::examine(&Scene::new(&parsed.tree), &here(), Target::Nginx(None));
    findings.into_iter().flat_map(|f| f.rule.knobs.clone()).collect()
}

/// Runs the subcommand. Returns exit code 1 if it has found something harmful, 2 if the file cannot be read.
pub(crate) fn main(args: DoctorArgs) -> u8 {
    let done = match args.explain.as_deref() {
        Some(id) => explain(id),
        None => examine(args),
    };
    done.unwrap_or_else(|text| {
        eprintln!("forebay doctor: {text}");
        FAILED
    })
}

/// Reads what a configuration orders by ACME.
fn read_orders(env: &Environment, files: &mut Files) -> (Vec<Order>, Vec<Error>) {
    let (config, errors) = front_ends::load_all(env, files);
    (config.map(|config| acme_orders(&config)).unwrap_or_default(), errors)
}

/// Prints a rule.
fn explain(id: &str) -> Result<u8, String> {
    print(match id {
        "all" => manual::manual(),
        "nginx-cves" => manual::security_manual(),
        _ => manual::explained(id)
            .ok_or_else(|| format!("no rule \"{id}\"; --explain all prints all of them"))?,
    });
    Ok(0)
}

fn examine(args: DoctorArgs) -> Result<u8, String> {
    let (environment, _) = args.which.options().places();
    let mut files = Files::disk();
    let part::Read { parsed, part_of, around } =
        part::read(&environment.conf_path, &environment.globals, &directory_of(&environment), &mut files);
    let nowhere = |e: &&Error| e.level == Level::Emerg && e.span.is_none() && e.at.is_none();
    if let Some(e) = parsed.errors.iter().find(nowhere) {
        return Err(e.message.clone());
    }
    let mut scene = Scene::new(&parsed.tree);
    scene.set_refused(&parsed.errors);
    if part_of.is_some() {
        scene.set_partial();
    }
    let look = Look {
        environment: &environment,
        machine: !args.no_host,
        is_here: args.here,
        sysctl: &args.sysctl,
        read_orders,
    };
    let host = forebay_doctor::look_at_host(&scene, &look)?;
    let target = match args.target {
        Some(Target::Nginx(None)) => {
            nginx(args.program.as_deref(), !args.no_host && host.has(&environment.conf_path))?
        }
        Some(target) => target,
        None => host.runner(),
    };
    if args.fix || args.diff {
        if let Some(block) = part_of {
            return Err(format!(
                "fixes need the whole configuration, and this file is a part of a block {block}: name the main file"
            ));
        }
        let (with_unsafe, with_optional) = (args.unsafe_fixes, args.all);
        let surgery = Surgery { environment: &environment, host: &host, target, with_unsafe, with_optional };
        return fixing::Plan { surgery, writes: args.fix, shows: args.diff }.carry_out();
    }
    let mut findings = forebay_doctor::examine(&scene, &host, target);
    let mut errors = refused(&parsed, target);
    if !host.has(&environment.conf_path) {
        part::note_missing(&mut errors);
        if args.format != DoctorFormat::Text {
            part::tell_missing(&mut errors);
        }
    }
    findings.extend(forebay_doctor::refused_lines(&errors, &files));
    let version = target.nginx();
    findings.extend(version.into_iter().flat_map(|v| forebay_doctor::faults_of_refused(&errors, &files, v)));
    // The block around a part is ours.
    findings.retain(|f| around.is_none() || f.span.map(|s| s.file) != around);
    let optional = findings.iter().filter(|f| f.rule.is_optional).count();
    findings.retain(|f| {
        args.all || !f.rule.is_optional && (f.rule.severity != Severity::Advice || f.span.is_some())
    });
    findings.sort_by_key(|f| f.rule.severity);
    let report = Report { findings: &findings, errors: &errors, files: &files };
    print(match args.format {
        DoctorFormat::Text => {
            let optional = if args.all { 0 } else { optional };
            text::Page { report, target, host: &host, part_of, optional }
                .text(&scene, std::io::stdout().is_terminal())
        }
        DoctorFormat::Json => report.json(),
        DoctorFormat::Sarif => report.sarif(),
        DoctorFormat::Github => report.github(),
    });
    let is_refused = errors.iter().any(|e| e.level == Level::Emerg);
    Ok(u8::from(is_refused || findings.iter().any(|f| f.rule.severity == Severity::Harm)))
}

/// Returns the lines that do not parse. What Forebay lacks is none of nginx's errors.
fn refused(parsed: &Parsed, target: Target) -> Vec<Error> {
    let is_ours = |e: &&Error| target == Target::Forebay || refusal(e).1 == Severity::Harm;
    let mut errors: Vec<Error> =
        parsed.errors.iter().filter(|e| e.level == Level::Emerg).filter(is_ours).cloned().collect();
    for e in errors.iter_mut().filter(|e| refusal(e).1 != Severity::Harm) {
        e.level = Level::Warn;
    }
    errors
}

/// Returns nginx with its version: the one of a program that is named, or the one of this machine if `is_here` says that it runs the
/// configuration. For a configuration of another machine it is the newest that is known.
///
/// # Errors
/// The named program is no nginx.
fn nginx(program: Option<&Path>, is_here: bool) -> Result<Target, String> {
    let newest = NginxVersion::parse(forebay_conf::NGINX_VERSION);
    match program {
        Some(program) => Ok(Target::Nginx(Some(forebay_doctor::version_of_nginx(Some(program))?))),
        None if is_here => Ok(Target::Nginx(forebay_doctor::version_of_nginx(None).ok().or(newest))),
        None => Ok(Target::Nginx(newest)),
    }
}
