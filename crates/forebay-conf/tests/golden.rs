//! Golden cases: `golden/*.conf` hold a configuration, a line `----`, and what `nginx -t` says to it: `ok`
//! or the first error. With the path of an nginx in `FOREBAY_TEST_NGINX`, nginx is asked too.

use forebay_conf::error::Level;
use forebay_conf::files::Files;
use std::path::Path;
use std::process::Command;

struct Case {
    name: String,
    conf: Vec<u8>,
    expected: String,
}

fn cases() -> Vec<Case> {
    let dir = Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/golden");
    let mut cases: Vec<Case> = std::fs::read_dir(dir)
        .expect("the golden cases")
        .map(|entry| {
            let path = entry.expect("an entry").path();
            let bytes = std::fs::read(&path).expect("a case");
            let line = b"\n----\n";
            let at = bytes.windows(line.len()).rposition(|w| w == line).expect("a line of dashes");
            Case {
                name: path.file_stem().expect("a name").to_string_lossy().into_owned(),
                conf: bytes[..at].to_vec(),
                expected: String::from_utf8_lossy(&bytes[at + line.len()..]).trim_end().to_owned(),
            }
        })
        .collect();
    cases.sort_by(|a, b| a.name.cmp(&b.name));
    cases
}

fn ours(conf: &[u8]) -> String {
    let mut files = Files::recorded([("nginx.conf", conf)]);
    let parsed = forebay_conf::parse(Path::new("nginx.conf"), "", Path::new(""), &mut files);
    // What Forebay lacks is no matter of the language.
    let mut fatal = parsed
        .errors
        .iter()
        .filter(|e| e.level == Level::Emerg && !e.message.contains("directive is not supported"));
    fatal.next().map_or("ok".to_owned(), |error| files.render(error))
}

fn theirs(nginx: &str, conf: &[u8]) -> String {
    let dir = tempfile::tempdir().expect("temporary directory");
    std::fs::create_dir(dir.path().join("logs")).expect("mkdir");
    let file = dir.path().join("nginx.conf");
    std::fs::write(&file, conf).expect("write");
    // With a log file, what is printed has no date and process number (Debian's default is stderr).
    let out =
        Command::new(nginx).arg("-p").arg(dir.path()).arg("-c").arg(&file).args(["-e", "log", "-t"]).output();
    let out = out.expect("FOREBAY_TEST_NGINX runs");
    let text = String::from_utf8_lossy(&out.stderr).replace(&format!("{}/", dir.path().display()), "");
    if out.status.success() {
        return "ok".to_owned();
    }
    let error = text.split_once("nginx: [emerg] ").map_or(&text[..], |(_, error)| error);
    error.split("\nnginx: ").next().unwrap_or_default().trim_end().to_owned()
}

#[test]
fn errors_are_those_of_nginx() {
    let cases = cases();
    assert!(cases.len() > 100);
    let nginx = std::env::var("FOREBAY_TEST_NGINX").ok();
    if nginx.is_none() {
        eprintln!("FOREBAY_TEST_NGINX is not set: the expectations are not compared with nginx itself");
    }
    let mut wrong = vec![];
    for Case { name, conf, expected } in &cases {
        let got = ours(conf);
        if got != *expected {
            wrong.push(format!("{name}:\n  expected {expected}\n  got      {got}"));
        }
        if let Some(nginx) = &nginx {
            let said = theirs(nginx, conf);
            let lacks =
                ["stream", "mail"].iter().any(|m| said.contains(&format!("unknown directive \"{m}\"")));
            if lacks {
                eprintln!("{name}: skipped, {nginx} is built without the module");
            } else if said != *expected {
                wrong.push(format!("{name}:\n  expected   {expected}\n  nginx says {said}"));
            }
        }
    }
    assert!(wrong.is_empty(), "{}", wrong.join("\n"));
}
