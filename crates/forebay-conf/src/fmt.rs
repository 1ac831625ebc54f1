//! The layout of nginx.conf: one directive a line, four spaces a level; comments, blank lines between groups and line
//! breaks within a directive are the author's. Words are copied as they were written, so the tree stays the same.

use crate::error::{Error, Level};
use crate::lexer::{Item, Lexer};
use crate::tree::{FileId, Span, Word};

/// Indent of one level.
const INDENT: &str = "    ";

/// Formats a file. The result ends in a newline unless it is empty, and formatting it again changes nothing.
///
/// # Errors
/// All mistakes of the text; nothing is formatted then.
pub fn format(src: &[u8], file: FileId) -> Result<Vec<u8>, Vec<Error>> {
    let mut lexer = Lexer::new(src, file);
    let mut f = Formatter {
        src,
        out: Vec::with_capacity(src.len() + src.len() / 8),
        pos: 0,
        depth: 0,
        fresh: true,
        copied: 0,
    };
    let mut errors = Vec::new();
    let mut open: Vec<Word> = Vec::new();
    loop {
        match lexer.next() {
            Item::Simple(words, end) => f.directive(&words, end, b";"),
            Item::Open(words, end) => {
                f.open(&words, end);
                let foreign = words.first().is_some_and(|w| w.text.ends_with(b"_by_lua_block"));
                open.extend(words.into_iter().next());
                if foreign && lexer.skip_lua() {
                    open.pop();
                    f.raw(lexer.offset());
                }
            }
            Item::Close(at) if f.depth == 0 => {
                // The parser reports the error.
                errors.push(emerg("unexpected \"}\"", at, None));
                return Err(errors);
            }
            Item::Close(at) => {
                open.pop();
                f.close(at);
            }
            Item::Bad(e) | Item::BadOpen(e) => errors.push(e),
            Item::Eof { .. } => break,
        }
    }
    if let Some(opener) = open.last().filter(|_| errors.is_empty()) {
        let hint = format!("the block of \"{}\" in line {} is not closed", opener.as_str(), opener.span.line);
        errors.push(emerg("unexpected end of file, expecting \"}\"", opener.span, Some(hint)));
    }
    if errors.is_empty() { Ok(f.finish()) } else { Err(errors) }
}

fn emerg(message: &str, at: Span, hint: Option<String>) -> Error {
    let (span, at) = (Some(at), Some(at));
    Error { level: Level::Emerg, message: message.to_owned(), span, at, hint, ordinal: 0 }
}

/// Place of a gap between two words.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Place {
    /// Before a directive, a closing brace or the end.
    Between,
    /// Between the words of a directive.
    Within,
}

struct Formatter<'a> {
    src: &'a [u8],
    out: Vec<u8>,
    /// Offset up to which the text is done.
    pos: usize,
    depth: usize,
    /// Nothing has been written in this block yet.
    fresh: bool,
    /// Length of `out` behind the last word: a line break before that belongs to the word (a backslash at a line end).
    copied: usize,
}

impl Formatter<'_> {
    fn open(&mut self, words: &[Word], end: Span) {
        self.directive(words, end, b" {");
        self.depth += 1;
        self.fresh = true;
    }

    /// Ends the file: comments behind the last directive, and one newline.
    fn finish(mut self) -> Vec<u8> {
        self.gap(self.src.len(), Place::Between);
        while matches!(self.out.last(), Some(b'\n' | b' ')) {
            self.out.pop();
        }
        if !self.out.is_empty() {
            self.out.push(b'\n');
        }
        self.out
    }

    /// Writes a word of a directive with the space before it.
    fn word(&mut self, w: &Word, first: bool) {
        let start = w.span.start as usize;
        if first {
            self.gap(start, Place::Between);
            self.line(0);
        } else if start == self.pos {
            // A bracket behind a closing quote.
        } else if self.gap(start, Place::Within) {
            self.line(1);
        } else {
            self.out.push(b' ');
        }
        self.out.extend_from_slice(self.src.get(start..w.span.end as usize).unwrap_or_default());
        self.copied = self.out.len();
        self.pos = w.span.end as usize;
    }

    fn directive(&mut self, words: &[Word], end: Span, closing: &[u8]) {
        for (i, w) in words.iter().enumerate() {
            self.word(w, i == 0);
        }
        let commented = self.gap_has_comment(end.start as usize);
        if commented {
            self.gap(end.start as usize, Place::Within);
            self.line(1);
        }
        let closing = if commented { closing.trim_ascii_start() } else { closing };
        self.out.extend_from_slice(closing);
        self.pos = end.end as usize;
        self.fresh = false;
    }

    fn close(&mut self, at: Span) {
        let empty = self.fresh && !self.gap_has_comment(at.start as usize);
        self.depth -= 1;
        if empty {
            self.out.extend_from_slice(b"}");
        } else {
            self.depth += 1;
            self.gap(at.start as usize, Place::Between);
            self.depth -= 1;
            // No blank line before the brace.
            while self.layout().ends_with(b"\n\n") {
                self.out.pop();
            }
            self.line(0);
            self.out.push(b'}');
        }
        self.pos = at.end as usize;
        self.fresh = false;
    }

    /// Copies text of another language, up to and with its closing brace.
    fn raw(&mut self, end: usize) {
        self.out.extend_from_slice(self.src.get(self.pos..end).unwrap_or_default());
        self.copied = self.out.len();
        self.pos = end;
        self.depth -= 1;
        self.fresh = false;
    }

    /// Begins a line, unless one has just begun.
    fn line(&mut self, more: usize) {
        if !self.at_line_start() {
            self.out.push(b'\n');
        }
        for _ in 0..self.depth + more {
            self.out.extend_from_slice(INDENT.as_bytes());
        }
    }

    /// Returns the whitespace and comments behind the last word.
    fn layout(&self) -> &[u8] {
        self.out.get(self.copied..).unwrap_or_default()
    }

    fn at_line_start(&self) -> bool {
        self.out.is_empty() || self.layout().ends_with(b"\n")
    }

    fn gap_has_comment(&self, end: usize) -> bool {
        self.src.get(self.pos..end).unwrap_or_default().contains(&b'#')
    }

    /// Writes a comment that follows so many line breaks.
    fn comment(&mut self, text: &[u8], breaks: usize, place: Place) {
        if breaks == 0 && !self.at_line_start() {
            self.out.push(b' ');
        } else {
            self.blank(breaks, place);
            self.line(usize::from(place == Place::Within));
        }
        self.out.extend_from_slice(text);
        self.out.push(b'\n');
        self.fresh = false;
    }

    /// Writes the comments between the last word and `end`. `true`: there was a line break.
    fn gap(&mut self, end: usize, place: Place) -> bool {
        let gap = self.src.get(self.pos..end).unwrap_or_default();
        let mut breaks = 0;
        let mut any = false;
        let mut at = 0;
        while let Some(&b) = gap.get(at) {
            match b {
                b'\n' => {
                    breaks += 1;
                    any = true;
                    at += 1;
                }
                b'#' => {
                    let len = gap[at..].iter().position(|b| *b == b'\n').unwrap_or(gap.len() - at);
                    self.comment(gap[at..at + len].trim_ascii_end(), breaks, place);
                    // The newline that ends the comment does not count as a blank line.
                    breaks = 0;
                    any = true;
                    at += len + 1;
                    breaks += usize::from(at <= gap.len());
                }
                _ => at += 1,
            }
        }
        if place == Place::Between {
            self.blank(breaks, place);
        }
        self.pos = end;
        any
    }

    /// Writes one blank line where the author had one or more; none at the beginning of a block.
    fn blank(&mut self, breaks: usize, place: Place) {
        if breaks < 2 || place == Place::Within || self.fresh || self.out.is_empty() {
            return;
        }
        if !self.at_line_start() {
            self.out.push(b'\n');
        }
        if !self.layout().ends_with(b"\n\n") {
            self.out.push(b'\n');
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::files::Files;
    use crate::grammar::{self, Contexts};
    use std::path::Path;

    fn fmt(text: &str) -> String {
        let once = format(text.as_bytes(), FileId(0)).expect("no mistakes");
        let twice = format(&once, FileId(0)).expect("no mistakes");
        assert_eq!(String::from_utf8_lossy(&once), String::from_utf8_lossy(&twice), "not stable");
        String::from_utf8(once).expect("UTF-8")
    }

    #[test]
    fn directives_blocks_and_comments() {
        let text = "# top\n\n\nuser  www-data;worker_processes\tauto; # cores\nevents{}\nhttp {\n\n  # sites\n server { \
                    listen 80;\n\n\n\n    location / { root /x; } # here\n\n }\n}\n";
        let want = "# top\n\nuser www-data;\nworker_processes auto; # cores\nevents {}\nhttp {\n    # sites\n    server \
                    {\n        listen 80;\n\n        location / {\n            root /x;\n        } # here\n    }\n}\n";
        assert_eq!(fmt(text), want);
    }

    #[test]
    fn words_stay_as_they_were_written() {
        let text = "log_format main '$remote_addr - \"$request\"'\n   '$status ${x}y'\n\t\"a\\\"b\";\nif ($a ~ \"^x{1,2}$\")\n{ \
                    return 200 'a;b{c}#d'; }";
        let want = "log_format main '$remote_addr - \"$request\"'\n    '$status ${x}y'\n    \"a\\\"b\";\nif ($a ~ \
                    \"^x{1,2}$\") {\n    return 200 'a;b{c}#d';\n}\n";
        assert_eq!(fmt(text), want);
    }

    #[test]
    fn comments_in_odd_places() {
        let want = "a b # one\n    c # two\n    ;\nmap $x $y { # why\n    # inside\n    a b;\n    # last\n}\n# end\n";
        assert_eq!(fmt("a b # one\n c # two\n;map $x $y { # why\n# inside\na b;\n# last\n\n}\n# end"), want);
        assert_eq!(fmt(""), "");
        assert_eq!(fmt("\r\na b;\r\n\r\n\r\nc d;\r\n"), "a b;\n\nc d;\n");
    }

    /// Words and punctuation of a text, without their places.
    fn items(text: &[u8]) -> Vec<String> {
        let mut lexer = Lexer::new(text, FileId(0));
        let mut all = Vec::new();
        loop {
            match lexer.next() {
                Item::Simple(w, _) => {
                    all.push(format!("{:?};", w.iter().map(|w| (&w.text, w.quoted)).collect::<Vec<_>>()))
                }
                Item::Open(w, _) => {
                    all.push(format!("{:?}{{", w.iter().map(|w| (&w.text, w.quoted)).collect::<Vec<_>>()))
                }
                Item::Close(_) => all.push("}".to_owned()),
                Item::Eof { .. } => return all,
                Item::Bad(_) | Item::BadOpen(_) => all.push("?".to_owned()),
            }
        }
    }

    #[test]
    fn the_tree_stays_as_it_was() {
        let dir = concat!(env!("CARGO_MANIFEST_DIR"), "/tests/golden");
        let mut formatted = 0;
        for entry in std::fs::read_dir(dir).expect("the golden files") {
            let path = entry.expect("an entry").path();
            let Ok(text) = std::fs::read(&path) else { continue };
            // What nginx says to it stands behind a line of dashes.
            let cut = text.windows(6).position(|w| w == b"\n----\n").map_or(text.len(), |at| at + 1);
            let text = &text[..cut];
            let Ok(new) = format(text, FileId(0)) else { continue };
            assert_eq!(items(text), items(&new), "{}", path.display());
            assert_eq!(format(&new, FileId(0)).expect("no mistakes"), new, "{}", path.display());
            formatted += 1;
        }
        assert!(formatted > 10, "{formatted} files");
    }

    /// Returns the directives of a context, one after the other without a layout, blocks with what `inner` has for their name.
    fn directives(context: Contexts, inner: &dyn Fn(&str) -> String) -> String {
        let mut text = String::new();
        // An include would read a file.
        for row in grammar::all().iter().filter(|row| row.contexts.meets(context) && row.name != "include") {
            text.push_str(row.name);
            for n in 0..row.args.min {
                text.push_str(if row.args.flag {
                    " on"
                } else {
                    [" '${a} {;}#'", "\n\tb", " \"c\\\"\" #no\n"][n % 3]
                });
            }
            if row.block {
                text.push_str(&format!("\n{{{}}}", inner(row.name)));
            } else {
                text.push_str(" ;# why\n");
            }
        }
        text
    }

    #[test]
    fn all_of_stream_stays_as_it_was() {
        let data = |_: &str| "default\t0; \"~^x{1,2}$\" \"b c\";".to_owned();
        let block = |name: &str| match name {
            "server" => directives(Contexts::STREAM_SERVER, &data),
            "upstream" => directives(Contexts::STREAM_UPSTREAM, &data),
            name => data(name),
        };
        let text = format!("stream{{{}}}", directives(Contexts::STREAM, &block));
        let new = fmt(&text);
        assert_eq!(items(text.as_bytes()), items(new.as_bytes()));
        let messages = |text: &str| -> Vec<String> {
            let mut files = Files::recorded([("/n.conf", text)]);
            let parsed = crate::parse::parse(Path::new("/n.conf"), "", Path::new("/"), &mut files);
            parsed.errors.into_iter().map(|e| e.message).collect()
        };
        assert_eq!(messages(&text), messages(&new));
        for part in [
            "    server {\n",
            "    upstream '${a} {;}#' {\n",
            "        proxy_pass '${a} {;}#'; # why\n",
            "        default 0;\n",
        ] {
            assert!(new.contains(part), "{part}: {new}");
        }
        assert!(grammar::all().iter().filter(|row| row.contexts.meets(Contexts::STREAM_SERVER)).count() > 80);
    }

    #[test]
    fn lua_is_copied() {
        for lua in [
            "content_by_lua_block {\n      local t = { a = { 1 } }\n  }",
            "access_by_lua_block { ngx.say(\"}\") ngx.say('{{\\'{') -- a } here\n --[[ and { ]] x = [==[ }]] ]==] }",
        ] {
            let text = format!("location / {{\n    {lua}\n}}\n");
            assert_eq!(fmt(&text), text);
        }
        let open = format(b"a_by_lua_block { x = '}' ", FileId(0)).expect_err("a mistake");
        assert_eq!(open[0].message, "unexpected end of file, expecting \"}\"");
    }

    /// Random texts of the bytes that matter: the layout is stable, and keeps the words.
    #[test]
    fn odd_texts_keep_their_words() {
        assert_eq!(fmt("a \\\n\n b;\\\n\n  c;"), "a \\\n\n    b;\n\\\n\n    c;\n");
        let mut seed = 1u32;
        let mut formatted = 0;
        for _ in 0..60_000 {
            let text: Vec<u8> = (0..12)
                .map(|_| {
                    seed = seed.wrapping_mul(1_664_525).wrapping_add(1_013_904_223);
                    b"ab  \n\n\\;;{}#\"'"[(seed >> 16) as usize % 14]
                })
                .collect();
            let Ok(once) = format(&text, FileId(0)) else { continue };
            formatted += 1;
            assert_eq!(items(&text), items(&once), "{:?}", String::from_utf8_lossy(&text));
            let twice = format(&once, FileId(0)).expect("no mistakes");
            assert_eq!(twice, once, "{:?}", String::from_utf8_lossy(&text));
        }
        assert!(formatted > 1000, "{formatted} texts");
    }

    #[test]
    fn mistakes_are_told_and_nothing_is_written() {
        for text in ["a b", "a {", "}", "a \"b;", "a b; } c;"] {
            assert!(format(text.as_bytes(), FileId(0)).is_err(), "{text}");
        }
        let errors = format(b"# head\na {\n}\nb {\n c {\n }\n", FileId(0)).expect_err("a mistake");
        assert_eq!(errors[0].span.map(|s| s.line), Some(4));
        assert!(errors[0].hint.as_deref().is_some_and(|h| h.contains("\"b\" in line 4")));
    }
}
