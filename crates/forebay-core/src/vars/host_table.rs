//! Values by host name, wildcards included (nginx: map with hostnames, valid_referers). Hot path.

use std::collections::HashMap;

type ByName<T> = HashMap<Box<[u8]>, T, foldhash::fast::RandomState>;

/// Reason for which a key is refused.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Refused {
    /// It is no host name or wildcard.
    Invalid,
    /// It is there already.
    Conflict,
}

impl Refused {
    /// Returns nginx's text.
    pub fn message(self, key: &[u8]) -> String {
        let key = String::from_utf8_lossy(key);
        match self {
            Refused::Invalid => format!("invalid hostname or wildcard \"{key}\""),
            Refused::Conflict => format!("conflicting parameter \"{key}\""),
        }
    }
}

/// Values by name. Keys are lower case.
#[derive(Clone, Debug)]
pub struct HostTable<T> {
    exact: ByName<T>,
    /// `*.example.org` without its star.
    heads: ByName<T>,
    /// `+.example.org` without its plus.
    labels: ByName<T>,
    /// `www.example.*` without its star.
    tails: ByName<T>,
}

impl<T> Default for HostTable<T> {
    fn default() -> Self {
        let empty = ByName::default;
        HostTable { exact: empty(), heads: empty(), labels: empty(), tails: empty() }
    }
}

/// The forms of a key.
enum Form<'k> {
    Exact,
    /// `*.example.org`.
    Head(&'k [u8]),
    /// `.example.org`, the name and all below it.
    Dot(&'k [u8]),
    Tail(&'k [u8]),
}

fn form(key: &[u8]) -> Option<Form<'_>> {
    let plain = |k: &[u8]| !k.contains(&b'*') && !k.contains(&0) && !k.windows(2).any(|w| w == b"..");
    match key {
        [b'*', rest @ ..] => {
            (rest.len() > 1 && rest.starts_with(b".") && plain(rest)).then_some(Form::Head(rest))
        }
        [b'.', ..] => (key.len() > 1 && plain(key)).then_some(Form::Dot(key)),
        [rest @ .., b'*'] => {
            (rest.len() > 1 && rest.ends_with(b".") && plain(rest)).then_some(Form::Tail(rest))
        }
        _ => plain(key).then_some(Form::Exact),
    }
}

fn insert<T>(table: &mut ByName<T>, key: &[u8], value: T) -> Result<(), Refused> {
    if table.contains_key(key) {
        return Err(Refused::Conflict);
    }
    table.insert(key.into(), value);
    Ok(())
}

impl<T: Clone> HostTable<T> {
    /// Adds a key as it stands.
    ///
    /// # Errors
    /// `Conflict`.
    pub fn add(&mut self, key: &[u8], value: T) -> Result<(), Refused> {
        insert(&mut self.exact, key, value)
    }

    /// Adds `*.example.org`, given as `.example.org`.
    ///
    /// # Errors
    /// `Conflict`.
    pub fn add_head(&mut self, rest: &[u8], value: T) -> Result<(), Refused> {
        insert(&mut self.heads, rest, value)
    }

    /// Adds `+.example.org`, a wildcard for one label. `rest` is `.example.org`.
    ///
    /// # Errors
    /// `Conflict`.
    pub fn add_label(&mut self, rest: &[u8], value: T) -> Result<(), Refused> {
        insert(&mut self.labels, rest, value)
    }

    /// Adds `www.example.*`, given as `www.example.`.
    ///
    /// # Errors
    /// `Conflict`.
    pub fn add_tail(&mut self, rest: &[u8], value: T) -> Result<(), Refused> {
        insert(&mut self.tails, rest, value)
    }

    /// Adds a name or a wildcard: `example.org`, `*.example.org`, `.example.org`, `www.example.*`.
    ///
    /// # Errors
    /// `Invalid` or `Conflict`.
    pub fn add_host(&mut self, key: &[u8], value: T) -> Result<(), Refused> {
        match form(key).ok_or(Refused::Invalid)? {
            Form::Exact => insert(&mut self.exact, key, value),
            Form::Head(rest) => insert(&mut self.heads, rest, value),
            Form::Tail(rest) => insert(&mut self.tails, rest, value),
            Form::Dot(rest) => {
                insert(&mut self.exact, rest.get(1..).unwrap_or_default(), value.clone())?;
                insert(&mut self.heads, rest, value)
            }
        }
    }
}

impl<T> HostTable<T> {
    /// Returns `true` if the table has no entry.
    pub fn is_empty(&self) -> bool {
        [&self.exact, &self.heads, &self.labels, &self.tails].iter().all(|table| table.is_empty())
    }

    /// Finds the value of a name in lower case: the exact one, else that of the wildcard of one label, else of the longest wildcard
    /// at the head, else of the longest at the tail.
    #[inline]
    pub fn find(&self, host: &[u8]) -> Option<&T> {
        let wildcard = || self.by_label(host).or_else(|| self.by_head(host)).or_else(|| self.by_tail(host));
        self.exact.get(host).or_else(wildcard)
    }

    fn by_label(&self, host: &[u8]) -> Option<&T> {
        if self.labels.is_empty() {
            return None;
        }
        let at = memchr::memchr(b'.', host).filter(|at| *at > 0)?;
        self.labels.get(host.get(at..)?)
    }

    fn by_head(&self, host: &[u8]) -> Option<&T> {
        if self.heads.is_empty() {
            return None;
        }
        // A name that begins with the dot counts too, as in nginx.
        memchr::memchr_iter(b'.', host).find_map(|at| self.heads.get(host.get(at..)?))
    }

    fn by_tail(&self, host: &[u8]) -> Option<&T> {
        if self.tails.is_empty() {
            return None;
        }
        memchr::memrchr_iter(b'.', host).find_map(|at| self.tails.get(host.get(..=at)?))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn order_of_lookup() {
        let mut t = HostTable::default();
        for (i, k) in
            ["a.example.org", "*.example.org", "*.b.example.org", "www.*", "www.example.*", ".dot.net", ""]
                .iter()
                .enumerate()
        {
            assert_eq!(t.add_host(k.as_bytes(), i), Ok(()), "{k}");
        }
        let find = |h: &str| t.find(h.as_bytes()).copied();
        assert_eq!(find("a.example.org"), Some(0));
        assert_eq!(find("c.example.org"), Some(1));
        assert_eq!(find("x.b.example.org"), Some(2));
        assert_eq!(find("example.org"), None);
        assert_eq!(find(".example.org"), Some(1));
        assert_eq!(find("www.example.com"), Some(4));
        assert_eq!(find("www.other"), Some(3));
        assert_eq!(find("www.example.org"), Some(1));
        assert_eq!(find("dot.net"), Some(5));
        assert_eq!(find("a.b.dot.net"), Some(5));
        assert_eq!(find(""), Some(6));
    }

    #[test]
    fn one_label() {
        let mut t = HostTable::default();
        assert_eq!(t.add_label(b".example.org", 0), Ok(()));
        assert_eq!(t.add_head(b".example.org", 1), Ok(()));
        assert_eq!(t.add_label(b".example.org", 2), Err(Refused::Conflict));
        let find = |h: &str| t.find(h.as_bytes()).copied();
        assert_eq!(find("a.example.org"), Some(0));
        assert_eq!(find("a.b.example.org"), Some(1));
        assert_eq!(find(".example.org"), Some(1));
        assert_eq!(find("example.org"), None);
    }

    #[test]
    fn refusals() {
        let mut t = HostTable::default();
        for bad in ["*", "a.*.c", "a..b", ".a..b", "*a.b", "a.b*", "*.", ".*", "."] {
            assert_eq!(t.add_host(bad.as_bytes(), ()), Err(Refused::Invalid), "{bad}");
        }
        assert_eq!(t.add_host(b".a.com", ()), Ok(()));
        assert_eq!(t.add_host(b"a.com", ()), Err(Refused::Conflict));
        assert_eq!(t.add_host(b"*.a.com", ()), Err(Refused::Conflict));
        assert_eq!(t.add(b"*", ()), Ok(()));
    }
}
