//! Tables that compute variables: `map`, `geo` and `split_clients` (nginx: ngx_http_map_module, ngx_http_geo_module,
//! ngx_http_split_clients_module). Hot path: a constant key is one hash lookup, an address one binary search.

use super::{Evaluate, HostTable, Template, VarError, VarId};
use crate::limit::cidr::Cidr;
use crate::pattern::set::Patterns;
use crate::pattern::{LimitExceeded, Pattern};
use forebay_net::addr::Peer;
use std::net::IpAddr;

/// `map` block.
#[derive(Debug, Default)]
pub struct Map {
    /// Key.
    pub source: Template,
    /// Keys are host names, with wildcards.
    pub hostnames: bool,
    /// It is evaluated at each use (nginx: volatile).
    pub volatile: bool,
    /// Numbers of values by key.
    pub table: HostTable<u32>,
    /// Patterns, tried in order after the table.
    patterns: Patterns,
    /// Numbers of the values of the patterns.
    by_pattern: Vec<u32>,
    values: Vec<Template>,
    /// Number of the value for other keys.
    pub default: Option<u32>,
}

impl Map {
    /// Creates a map of a key to nothing yet.
    pub fn new(source: Template) -> Map {
        Map { source, ..Map::default() }
    }

    /// Returns the variables in its key and values.
    pub fn variables(&self) -> impl Iterator<Item = VarId> + '_ {
        self.source.variables().chain(self.values.iter().flat_map(Template::variables))
    }

    /// Adds a pattern with the number of its value.
    pub fn add_pattern(&mut self, pattern: Pattern, value: u32) {
        self.patterns.push(pattern);
        self.by_pattern.push(value);
    }

    /// Ends the additions.
    pub fn prepare(&self) {
        self.patterns.prepare();
    }

    /// Adds a value and returns its number. Equal values share one, as large maps have few different ones.
    pub fn value(&mut self, value: Template) -> u32 {
        // Looking back a little finds most repetitions without a second table.
        let recent = self.values.iter().rev().take(16).position(|v| *v == value);
        let at = match recent {
            Some(back) => self.values.len() - 1 - back,
            None => {
                self.values.push(value);
                self.values.len() - 1
            }
        };
        u32::try_from(at).unwrap_or(u32::MAX)
    }

    /// Finds the number of the value for a text; a pattern that exceeds its limits is an error.
    fn find<E: Evaluate>(&self, req: &mut E, text: &[u8]) -> Result<Option<u32>, LimitExceeded> {
        let host = match text {
            [host @ .., b'.'] if self.hostnames => host,
            text => text,
        };
        if !self.table.is_empty() {
            let mut lower = req.take_buf();
            lower.extend(host.iter().map(u8::to_ascii_lowercase));
            let found = self.table.find(&lower).copied();
            req.give_buf(lower);
            if found.is_some() {
                return Ok(found);
            }
        }
        // As in nginx no pattern is tried on an empty value.
        if host.is_empty() {
            return Ok(self.default);
        }
        let first = self.patterns.first(host, |pattern| pattern.exec(req, host))?;
        Ok(first.and_then(|i| self.by_pattern.get(i).copied()).or(self.default))
    }
}

impl Map {
    /// Appends the value.
    ///
    /// # Errors
    /// If the source cannot be evaluated or a pattern exceeds its limits.
    pub fn compute<E: Evaluate>(&self, req: &mut E, out: &mut Vec<u8>) -> Result<bool, VarError> {
        let mut text = req.take_buf();
        self.source.eval(req, &mut text)?;
        let found = self.find(req, &text);
        req.give_buf(text);
        if let Some(value) = found?.and_then(|i| self.values.get(i as usize)) {
            value.eval(req, out)?;
        }
        Ok(true)
    }
}

/// Number of a value.
pub type Value = u32;

/// The address space cut into segments: each begins at its key and ends where the next begins.
#[derive(Debug)]
pub struct Segments<A> {
    starts: Vec<A>,
    values: Vec<Option<Value>>,
}

impl<A: Ord + Copy> Segments<A> {
    fn find(&self, addr: A) -> Option<Value> {
        let after = self.starts.partition_point(|s| *s <= addr);
        self.values.get(after.checked_sub(1)?).copied().flatten()
    }

    /// Cuts ranges into segments. They are sorted by start, the wider ones first, and two of them lie apart or one in the other.
    /// `next` returns the address after another, if there is one.
    pub fn build(ranges: impl Iterator<Item = (A, A, Value)>, next: fn(A) -> Option<A>) -> Segments<A> {
        let mut made = Segments { starts: Vec::new(), values: Vec::new() };
        let mut open: Vec<(A, Value)> = Vec::new();
        let close = |made: &mut Segments<A>, open: &mut Vec<(A, Value)>, before: Option<A>| {
            while let Some((end, _)) = open.last().copied()
                && before.is_none_or(|b| end < b)
            {
                open.pop();
                if let Some(after) = next(end) {
                    made.push(after, open.last().map(|o| o.1));
                }
            }
        };
        for (start, end, value) in ranges {
            close(&mut made, &mut open, Some(start));
            made.push(start, Some(value));
            open.push((end, value));
        }
        close(&mut made, &mut open, None);
        made
    }

    fn push(&mut self, start: A, value: Option<Value>) {
        match self.starts.last() {
            Some(last) if *last == start => {
                self.starts.pop();
                self.values.pop();
            }
            _ => {}
        }
        if self.values.last() != Some(&value) {
            self.starts.push(start);
            self.values.push(value);
        }
    }
}

/// Source of the address that `geo` looks up.
#[derive(Debug)]
pub enum AddressSource {
    /// The client's.
    Client,
    /// A variable.
    Var(VarId),
}

impl AddressSource {
    /// Returns the variable.
    pub(super) fn variable(&self) -> Option<VarId> {
        match self {
            AddressSource::Client => None,
            AddressSource::Var(v) => Some(*v),
        }
    }
}

/// One `geo` block.
#[derive(Debug)]
pub struct Geo {
    /// Address.
    pub source: AddressSource,
    /// Trusted proxies.
    pub proxies: Vec<Cidr>,
    /// Trusted addresses are skipped (nginx: proxy_recursive).
    pub recursive: bool,
    /// It is evaluated at each use (nginx: volatile).
    pub volatile: bool,
    /// Values of IPv4 addresses.
    pub v4: Segments<u32>,
    /// `None`: ranges, where an IPv6 address counts as 255.255.255.255.
    pub v6: Option<Segments<u128>>,
    /// Values by number.
    pub values: Vec<Box<[u8]>>,
    /// Value of addresses that no entry covers.
    pub default: Option<Value>,
}

impl Geo {
    /// Finds the address to look up.
    fn address<E: Evaluate>(&self, req: &mut E) -> Result<Peer, VarError> {
        let peer = match self.source {
            AddressSource::Client => req.peer(),
            AddressSource::Var(id) => {
                let mut buf = req.take_buf();
                let got = req.var(id, &mut buf)?;
                let ip = if got {
                    std::str::from_utf8(&buf).ok().and_then(|t| t.parse::<IpAddr>().ok())
                } else {
                    None
                };
                req.give_buf(buf);
                ip.map_or(Peer::Unix, |ip| Peer::Inet((ip, 0u16).into()))
            }
        };
        if self.proxies.is_empty() {
            return Ok(peer);
        }
        Ok(req.forwarded(peer, &self.proxies, self.recursive))
    }

    fn find(&self, peer: Peer) -> Option<Value> {
        let v4 = |a: u32| self.v4.find(a);
        let found = match (peer.ip().map(|ip| ip.to_canonical()), &self.v6) {
            (Some(IpAddr::V4(a)), _) => v4(a.to_bits()),
            (Some(IpAddr::V6(a)), Some(v6)) => v6.find(a.to_bits()),
            // As in nginx, a value that is no address counts as 255.255.255.255.
            _ => v4(u32::MAX),
        };
        found.or(self.default)
    }
}

impl Geo {
    /// Appends the value.
    ///
    /// # Errors
    /// If the source cannot be evaluated.
    pub fn compute<E: Evaluate>(&self, req: &mut E, out: &mut Vec<u8>) -> Result<bool, VarError> {
        let peer = self.address(req)?;
        if let Some(v) = self.find(peer).and_then(|v| self.values.get(v as usize)) {
            out.extend_from_slice(v);
        }
        Ok(true)
    }
}

/// Share of a `split_clients` block: hashes below the bound get the value; no bound = the rest.
#[derive(Debug)]
pub struct Share {
    /// First hash that is not below.
    pub below: Option<u32>,
    /// The value.
    pub value: Box<[u8]>,
}

/// `split_clients` block.
#[derive(Debug)]
pub struct Split {
    /// Text that is hashed.
    pub source: Template,
    /// Shares in order.
    pub parts: Vec<Share>,
}

impl Split {
    /// Appends the value.
    ///
    /// # Errors
    /// If the source cannot be evaluated.
    pub fn compute<E: Evaluate>(&self, req: &mut E, out: &mut Vec<u8>) -> Result<bool, VarError> {
        let mut text = req.take_buf();
        self.source.eval(req, &mut text)?;
        let hash = murmur2(&text);
        req.give_buf(text);
        let part = self.parts.iter().find(|p| p.below.is_none_or(|b| hash < b));
        Ok(part.map(|p| out.extend_from_slice(&p.value)).is_some())
    }
}

/// Computes MurmurHash2 of 32 bits with the seed 0, as its author published it.
pub fn murmur2(data: &[u8]) -> u32 {
    const M: u32 = 0x5bd1_e995;
    let mut h = data.len() as u32;
    let (words, tail) = data.as_chunks::<4>();
    for w in words {
        let mut k = u32::from_le_bytes(*w).wrapping_mul(M);
        k ^= k >> 24;
        h = h.wrapping_mul(M) ^ k.wrapping_mul(M);
    }
    if !tail.is_empty() {
        let mut last = [0; 4];
        last.iter_mut().zip(tail).for_each(|(l, t)| *l = *t);
        h = (h ^ u32::from_le_bytes(last)).wrapping_mul(M);
    }
    h = (h ^ (h >> 13)).wrapping_mul(M);
    h ^ (h >> 15)
}
