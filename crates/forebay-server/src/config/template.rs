//! Values with variables in them, cut into parts once (nginx: complex values). Hot path.

use crate::request::{Request, VarError};
use crate::variables::{Registry, VarId};

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

/// Whether a byte may stand in a variable name.
fn name_byte(b: u8) -> bool {
    b.is_ascii_alphanumeric() || b == b'_'
}

impl Template {
    /// Cuts `text` at its variables and looks them up (defining them as "seen" where unknown).
    ///
    /// # Errors
    /// A message in nginx's words.
    pub fn compile(text: &[u8], vars: &mut Registry) -> Result<Template, String> {
        let mut parts = Vec::new();
        let mut lit: Vec<u8> = Vec::new();
        let mut i = 0;
        while i < text.len() {
            if text[i] != b'$' {
                lit.push(text[i]);
                i += 1;
                continue;
            }
            i += 1;
            let Some(&c) = text.get(i) else { return Err("invalid variable name".into()) };
            if c.is_ascii_digit() && c != b'0' {
                flush(&mut lit, &mut parts);
                parts.push(Part::Capture(c - b'0'));
                i += 1;
                continue;
            }
            let name = if c == b'{' {
                let end = text[i..].iter().position(|b| *b == b'}').map(|p| p + i);
                let Some(end) = end else {
                    if i + 1 == text.len() {
                        return Err("invalid variable name".into());
                    }
                    return Err(format!(
                        "the closing bracket in \"{}\" variable is missing",
                        String::from_utf8_lossy(&text[i + 1..])
                    ));
                };
                let name = &text[i + 1..end];
                i = end + 1;
                name
            } else {
                let end = text[i..].iter().position(|b| !name_byte(*b)).map_or(text.len(), |p| p + i);
                let name = &text[i..end];
                i = end;
                name
            };
            if name.is_empty() || !name.iter().all(|b| name_byte(*b)) {
                return Err("invalid variable name".into());
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

    /// Appends another value.
    pub fn append(&mut self, other: Template) {
        for part in other.parts {
            match (self.parts.last_mut(), part) {
                (Some(Part::Text(a)), Part::Text(b)) => *a = [&a[..], &b[..]].concat().into(),
                (_, part) => self.parts.push(part),
            }
        }
    }

    /// A constant.
    pub fn constant(text: &[u8]) -> Template {
        if text.is_empty() { Template::default() } else { Template { parts: vec![Part::Text(text.into())] } }
    }

    /// The bytes, if there is no variable in it.
    pub fn as_const(&self) -> Option<&[u8]> {
        match self.parts.as_slice() {
            [] => Some(b""),
            [Part::Text(t)] => Some(t),
            _ => None,
        }
    }

    /// The only part, when it is a variable alone.
    pub fn as_var(&self) -> Option<VarId> {
        match self.parts.as_slice() {
            [Part::Var(v)] => Some(*v),
            _ => None,
        }
    }

    /// The parts.
    pub fn parts(&self) -> &[Part] {
        &self.parts
    }

    /// Appends the value for this request to `out`.
    ///
    /// # Errors
    /// When evaluating a variable fails (a cycle of maps, too deep).
    pub fn eval(&self, req: &mut Request, out: &mut Vec<u8>) -> Result<(), VarError> {
        for p in &self.parts {
            match p {
                Part::Text(t) => out.extend_from_slice(t),
                Part::Var(v) => {
                    req.var(*v, out)?;
                }
                Part::Capture(n) => req.capture(*n, out),
            }
        }
        Ok(())
    }

    /// The value as a vector of its own. For paths that are not hot.
    ///
    /// # Errors
    /// As [`Template::eval`].
    pub fn value(&self, req: &mut Request) -> Result<Vec<u8>, VarError> {
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
