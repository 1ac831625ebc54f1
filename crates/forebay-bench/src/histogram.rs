//! Histograms of times: log-linear, of fixed size, merged without loss. Hot path.

/// Highest value kept apart, ns: a bit over an hour. Larger ones count as this.
pub const HIGHEST: u64 = (1 << 42) - 1;

/// Counts of times in nanoseconds. With `BITS` of 10 a value is kept to three digits (one part in 1024),
/// as HdrHistogram does it; with fewer bits more coarsely and in less memory.
#[derive(Clone, PartialEq, Eq)]
pub struct Histogram<const BITS: u32 = 10> {
    counts: Vec<u64>,
    total: u64,
    sum: u128,
    min: u64,
    max: u64,
}

/// Some 5 % a step in 10 KB: for intervals.
pub type Coarse = Histogram<5>;

impl<const BITS: u32> Default for Histogram<BITS> {
    fn default() -> Self {
        Histogram { counts: vec![0; Self::index(HIGHEST) + 1], total: 0, sum: 0, min: u64::MAX, max: 0 }
    }
}

impl<const BITS: u32> std::fmt::Debug for Histogram<BITS> {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "Histogram({} values, {} to {} ns)", self.total, self.min(), self.max)
    }
}

impl<const BITS: u32> Histogram<BITS> {
    /// Values below this have a counter each; each doubling above has 2^BITS of them.
    #[inline]
    fn index(value: u64) -> usize {
        let shift = (63 - (value | (1 << BITS)).leading_zeros()) - BITS;
        ((shift as usize) << BITS) + (value >> shift) as usize
    }

    /// Returns the lowest value of a counter.
    fn lowest(index: usize) -> u64 {
        let shift = (index >> BITS).saturating_sub(1) as u32;
        ((index - ((shift as usize) << BITS)) as u64) << shift
    }

    /// Returns the highest value of a counter.
    fn highest_alike(index: usize) -> u64 {
        Self::lowest(index + 1) - 1
    }

    /// Counts a time in nanoseconds.
    #[inline]
    pub fn record(&mut self, nanos: u64) {
        self.record_times(nanos, 1);
    }

    /// Counts a time `times` times.
    #[inline]
    pub fn record_times(&mut self, nanos: u64, times: u64) {
        let value = nanos.min(HIGHEST);
        if let Some(count) = self.counts.get_mut(Self::index(value)) {
            *count += times;
        }
        self.total += times;
        self.sum += u128::from(value) * u128::from(times);
        self.min = self.min.min(value);
        self.max = self.max.max(value);
    }

    /// Adds the counts of another one. The sum is the same as if one histogram had counted everything.
    pub fn merge(&mut self, other: &Self) {
        for (a, b) in self.counts.iter_mut().zip(&other.counts) {
            *a += b;
        }
        self.total += other.total;
        self.sum += other.sum;
        self.min = self.min.min(other.min);
        self.max = self.max.max(other.max);
    }

    /// Forgets everything; keeps its memory.
    pub fn clear(&mut self) {
        self.counts.fill(0);
        (self.total, self.sum, self.min, self.max) = (0, 0, u64::MAX, 0);
    }

    /// Returns the number of values.
    pub fn len(&self) -> u64 {
        self.total
    }

    /// Returns `true` if there are no values.
    pub fn is_empty(&self) -> bool {
        self.total == 0
    }

    /// Returns the smallest value, ns; 0 when empty.
    pub fn min(&self) -> u64 {
        if self.total == 0 { 0 } else { self.min }
    }

    /// Returns the largest value, ns; 0 when empty.
    pub fn max(&self) -> u64 {
        self.max
    }

    /// Returns the mean, ns; 0 when empty.
    pub fn mean(&self) -> f64 {
        if self.total == 0 { 0.0 } else { self.sum as f64 / self.total as f64 }
    }

    /// Returns the standard deviation, ns, from the middles of the counters.
    pub fn deviation(&self) -> f64 {
        if self.total == 0 {
            return 0.0;
        }
        let mean = self.mean();
        let square = |(low, high, n): (u64, u64, u64)| {
            let d = f64::midpoint(low as f64, high as f64) - mean;
            d * d * n as f64
        };
        let squares: f64 = self.used().map(square).sum();
        (squares / self.total as f64).sqrt()
    }

    /// Returns the value, ns, that the share `q` (0 to 1) of all values does not exceed; 0 when empty.
    pub fn quantile(&self, q: f64) -> u64 {
        let wanted = ((q.clamp(0.0, 1.0) * self.total as f64).ceil() as u64).clamp(1, self.total.max(1));
        let mut seen = 0;
        for (index, count) in self.counts.iter().enumerate() {
            seen += count;
            if seen >= wanted {
                return Self::highest_alike(index).clamp(self.min(), self.max);
            }
        }
        self.max
    }

    /// Returns the number of values that are at most `nanos`.
    pub fn count_up_to(&self, nanos: u64) -> u64 {
        self.counts.iter().take(Self::index(nanos.min(HIGHEST)) + 1).sum()
    }

    /// Returns the counters that are not 0: lowest value, highest value, count.
    pub fn used(&self) -> impl Iterator<Item = (u64, u64, u64)> + '_ {
        self.counts
            .iter()
            .enumerate()
            .filter(|(_, n)| **n > 0)
            .map(|(i, n)| (Self::lowest(i), Self::highest_alike(i), *n))
    }

    /// Returns the text form: `min max sum`, then `index:count` pairs. [`Histogram::from_text`] reads it.
    pub fn to_text(&self) -> String {
        let mut text = format!("{} {} {}", self.min(), self.max, self.sum);
        for (index, count) in self.counts.iter().enumerate().filter(|(_, n)| **n > 0) {
            text.push_str(&format!(" {index}:{count}"));
        }
        text
    }

    /// Sets a count from `INDEX:COUNT`.
    fn set_count(&mut self, word: &str) -> Option<()> {
        let (index, count) = word.split_once(':')?;
        let (index, count): (usize, u64) = (index.parse().ok()?, count.parse().ok()?);
        *self.counts.get_mut(index)? = count;
        self.total = self.total.checked_add(count)?;
        Some(())
    }

    /// Reads the text form; `None` when it is malformed.
    pub fn from_text(text: &str) -> Option<Self> {
        let mut words = text.split(' ');
        let mut new = Self::default();
        let min = words.next().and_then(|word| word.parse().ok())?;
        new.max = words.next().and_then(|word| word.parse().ok())?;
        new.sum = words.next().and_then(|word| word.parse().ok())?;
        words.try_for_each(|word| new.set_count(word))?;
        if new.total > 0 {
            new.min = min;
        }
        Some(new)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_value_is_near_its_counter() {
        for v in (0..42).flat_map(|b| [1u64 << b, (1 << b) + 1, (3 << b) / 2, (1 << b) - 1]) {
            let index = Histogram::<10>::index(v);
            let (low, high) = (Histogram::<10>::lowest(index), Histogram::<10>::highest_alike(index));
            assert!(low <= v && v <= high, "{v}: {low} to {high}");
            assert!((high - low) as f64 <= v as f64 / 1024.0, "{v}: {low} to {high}");
        }
    }

    #[test]
    fn quantiles_of_a_known_set() {
        let mut h: Histogram = Histogram::default();
        (1..=1000u64).for_each(|v| h.record(v * 1000));
        assert_eq!((h.len(), h.min(), h.max()), (1000, 1000, 1_000_000));
        for (q, want) in [(0.5, 500_000.0), (0.99, 990_000.0), (1.0, 1_000_000.0), (0.0, 1000.0)] {
            let got = h.quantile(q) as f64;
            assert!((got - want).abs() <= want / 1000.0, "{q}: {got}");
        }
        assert!((h.mean() - 500_500.0).abs() < 1e-6);
        assert!((h.deviation() - 288_675.0).abs() < 500.0, "{}", h.deviation());
        assert_eq!(h.count_up_to(500_000), 500);
    }

    #[test]
    fn parts_merge_to_the_whole_and_survive_text() {
        let (mut a, mut b, mut all) =
            (Histogram::<10>::default(), Histogram::default(), Histogram::default());
        for v in 0..5000u64 {
            let value = v * v * 31;
            if v % 3 == 0 {
                a.record(value)
            } else {
                b.record(value)
            };
            all.record(value);
        }
        a.merge(&b);
        assert!(a == all);
        assert!(Histogram::from_text(&all.to_text()) == Some(all));
        assert!(
            Histogram::<10>::from_text(&Histogram::<10>::default().to_text()) == Some(Histogram::default())
        );
        for bad in ["", "1 2", "1 2 x", "1 2 3 99999999:1", "1 2 3 4"] {
            assert!(Histogram::<10>::from_text(bad).is_none(), "{bad}");
        }
    }

    #[test]
    fn too_large_values_count_as_the_highest() {
        let mut h = Coarse::default();
        h.record(u64::MAX);
        assert_eq!((h.max(), h.quantile(0.5), h.len()), (HIGHEST, HIGHEST, 1));
        assert_eq!(Coarse::default().quantile(0.9), 0);
    }
}
