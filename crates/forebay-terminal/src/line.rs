//! Lines of text with looks.

/// Look of a piece of text.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Look {
    /// As the terminal has it.
    Plain,
    /// Bold.
    Bold,
    /// Less bright than the rest.
    Dim,
    /// Green.
    Good,
    /// Yellow.
    Warn,
    /// Red.
    Bad,
    /// Cyan: the lines of charts.
    Line,
    /// Reversed: a chosen tab, the full part of a gauge.
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
pub struct Line(Vec<(String, Look)>);

impl Line {
    /// Makes a line that reports something bad.
    pub fn bad(text: impl Into<String>) -> Line {
        Line::default().add(text, Look::Bad)
    }

    /// Makes a line of less weight.
    pub fn dim(text: impl Into<String>) -> Line {
        Line::default().add(text, Look::Dim)
    }

    /// Adds text.
    pub fn add(mut self, text: impl Into<String>, look: Look) -> Line {
        self.0.push((text.into(), look));
        self
    }

    /// Adds a name and a value.
    pub fn figure(self, name: &str, value: String, look: Look) -> Line {
        self.add(format!("{name} "), Look::Dim).add(value, look).add("  ", Look::Plain)
    }

    /// Adds another line.
    pub fn append(mut self, other: Line) -> Line {
        self.0.extend(other.0);
        self
    }

    /// Cuts or fills the line to a width.
    pub fn fitted(self, width: usize) -> Line {
        let mut room = width;
        let mut fitted = Line::default();
        for (text, look) in self.0 {
            let piece: String = text.chars().take(room).collect();
            room -= piece.chars().count();
            fitted = fitted.add(piece, look);
        }
        fitted.add(" ".repeat(room), Look::Plain)
    }

    /// Returns the text without looks and without spaces at its end.
    pub fn plain(&self) -> String {
        let text: String = self.0.iter().map(|(text, _)| text.as_str()).collect();
        text.trim_end().to_owned()
    }

    /// Returns the text for a terminal, cut to a width.
    pub fn colored(&self, width: usize, color: bool) -> String {
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
