//! Lines of text with looks.

/// Look of a piece of text.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Look {
    Plain,
    Bold,
    Dim,
    Good,
    Warn,
    Bad,
    Line,
    Chosen,
}

impl Look {
    /// Returns the parameters of the escape sequence that sets it.
    fn code(self) -> &'static str {
        match self {
            Look::Plain => "0",
            Look::Bold => "1",
            Look::Dim => "2",
            Look::Good => "32",
            Look::Warn => "33",
            Look::Bad => "31",
            Look::Line => "36",
            Look::Chosen => "7",
        }
    }
}

/// Line of the screen.
#[derive(Clone, Debug, Default)]
pub(super) struct Line(Vec<(String, Look)>);

impl Line {
    pub(super) fn bad(text: String) -> Line {
        Line(vec![(text, Look::Bad)])
    }

    pub(super) fn dim(text: String) -> Line {
        Line(vec![(text, Look::Dim)])
    }

    pub(super) fn add(mut self, text: impl Into<String>, look: Look) -> Line {
        self.0.push((text.into(), look));
        self
    }

    /// Adds a name and a value.
    pub(super) fn figure(self, name: &str, value: String, look: Look) -> Line {
        self.add(format!("{name} "), Look::Dim).add(value, look).add("  ", Look::Plain)
    }

    /// Returns the text.
    pub(super) fn plain(&self) -> String {
        let text: String = self.0.iter().map(|(text, _)| text.as_str()).collect();
        text.trim_end().to_owned()
    }

    /// Returns the text for a terminal, cut to a width.
    pub(super) fn colored(&self, width: usize, color: bool) -> String {
        let (mut out, mut room) = (String::new(), width);
        for (text, look) in &self.0 {
            let piece: String = text.chars().take(room).collect();
            room -= piece.chars().count();
            match (*look, color) {
                (Look::Plain, _) => out.push_str(&piece),
                // Without colours the chosen one must show.
                (look, false) if look != Look::Chosen => out.push_str(&piece),
                (look, _) => out.push_str(&format!("\x1b[{}m{piece}\x1b[0m", look.code())),
            }
        }
        out
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn lines_are_cut_to_the_width() {
        let line = Line::default().add("abc", Look::Bold).add("def", Look::Bad);
        assert_eq!(line.colored(4, true), "\x1b[1mabc\x1b[0m\x1b[31md\x1b[0m");
        assert_eq!((line.colored(4, false), line.plain()), ("abcd".into(), "abcdef".into()));
    }
}
