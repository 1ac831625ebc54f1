//! What is around a place in a text that may not be complete: blocks, words of the directive, and the word at the place.

use forebay_conf::grammar::{self, Contexts};
use forebay_conf::parse::inside;

/// Surroundings of a place.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Cursor {
    /// Contexts of the block; `None` in a block of data.
    pub context: Option<Contexts>,
    /// Words of the directive before the place.
    pub words: Vec<String>,
    /// Beginning of the word at the place, up to the place.
    pub partial: String,
    /// Offset of the first word of the directive, or of the place if there is none.
    pub start: usize,
    /// The place is in a comment.
    pub in_comment: bool,
}

impl Cursor {
    /// Reads a text up to an offset. `base` is the context of the file.
    pub(crate) fn new(text: &[u8], offset: usize, base: Contexts) -> Cursor {
        let mut reader = Reader {
            escaped: false,
            blocks: vec![Some(base)],
            words: Vec::new(),
            word: None,
            state: State::Between,
        };
        let mut start = None;
        for (at, b) in text.get(..offset).unwrap_or(text).iter().enumerate() {
            reader.byte(*b);
            let in_directive = reader.word.is_some() || !reader.words.is_empty();
            start = start.or(Some(at)).filter(|_| in_directive);
        }
        Cursor {
            context: reader.blocks.last().copied().flatten(),
            words: reader.words,
            partial: String::from_utf8_lossy(&reader.word.unwrap_or_default()).into_owned(),
            start: start.unwrap_or(offset.min(text.len())),
            in_comment: reader.state == State::Comment,
        }
    }
}

#[derive(Clone, Copy, PartialEq, Eq)]
enum State {
    Between,
    Word,
    Quoted(u8),
    Comment,
}

struct Reader {
    /// The byte before was a backslash, so the next one means nothing.
    escaped: bool,
    blocks: Vec<Option<Contexts>>,
    words: Vec<String>,
    word: Option<Vec<u8>>,
    state: State,
}

impl Reader {
    fn byte(&mut self, b: u8) {
        if std::mem::take(&mut self.escaped) {
            return self.push(b);
        }
        if b == b'\\' && self.state != State::Comment {
            self.escaped = true;
            if self.state == State::Between {
                self.state = State::Word;
            }
            return;
        }
        match (self.state, b) {
            (State::Comment, b'\n') => self.state = State::Between,
            (State::Comment, _) => {}
            (State::Quoted(quote), b) if b == quote => {
                self.state = State::Between;
                self.end_word();
            }
            (State::Quoted(_), b) => self.push(b),
            (State::Between, b'#') => self.state = State::Comment,
            (State::Between, b'"' | b'\'') => {
                self.word = Some(Vec::new());
                self.state = State::Quoted(b);
            }
            (_, b' ' | b'\t' | b'\r' | b'\n') => {
                self.end_word();
                self.state = State::Between;
            }
            (_, b';') => {
                self.end_word();
                self.words.clear();
                self.state = State::Between;
            }
            // Not the brace of ${name}.
            (_, b'{') if self.word.as_ref().is_none_or(|w| !w.ends_with(b"$")) => {
                self.end_word();
                self.open();
                self.state = State::Between;
            }
            (State::Between, b'}') => {
                self.words.clear();
                if self.blocks.len() > 1 {
                    self.blocks.pop();
                }
            }
            (_, b) => {
                self.state = State::Word;
                self.push(b);
            }
        }
    }

    fn push(&mut self, b: u8) {
        self.word.get_or_insert_default().push(b);
    }

    fn end_word(&mut self) {
        if let Some(word) = self.word.take() {
            self.words.push(String::from_utf8_lossy(&word).into_owned());
        }
    }

    fn open(&mut self) {
        let outer = self.blocks.last().copied().flatten();
        let name = self.words.first().map(String::as_bytes).unwrap_or_default();
        let inner = outer.and_then(|outer| inside(grammar::row(name, outer)?, outer));
        self.blocks.push(inner);
        self.words.clear();
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn at(text: &str) -> Cursor {
        let offset = text.find('|').expect("a place");
        Cursor::new(text.replace('|', "").as_bytes(), offset, Contexts::MAIN)
    }

    #[test]
    fn blocks_and_words() {
        let c = at("events {} http { server { listen 80; loc| } }");
        assert_eq!((c.context, c.words.len(), c.partial.as_str()), (Some(Contexts::SERVER), 0, "loc"));
        assert_eq!(c.start, "events {} http { server { listen 80; ".len());
        let c = at("http { server { location / { proxy_pass http://u|; } } }");
        assert_eq!(c.context, Some(Contexts::LOCATION));
        assert_eq!((c.words, c.partial), (vec!["proxy_pass".to_owned()], "http://u".to_owned()));
        let c = at("http { map $a $b { x |");
        assert_eq!(c.context, None);
        let c = at("http { log_format a \"x; { $rem|");
        assert_eq!((c.context, c.partial.as_str()), (Some(Contexts::HTTP), "x; { $rem"));
        let c = at("http { # serv|");
        assert!(c.in_comment);
        let c = at("stream { server { return ${a}b; | } }");
        assert_eq!((c.context, c.partial.as_str()), (Some(Contexts::STREAM_SERVER), ""));
        let c = at("http { log_format a \"{ \\\"x\\\": 1 }\"; server { list| } }");
        assert_eq!((c.context, c.partial.as_str()), (Some(Contexts::SERVER), "list"));
        let c = at("http { } | }");
        assert_eq!(c.context, Some(Contexts::MAIN));
    }
}
