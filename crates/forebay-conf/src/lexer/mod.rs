//! Bytes to statements: words ended by `;`, `{` or `}`.
//!
//! Goes on after every mistake, so that one run finds them all. The texts are nginx's.

use crate::error::{Error, Level};
use crate::tree::{FileId, Span, Word};
use std::collections::VecDeque;

/// nginx reads through a buffer of so many bytes; a word (or comment) with the byte after it must fit.
const BUFFER: usize = 4096;

/// The next item of the text.
#[derive(Debug)]
pub(crate) enum Item {
    /// `words;`
    Simple(Vec<Word>, Span),
    /// `words {`
    Open(Vec<Word>, Span),
    /// `}`
    Close(Span),
    /// A mistake. The next item is behind it.
    Bad(Error),
    /// A `{` with no words before it. Its content follows.
    BadOpen(Error),
    /// The end of the text. `told`: the error at the end has been reported by an item before.
    Eof { at: Span, told: bool },
}

/// Reader of one file (or of the command line, when `line_start` is not kept from it).
pub(crate) struct Lexer<'a> {
    src: &'a [u8],
    file: FileId,
    pos: usize,
    line: u32,
    line_start: usize,
    words: Vec<Word>,
    queue: VecDeque<Item>,
    told: bool,
}

impl<'a> Lexer<'a> {
    pub(crate) fn new(src: &'a [u8], file: FileId) -> Lexer<'a> {
        Lexer {
            src,
            file,
            pos: 0,
            line: 1,
            line_start: 0,
            words: vec![],
            queue: VecDeque::new(),
            told: false,
        }
    }

    /// Returns the next item; after the end, `Eof` for ever.
    pub(crate) fn next(&mut self) -> Item {
        loop {
            if let Some(item) = self.queue.pop_front() {
                return item;
            }
            self.skip_space();
            let Some(&byte) = self.src.get(self.pos) else {
                return self.at_end();
            };
            match byte {
                b';' | b'{' | b'}' => return self.punctuation(byte),
                b'#' => self.comment(),
                b'"' | b'\'' => self.quoted(byte),
                _ => self.plain(),
            }
        }
    }

    /// Skips to the `}` that closes a block just opened, whatever its content, counting braces outside
    /// words only as nginx's own words go. Used where the content is not ours to judge.
    pub(crate) fn skip_block(&mut self) {
        let mut depth = 1u32;
        while depth > 0 {
            match self.next() {
                Item::Open(..) | Item::BadOpen(_) => depth = depth.saturating_add(1),
                Item::Close(_) => depth -= 1,
                Item::Eof { .. } => return,
                _ => {}
            }
        }
    }

    /// Skips a block of Lua just opened, up to and with its `}`. Braces in strings and comments do not count (Lua manual,
    /// "Lexical Conventions"). `false`: the text ends first.
    pub(crate) fn skip_lua(&mut self) -> bool {
        let mut depth = 1u32;
        while let Some(&byte) = self.src.get(self.pos) {
            if byte == b'[' && self.skip_long_bracket() {
                continue;
            }
            self.advance();
            match byte {
                b'{' => depth = depth.saturating_add(1),
                b'}' => depth -= 1,
                _ => self.skip_lua_text(byte),
            }
            if depth == 0 {
                return true;
            }
        }
        false
    }

    /// Skips a string or a comment of Lua that begins with `byte`, which is already read.
    fn skip_lua_text(&mut self, byte: u8) {
        match byte {
            b'"' | b'\'' => self.skip_lua_string(byte),
            b'-' if self.src.get(self.pos) == Some(&b'-') => {
                self.advance();
                if !self.skip_long_bracket() {
                    self.skip_until(|b| b == b'\n');
                }
            }
            _ => {}
        }
    }

    /// Skips the rest of a Lua string. Without a backslash before it the end of the line ends the string too.
    fn skip_lua_string(&mut self, quote: u8) {
        while let Some(&byte) = self.src.get(self.pos) {
            if byte == b'\n' {
                return;
            }
            self.advance();
            match byte {
                b'\\' if self.src.get(self.pos).is_some() => self.advance(),
                b if b == quote => return,
                _ => {}
            }
        }
    }

    /// Skips `[[...]]`, `[=[...]=]` and so on. `false`: none begins here. One that does not end begins none, so that the rest of
    /// the text is still looked at.
    fn skip_long_bracket(&mut self) -> bool {
        let rest = self.src.get(self.pos..).unwrap_or_default();
        let Some(level) = rest.strip_prefix(b"[").map(|r| r.iter().take_while(|b| **b == b'=').count())
        else {
            return false;
        };
        let opening = level + 2;
        if rest.get(level + 1) != Some(&b'[') {
            return false;
        }
        let closing = [b"]".as_slice(), &rest[1..=level], b"]"].concat();
        let Some(at) = rest.get(opening..).and_then(|r| r.windows(closing.len()).position(|w| w == closing))
        else {
            return false;
        };
        for _ in 0..opening + at + closing.len() {
            self.advance();
        }
        true
    }

    fn skip_until(&mut self, end: impl Fn(u8) -> bool) {
        while self.src.get(self.pos).is_some_and(|b| !end(*b)) {
            self.advance();
        }
    }

    /// Returns the offset of the next byte.
    pub(crate) fn offset(&self) -> usize {
        self.pos
    }

    /// Returns `true` if the text is that of the `-g` option.
    pub(crate) fn is_command_line(&self) -> bool {
        self.file == FileId::COMMAND_LINE
    }

    /// Makes later `Eof` items say that the error at the end has been reported.
    pub(crate) fn end_is_told(&mut self) {
        self.told = true;
    }

    /// Reads punctuation without words before it.
    fn lone_punctuation(&mut self, byte: u8, span: Span) -> Item {
        match byte {
            b';' => Item::Bad(self.error("unexpected \";\"", span, span)),
            b'{' => Item::BadOpen(self.error("unexpected \"{\"", span, span)),
            _ => Item::Close(span),
        }
    }

    fn punctuation(&mut self, byte: u8) -> Item {
        let start = self.mark();
        self.advance();
        let span = self.span_from(start);
        let words = std::mem::take(&mut self.words);
        let Some(last) = words.last() else { return self.lone_punctuation(byte, span) };
        match byte {
            b';' => Item::Simple(words, span),
            b'{' => Item::Open(words, span),
            _ => {
                self.queue.push_back(Item::Close(span));
                let mut error = self.error("unexpected \"}\"", last.span, span);
                error.hint = Some(format!("a \";\" is missing after \"{}\"", last.as_str()));
                Item::Bad(error)
            }
        }
    }

    fn at_end(&mut self) -> Item {
        let at = self.span_from(self.mark());
        let words = std::mem::take(&mut self.words);
        if let Some(last) = words.last() {
            let hint = format!("a \";\" is missing after \"{}\"", last.as_str());
            self.told_end(last.span, at, hint);
            return self.queue.pop_front().unwrap_or(Item::Eof { at, told: true });
        }
        Item::Eof { at, told: self.told }
    }

    fn told_end(&mut self, span: Span, at: Span, hint: String) {
        self.told = true;
        let text = if self.file == FileId::COMMAND_LINE {
            "unexpected end of parameter, expecting \";\""
        } else {
            "unexpected end of file, expecting \";\" or \"}\""
        };
        let error = Error { hint: Some(hint), ..self.error(text, span, at) };
        self.queue.push_back(Item::Bad(error));
    }

    fn comment(&mut self) {
        let start = self.mark();
        self.skip_until(|b| b == b'\n');
        self.check_length(start, start.pos, None);
    }

    /// Adds a `$` with the braces behind it.
    fn dollar(&mut self, text: &mut Vec<u8>) {
        text.push(b'$');
        self.advance();
        // `${name}`: the brace belongs to the word, and so do more of them.
        while self.src.get(self.pos) == Some(&b'{') {
            text.push(b'{');
            self.advance();
        }
    }

    fn plain(&mut self) {
        let start = self.mark();
        let mut text = Vec::new();
        loop {
            self.take(|b| matches!(b, b' ' | b'\t' | b'\r' | b'\n' | b';' | b'{' | b'\\' | b'$'), &mut text);
            match self.src.get(self.pos) {
                Some(b'\\') => self.escape(&mut text),
                Some(b'$') => self.dollar(&mut text),
                _ => break,
            }
        }
        let span = self.span_from(start);
        self.check_length(start, start.pos, None);
        self.words.push(Word { text, span, quoted: false });
    }

    /// Reports that the text ends in a quoted word.
    fn unclosed_quote(&mut self, start: Mark, content: usize, quote: u8) {
        self.told = self.check_length(start, content, Some(quote));
        self.words.clear();
        if !self.told {
            let at = self.span_from(self.mark());
            // The quote alone: the rest of the file is no help to look at.
            let mut span = self.span_from(start);
            span.end = span.start.saturating_add(1);
            self.told_end(span, at, "a quotation mark is opened here, and none closes it".to_owned());
        }
    }

    fn quoted(&mut self, quote: u8) {
        let start = self.mark();
        self.advance();
        let content = self.pos;
        let mut text = Vec::new();
        loop {
            match self.src.get(self.pos) {
                None => return self.unclosed_quote(start, content, quote),
                Some(b'\\') => self.escape(&mut text),
                Some(&byte) if byte == quote => break,
                Some(b'\n') => {
                    text.push(b'\n');
                    self.advance();
                }
                Some(_) => self.take(|b| matches!(b, b'\\' | b'\n') || b == quote, &mut text),
            }
        }
        let unclosed = self.pos - content >= BUFFER;
        self.advance();
        let span = self.span_from(start);
        self.check_length(start, content, unclosed.then_some(quote));
        self.words.push(Word { text, span, quoted: true });
        self.after_quote();
    }

    /// Checks the byte behind a closing quote: space, `;`, `{` or the `)` of an `if`.
    fn after_quote(&mut self) {
        match self.src.get(self.pos) {
            None | Some(b' ' | b'\t' | b'\r' | b'\n' | b';' | b'{' | b')') => {}
            // Wrong too, and reported when it is read.
            Some(b'}') => {}
            Some(_) => {
                let start = self.mark();
                let len = utf8_len(&self.src[self.pos..]);
                let mut span = self.span_from(start);
                span.end += len as u32;
                // nginx names one byte; of a longer character that would be no text.
                let text = String::from_utf8_lossy(&self.src[self.pos..self.pos + len]).into_owned();
                let error = self.error(&format!("unexpected \"{text}\""), span, span);
                self.queue.push_back(Item::Bad(error));
            }
        }
    }

    /// Reads a backslash and the byte that it protects. `\" \' \\` lose the backslash, `\t \r \n` become what they
    /// stand for, before anything else it stays.
    fn escape(&mut self, text: &mut Vec<u8>) {
        self.advance();
        let Some(&byte) = self.src.get(self.pos) else {
            text.push(b'\\');
            return;
        };
        self.advance();
        match byte {
            b'"' | b'\'' | b'\\' => text.push(byte),
            b't' => text.push(b'\t'),
            b'r' => text.push(b'\r'),
            b'n' => text.push(b'\n'),
            _ => text.extend([b'\\', byte]),
        }
    }

    /// Says so when a word does not fit nginx's buffer. `from`: first byte that counts.
    fn check_length(&mut self, start: Mark, from: usize, quote: Option<u8>) -> bool {
        if self.file == FileId::COMMAND_LINE {
            return false;
        }
        // The byte after the word must be read too, unless the file ends with the word.
        let needed = self.pos - from + usize::from(self.pos < self.src.len());
        if needed <= BUFFER {
            return false;
        }
        let message = match quote {
            Some(quote) => {
                format!("too long parameter, probably missing terminating \"{}\" character", quote as char)
            }
            None => {
                let head = String::from_utf8_lossy(self.src.get(from..from + 10).unwrap_or_default());
                format!("too long parameter \"{head}...\" started")
            }
        };
        let mut span = self.span_from(start);
        span.end = span.start + 1;
        let error = self.error(&message, span, span);
        self.queue.push_back(Item::Bad(error));
        true
    }

    /// Appends the bytes before the next one that `ends` a run, or the rest. Line feeds must end it.
    fn take(&mut self, ends: impl Fn(u8) -> bool, text: &mut Vec<u8>) {
        let rest = self.src.get(self.pos..).unwrap_or_default();
        let run = rest.iter().position(|b| ends(*b)).map_or(rest, |end| &rest[..end]);
        text.extend_from_slice(run);
        self.pos += run.len();
    }

    fn skip_space(&mut self) {
        while matches!(self.src.get(self.pos), Some(b' ' | b'\t' | b'\r' | b'\n')) {
            self.advance();
        }
    }

    fn advance(&mut self) {
        if self.src.get(self.pos) == Some(&b'\n') {
            self.line = self.line.saturating_add(1);
            self.line_start = self.pos + 1;
        }
        self.pos += 1;
    }

    fn mark(&self) -> Mark {
        Mark { pos: self.pos, line: self.line, column: self.pos - self.line_start + 1 }
    }

    fn span_from(&self, start: Mark) -> Span {
        Span {
            file: self.file,
            line: start.line,
            column: clamp(start.column),
            start: clamp(start.pos),
            end: clamp(self.pos),
        }
    }

    fn error(&self, message: &str, span: Span, at: Span) -> Error {
        Error {
            level: Level::Emerg,
            message: message.to_owned(),
            span: Some(span),
            at: Some(at),
            hint: None,
            ordinal: 0,
        }
    }
}

#[derive(Clone, Copy)]
struct Mark {
    pos: usize,
    line: u32,
    column: usize,
}

fn clamp(n: usize) -> u32 {
    u32::try_from(n).unwrap_or(u32::MAX)
}

/// Returns the length of the character that `bytes` (not empty) begins with; 1 when it is no UTF-8.
fn utf8_len(bytes: &[u8]) -> usize {
    let head = &bytes[..bytes.len().min(4)];
    let valid = match std::str::from_utf8(head) {
        Ok(text) => text,
        Err(e) => std::str::from_utf8(&head[..e.valid_up_to()]).unwrap_or_default(),
    };
    valid.chars().next().map_or(1, char::len_utf8)
}

#[cfg(test)]
mod tests;
