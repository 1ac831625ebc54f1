//! `num_map`: a variable by the number that another one has. Hot path: one hash lookup and a comparison for each range.

use super::{Evaluate, Template, VarError, VarId};
use crate::blocks::num_map::number;
use std::collections::HashMap;
use std::ops::RangeInclusive;

/// `num_map` block.
#[derive(Debug)]
pub struct NumMap {
    source: VarId,
    /// It is evaluated at each use (nginx: volatile).
    pub volatile: bool,
    /// Value of other numbers, and of what is no number.
    pub default: Option<Template>,
    single: HashMap<u64, Template, foldhash::fast::RandomState>,
    /// In file order.
    ranges: Vec<(RangeInclusive<u64>, Template)>,
}

/// A number that has a value already.
#[derive(Debug)]
pub struct Taken;

impl NumMap {
    /// Creates a map of a variable to nothing yet.
    pub fn new(source: VarId) -> NumMap {
        NumMap { source, volatile: false, default: None, single: HashMap::default(), ranges: Vec::new() }
    }

    /// Adds numbers with their value. A single number goes before ranges, and of ranges the first counts.
    ///
    /// # Errors
    /// If the same numbers are there.
    pub fn add(&mut self, numbers: RangeInclusive<u64>, value: Template) -> Result<(), Taken> {
        let is_new = if numbers.start() == numbers.end() {
            self.single.insert(*numbers.start(), value).is_none()
        } else {
            let is_new = self.ranges.iter().all(|(own, _)| *own != numbers);
            self.ranges.push((numbers, value));
            is_new
        };
        if is_new { Ok(()) } else { Err(Taken) }
    }

    /// Returns the variables in its key and values.
    pub fn variables(&self) -> impl Iterator<Item = VarId> + '_ {
        let values = self.single.values().chain(self.ranges.iter().map(|(_, value)| value));
        std::iter::once(self.source).chain(values.chain(&self.default).flat_map(Template::variables))
    }

    fn find(&self, text: &[u8]) -> Option<&Template> {
        let Some(n) = number(text) else { return self.default.as_ref() };
        let range = || self.ranges.iter().find(|(range, _)| range.contains(&n)).map(|(_, value)| value);
        self.single.get(&n).or_else(range).or(self.default.as_ref())
    }

    /// Appends the value.
    ///
    /// # Errors
    /// If a variable cannot be evaluated.
    pub fn compute<E: Evaluate>(&self, req: &mut E, out: &mut Vec<u8>) -> Result<bool, VarError> {
        let mut text = req.take_buf();
        req.var(self.source, &mut text)?;
        let value = self.find(&text);
        req.give_buf(text);
        if let Some(value) = value {
            value.eval(req, out)?;
        }
        Ok(true)
    }
}
