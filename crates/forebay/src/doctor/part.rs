//! Configurations that are not whole: files that others include, and files whose own includes are elsewhere.

use forebay_conf::error::{Error, Level};
use forebay_conf::files::Files;
use forebay_conf::parse::{Parsed, parse};
use forebay_conf::tree::FileId;
use forebay_doctor::is_packaged;
use forebay_doctor::output::MISSING;
use std::collections::BTreeSet;
use std::path::{Path, PathBuf};

/// Blocks that a file may be a part of, with the text that stands around it.
const AROUND: [(&str, &str, &str); 5] = [
    ("http", "events {} http {", "}"),
    ("server", "events {} http { server {", "}}"),
    ("location", "events {} http { server { location / {", "}}}"),
    ("stream", "events {} stream {", "}"),
    ("upstream", "events {} http { upstream part {", "}}"),
];

/// A configuration that was read.
pub(super) struct Read {
    pub parsed: Parsed,
    /// The block that the file was read as a part of.
    pub part_of: Option<&'static str>,
    /// The file that was made around it.
    pub around: Option<FileId>,
}

/// Reads a configuration. A file without blocks of the main level, whose directives stand in another block, is read as a part of that.
pub(super) fn read(main: &Path, globals: &str, dir: &Path, files: &mut Files) -> Read {
    let parsed = parse(main, globals, dir, files);
    let misplaced = misplaced(&parsed);
    let is_whole = parsed.tree.root.items.iter().any(|d| d.block.is_some() && d.name.text != b"include");
    // `include` would take such a path for a pattern.
    let is_pattern = main.to_string_lossy().contains(['*', '?', '[']);
    if misplaced == 0 || is_whole || is_pattern {
        return Read { parsed, part_of: None, around: None };
    }
    let mut best = Read { parsed, part_of: None, around: None };
    let mut least = misplaced;
    for (name, before, behind) in AROUND {
        let mut tried = Files::disk();
        let candidate = inside(main, dir, &mut tried, (before, behind));
        let count = self::misplaced(&candidate);
        if count < least {
            least = count;
            let around = candidate.tree.root.items.first().map(|d| d.name.span.file);
            best = Read { parsed: candidate, part_of: Some(name), around };
            *files = tried;
        }
    }
    best
}

/// Reads a file as if a block included it.
fn inside(part: &Path, dir: &Path, files: &mut Files, around: (&str, &str)) -> Parsed {
    let main = dir.join("forebay-part.conf");
    let path = part.display().to_string().replace('\\', "\\\\").replace('"', "\\\"");
    let text = format!("{} include \"{path}\"; {}", around.0, around.1);
    files.put(&main, text.into_bytes().into());
    parse(&main, "", dir, files)
}

/// Returns the number of directives that do not belong where they stand.
fn misplaced(parsed: &Parsed) -> usize {
    parsed.errors.iter().filter(|e| e.message.ends_with("directive is not allowed here")).count()
}

/// Puts one note in the place of the errors about included files that are not there: the configuration is one of another machine.
pub(super) fn note_missing(errors: &mut Vec<Error>) {
    let missing = |e: &Error| -> Option<PathBuf> {
        let (path, _) = e.message.strip_prefix("open() \"")?.split_once("\" failed (2:")?;
        Some(PathBuf::from(path))
    };
    // What comes with nginx is known without being here.
    errors.retain(|e| !missing(e).is_some_and(|path| is_packaged(&path)));
    let names: BTreeSet<PathBuf> = errors.iter().filter_map(missing).collect();
    let names: Vec<String> =
        names.iter().filter_map(|path| Some(path.file_name()?.to_string_lossy().into_owned())).collect();
    let Some(first) = errors.iter().find(|e| missing(e).is_some()).cloned() else { return };
    errors.retain(|e| missing(e).is_none());
    let (shown, rest) = names.split_at(names.len().min(5));
    let more = if rest.is_empty() { String::new() } else { format!(" and {} more", rest.len()) };
    let message = format!("{MISSING}included files that are not here ({}{more})", shown.join(", "));
    errors.push(Error { level: Level::Warn, message, ..first });
}

/// Takes the note about missing files out of what programs read, and prints it: it says what was not looked at, and is no fault.
pub(super) fn tell_missing(errors: &mut Vec<Error>) {
    errors.retain(|e| {
        let is_note = e.message.starts_with(MISSING);
        if is_note {
            eprintln!("forebay doctor: {}", e.message);
        }
        !is_note
    });
}

#[cfg(test)]
mod tests {
    use super::*;

    fn read_text(text: &str) -> Read {
        let dir = tempfile::tempdir().expect("a directory");
        let path = dir.path().join("a \"b\".conf");
        std::fs::write(&path, text).expect("written");
        read(&path, "", dir.path(), &mut Files::disk())
    }

    #[test]
    fn a_file_is_read_as_a_part_of_the_block_it_fits() {
        for (text, block) in [
            ("events {} http { server { listen 80; } }", None),
            ("worker_processes 2;", None),
            ("server { listen 80; location / { return 204; } }", Some("http")),
            ("gzip on;\ngzip_types a/b;\nmap $uri $a { default b; }", Some("http")),
            ("listen 80;\nlocation / { return 204; }", Some("server")),
            ("proxy_pass http://127.0.0.1;\nproxy_set_header A b;", Some("location")),
            ("server { listen 53 udp; proxy_pass 127.0.0.1:53; }\npreread_buffer_size 1k;", Some("stream")),
            ("server 127.0.0.1;\nserver 127.0.0.2;\nkeepalive 3;", Some("upstream")),
            // Its blocks are those of a main file, so that the fault is in the file.
            ("events {} server { listen 80; }", None),
        ] {
            let read = read_text(text);
            assert_eq!(read.part_of, block, "{text}: {:?}", read.parsed.errors);
            if block.is_some() {
                assert!(read.parsed.fatal().is_none(), "{text}: {:?}", read.parsed.errors);
                assert!(read.around.is_some());
            }
        }
    }

    #[test]
    fn missing_includes_are_one_note() {
        let mut errors =
            read_text("events {}\ninclude a.conf;\ninclude b.conf;\nnonsense;\ninclude mime.types;\n")
                .parsed
                .errors;
        note_missing(&mut errors);
        let texts: Vec<&str> = errors.iter().map(|e| e.message.as_str()).collect();
        assert_eq!(
            texts,
            [
                "unknown directive \"nonsense\"",
                "not looked at: included files that are not here (a.conf, b.conf)"
            ]
        );
    }
}
