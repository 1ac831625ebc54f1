//! Prints the files that manifests become: `translate FILE [DIR]`. With a directory, writes them there.

use forebay_k8s::objects::Manifests;
use forebay_k8s::{Objects, Options, Translator};

#[allow(clippy::disallowed_methods, reason = "an example for people at a terminal")]
fn main() -> std::io::Result<()> {
    let mut args = std::env::args().skip(1);
    let text = std::fs::read_to_string(args.next().unwrap_or_default())?;
    let manifests = Manifests::read(&text);
    for s in &manifests.skipped {
        eprintln!("line {}: {}", s.line, s.reason);
    }
    let mut objects = Objects::new();
    for document in manifests.documents {
        objects.apply(document.object);
    }
    let options = Options {
        endpoints_in_files: true,
        watch_ingress_without_class: true,
        config_map: Some(forebay_k8s::Key::new("default", "config")),
        resolvers: vec!["127.0.0.53".into()],
        ..Options::default()
    };
    let made = Translator::new().translate(&objects, &options);
    let dir = args.next();
    for (path, bytes) in &made.files {
        match &dir {
            Some(dir) => {
                let path = std::path::Path::new(dir).join(path);
                std::fs::create_dir_all(path.parent().unwrap_or(&path))?;
                std::fs::write(path, bytes)?;
            }
            None => println!("# {}\n{}", path.display(), String::from_utf8_lossy(bytes)),
        }
    }
    for problem in &made.problems {
        eprintln!("{}", problem.render());
    }
    Ok(())
}
