//! Regular expressions in pages (SSI). They are compiled when a request meets them, and each thread keeps some.

use super::{Engine, LimitExceeded, bridge, build, without_line_end};
use std::cell::RefCell;
use std::rc::Rc;

/// Most patterns that a thread keeps.
const KEPT: usize = 64;

/// A compiled pattern.
#[derive(Debug)]
pub struct Fleeting {
    engine: Engine,
    names: Vec<Option<String>>,
}

/// Groups of a match, and the names of some.
#[derive(Clone, Debug, Default)]
pub struct Matched {
    /// Texts of the groups, the whole match first; `None`: not part of it.
    pub groups: Vec<Option<Vec<u8>>>,
    /// Names in lower case, and their groups.
    pub names: Vec<(Vec<u8>, usize)>,
}

type Kept = RefCell<Vec<(Vec<u8>, Rc<Fleeting>)>>;

thread_local! {
    static COMPILED: Kept = const { RefCell::new(Vec::new()) };
}

/// Compiles a pattern, or returns it if the thread has kept it.
///
/// # Errors
/// `pcre2_compile() failed: ... in "PATTERN"`.
pub fn compile(text: &[u8]) -> Result<Rc<Fleeting>, String> {
    let known = COMPILED.with_borrow_mut(|all| {
        let at = all.iter().position(|(t, _)| t == text)?;
        let found = all.remove(at);
        let pattern = found.1.clone();
        all.push(found);
        Some(pattern)
    });
    if let Some(p) = known {
        return Ok(p);
    }
    let failed = |m: &str| format!("pcre2_compile() failed: {m} in \"{}\"", String::from_utf8_lossy(text));
    let bridged = bridge::bridge(text).map_err(|e| failed(e.message))?;
    let (engine, names) = build(&bridged, false).map_err(|m| failed(&m))?;
    let pattern = Rc::new(Fleeting { engine, names });
    COMPILED.with_borrow_mut(|all| {
        if all.len() >= KEPT {
            all.remove(0);
        }
        all.push((text.to_vec(), pattern.clone()));
    });
    Ok(pattern)
}

impl Fleeting {
    /// Matches a text; `None`: it does not match.
    ///
    /// # Errors
    /// The match exceeded its limits.
    pub fn exec(&self, text: &[u8]) -> Result<Option<Matched>, LimitExceeded> {
        let groups: Vec<Option<Vec<u8>>> = match &self.engine {
            Engine::Plain { re, dollar, .. } => {
                let shorter = || without_line_end(text).filter(|_| *dollar).and_then(|t| re.captures(t));
                let Some(found) = re.captures(text).or_else(shorter) else { return Ok(None) };
                found.iter().map(|m| m.map(|m| m.as_bytes().to_vec())).collect()
            }
            Engine::Backtracking(re) => {
                let Some(found) = re.groups(text)? else { return Ok(None) };
                found.iter().map(|g| g.and_then(|(a, b)| text.get(a..b)).map(<[u8]>::to_vec)).collect()
            }
        };
        let named =
            |(i, n): (usize, &Option<String>)| Some((n.as_ref()?.to_ascii_lowercase().into_bytes(), i));
        let names = self.names.iter().enumerate().filter_map(named).collect();
        Ok(Some(Matched { groups, names }))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn groups_are_found_by_number_and_name() {
        for text in ["(c)(?P<Nm>o)(x)?", "(?=c)(c)(?P<Nm>o)(x)?"] {
            let m = compile(text.as_bytes())
                .expect("compiled")
                .exec(b"a conf")
                .expect("within the limit")
                .expect("a match");
            let texts: Vec<Option<&[u8]>> = m.groups.iter().map(|g| g.as_deref()).collect();
            assert_eq!(texts, [Some(&b"co"[..]), Some(b"c"), Some(b"o"), None], "{text}");
            assert_eq!(m.names, [(b"nm".to_vec(), 2)]);
        }
        assert!(compile(b"zz").expect("compiled").exec(b"conf").is_ok_and(|m| m.is_none()));
        assert!(compile(b"(").unwrap_err().starts_with("pcre2_compile() failed: "));
    }

    #[test]
    fn few_are_kept() {
        for i in 0..200 {
            compile(format!("x{i}").as_bytes()).expect("compiled");
        }
        assert!(COMPILED.with_borrow(Vec::len) <= KEPT);
    }
}
