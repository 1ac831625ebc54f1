//! Pages taken apart: text and commands in order. Made once for a content that stays in memory, and kept with it. Hot path.

use super::parser::{Command, Event, Parser};
use bytes::Bytes;
use forebay_server::body::compose::content;
use forebay_server::request::Request;
use forebay_server::response::Part;
use forebay_server::response::made::Derived;
use forebay_server::response::stored::Content;
use std::cell::RefCell;
use std::ops::Range;
use std::rc::Rc;

/// Largest number of pieces of a page that is kept.
const PIECES: usize = 256;

/// A page taken apart.
#[derive(Debug)]
pub(crate) struct Script {
    /// Limit of values that it was parsed with (nginx: ssi_value_length).
    longest_value: usize,
    pub(super) pieces: Box<[Piece]>,
    /// Index after the last command that depends on variables or changes them. An include from here on may run before
    /// the rest of the page is looked at.
    pub(super) settled: usize,
    /// Memory that it takes, about, in bytes.
    size: usize,
}

/// Part of a page.
#[derive(Debug, PartialEq, Eq)]
pub(super) enum Piece {
    /// Bytes of the content that are sent.
    Text(Range<usize>),
    Command(Command),
    /// A malformed command: the error in nginx's words.
    Broken(String),
}

impl Piece {
    /// Returns `true` if an include that runs before this piece, instead of after it, makes no difference to either.
    fn is_independent(&self) -> bool {
        match self {
            Piece::Text(_) | Piece::Broken(_) => true,
            Piece::Command(c) => {
                let constant = |(name, value): &(Vec<u8>, Vec<u8>)| name != b"set" && !value.contains(&b'$');
                c.name == b"include" && c.parameters.iter().all(constant)
            }
        }
    }

    fn size(&self) -> usize {
        let more = match self {
            Piece::Text(_) => 0,
            Piece::Command(c) => {
                let parameters = c.parameters.iter();
                let of_one = |(name, value): &(Vec<u8>, Vec<u8>)| {
                    size_of::<(Vec<u8>, Vec<u8>)>() + name.capacity() + value.capacity()
                };
                c.name.capacity() + parameters.map(of_one).sum::<usize>()
            }
            Piece::Broken(why) => why.capacity(),
        };
        size_of::<Piece>() + more
    }
}

impl Script {
    /// Takes a page apart. Returns `None` if it has too many pieces.
    fn new(content: &[u8], longest_value: usize) -> Option<Script> {
        let mut parser = Parser::new(longest_value);
        let mut pieces: Vec<Piece> = Vec::new();
        let mut rest = content;
        // End of the bytes that are text or belong to a command that is over.
        let mut at = 0;
        let mut add = |piece| match (pieces.last_mut(), piece) {
            // The parser may give a text in several parts, as it holds back bytes that could begin a command.
            (Some(Piece::Text(before)), Piece::Text(text)) => before.end = text.end,
            (_, piece) => pieces.push(piece),
        };
        while let Some(event) = parser.next(&mut rest) {
            let piece = match event {
                Event::Text(text) => Piece::Text(at..at + text.len()),
                Event::Command(command) => Piece::Command(command),
                Event::Broken(why) => Piece::Broken(why),
            };
            at = match &piece {
                Piece::Text(text) => text.end,
                _ => content.len() - rest.len(),
            };
            add(piece);
        }
        // The page may end in the beginning of a command, which is text then.
        let held = parser.end().len();
        if held > 0 {
            add(Piece::Text(at..at + held));
        }
        (pieces.len() <= PIECES).then(|| {
            let pieces = pieces.into_boxed_slice();
            // From there on, nothing reads or sets variables, so the order in which includes run makes no
            // difference.
            let settled = pieces.iter().rposition(|p| !p.is_independent()).map_or(0, |last| last + 1);
            let size = size_of::<Script>() + pieces.iter().map(Piece::size).sum::<usize>();
            Script { longest_value, pieces, settled, size }
        })
    }

    /// Returns `true` if the page is sent as it is.
    pub(super) fn is_plain(&self, content: &[u8]) -> bool {
        matches!(&*self.pieces, [Piece::Text(text)] if text.len() == content.len())
    }
}

/// The script of a content, for the limit that was asked for last.
#[derive(Debug, Default)]
pub(super) struct ScriptPlace(RefCell<Option<Rc<Script>>>);

impl Derived for ScriptPlace {
    fn size(&self) -> u64 {
        self.0.borrow().as_ref().map_or(0, |script| script.size as u64)
    }
}

impl ScriptPlace {
    /// Returns the script of a content. Calls `grew` with its size if it was made.
    fn get(&self, content: &[u8], longest_value: usize, grew: impl FnOnce(u64)) -> Option<Rc<Script>> {
        if let Some(script) = self.0.borrow().as_ref().filter(|s| s.longest_value == longest_value) {
            return Some(script.clone());
        }
        let script = Rc::new(Script::new(content, longest_value)?);
        let before = self.size();
        *self.0.borrow_mut() = Some(script.clone());
        grew(self.size().saturating_sub(before));
        Some(script)
    }
}

/// Returns the script of a response's content, if that is kept in memory and nothing changes it.
pub(super) fn find(req: &Request, longest_value: usize) -> Option<(Rc<Script>, Bytes)> {
    let r = &req.resp;
    if !r.filters.body.is_empty() {
        return None;
    }
    let bytes = content(r)?;
    let [part] = r.body.as_slice() else { return None };
    if let Part::File { file, .. } = part {
        let grew = |n| req.thread.files.borrow_mut().grew(file, n);
        let script = if file.kept.get() {
            file.made.of::<ScriptPlace>().get(&bytes, longest_value, grew)
        } else {
            None
        };
        return script.map(|script| (script, bytes));
    }
    let entry = r.origin.entry()?;
    match entry.content() {
        // The entry's content, and no part of it.
        Content::Memory(all) if all.as_ptr() == bytes.as_ptr() && all.len() == bytes.len() => {
            let grew = |n| entry.grew(&req.thread, n);
            entry.made().of::<ScriptPlace>().get(&bytes, longest_value, grew).map(|script| (script, bytes))
        }
        _ => None,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Returns what a page sends and runs, with its text in one piece between commands.
    fn shown(pieces: impl Iterator<Item = Piece>, content: &str) -> Vec<String> {
        pieces
            .map(|piece| match piece {
                Piece::Text(range) => content[range].to_owned(),
                Piece::Command(c) => format!("{c:?}"),
                Piece::Broken(why) => why,
            })
            .collect()
    }

    /// Returns the same of the parser.
    fn parsed(content: &str) -> Vec<String> {
        let mut parser = Parser::new(20);
        let (mut out, mut text, mut rest) = (Vec::new(), Vec::new(), content.as_bytes());
        let flush = |text: &mut Vec<u8>, out: &mut Vec<String>| {
            if !text.is_empty() {
                out.push(String::from_utf8(std::mem::take(text)).expect("text"));
            }
        };
        while let Some(event) = parser.next(&mut rest) {
            let other = match event {
                Event::Text(t) => {
                    text.extend_from_slice(t);
                    continue;
                }
                Event::Command(c) => format!("{c:?}"),
                Event::Broken(why) => why,
            };
            flush(&mut text, &mut out);
            out.push(other);
        }
        text.extend_from_slice(parser.end());
        flush(&mut text, &mut out);
        out
    }

    #[test]
    fn a_page_taken_apart_is_the_page() {
        const WORDS: &[&str] = &[
            "<",
            "!",
            "-",
            "#",
            "<!--#",
            "-->",
            "set",
            " ",
            "=",
            "\"",
            "'",
            "\\",
            "$v",
            "x",
            "<p>text</p>\n",
        ];
        let mut seed = 1u64;
        let mut chance = |n: usize| {
            seed = seed.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
            (seed >> 33) as usize % n
        };
        let (mut plain, mut with_commands) = (0, 0);
        for _ in 0..20_000 {
            let page: String = (0..chance(30)).map(|_| WORDS[chance(WORDS.len())]).collect();
            let want = parsed(&page);
            let script = Script::new(page.as_bytes(), 20).expect("few pieces");
            let is_plain = script.is_plain(page.as_bytes());
            assert_eq!(is_plain, want == [page.as_str()], "{page:?}");
            plain += usize::from(is_plain);
            with_commands += usize::from(script.pieces.len() > 1);
            assert_eq!(shown(script.pieces.into_iter(), &page), want, "{page:?}");
        }
        assert!(plain > 1000 && with_commands > 1000, "{plain} {with_commands}");
    }

    #[test]
    fn a_page_of_many_commands_is_not_kept() {
        let page = |n: usize| "<!--#endif -->".repeat(n);
        assert!(Script::new(page(PIECES).as_bytes(), 20).is_some());
        assert!(Script::new(page(PIECES + 1).as_bytes(), 20).is_none());
    }

    #[test]
    fn includes_run_at_once_after_the_last_command_with_variables() {
        let include = "<!--#include virtual=\"/a\" -->";
        for (page, settled) in [
            (format!("{include}text{include}<!--#include x -->"), 0),
            (format!("{include}<!--#echo var=\"v\" -->"), 2),
            (format!("{include}<!--#set var=\"v\" value=\"x\" -->{include}"), 2),
            (format!("{include}<!--#include virtual=\"/$v\" -->{include}{include}"), 2),
            (format!("{include}<!--#include virtual=\"/a\" set=\"v\" -->{include}"), 2),
        ] {
            let script = Script::new(page.as_bytes(), 20).expect("few pieces");
            assert_eq!(script.settled, settled, "{page}");
        }
    }

    #[test]
    fn another_limit_makes_another_script() {
        let place = ScriptPlace::default();
        let content = b"<!--#set var=\"a\" value=\"0123456789\" -->";
        let grown = std::cell::Cell::new(0);
        let get = |limit| place.get(content, limit, |n| grown.set(grown.get() + n)).expect("few pieces");
        assert!(matches!(&*get(20).pieces, [Piece::Command(_)]));
        assert_eq!(grown.get(), place.size());
        assert!(Rc::ptr_eq(&get(20), &get(20)));
        assert!(matches!(&*get(5).pieces, [Piece::Broken(_)]));
        assert!(matches!(&*get(20).pieces, [Piece::Command(_)]));
    }
}
