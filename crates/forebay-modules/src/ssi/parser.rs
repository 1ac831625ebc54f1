//! Parser for SSI commands in text: `<!--#name parameter="value" ... -->`. A command may be cut anywhere between pieces
//! of the text. No I/O, and all state is limited in size.

/// Longest name of a command or parameter, bytes (nginx: 32).
pub const NAME: usize = 32;
/// Largest number of parameters of a command (nginx: 16).
pub const PARAMETERS: usize = 16;

/// Start of a command.
const OPEN: &[u8] = b"<!--#";

/// A command as written.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Command {
    /// Name of the command.
    pub name: Vec<u8>,
    /// Names and values of the parameters in order. Values are as written: a backslash before the closing quote, which
    /// keeps it from ending the value, is still there.
    pub parameters: Vec<(Vec<u8>, Vec<u8>)>,
}

impl Command {
    /// Returns the value of a parameter.
    pub fn get(&self, name: &str) -> Option<&[u8]> {
        self.parameters.iter().find(|(n, _)| n == name.as_bytes()).map(|(_, v)| v.as_slice())
    }

    /// Returns the value of a parameter that has been checked to be there.
    pub fn required(&self, name: &str) -> &[u8] {
        self.get(name).unwrap_or_default()
    }

    /// Appends the command as text that parses to the same command.
    pub fn write(&self, out: &mut Vec<u8>) {
        out.extend_from_slice(OPEN);
        out.extend_from_slice(&self.name);
        for (name, value) in &self.parameters {
            out.push(b' ');
            out.extend_from_slice(name);
            // A value with a double quote that ends nothing was written in single quotes.
            let quote = if has_plain(value, b'"') { b'\'' } else { b'"' };
            out.extend_from_slice(&[b'=', quote]);
            out.extend_from_slice(value);
            out.push(quote);
        }
        out.extend_from_slice(b" -->");
    }
}

/// Returns `true` if a value contains a byte without a backslash before it.
fn has_plain(value: &[u8], quote: u8) -> bool {
    let mut escaped = false;
    value.iter().any(|b| {
        let plain = !escaped && *b == quote;
        escaped = !escaped && *b == b'\\';
        plain
    })
}

/// Next part of the text.
#[derive(Debug, PartialEq, Eq)]
pub enum Event<'i> {
    /// Plain text.
    Text(&'i [u8]),
    /// A command.
    Command(Command),
    /// A malformed command: the error in nginx's words. Comes after the end of the command.
    Broken(String),
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Position {
    /// In text. This many bytes at its end may begin a command.
    Text(usize),
    /// Before the name.
    Begin,
    Name,
    /// Before a parameter.
    Before,
    Parameter,
    /// Before the equals sign.
    Equals,
    /// After the equals sign, before the quote.
    Quote,
    /// In a value that ends with this byte.
    Value(u8),
    /// After a backslash in such a value.
    Escaped(u8),
    /// After the first dash of `-->`.
    Dash,
    /// After the second dash of `-->`.
    Dashes,
    /// In a malformed command, after this many dashes of its `-->`.
    Skip(u8),
}

fn is_blank(b: u8) -> bool {
    matches!(b, b' ' | b'\t' | b'\r' | b'\n')
}

fn lossy(bytes: &[u8]) -> String {
    String::from_utf8_lossy(bytes).into_owned()
}

/// State of the parser between pieces of text.
#[derive(Debug)]
pub struct Parser {
    state: Position,
    command: Command,
    parameter: Vec<u8>,
    value: Vec<u8>,
    longest_value: usize,
    why: String,
}

impl Parser {
    /// Creates a parser at the start of a text. `longest_value` limits values, in bytes (nginx: ssi_value_length).
    pub fn new(longest_value: usize) -> Parser {
        Parser {
            state: Position::Text(0),
            command: Command::default(),
            parameter: Vec::new(),
            value: Vec::new(),
            longest_value,
            why: String::new(),
        }
    }

    /// Takes the next part of the text from `input`. Returns `None` if `input` is used up.
    pub fn next<'i>(&mut self, input: &mut &'i [u8]) -> Option<Event<'i>> {
        while let Position::Text(held) = self.state {
            if input.is_empty() {
                return None;
            }
            match self.text(input, held) {
                Some([]) => {}
                Some(text) => return Some(Event::Text(text)),
                None => {}
            }
        }
        while let Some((b, rest)) = input.split_first() {
            *input = rest;
            if let Some(event) = self.step(*b) {
                return Some(event);
            }
        }
        None
    }

    /// Ends the text. Returns bytes that were held back because they might have begun a command.
    pub fn end(&mut self) -> &'static [u8] {
        match std::mem::replace(&mut self.state, Position::Text(0)) {
            Position::Text(held) => OPEN.get(..held).unwrap_or_default(),
            _ => b"",
        }
    }

    /// Takes text up to the place where a command begins or may begin.
    fn text<'i>(&mut self, input: &mut &'i [u8], held: usize) -> Option<&'i [u8]> {
        let all = *input;
        if held > 0 {
            let b = all.first()?;
            if OPEN.get(held) == Some(b) {
                *input = all.get(1..).unwrap_or_default();
                self.state = if held + 1 == OPEN.len() { Position::Begin } else { Position::Text(held + 1) };
                return None;
            }
            self.state = Position::Text(0);
            // The bytes that were held back are text. The byte that proves it stays in the input, since it
            // may be a `<` itself.
            return OPEN.get(..held);
        }
        let at = memchr::memchr(b'<', all).unwrap_or(all.len());
        let (text, rest) = all.split_at(at);
        *input = rest.get(1..).unwrap_or_default();
        if !rest.is_empty() {
            self.state = Position::Text(1);
        }
        Some(text)
    }

    fn broken(&mut self, why: String) {
        // The rest of the command is skipped, so that no part of it is sent as text.
        self.why = why;
        self.state = Position::Skip(0);
    }

    fn unexpected(&mut self, b: u8, place: &str) {
        let name = String::from_utf8_lossy(&self.command.name).into_owned();
        self.broken(format!("unexpected \"{}\" symbol{place} in \"{name}\" SSI command", char::from(b)));
    }

    /// Takes a byte of a command.
    fn step(&mut self, b: u8) -> Option<Event<'static>> {
        match self.state {
            Position::Text(_) => {}
            Position::Begin => self.begin(b),
            Position::Name => self.in_name(b),
            Position::Before => self.before_parameter(b),
            Position::Parameter => self.in_parameter(b),
            Position::Equals => self.before_equals(b),
            Position::Quote => self.before_value(b),
            Position::Value(quote) => self.in_value(quote, b),
            Position::Escaped(quote) => self.push_value(Position::Value(quote), b),
            Position::Dash | Position::Dashes => return self.in_end(b),
            Position::Skip(dashes) => return self.in_malformed(dashes, b),
        }
        None
    }

    fn begin(&mut self, b: u8) {
        if !is_blank(b) {
            self.command = Command { name: vec![b], parameters: Vec::new() };
            self.state = Position::Name;
        }
    }

    fn in_name(&mut self, b: u8) {
        match b {
            b'-' => self.state = Position::Dash,
            _ if is_blank(b) => self.state = Position::Before,
            _ if self.command.name.len() < NAME => self.command.name.push(b),
            _ => {
                let name = lossy(&self.command.name);
                self.broken(format!("the \"{name}{}...\" SSI command is too long", char::from(b)));
            }
        }
    }

    fn before_parameter(&mut self, b: u8) {
        match b {
            b'-' => self.state = Position::Dash,
            _ if is_blank(b) => {}
            _ if self.command.parameters.len() < PARAMETERS => {
                self.parameter.clear();
                self.parameter.push(b);
                self.state = Position::Parameter;
            }
            _ => {
                let name = lossy(&self.command.name);
                self.broken(format!("too many \"{name}\" SSI command parameters"));
            }
        }
    }

    fn in_parameter(&mut self, b: u8) {
        match b {
            b'=' => self.state = Position::Quote,
            b'-' => self.unexpected(b, &self.place_in_parameter()),
            _ if is_blank(b) => self.state = Position::Equals,
            _ if self.parameter.len() < NAME => self.parameter.push(b),
            _ => {
                let (parameter, name) = (lossy(&self.parameter), lossy(&self.command.name));
                let b = char::from(b);
                self.broken(format!("too long \"{parameter}{b}...\" parameter in \"{name}\" SSI command"));
            }
        }
    }

    fn before_equals(&mut self, b: u8) {
        match b {
            b'=' => self.state = Position::Quote,
            _ if is_blank(b) => {}
            _ => self.unexpected(b, &self.place_in_parameter()),
        }
    }

    fn before_value(&mut self, b: u8) {
        match b {
            b'"' | b'\'' => {
                self.value.clear();
                self.state = Position::Value(b);
            }
            _ if is_blank(b) => {}
            _ => {
                let parameter = lossy(&self.parameter);
                self.unexpected(b, &format!(" before value of \"{parameter}\" parameter"));
            }
        }
    }

    fn in_value(&mut self, quote: u8, b: u8) {
        if b == quote {
            let parameter = std::mem::take(&mut self.parameter);
            self.command.parameters.push((parameter, std::mem::take(&mut self.value)));
            self.state = Position::Before;
            return;
        }
        // The backslash stays in the value: only the evaluation knows which dollar signs and quotes it
        // escapes.
        let next = if b == b'\\' { Position::Escaped(quote) } else { Position::Value(quote) };
        self.push_value(next, b);
    }

    /// Takes a byte of the end of a command, after its first dash.
    fn in_end(&mut self, b: u8) -> Option<Event<'static>> {
        match (self.state, b) {
            (Position::Dash, b'-') => self.state = Position::Dashes,
            (Position::Dashes, b'>') => {
                self.state = Position::Text(0);
                return Some(Event::Command(std::mem::take(&mut self.command)));
            }
            _ => self.unexpected(b, ""),
        }
        None
    }

    /// Takes a byte of a malformed command after this many dashes.
    fn in_malformed(&mut self, dashes: u8, b: u8) -> Option<Event<'static>> {
        if dashes == 2 && b == b'>' {
            self.state = Position::Text(0);
            return Some(Event::Broken(std::mem::take(&mut self.why)));
        }
        self.state = Position::Skip(if b == b'-' && dashes < 2 { dashes + 1 } else { 0 });
        None
    }

    fn place_in_parameter(&self) -> String {
        format!(" in \"{}\" parameter", String::from_utf8_lossy(&self.parameter))
    }

    fn push_value(&mut self, next: Position, b: u8) {
        if self.value.len() >= self.longest_value {
            let value = String::from_utf8_lossy(&self.value).into_owned();
            let (name, parameter) =
                (String::from_utf8_lossy(&self.command.name), String::from_utf8_lossy(&self.parameter));
            let why = format!(
                "too long \"{value}{}...\" value of \"{parameter}\" parameter in \"{name}\" SSI command",
                char::from(b)
            );
            self.broken(why);
            return;
        }
        self.value.push(b);
        self.state = next;
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Returns text in one piece, commands and broken commands, as the parser sees pieces of `n` bytes.
    fn events(text: &str, n: usize) -> Vec<String> {
        let mut p = Parser::new(255);
        let mut out: Vec<String> = Vec::new();
        let mut plain = String::new();
        for piece in text.as_bytes().chunks(n) {
            let mut rest = piece;
            while let Some(e) = p.next(&mut rest) {
                let other = match e {
                    Event::Text(t) => {
                        plain.push_str(&String::from_utf8_lossy(t));
                        continue;
                    }
                    Event::Command(c) => {
                        let mut text = Vec::new();
                        c.write(&mut text);
                        String::from_utf8(text).expect("text")
                    }
                    Event::Broken(why) => format!("! {why}"),
                };
                if !plain.is_empty() {
                    out.push(std::mem::take(&mut plain));
                }
                out.push(other);
            }
        }
        plain.push_str(&String::from_utf8_lossy(p.end()));
        if !plain.is_empty() {
            out.push(plain);
        }
        out
    }

    #[test]
    fn commands_are_found_however_the_text_is_cut() {
        let cases: &[(&str, &[&str])] = &[
            ("", &[]),
            ("plain < text <!-- x -->", &["plain < text <!-- x -->"]),
            ("a<!--#echo var=\"x\" -->b", &["a", "<!--#echo var=\"x\" -->", "b"]),
            ("<!--#  echo  var = 'x'-->", &["<!--#echo var=\"x\" -->"]),
            ("<!--<!--#endif-->", &["<!--", "<!--#endif -->"]),
            ("<<!<!-<!--#endif -->", &["<<!<!-", "<!--#endif -->"]),
            ("a<!-", &["a<!-"]),
            ("a<!--#echo", &["a"]),
            (r#"<!--#set v="a\"\\\$b\x" -->"#, &[r#"<!--#set v="a\"\\\$b\x" -->"#]),
            (r#"<!--#set v='a"\'' -->"#, &[r#"<!--#set v='a"\'' -->"#]),
            (
                "<!--#x a=b -->c",
                &["! unexpected \"b\" symbol before value of \"a\" parameter in \"x\" SSI command", "c"],
            ),
            ("<!--#x --->c-->d", &["! unexpected \"-\" symbol in \"x\" SSI command", "d"]),
        ];
        for (text, want) in cases {
            for n in 1..=text.len().max(1) {
                assert_eq!(events(text, n), *want, "{text} in pieces of {n}");
            }
        }
    }

    #[test]
    fn everything_that_is_kept_has_a_limit() {
        let long = "x".repeat(300);
        for text in [
            format!("<!--#{long} -->"),
            format!("<!--#a {long}=\"\" -->"),
            format!("<!--#a b=\"{long}\" -->"),
            format!("<!--#a {}-->", "b=\"\" ".repeat(17)),
        ] {
            let got = events(&text, 7);
            assert!(got[0].starts_with("! "), "{got:?}");
            assert_eq!(got.len(), 1);
        }
        let most = format!("<!--#a {}-->", "b=\"\" ".repeat(16));
        assert_eq!(events(&most, 5).len(), 1);
        assert!(events(&most, 5)[0].starts_with("<!--#a"));
    }

    #[test]
    fn pages_of_chance_are_read_alike_however_they_are_cut() {
        const WORDS: &[&str] =
            &["<", "!", "-", "#", "<!--#", "-->", "set", " ", "=", "\"", "'", "\\", "$v", "x", "\n"];
        let mut seed = 1u64;
        let mut chance = |n: usize| {
            seed = seed.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
            (seed >> 33) as usize % n
        };
        let mut commands = 0;
        for _ in 0..20_000 {
            let page: String = (0..chance(30)).map(|_| WORDS[chance(WORDS.len())]).collect();
            let whole = events(&page, page.len().max(1));
            for n in [1, 2, 5] {
                assert_eq!(events(&page, n), whole, "{page:?} in pieces of {n}");
            }
            for e in whole.iter().filter(|e| e.starts_with("<!--#")) {
                assert_eq!(&events(e, 3), std::slice::from_ref(e), "{page:?}");
                commands += 1;
            }
        }
        assert!(commands > 1000, "{commands}");
    }

    #[test]
    fn printed_pages_are_parsed_alike() {
        let text = r#"<!--#set var="a b" value="\$x \\ \" '" -->"#;
        let once = events(text, 3);
        assert_eq!(events(&once[0], 4), once);
    }
}
