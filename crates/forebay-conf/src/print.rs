//! Directives that a program makes, printed as text that parses back to the same words.
//!
//! [`Node`] is a directive without a place in a file. [`print()`] is the only way from a node to text: it quotes and escapes
//! each word by itself, so no byte of a word can end the word, its directive or its block.

use crate::tree::{Block, Directive};
use std::fmt;

/// Longest word in bytes as printed, quotes and escapes included. nginx reads words through a buffer of 4096 bytes.
pub const MAX_WORD: usize = 4000;

/// Deepest nesting of blocks that is printed. The parser stops at 100.
const MAX_DEPTH: usize = 64;

/// A directive: its name, its arguments and the content of its braces.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub struct Node {
    /// The first word.
    pub name: Vec<u8>,
    /// The words after it.
    pub args: Vec<Vec<u8>>,
    /// Content of the braces.
    pub block: Option<Vec<Node>>,
}

impl Node {
    /// Makes a directive without arguments.
    pub fn new(name: impl Into<Vec<u8>>) -> Node {
        Node { name: name.into(), args: Vec::new(), block: None }
    }

    /// Adds an argument.
    #[must_use]
    pub fn arg(mut self, word: impl Into<Vec<u8>>) -> Node {
        self.args.push(word.into());
        self
    }

    /// Adds arguments.
    #[must_use]
    pub fn args<W: Into<Vec<u8>>>(mut self, words: impl IntoIterator<Item = W>) -> Node {
        self.args.extend(words.into_iter().map(Into::into));
        self
    }

    /// Sets the content of the braces.
    #[must_use]
    pub fn block(mut self, nodes: Vec<Node>) -> Node {
        self.block = Some(nodes);
        self
    }

    /// Returns a parsed directive without its places.
    pub fn of(directive: &Directive) -> Node {
        Node {
            name: directive.name.text.clone(),
            args: directive.args.iter().map(|w| w.text.clone()).collect(),
            block: directive.block.as_ref().map(nodes),
        }
    }
}

/// Returns the directives of a parsed block without their places. `include` stays with the directives of its files.
pub fn nodes(block: &Block) -> Vec<Node> {
    block.items.iter().map(Node::of).collect()
}

/// Words that cannot be written in a configuration.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Unprintable {
    /// A word is longer than [`MAX_WORD`]. Its directive and its first bytes.
    TooLong(String, String),
    /// Blocks are nested deeper than the parser reads.
    TooDeep(String),
}

impl fmt::Display for Unprintable {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Unprintable::TooLong(name, start) => {
                write!(f, "a word of \"{name}\" is too long: \"{start}...\"")
            }
            Unprintable::TooDeep(name) => write!(f, "the block of \"{name}\" is nested too deeply"),
        }
    }
}

impl std::error::Error for Unprintable {}

/// Prints directives, one to a line, blocks indented by four spaces.
///
/// # Errors
/// If a word is too long or blocks are nested too deeply for the parser.
pub fn print(nodes: &[Node]) -> Result<Vec<u8>, Unprintable> {
    let mut out = Vec::with_capacity(nodes.len() * 64);
    print_at(&mut out, nodes, 0)?;
    Ok(out)
}

fn print_at(out: &mut Vec<u8>, nodes: &[Node], depth: usize) -> Result<(), Unprintable> {
    for node in nodes {
        indent(out, depth);
        let name = || String::from_utf8_lossy(&node.name).into_owned();
        // An empty name is a word in a `map`: it is the empty value.
        word(out, &node.name, &name)?;
        for arg in &node.args {
            out.push(b' ');
            word(out, arg, &name)?;
        }
        match &node.block {
            None => out.extend(b";\n"),
            Some(_) if depth >= MAX_DEPTH => return Err(Unprintable::TooDeep(name())),
            Some(block) => {
                out.extend(b" {\n");
                print_at(out, block, depth + 1)?;
                indent(out, depth);
                out.extend(b"}\n");
            }
        }
    }
    Ok(())
}

fn indent(out: &mut Vec<u8>, depth: usize) {
    out.extend(std::iter::repeat_n(b' ', depth * 4));
}

/// Appends a word, in quotes unless all of its bytes are harmless everywhere.
fn word(out: &mut Vec<u8>, text: &[u8], directive: &dyn Fn() -> String) -> Result<(), Unprintable> {
    let from = out.len();
    push_word(out, text);
    if out.len() - from > MAX_WORD {
        let start = text.get(..32).unwrap_or(text);
        return Err(Unprintable::TooLong(directive(), String::from_utf8_lossy(start).into_owned()));
    }
    Ok(())
}

fn push_word(out: &mut Vec<u8>, text: &[u8]) {
    if plain(text) {
        out.extend(text);
        return;
    }
    out.push(b'"');
    for &byte in text {
        if matches!(byte, b'"' | b'\\') {
            out.push(b'\\');
        }
        out.push(byte);
    }
    out.push(b'"');
}

/// Returns a word as it is written in a configuration, for a directive that takes no variables.
pub fn quoted(text: impl AsRef<[u8]>) -> Vec<u8> {
    let mut out = Vec::new();
    push_word(&mut out, text.as_ref());
    out
}

/// Returns a text as it is written in a configuration, for a directive that takes variables. The language has no escape for the dollar
/// sign that begins one: each becomes the variable of [`DOLLAR_SIGN`], which has to be in the `http` block.
pub fn literal(text: impl AsRef<[u8]>) -> Vec<u8> {
    quoted(without_variables(text.as_ref()))
}

/// Returns a text in which no variable begins: see [`literal`].
pub fn without_variables(text: &[u8]) -> Vec<u8> {
    let mut out = Vec::with_capacity(text.len());
    for &byte in text {
        match byte {
            b'$' => out.extend(b"${dollar_sign}"),
            _ => out.push(byte),
        }
    }
    out
}

/// Directive of `http` that defines the variable of [`literal`].
pub const DOLLAR_SIGN: &str = "geo $dollar_sign { default $; }";

/// Returns `true` if a text needs [`DOLLAR_SIGN`] where it is written by [`literal`].
pub fn needs_dollar_sign(text: impl AsRef<[u8]>) -> bool {
    text.as_ref().contains(&b'$')
}

/// Returns `true` if a word is the same with and without quotes.
fn plain(text: &[u8]) -> bool {
    let harmless = |b: &u8| b.is_ascii_alphanumeric() || b"_-./:=@~^*+,%&|<>!?()[]$".contains(b);
    !text.is_empty() && text.iter().all(harmless)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::Parsed;
    use crate::files::Files;
    use std::path::Path;

    fn parse(text: &[u8]) -> Parsed {
        let mut files = Files::recorded([("/f/x.conf", text)]);
        crate::parse(Path::new("/f/x.conf"), "", Path::new("/f"), &mut files)
    }

    /// Prints words as an entry of a `map`, where every word is allowed, and reads them back.
    fn back(words: &[Vec<u8>]) -> Vec<Vec<u8>> {
        let map = Node::new("map").arg("$a").arg("$b");
        let mut entry = Node::new(words[0].clone());
        entry.args.extend(words[1..].iter().cloned());
        let text = print(&[Node::new("http").block(vec![map.block(vec![entry])])]).expect("printable");
        let parsed = parse(&text);
        let shown = String::from_utf8_lossy(&text);
        assert_eq!(parsed.errors, [], "{shown}");
        let http = nodes(&parsed.tree.root);
        assert_eq!(http.len(), 1, "{shown}");
        let map = http[0].block.as_ref().expect("block");
        assert_eq!(map.len(), 1, "{shown}");
        let entries = map[0].block.as_ref().expect("block");
        assert_eq!(entries.len(), 1, "{shown}");
        assert_eq!(entries[0].block, None);
        [vec![entries[0].name.clone()], entries[0].args.clone()].concat()
    }

    #[test]
    fn words_come_back() {
        let words: &[&[u8]] = &[
            b"plain",
            b"",
            b" ",
            b"a b",
            b"\"",
            b"'",
            b"\\",
            b"\\n",
            b"a\\",
            b"\n",
            b";",
            b"{",
            b"}",
            b"#",
            b"a#b",
            b"${x}",
            b"$x",
            b"$",
            b"${",
            b"\0",
            b"\xff\xfe",
            b"\r\n",
            b"x;}\nroot /;",
            b"(",
            b")",
            b"\\\"",
            b"\\t",
        ];
        for word in words {
            for words in [vec![word.to_vec()], vec![b"x".to_vec(), word.to_vec()]] {
                assert_eq!(back(&words), words);
            }
        }
    }

    #[test]
    fn random_words_come_back() {
        let alphabet: &[&[u8]] = &[
            b"\"",
            b"'",
            b"\\",
            b"{",
            b"}",
            b";",
            b"#",
            b"$",
            b"\n",
            b"\r",
            b"\t",
            b" ",
            b"\0",
            b"a",
            b"\xc3\xa9",
            b"(",
        ];
        let mut state = 0x9e37_79b9_7f4a_7c15_u64;
        let mut random = |below: usize| {
            state ^= state << 13;
            state ^= state >> 7;
            state ^= state << 17;
            (state % below as u64) as usize
        };
        for _ in 0..20_000 {
            let words: Vec<Vec<u8>> = (0..1 + random(3))
                .map(|_| (0..random(12)).flat_map(|_| alphabet[random(alphabet.len())].to_vec()).collect())
                .collect();
            // `include FILE` and `}` as a first word mean something in a `map`; the alphabet cannot spell the first.
            assert_eq!(back(&words), words);
        }
    }

    /// A literal is one word, and its variables are dollar signs.
    #[test]
    fn literals_come_back() {
        let alphabet: &[&[u8]] = &[
            b"$",
            b"{",
            b"}",
            b"dollar_sign",
            b"arg_x",
            b"\"",
            b"'",
            b"\\",
            b";",
            b"#",
            b" ",
            b"\n",
            b"\t",
            b"\xff",
            b"/",
        ];
        let mut state = 0x2545_f491_4f6c_dd1d_u64;
        let mut random = |below: usize| {
            state ^= state << 13;
            state ^= state >> 7;
            state ^= state << 17;
            (state % below as u64) as usize
        };
        for _ in 0..20_000 {
            let text: Vec<u8> =
                (0..random(9)).flat_map(|_| alphabet[random(alphabet.len())].to_vec()).collect();
            let conf =
                [b"http { root ".as_slice(), &literal(&text), b"; index ", &quoted(&text), b"; }"].concat();
            let parsed = parse(&conf);
            let shown = String::from_utf8_lossy(&conf);
            assert_eq!(parsed.errors, [], "{shown}");
            let http = nodes(&parsed.tree.root);
            let inside = http[0].block.as_ref().expect("block");
            assert_eq!((inside.len(), &inside[1].args), (2, &vec![text.clone()]), "{shown}");
            let [written] = inside[0].args.as_slice() else { panic!("{shown}") };
            // Only the variable of a dollar sign is in it, and it stands for one.
            let pieces: Vec<&[u8]> = split(written, b"${dollar_sign}");
            assert!(pieces.iter().all(|piece| !piece.contains(&b'$')), "{shown}");
            assert_eq!(pieces.join(&b'$'), text, "{shown}");
        }
    }

    fn split<'t>(text: &'t [u8], at: &[u8]) -> Vec<&'t [u8]> {
        let mut pieces = Vec::new();
        let mut rest = text;
        while let Some(found) = rest.windows(at.len()).position(|w| w == at) {
            pieces.push(&rest[..found]);
            rest = &rest[found + at.len()..];
        }
        pieces.push(rest);
        pieces
    }

    #[test]
    fn long_words_and_deep_blocks_are_refused() {
        assert!(print(&[Node::new("a").arg(vec![b'x'; MAX_WORD])]).is_ok());
        assert!(matches!(print(&[Node::new("a").arg(vec![b'"'; MAX_WORD])]), Err(Unprintable::TooLong(..))));
        let mut deep = Node::new("a");
        for _ in 0..100 {
            deep = Node::new("a").block(vec![deep]);
        }
        assert!(matches!(print(&[deep]), Err(Unprintable::TooDeep(_))));
    }
}
