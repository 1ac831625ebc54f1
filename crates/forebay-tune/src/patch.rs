//! Edits of a configuration at the places of its words: everything else keeps every byte.

use crate::knobs::{Knob, Place, statements};
use forebay_conf::error::Level;
use forebay_conf::files::Files;
use forebay_conf::parse::end_of_directive;
use forebay_conf::tree::{Block, Directive, FileId, Span, Tree};
use std::collections::BTreeMap;
use std::path::{Path, PathBuf};

/// A replacement in a file.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Edit {
    /// File.
    pub file: FileId,
    /// First byte.
    pub start: u32,
    /// Byte after the last one; equal to `start` for an insertion.
    pub end: u32,
    /// The new text.
    pub text: String,
}

/// A directive and the block around it.
#[derive(Debug)]
pub struct Node<'t> {
    /// The directive.
    pub d: &'t Directive,
    /// Number of the directive around it.
    pub parent: Option<usize>,
}

/// All directives of a configuration in reading order.
#[derive(Debug)]
pub struct View<'t> {
    /// Parents come before their children.
    pub nodes: Vec<Node<'t>>,
    /// The main file.
    pub main: FileId,
}

/// A configuration that was read.
#[derive(Debug)]
pub struct Source {
    /// The main file.
    pub path: PathBuf,
    /// All files.
    pub files: Files,
    /// The tree.
    pub tree: Tree,
    /// Edits that remove `stream` and `mail`, which are not measured.
    pub unserved: Vec<Edit>,
}

/// Removes from a block, and from the files it includes, the directives that edits replace.
fn without(block: &mut Block, edits: &[Edit]) {
    block.items.retain(|d| {
        let at = d.name.span;
        !edits.iter().any(|e| e.file == at.file && e.start == at.start)
    });
    for inner in block.items.iter_mut().filter(|d| d.name.text == b"include").filter_map(|d| d.block.as_mut())
    {
        without(inner, edits);
    }
}

/// Adds edits that remove the stream blocks of the main level. They have ports of their own, and no HTTP to measure.
fn streams(block: &Block, files: &Files, unserved: &mut Vec<Edit>) {
    for d in &block.items {
        match (d.name.text.as_slice(), &d.block) {
            (b"stream", _) => {
                let span = d.name.span;
                let end = end_of_directive(files.bytes(span.file), span.start as usize);
                let (file, start) = (span.file, span.start);
                unserved.push(Edit { file, start, end: end as u32, text: String::new() });
            }
            (b"include", Some(included)) => streams(included, files, unserved),
            _ => {}
        }
    }
}

impl Source {
    /// Reads a configuration.
    ///
    /// # Errors
    /// nginx's words for the first mistake, with its place.
    pub fn read(path: &Path) -> Result<Source, String> {
        Source::read_but(path, |_| false)
    }

    /// Reads a configuration of nginx. Directives that Forebay does not have are left to nginx to judge.
    ///
    /// # Errors
    /// Errors of [`Source::read`].
    pub fn of_nginx(path: &Path) -> Result<Source, String> {
        Source::read_but(path, |message| {
            message.starts_with("unknown directive")
                || message.contains("\" directive is not supported")
                || (message.starts_with("module \"") && message.contains("cannot be loaded"))
        })
    }

    fn read_but(path: &Path, foreign: impl Fn(&str) -> bool) -> Result<Source, String> {
        let path = std::path::absolute(path).map_err(|e| format!("{}: {e}", path.display()))?;
        let mut files = Files::disk();
        let dir = path.parent().unwrap_or(Path::new("/")).to_owned();
        let parsed = forebay_conf::parse::parse(&path, "", &dir, &mut files);
        let mut unserved = Vec::new();
        for e in parsed.errors.iter().filter(|e| e.level == Level::Emerg) {
            if !foreign(&e.message) {
                return Err(files.render(e));
            }
            // These have ports of their own.
            let Some(span) = e.span.filter(|_| e.message.starts_with("\"mail\"")) else {
                continue;
            };
            let end = end_of_directive(files.bytes(span.file), span.start as usize);
            unserved.push(Edit { file: span.file, start: span.start, end: end as u32, text: String::new() });
        }
        let mut tree = parsed.tree;
        streams(&tree.root, &files, &mut unserved);
        without(&mut tree.root, &unserved);
        Ok(Source { path, files, tree, unserved })
    }

    /// Returns the names of the blocks that the copy leaves out.
    pub(crate) fn unserved_names(&self) -> impl Iterator<Item = &'static str> {
        let begins = |e: &Edit, name: &str| {
            self.files.bytes(e.file).get(e.start as usize..).is_some_and(|t| t.starts_with(name.as_bytes()))
        };
        ["stream", "mail"].into_iter().filter(move |name| self.unserved.iter().any(|e| begins(e, name)))
    }

    /// Returns all directives.
    pub fn view(&self) -> View<'_> {
        let mut view = View { nodes: Vec::new(), main: FileId(0) };
        view.add(&self.tree.root, None);
        view
    }
}

impl<'t> View<'t> {
    fn add(&mut self, block: &'t Block, parent: Option<usize>) {
        for d in block.iter() {
            let n = self.nodes.len();
            self.nodes.push(Node { d, parent });
            let data = matches!(
                d.name.text.as_slice(),
                b"map"
                    | b"num_map"
                    | b"geo"
                    | b"types"
                    | b"split_clients"
                    | b"charset_map"
                    | b"match"
                    | b"include"
            );
            if let Some(b) = d.block.as_ref().filter(|_| !data) {
                self.add(b, Some(n));
            }
        }
    }

    /// Returns the name of a directive.
    pub fn name(&self, n: usize) -> &str {
        self.nodes.get(n).and_then(|n| std::str::from_utf8(&n.d.name.text).ok()).unwrap_or_default()
    }

    /// Its arguments.
    pub fn args(&self, n: usize) -> Vec<String> {
        self.nodes
            .get(n)
            .map(|n| n.d.args.iter().map(|w| w.as_str().into_owned()).collect())
            .unwrap_or_default()
    }

    /// Returns the directives with this name.
    pub fn all<'s>(&'s self, name: &'s str) -> impl Iterator<Item = usize> + 's {
        (0..self.nodes.len()).filter(move |n| self.name(*n) == name)
    }

    /// Returns the directives right in a block.
    pub fn children(&self, block: Option<usize>) -> impl Iterator<Item = usize> + '_ {
        (0..self.nodes.len()).filter(move |n| self.nodes[*n].parent == block)
    }

    /// Returns the first directive with this name right in a block.
    pub fn child(&self, block: Option<usize>, name: &str) -> Option<usize> {
        self.children(block).find(|n| self.name(*n) == name)
    }

    /// Returns the `server` blocks of `http`.
    pub(crate) fn servers(&self, http: usize) -> impl Iterator<Item = usize> + '_ {
        self.all("server").filter(move |s| self.nodes[*s].parent == Some(http))
    }

    /// Returns `true` if a directive is somewhere in a block.
    pub fn within(&self, n: usize, block: usize) -> bool {
        let mut at = self.nodes[n].parent;
        while let Some(b) = at {
            if b == block {
                return true;
            }
            at = self.nodes[b].parent;
        }
        false
    }

    /// Returns the directive of this name in effect in a block.
    pub fn effective(&self, block: Option<usize>, name: &str) -> Option<usize> {
        let mut at = block;
        loop {
            if let Some(n) = self.child(at, name) {
                return Some(n);
            }
            at = self.nodes[at?].parent;
        }
    }

    /// Returns `true` if a flag is on anywhere.
    pub fn any_on(&self, name: &str) -> bool {
        self.all(name).any(|n| self.args(n).first().is_some_and(|a| a == "on"))
    }

    fn span(&self, n: usize) -> Span {
        self.nodes[n].d.name.span
    }

    /// Returns the edit that replaces a whole directive without a block.
    pub fn replace(&self, n: usize, text: &str) -> Edit {
        let s = self.span(n);
        Edit { file: s.file, start: s.start, end: self.nodes[n].d.end.end, text: text.to_owned() }
    }

    /// Returns the edit that adds words before the `;` of a directive.
    pub fn append(&self, n: usize, words: &str) -> Edit {
        let d = self.nodes[n].d;
        let at = d.args.last().map_or(d.name.span, |w| w.span);
        Edit { file: at.file, start: at.end, end: at.end, text: format!(" {words}") }
    }

    /// Returns the edit that inserts a directive as the first one of a block, or of the main file.
    pub fn insert(&self, block: Option<usize>, text: &str) -> Edit {
        let Some(b) = block else {
            // Before the first directive, since comments at the top of a file are about the file.
            let first = self.children(None).map(|n| self.span(n)).find(|s| s.file == self.main);
            let at = first.map_or(0, |s| s.start);
            return Edit { file: self.main, start: at, end: at, text: format!("{text}\n") };
        };
        let at = self.nodes[b].d.end;
        let first =
            self.children(Some(b)).find(|n| self.span(*n).file == at.file && self.span(*n).line > at.line);
        let indent = match first {
            // A block in one line has no layout to follow.
            Some(c) => (self.span(c).column as usize - 1).min(32),
            None => (self.span(b).column as usize + 3).min(32),
        };
        Edit { file: at.file, start: at.end, end: at.end, text: format!("\n{}{text}", " ".repeat(indent)) }
    }

    /// Sets a directive in a block (`None`: at the top). Replaces it where it is set, also in inner blocks. Returns no edits if
    /// all of them have the value already.
    pub fn set(&self, block: Option<usize>, name: &str, args: &str) -> Vec<Edit> {
        let text = if args.is_empty() { format!("{name};") } else { format!("{name} {args};") };
        let mut edits = Vec::new();
        let own = self.child(block, name);
        for n in self.all(name).filter(|n| block.is_none_or(|b| self.within(*n, b))) {
            if self.args(n).join(" ") != args {
                edits.push(self.replace(n, &text));
            }
        }
        let default = forebay_conf::grammar::rows(name.as_bytes()).first().map(|r| r.default);
        if own.is_none() && default != Some(args.trim()) {
            edits.push(self.insert(block, &text));
        }
        edits
    }

    /// Returns the changes of a level of a knob. None: the configuration has it already, or there is no place for it.
    pub fn edits(&self, knob: &Knob, level: &str) -> Vec<Edit> {
        match knob.place {
            Place::Main => self.set_all(None, &statements(level)),
            Place::Events => self.set_events(&statements(level)),
            Place::There => self.set_there(level),
            Place::Http => self.set_http(level),
            Place::Listen => self.set_listen(level),
            Place::AccessLog => self.buffer_logs(level),
            Place::Upstream => self.upstream(level),
            Place::Sysctl => {
                level.split_once(';').map_or_else(Vec::new, |(_, word)| self.listen_parameter(word.trim()))
            }
        }
    }

    fn set_all(&self, block: Option<usize>, statements: &[(&str, &str)]) -> Vec<Edit> {
        statements.iter().flat_map(|(name, args)| self.set(block, name, args)).collect()
    }

    fn set_events(&self, statements: &[(&str, &str)]) -> Vec<Edit> {
        match self.child(None, "events") {
            Some(events) => self.set_all(Some(events), statements),
            None => Vec::new(),
        }
    }

    /// Changes directives where they are, except in `upstream`.
    fn set_there(&self, level: &str) -> Vec<Edit> {
        let in_upstream = |n: usize| self.nodes[n].parent.is_some_and(|p| self.name(p) == "upstream");
        let mut edits = Vec::new();
        for (name, args) in statements(level) {
            let others = self.all(name).filter(|n| !in_upstream(*n) && self.args(*n).join(" ") != args);
            edits.extend(others.map(|n| self.replace(n, &format!("{name} {args};"))));
        }
        edits
    }

    fn set_http(&self, level: &str) -> Vec<Edit> {
        let Some(http) = self.child(None, "http") else { return Vec::new() };
        let statements = statements(level);
        // Zones are made once; a second level that only differs in them is of no use.
        let has_zone = || self.all("ssl_session_cache").any(|n| self.args(n)[0].starts_with("shared"));
        if statements.iter().any(|(name, _)| *name == "ssl_session_cache") && has_zone() {
            return Vec::new();
        }
        self.set_all(Some(http), &statements)
    }

    /// Adds a parameter of `listen`, and sets the directive in `events` that belongs to it.
    fn set_listen(&self, level: &str) -> Vec<Edit> {
        let parts = statements(level);
        let Some(((word, _), others)) = parts.split_first() else { return Vec::new() };
        let mut edits = self.listen_parameter(word);
        if !edits.is_empty() {
            edits.extend(self.set_events(others));
        }
        edits
    }

    /// Adds parameters to each `access_log` of a file that has no buffer.
    fn buffer_logs(&self, level: &str) -> Vec<Edit> {
        let Some(http) = self.child(None, "http") else { return Vec::new() };
        let mut edits = Vec::new();
        for n in self.all("access_log").filter(|n| self.within(*n, http)) {
            let args = self.args(n);
            let is_file = |a: &String| a != "off" && !a.starts_with("syslog:") && !a.contains('$');
            let buffered = args.iter().any(|a| a.starts_with("buffer=") || a.starts_with("gzip"));
            if args.first().is_some_and(is_file) && !buffered {
                let format = if args.len() == 1 { "combined " } else { "" };
                edits.push(self.append(n, &format!("{format}{level}")));
            }
        }
        edits
    }

    fn listen_parameter(&self, word: &str) -> Vec<Edit> {
        let mut seen = std::collections::BTreeSet::new();
        let mut edits = Vec::new();
        let name = word.split('=').next().unwrap_or(word).to_owned();
        for n in self.all("listen") {
            let args = self.args(n);
            let Some(address) = args.first().filter(|a| !a.starts_with("unix:")) else { continue };
            let first = seen.insert(normal(address));
            let has = args.iter().any(|a| a.split('=').next() == Some(name.as_str()));
            if first && !has && !args.iter().any(|a| a == "quic") {
                edits.push(self.append(n, word));
            }
        }
        edits
    }

    /// Makes upstreams keep connections, and adds the directives that their locations need for that.
    fn upstream(&self, level: &str) -> Vec<Edit> {
        let mut edits = Vec::new();
        let mut names = Vec::new();
        for u in self.all("upstream").filter(|u| self.child(Some(*u), "keepalive").is_none()) {
            if self.child(Some(u), "server").is_some() {
                edits.push(self.append_to_block(u, level));
                names.extend(self.args(u).first().cloned());
            }
        }
        for pass in self.all("proxy_pass") {
            let target = self.args(pass).first().cloned().unwrap_or_default();
            let host = target.split("://").nth(1).and_then(|r| r.split('/').next()).unwrap_or_default();
            if names.iter().any(|n| n == host) {
                edits.extend(self.keeping_needs(pass));
            }
        }
        edits.dedup();
        edits
    }

    /// Adds a directive as the last one of a block: a method of balancing has to come before `keepalive`.
    fn append_to_block(&self, block: usize, text: &str) -> Edit {
        let last = self.children(Some(block)).last().unwrap_or(block);
        let end = self.nodes[last].d.end;
        let indent = " ".repeat((self.span(last).column as usize - 1).min(32));
        Edit { file: end.file, start: end.end, end: end.end, text: format!("\n{indent}{text}") }
    }

    /// Returns the edits that a location needs so that connections to its upstream can be kept.
    fn keeping_needs(&self, pass: usize) -> Vec<Edit> {
        let mut edits = Vec::new();
        let location = self.nodes[pass].parent;
        // Fields of a location replace those of the blocks around it, so a new one goes where the others are.
        let fields = self.effective(location, "proxy_set_header").map(|n| self.nodes[n].parent);
        let block = fields.unwrap_or(location);
        let sets_connection = |n: usize| {
            self.name(n) == "proxy_set_header"
                && self.args(n).first().is_some_and(|a| a.eq_ignore_ascii_case("connection"))
        };
        if !self.children(block).any(sets_connection) {
            edits.push(self.insert(block, "proxy_set_header Connection \"\";"));
        }
        if self.effective(location, "proxy_http_version").is_none() {
            edits.push(self.insert(location, "proxy_http_version 1.1;"));
        }
        edits
    }
}

/// Returns an address in one form: `80`, `*:80` and `0.0.0.0:80` are the same, and `localhost` means its port 80.
pub fn normal(address: &str) -> String {
    if address.starts_with("unix:") {
        return address.to_owned();
    }
    if address.bytes().all(|b| b.is_ascii_digit()) {
        return format!("0.0.0.0:{address}");
    }
    let address = address.replace("*:", "0.0.0.0:");
    let tail = address.rsplit(']').next().unwrap_or_default();
    if tail.contains(':') { address } else { format!("{address}:80") }
}

/// Returns a file with its edits; those that overlap an earlier one are left out.
pub fn apply(bytes: &[u8], file: FileId, edits: &[Edit]) -> Vec<u8> {
    let mut mine: Vec<&Edit> = edits.iter().filter(|e| e.file == file).collect();
    mine.sort_by_key(|e| (e.start, e.end));
    mine.dedup();
    let mut out = Vec::with_capacity(bytes.len() + 256);
    let mut at = 0;
    for e in mine {
        let (start, end) = (e.start as usize, e.end as usize);
        if start < at || end > bytes.len() || end < start {
            continue;
        }
        out.extend_from_slice(&bytes[at..start]);
        out.extend_from_slice(e.text.as_bytes());
        at = end;
    }
    out.extend_from_slice(&bytes[at..]);
    out
}

/// Returns edits with a comment each that gives the reason.
pub fn explained(files: &Files, edits: &[Edit], why: &str) -> Vec<Edit> {
    let mut out = edits.to_vec();
    for e in &mut out {
        let rest = files.bytes(e.file).get(e.end as usize..).unwrap_or_default();
        let line = rest.split(|b| *b == b'\n').next().unwrap_or_default();
        explain(e, line, why);
    }
    out
}

/// Adds a comment to an edit, where that does not comment out a directive. `line`: the rest of the line behind the edit.
fn explain(e: &mut Edit, line: &[u8], why: &str) {
    // A parameter ends before its `;`, and the comment has to come after that.
    let (semicolon, tail) = match line.split_first() {
        Some((b';', tail)) if e.text.starts_with(' ') => (";", tail),
        _ => ("", line),
    };
    let is_line = e.start == e.end && e.text.ends_with('\n');
    e.text = match tail.iter().find(|b| !b.is_ascii_whitespace()) {
        _ if is_line => format!("{}  # {why}\n", e.text.trim_end()),
        Some(_) if e.text.starts_with('\n') => format!("{}  # {why}\n", e.text),
        None | Some(b'#') => {
            e.end += semicolon.len() as u32;
            format!("{}{semicolon}  # {why}", e.text)
        }
        Some(_) if semicolon.is_empty() => format!("\n# {why}\n{}", e.text),
        // Another directive follows on the line.
        Some(_) => return,
    };
}

/// Returns all files that edits change: path and new bytes.
pub fn changed(source: &Source, edits: &[Edit]) -> BTreeMap<PathBuf, Vec<u8>> {
    let mut out = BTreeMap::new();
    for (id, path, bytes) in source.files.iter() {
        if edits.iter().any(|e| e.file == id) {
            out.insert(path.to_owned(), apply(bytes, id, edits));
        }
    }
    out
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::knobs::KNOBS;

    fn source(text: &str) -> (tempfile::TempDir, Source) {
        let dir = tempfile::tempdir().expect("dir");
        let path = dir.path().join("nginx.conf");
        std::fs::write(&path, text).expect("written");
        let source = Source::read(&path).expect("parses");
        (dir, source)
    }

    fn knob(name: &str) -> &'static Knob {
        KNOBS.iter().find(|k| k.name == name).expect("in the table")
    }

    fn patched(text: &str, name: &str, why: Option<&str>) -> String {
        let (_dir, s) = source(text);
        let mut edits = s.view().edits(knob(name), knob(name).levels[0]);
        if let Some(why) = why {
            edits = explained(&s.files, &edits, why);
        }
        let new = apply(s.files.bytes(FileId(0)), FileId(0), &edits);
        let dir = tempfile::tempdir().expect("dir");
        let path = dir.path().join("x.conf");
        std::fs::write(&path, &new).expect("written");
        let text = String::from_utf8(new).expect("text");
        Source::read(&path).unwrap_or_else(|e| panic!("{e}\n{text}"));
        text
    }

    #[test]
    fn comments_and_layout_stay() {
        let text =
            "# mine\nevents { }\nhttp {\n   sendfile  off ;   # slow disk\n   server { listen 80; }\n}\n";
        let new = patched(text, "sendfile", Some("+3 %"));
        for part in [
            "# mine\nevents { }\nhttp {",
            "sendfile on;  # +3 %   # slow disk\n",
            "\n   tcp_nopush on;  # +3 %\n",
        ] {
            assert!(new.contains(part), "{new}");
        }
    }

    #[test]
    fn parameters_of_listen() {
        let text = "events {}\nhttp { server { listen 80; } server { listen *:80; }\nserver {\n listen [::]:80;\n}}\n";
        let new = patched(text, "reuseport", Some("why"));
        assert_eq!(new.matches("reuseport").count(), 2, "{new}");
        assert!(new.contains("listen 80 reuseport; }"), "{new}");
        assert!(new.contains("listen [::]:80 reuseport;  # why\n"), "{new}");
        assert_eq!(
            patched("events {}\nhttp { server { listen 80 reuseport; } }", "reuseport", None)
                .matches("reuseport")
                .count(),
            1
        );
    }

    #[test]
    fn settings_that_hold_already_are_left() {
        let text = "events {}\nhttp { keepalive_requests 100000; access_log /x combined buffer=1k; }\n";
        assert_eq!(patched(text, "keepalive_requests", None), text);
        assert_eq!(patched(text, "access_log", None), text);
    }

    #[test]
    fn deeper_occurrences_change_too() {
        let text =
            "events {}\nhttp { server { keepalive_requests 1; location / { keepalive_requests 2; } } }\n";
        let new = patched(text, "keepalive_requests", Some("why"));
        assert!(!new.contains("requests 1;") && !new.contains("requests 2;"), "{new}");
    }

    #[test]
    fn upstreams_get_what_keeping_needs() {
        let text = "events {}\nhttp {\n upstream b {\n  server 127.0.0.1:1;\n }\n server { location / { proxy_pass http://b; } \
                    location /w { proxy_pass http://b; proxy_set_header Connection $http_upgrade; } }\n}\n";
        let new = patched(text, "upstream_keepalive", None);
        assert!(new.contains("server 127.0.0.1:1;\n  keepalive 32;"), "{new}");
        assert_eq!(new.matches("Connection \"\"").count(), 1, "{new}");
    }

    #[test]
    fn addresses() {
        for (a, b) in
            [("80", "*:80"), ("localhost", "localhost:80"), ("[::]:80", "[::]:80"), ("[::]", "[::]:80")]
        {
            assert_eq!(normal(a), normal(b));
        }
    }

    #[test]
    fn a_mistake_is_told_with_its_place() {
        let dir = tempfile::tempdir().expect("dir");
        let path = dir.path().join("bad.conf");
        std::fs::write(&path, "events {}\nhttp { servr {} }\n").expect("written");
        let e = Source::read(&path).expect_err("bad");
        assert!(e.contains("unknown directive \"servr\"") && e.contains("bad.conf:2"), "{e}");
    }
}
