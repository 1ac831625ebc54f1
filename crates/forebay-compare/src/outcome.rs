//! Records for `forebay move`: the results of a comparison, and of tests.

use crate::expect::output::Results;
use crate::expect::run::{Configuration, Setting};
use crate::report::Report;
use crate::run::Question;
use forebay_copy::record::{Compared, Digest, Record, Tested, Versions, version_of};
use std::collections::BTreeMap;
use std::path::PathBuf;

/// Records a finished comparison of nginx and Forebay on one configuration.
pub(crate) fn compared(question: &Question, report: &Report) {
    let [nginx, forebay] = &question.sides;
    let source = &nginx.source;
    let Some(forebay) = version_of(&forebay.program) else { return };
    let versions = Versions { forebay, nginx: version_of(&nginx.program) };
    let written = question.tests.as_deref().and_then(|path| std::path::absolute(path).ok());
    let earlier = || Record::<Compared>::read(&source.path).and_then(|record| record.result.tests);
    let number = |n: usize| u64::try_from(n).unwrap_or(u64::MAX);
    let result = Compared {
        requests: report.requests,
        unknown: number(report.unknown().count()),
        known: number(report.known().count()),
        lines: number(report.coverage.lines),
        reached: number(report.coverage.reached),
        tests: written.or_else(earlier),
    };
    Record::new(&source.path, Digest::of(&source.files), versions, result).write();
}

/// Results of the tests of one configuration.
#[derive(Default)]
struct OfConfiguration {
    files: Vec<PathBuf>,
    tests: u64,
    failed: u64,
    digest: Digest,
}

/// Records the results of all tests in files. A file that cannot be run leaves what was recorded before.
pub(crate) fn tested(setting: &Setting, paths: &[PathBuf], all: &[Results]) {
    let Some(forebay) = version_of(&setting.program) else { return };
    let mut found: BTreeMap<PathBuf, OfConfiguration> = BTreeMap::new();
    for (path, results) in paths.iter().zip(all) {
        let (Ok(tests), Some(Configuration { path: conf, digest })) =
            (&results.tests, &results.configuration)
        else {
            continue;
        };
        let of = found.entry(conf.clone()).or_default();
        of.files.push(std::path::absolute(path).unwrap_or_else(|_| path.clone()));
        of.tests += tests.len() as u64;
        of.failed += tests.iter().filter(|test| !test.passed()).count() as u64;
        of.digest = digest.clone();
    }
    for (conf, of) in found {
        let versions = Versions { forebay: forebay.clone(), nginx: None };
        let OfConfiguration { files, tests, failed, digest } = of;
        let result = Tested { files: Digest::read(files.iter().map(PathBuf::as_path)), tests, failed };
        Record::new(&conf, digest, versions, result).write();
    }
}
