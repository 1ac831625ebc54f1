//! Values with variables in them, cut into parts once (nginx: complex values). Hot path.

use super::{Evaluate, Names, VarError, VarId};
use forebay_http::field::unfold;

/// A piece of a [`Template`].
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Part {
    /// Constant bytes.
    Text(Box<[u8]>),
    /// `$name`.
    Var(VarId),
    /// `$1` to `$9`.
    Capture(u8),
}

/// A compiled value.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Template {
    parts: Vec<Part>,
}

/// Error of a variable in a text.
enum Wrong {
    /// It has no name; the offset of its `$`.
    Name(usize),
    /// Its name is not closed: the message.
    Bracket(String),
}

/// Returns `true` if a byte may be part of a variable's name.
fn name_byte(b: u8) -> bool {
    b.is_ascii_alphanumeric() || b == b'_'
}

impl Template {
    /// Cuts `text` at its variables and looks them up (defining them as "seen" where unknown).
    ///
    /// # Errors
    /// A message in nginx's words.
    pub fn compile(text: &[u8], vars: &mut impl Names) -> Result<Template, String> {
        Template::read(text, vars).map_err(|wrong| match wrong {
            Wrong::Name(_) => "invalid variable name".to_owned(),
            Wrong::Bracket(message) => message,
        })
    }

    /// Compiles a word of a `log_format`, for which nginx has another error text.
    ///
    /// # Errors
    /// As [`Template::compile`].
    pub fn compile_log(text: &[u8], vars: &mut impl Names) -> Result<Template, String> {
        Template::read(text, vars).map_err(|wrong| match wrong {
            Wrong::Name(at) => format!("invalid parameter \"{}\"", String::from_utf8_lossy(&text[at..])),
            Wrong::Bracket(message) => message,
        })
    }

    fn read(text: &[u8], vars: &mut impl Names) -> Result<Template, Wrong> {
        let mut parts = Vec::new();
        let mut lit: Vec<u8> = Vec::new();
        let mut i = 0;
        while i < text.len() {
            if text[i] != b'$' {
                lit.push(text[i]);
                i += 1;
                continue;
            }
            let dollar = i;
            i += 1;
            let Some(&c) = text.get(i) else { return Err(Wrong::Name(dollar)) };
            if c.is_ascii_digit() && c != b'0' {
                flush(&mut lit, &mut parts);
                parts.push(Part::Capture(c - b'0'));
                i += 1;
                continue;
            }
            let bracket = c == b'{';
            i += usize::from(bracket);
            let Some(rest) = text.get(i..).filter(|rest| !rest.is_empty()) else {
                return Err(Wrong::Name(dollar));
            };
            let len = rest.iter().position(|b| !name_byte(*b)).unwrap_or(rest.len());
            let name = &rest[..len];
            i += len;
            if bracket {
                if text.get(i) != Some(&b'}') {
                    return Err(Wrong::Bracket(format!(
                        "the closing bracket in \"{}\" variable is missing",
                        String::from_utf8_lossy(name)
                    )));
                }
                i += 1;
            }
            if name.is_empty() {
                return Err(Wrong::Name(dollar));
            }
            flush(&mut lit, &mut parts);
            match name {
                [d @ b'1'..=b'9'] => parts.push(Part::Capture(*d - b'0')),
                _ => parts.push(Part::Var(vars.reference(name))),
            }
        }
        flush(&mut lit, &mut parts);
        Ok(Template { parts })
    }

    /// Makes one line of text that the configuration itself has in a header field, so that a break without blanks is accepted
    /// there, too: its author is trusted.
    pub fn folded(mut self) -> Template {
        for part in &mut self.parts {
            if let Part::Text(text) = part {
                let mut line = unfold(text);
                for b in line.iter_mut().filter(|b| matches!(b, b'\r' | b'\n')) {
                    *b = b' ';
                }
                *text = line.into();
            }
        }
        self
    }

    /// Appends another value.
    pub fn append(&mut self, other: Template) {
        for part in other.parts {
            match (self.parts.last_mut(), part) {
                (Some(Part::Text(a)), Part::Text(b)) => *a = [&a[..], &b[..]].concat().into(),
                (_, part) => self.parts.push(part),
            }
        }
    }

    /// Creates a value without variables.
    pub fn constant(text: &[u8]) -> Template {
        if text.is_empty() { Template::default() } else { Template { parts: vec![Part::Text(text.into())] } }
    }

    /// Returns the bytes, if there is no variable in it.
    pub fn as_const(&self) -> Option<&[u8]> {
        match self.parts.as_slice() {
            [] => Some(b""),
            [Part::Text(t)] => Some(t),
            _ => None,
        }
    }

    /// Returns the only part, if it is a variable.
    pub fn as_var(&self) -> Option<VarId> {
        match self.parts.as_slice() {
            [Part::Var(v)] => Some(*v),
            _ => None,
        }
    }

    /// Returns the variables in it.
    pub fn variables(&self) -> impl Iterator<Item = VarId> + '_ {
        self.parts.iter().filter_map(|part| match part {
            Part::Var(v) => Some(*v),
            Part::Text(_) | Part::Capture(_) => None,
        })
    }

    /// Returns the parts.
    pub fn parts(&self) -> &[Part] {
        &self.parts
    }

    /// Appends the value for this request to `out`.
    ///
    /// # Errors
    /// If evaluating a variable fails (a cycle of maps, too deep).
    pub fn eval<E: Evaluate>(&self, req: &mut E, out: &mut Vec<u8>) -> Result<(), VarError> {
        for p in &self.parts {
            match p {
                Part::Text(t) => out.extend_from_slice(t),
                Part::Var(v) => {
                    req.var(*v, out)?;
                }
                Part::Capture(n) => req.captures().push(*n, out),
            }
        }
        Ok(())
    }

    /// Returns the value in a vector of its own. For paths that are not hot.
    ///
    /// # Errors
    /// As [`Template::eval`].
    pub fn value<E: Evaluate>(&self, req: &mut E) -> Result<Vec<u8>, VarError> {
        let mut out = Vec::new();
        self.eval(req, &mut out)?;
        Ok(out)
    }
}

fn flush(lit: &mut Vec<u8>, parts: &mut Vec<Part>) {
    if !lit.is_empty() {
        parts.push(Part::Text(std::mem::take(lit).into_boxed_slice()));
    }
}
