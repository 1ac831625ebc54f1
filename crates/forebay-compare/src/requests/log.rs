//! Requests of an access log: in the combined or common format, or in one of the configuration.

use super::Ask;
use std::collections::HashSet;
use std::io::{BufRead, BufReader, Read, Seek, SeekFrom};
use std::os::unix::fs::MetadataExt;
use std::path::Path;

/// Most different requests that are taken from a log.
const MOST: usize = 200_000;

/// Longest line.
const LONGEST: u64 = 64 << 10;

/// The default format.
pub(crate) const COMBINED: &str = "$remote_addr - $remote_user [$time_local] \"$request\" $status $body_bytes_sent \
                                   \"$http_referer\" \"$http_user_agent\"";

/// A format of lines, as texts and variables in turn.
#[derive(Clone, Debug)]
pub(crate) struct Format {
    parts: Vec<Part>,
}

#[derive(Clone, Debug, PartialEq, Eq)]
enum Part {
    Text(String),
    Variable(String),
}

impl Format {
    /// Reads the text of a `log_format`.
    pub(crate) fn new(text: &str) -> Format {
        let mut parts = Vec::new();
        let mut literal = String::new();
        let mut rest = text;
        while let Some(at) = rest.find('$') {
            literal.push_str(rest.get(..at).unwrap_or_default());
            let behind = rest.get(at + 1..).unwrap_or_default();
            let braced = behind.strip_prefix('{').and_then(|b| b.split_once('}'));
            let (name, after) = braced.unwrap_or_else(|| {
                let end = behind.find(|c: char| !c.is_ascii_alphanumeric() && c != '_');
                behind.split_at(end.unwrap_or(behind.len()))
            });
            parts.push(Part::Text(std::mem::take(&mut literal)));
            parts.push(Part::Variable(name.to_owned()));
            rest = after;
        }
        literal.push_str(rest);
        parts.push(Part::Text(literal));
        Format { parts }
    }

    /// Takes a line apart. `None`: it has another format.
    fn read<'l>(&'l self, line: &'l str) -> Option<Vec<(&'l str, &'l str)>> {
        let mut values = Vec::new();
        let mut rest = line;
        let mut name: Option<&str> = None;
        for (i, part) in self.parts.iter().enumerate() {
            match part {
                Part::Variable(variable) => name = Some(variable),
                Part::Text(text) => {
                    let last = i + 1 == self.parts.len();
                    let at = match name {
                        None => rest.starts_with(text.as_str()).then_some(0)?,
                        Some(_) if last && text.is_empty() => rest.len(),
                        Some(_) => rest.find(text.as_str())?,
                    };
                    if let Some(name) = name.take() {
                        values.push((name, rest.get(..at)?));
                    }
                    rest = rest.get(at + text.len()..)?;
                }
            }
        }
        Some(values)
    }

    /// Returns the request of a line.
    fn request(&self, line: &str) -> Option<Ask> {
        let values = self.read(line)?;
        if !values.iter().all(|(name, value)| is_plausible(name, value)) {
            return None;
        }
        let value = |name: &str| {
            values
                .iter()
                .find(|(n, _)| *n == name)
                .map(|(_, v)| unescaped(v))
                .filter(|v| v != "-" && !v.is_empty())
        };
        let request = value("request");
        let mut words = request.as_deref().unwrap_or_default().split(' ');
        let method =
            words.next().map(str::to_owned).filter(|m| !m.is_empty()).or_else(|| value("request_method"))?;
        let target =
            words.next().map(str::to_owned).or_else(|| value("request_uri")).or_else(|| value("uri"))?;
        let clean = |text: &str| text.bytes().all(|b| b > b' ' && b != 0x7f);
        if !method.bytes().all(|b| b.is_ascii_uppercase()) || !clean(&target) || !target.starts_with('/') {
            return None;
        }
        let fields = values.iter().filter_map(|(name, v)| {
            let field =
                name.strip_prefix("http_").filter(|f| !matches!(*f, "host" | "connection" | "upgrade"))?;
            let secret = matches!(field, "cookie" | "authorization");
            let v = unescaped(v);
            let usable = v != "-" && !secret && v.bytes().all(|b| (b' '..0x7f).contains(&b));
            usable.then(|| (field.replace('_', "-"), v))
        });
        let host = value("http_host").or_else(|| value("host")).filter(|h| clean(h));
        Some(Ask { method, target, fields: fields.collect(), host, ..Ask::default() })
    }
}

/// Returns `false` for a value that its variable cannot have: the line has another format.
fn is_plausible(name: &str, value: &str) -> bool {
    let digits = value.bytes().all(|b| b.is_ascii_digit());
    match name {
        "status" => digits && value.len() == 3,
        "body_bytes_sent" | "bytes_sent" | "request_length" => digits,
        "remote_addr" | "host" | "http_host" | "server_name" | "request_uri" | "request_method" => {
            !value.contains([' ', '"', '['])
        }
        _ => true,
    }
}

/// Undoes the escapes of a log, `\xHH` and those of JSON.
fn unescaped(value: &str) -> String {
    let mut out = String::new();
    let mut rest = value;
    while let Some((head, tail)) = rest.split_once('\\') {
        out.push_str(head);
        let byte = tail.strip_prefix('x').and_then(|t| u8::from_str_radix(t.get(..2)?, 16).ok());
        if let Some(byte) = byte {
            out.push(char::from(byte));
            rest = tail.get(3..).unwrap_or_default();
            continue;
        }
        let mut chars = tail.chars();
        out.extend(chars.next());
        rest = chars.as_str();
    }
    out + rest
}

/// Reads the requests of a log, each different one once.
///
/// # Errors
/// The file cannot be read, or its lines have none of the formats.
pub(crate) fn requests(path: &Path, formats: &[Format]) -> Result<Vec<Ask>, String> {
    let file = std::fs::File::open(path).map_err(|e| format!("{}: {e}", path.display()))?;
    let mut reader = BufReader::new(file);
    let mut seen = HashSet::new();
    let (mut asks, mut lines, mut first) = (Vec::new(), 0usize, String::new());
    let mut best: Option<&Format> = None;
    loop {
        let mut line = Vec::new();
        let n = reader
            .by_ref()
            .take(LONGEST)
            .read_until(b'\n', &mut line)
            .map_err(|e| format!("{}: {e}", path.display()))?;
        if n == 0 || asks.len() >= MOST {
            break;
        }
        let line = String::from_utf8_lossy(&line);
        let line = line.trim_end();
        lines += 1;
        if first.is_empty() {
            line.clone_into(&mut first);
        }
        let found = best.and_then(|f| f.request(line)).or_else(|| {
            formats.iter().find_map(|f| {
                let ask = f.request(line)?;
                best = Some(f);
                Some(ask)
            })
        });
        if let Some(ask) = found
            && seen.insert((ask.method.clone(), ask.host.clone(), ask.target.clone()))
        {
            asks.push(ask);
        }
    }
    if asks.is_empty() {
        let shown: String = first.chars().filter(|c| !c.is_control()).take(80).collect();
        return Err(match lines {
            0 => format!("{}: the log is empty", path.display()),
            _ => format!(
                "{}: no line has the combined format or a log_format of the configuration; the first is \"{shown}\"",
                path.display()
            ),
        });
    }
    Ok(asks)
}

/// A log that grows: its new lines.
#[derive(Debug)]
pub(crate) struct Follower {
    path: std::path::PathBuf,
    reader: BufReader<std::fs::File>,
    inode: u64,
    /// A line whose end has not been written yet.
    begun: Vec<u8>,
    formats: Vec<Format>,
}

impl Follower {
    /// Opens a log at its end.
    ///
    /// # Errors
    /// It cannot be read.
    pub(crate) fn new(path: &Path, formats: Vec<Format>) -> Result<Follower, String> {
        let say = |e: std::io::Error| format!("{}: {e}", path.display());
        let mut file = std::fs::File::open(path).map_err(say)?;
        file.seek(SeekFrom::End(0)).map_err(say)?;
        let inode = file.metadata().map_err(say)?.ino();
        Ok(Follower {
            path: path.to_owned(),
            reader: BufReader::new(file),
            inode,
            begun: Vec::new(),
            formats,
        })
    }

    /// Returns the request of the next new line that has one. `None`: there is none now.
    pub(crate) fn next(&mut self) -> Option<Ask> {
        loop {
            let room = LONGEST.saturating_sub(self.begun.len() as u64).max(1);
            let n = self.reader.by_ref().take(room).read_until(b'\n', &mut self.begun).ok()?;
            if n == 0 {
                return self.reopen();
            }
            if self.begun.last() != Some(&b'\n') && (self.begun.len() as u64) < LONGEST {
                continue;
            }
            let line = String::from_utf8_lossy(&self.begun).into_owned();
            self.begun.clear();
            if let Some(ask) = self.formats.iter().find_map(|f| f.request(line.trim_end())) {
                return Some(ask);
            }
        }
    }

    /// Opens the file that has taken the place of a rotated one, or begins anew with one that was emptied.
    fn reopen(&mut self) -> Option<Ask> {
        let file = std::fs::File::open(&self.path).ok()?;
        let metadata = file.metadata().ok()?;
        let was_emptied = metadata.len() < self.reader.stream_position().ok()?;
        if metadata.ino() != self.inode || was_emptied {
            (self.inode, self.reader) = (metadata.ino(), BufReader::new(file));
            self.begun.clear();
        }
        None
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn lines_of_known_formats() {
        let line =
            "10.0.0.1 - - [01/Jan/2026:00:00:00 +0000] \"GET /a?b=\\x22 HTTP/1.1\" 200 5 \"-\" \"curl/8\"";
        let ask = Format::new(COMBINED).request(line).expect("a request");
        assert_eq!((ask.method.as_str(), ask.target.as_str()), ("GET", "/a?b=\""));
        assert_eq!(ask.fields, [("user-agent".to_owned(), "curl/8".to_owned())]);

        let own = Format::new("${request_method} $host $request_uri t=$request_time");
        let ask = own.request("POST a.example /x t=0.1").expect("a request");
        assert_eq!(
            (ask.method.as_str(), ask.host.as_deref(), ask.target.as_str()),
            ("POST", Some("a.example"), "/x")
        );
    }

    #[test]
    fn a_line_of_one_format_is_none_of_another() {
        let own = Format::new("$remote_addr \"$request\" $status $body_bytes_sent $host $upstream_addr");
        let combined =
            "127.0.0.1 - - [30/Nov/2026:09:35:35 +0000] \"GET /p HTTP/1.1\" 200 6 \"-\" \"curl/7\"";
        assert!(own.request(combined).is_none());
        assert!(own.request("127.0.0.1 \"GET /p HTTP/1.1\" 200 6 a.example 10.0.0.1:80").is_some());
    }

    #[test]
    fn json_lines() {
        let own = Format::new("{\"r\":\"$request\",\"h\":\"$http_host\"}");
        let ask = own.request("{\"r\":\"GET /a HTTP/1.1\",\"h\":\"x.example\"}").expect("a request");
        assert_eq!(ask.host.as_deref(), Some("x.example"));
    }

    #[test]
    fn new_lines_of_a_log_that_is_rotated() {
        let dir = tempfile::tempdir().expect("dir");
        let path = dir.path().join("log");
        let line = |target: &str| format!("1.2.3.4 - - [x] \"GET {target} HTTP/1.1\" 200 5 \"-\" \"-\"\n");
        std::fs::write(&path, line("/old")).expect("written");
        let mut log = Follower::new(&path, vec![Format::new(COMBINED)]).expect("opened");
        assert!(log.next().is_none());
        let (begin, end) = (line("/new").split_at(20).0.to_owned(), line("/new").split_at(20).1.to_owned());
        let append = |text: &str| {
            let mut file = std::fs::File::options().append(true).open(&path).expect("opened");
            std::io::Write::write_all(&mut file, text.as_bytes()).expect("written");
        };
        append(&begin);
        assert!(log.next().is_none(), "half a line");
        append(&end);
        assert_eq!(log.next().expect("a request").target, "/new");
        std::fs::rename(&path, dir.path().join("log.1")).expect("moved");
        std::fs::write(&path, line("/rotated")).expect("written");
        assert!(log.next().is_none());
        assert_eq!(log.next().expect("a request").target, "/rotated");
        // logrotate's copytruncate.
        std::fs::write(&path, "").expect("written");
        assert!(log.next().is_none());
        append(&line("/emptied"));
        assert_eq!(log.next().expect("a request").target, "/emptied");
    }

    #[test]
    fn a_log_of_another_format_is_told() {
        let dir = tempfile::tempdir().expect("dir");
        let path = dir.path().join("log");
        std::fs::write(&path, "Jan 1 host sshd[1]: hello\n").expect("written");
        let why = requests(&path, &[Format::new(COMBINED)]).expect_err("no request");
        assert!(why.contains("no line has the combined format") && why.contains("sshd"), "{why}");
        std::fs::write(&path, "").expect("written");
        assert!(requests(&path, &[Format::new(COMBINED)]).is_err_and(|e| e.contains("empty")));
    }
}
