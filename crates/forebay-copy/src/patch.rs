//! Edits of a configuration at the places of its words: everything else keeps every byte.

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

/// The stream block of a configuration.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Streams {
    LeftOut,
    Kept,
}

/// Returns `true` for an error about what nginx has and Forebay has not.
fn is_foreign(message: &str) -> bool {
    message.starts_with("unknown directive")
        || message.contains("\" directive is not supported")
        || (message.starts_with("module \"") && message.contains("cannot be loaded"))
}

impl Source {
    /// Reads a configuration.
    ///
    /// # Errors
    /// nginx's words for the first mistake, with its place.
    pub fn read(path: &Path) -> Result<Source, String> {
        Source::read_but(path, Streams::LeftOut, |_| false)
    }

    /// Reads a configuration of nginx. Directives that Forebay does not have are left to nginx to judge.
    ///
    /// # Errors
    /// Errors of [`Source::read`].
    pub fn of_nginx(path: &Path) -> Result<Source, String> {
        Source::read_but(path, Streams::LeftOut, is_foreign)
    }

    /// Reads a configuration of nginx with its stream block.
    ///
    /// # Errors
    /// Errors of [`Source::read`].
    pub fn with_streams(path: &Path) -> Result<Source, String> {
        Source::read_but(path, Streams::Kept, is_foreign)
    }

    fn read_but(path: &Path, kept: Streams, foreign: impl Fn(&str) -> bool) -> Result<Source, String> {
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
        if kept == Streams::LeftOut {
            streams(&tree.root, &files, &mut unserved);
        }
        without(&mut tree.root, &unserved);
        Ok(Source { path, files, tree, unserved })
    }

    /// Returns the names of the blocks that the copy leaves out.
    pub fn unserved_names(&self) -> impl Iterator<Item = &'static str> {
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
            let data = d.holds_data() || d.name.text == b"include";
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
    pub fn servers(&self, http: usize) -> impl Iterator<Item = usize> + '_ {
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

    /// Returns `true` if a directive is in the stream block.
    pub fn in_stream(&self, n: usize) -> bool {
        self.child(None, "stream").is_some_and(|stream| self.within(n, stream))
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

    /// Returns the place of the name of a directive.
    pub fn span(&self, n: usize) -> Span {
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
