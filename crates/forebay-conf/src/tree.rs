//! The configuration as a tree: every word keeps its place in the file it came from.

use std::borrow::Cow;

/// Index of a file in [`crate::files::Files`], in the order the files were first opened.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct FileId(pub u32);

/// Place of a directive: its file and line.
#[derive(Clone, Copy, Default, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct Place {
    /// File.
    pub file: FileId,
    /// Line, the first is 1.
    pub line: u32,
}

impl std::fmt::Debug for Place {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "{:?} line {}", self.file, self.line)
    }
}

impl FileId {
    /// The text of the `-g` option, which is no file.
    pub const COMMAND_LINE: FileId = FileId(u32::MAX);
}

/// A place in a file. `line` and `column` count from 1, `column`, `start` and `end` in bytes.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Span {
    /// File of the text.
    pub file: FileId,
    /// Line of the first byte.
    pub line: u32,
    /// Column of the first byte.
    pub column: u32,
    /// Offset of the first byte.
    pub start: u32,
    /// Offset after the last byte.
    pub end: u32,
}

impl Span {
    /// Returns the place of the first byte.
    pub fn place(self) -> Place {
        Place { file: self.file, line: self.line }
    }
}

/// One word, quotes and escapes removed.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Word {
    /// The word as nginx would see it after unquoting.
    pub text: Vec<u8>,
    /// Its place, quotes included.
    pub span: Span,
    /// The word was written in quotes (`on` and `"on"` differ in `if` expressions only).
    pub quoted: bool,
}

impl Word {
    /// Returns the word for messages and for directives that take UTF-8 only.
    pub fn as_str(&self) -> Cow<'_, str> {
        String::from_utf8_lossy(&self.text)
    }
}

/// One directive: a name, its arguments, and the content of its braces.
#[derive(Clone, Debug)]
pub struct Directive {
    /// The first word.
    pub name: Word,
    /// The words after it.
    pub args: Vec<Word>,
    /// Content of the braces. For `include`: the directives of the included files, in nginx's order.
    pub block: Option<Block>,
    /// The `;` or `{` that ended the words. nginx reports errors with the line of this place.
    pub end: Span,
    /// Ordinal in reading order, includes expanded: of two errors the one with the lower ordinal is
    /// the one that nginx would have reported.
    pub ordinal: u32,
    /// The directive stands for one file that an `include` names: see [`crate::parse::parse_after`].
    pub unit: Option<Unit>,
    /// Row of the grammar table. `None` inside blocks of data (`types`, `map`, `geo`, ...).
    pub row: Option<&'static crate::grammar::Row>,
}

impl Directive {
    /// Returns `true` if its block holds data and no directives (`map`, `types` and their like).
    pub fn holds_data(&self) -> bool {
        crate::parse::holds_data(&self.name.text)
    }
}

/// A file of its own in the http block.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Unit {
    /// It has been read.
    Read {
        /// No message is about it.
        clean: bool,
    },
    /// Its directives are known from before, and it has not been read. The directive may stand for several such files.
    Kept,
}

/// The directives between two braces (or of a whole file).
#[derive(Clone, Debug, Default)]
pub struct Block {
    /// Directives as written, `include` among them.
    pub items: Vec<Directive>,
    /// The `}` that ended it; `None` for a file. nginx reports contradictions with the line of this place.
    pub end: Option<Span>,
}

impl Block {
    /// Returns the directives in effect, with those of included files in place of their `include`.
    pub fn iter(&self) -> Iter<'_> {
        Iter { stack: vec![self.items.iter()] }
    }
}

impl<'a> IntoIterator for &'a Block {
    type Item = &'a Directive;
    type IntoIter = Iter<'a>;
    fn into_iter(self) -> Iter<'a> {
        self.iter()
    }
}

/// Iterator over a block with includes expanded. The directives in the file of a `state` follow that directive.
pub struct Iter<'a> {
    stack: Vec<std::slice::Iter<'a, Directive>>,
}

impl<'a> Iterator for Iter<'a> {
    type Item = &'a Directive;
    fn next(&mut self) -> Option<&'a Directive> {
        loop {
            let Some(d) = self.stack.last_mut()?.next() else {
                self.stack.pop();
                continue;
            };
            match &d.block {
                Some(b) if d.name.text == b"include" => self.stack.push(b.items.iter()),
                Some(b) if d.name.text == b"state" => {
                    self.stack.push(b.items.iter());
                    return Some(d);
                }
                _ => return Some(d),
            }
        }
    }
}

/// A whole configuration.
#[derive(Clone, Debug, Default)]
pub struct Tree {
    /// Top level: `-g` directives first, then the main file.
    pub root: Block,
}
