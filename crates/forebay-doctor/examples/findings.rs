//! Prints the findings about files, one a line with the line of the file, to judge rules by real configurations:
//! `cargo run -p forebay-doctor --example findings -- SERVER FILE...`

use forebay_conf::files::Files;
use forebay_conf::parse::parse;
use forebay_doctor::{Host, Scene, Target, examine};
use std::path::Path;

fn main() {
    let mut args = std::env::args().skip(1);
    let target = args.next().and_then(|text| Target::parse(&text).ok()).unwrap_or_default();
    for file in args {
        let path = Path::new(&file);
        let mut files = Files::disk();
        let dir = path.parent().unwrap_or(path);
        let parsed = parse(path, "", dir, &mut files);
        for finding in examine(&Scene::new(&parsed.tree), &Host::default(), target) {
            let line = finding.span.map_or(0, |s| s.line);
            let source = finding.span.map(|s| String::from_utf8_lossy(files.bytes(s.file)).into_owned());
            let text = source.as_deref().and_then(|t| t.lines().nth((line as usize).saturating_sub(1)));
            let (rule, message) = (&finding.rule.id, &finding.message);
            println!("{file}:{line}\t{rule}\t{message}\t{}", text.unwrap_or_default().trim());
        }
    }
}
