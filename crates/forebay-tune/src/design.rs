//! Screening designs: many settings at two levels in few runs (Plackett and Burman, 1946).

/// First row of the design with 24 runs for up to 23 factors.
const PB24: [u8; 23] = [1, 1, 1, 1, 1, 0, 1, 0, 1, 1, 0, 0, 1, 1, 0, 0, 1, 0, 1, 0, 0, 0, 0];
/// First row of the design with 12 runs for up to 11 factors.
const PB12: [u8; 11] = [1, 1, 0, 1, 1, 1, 0, 0, 0, 1, 0];

/// Rows of zeros and ones for `factors` factors: each factor is at 1 in half of the rows, and any two factors are at each
/// combination equally often. With `fold` the mirrored rows follow, so that products of two factors do not disturb single ones.
/// More than 23 factors are spread over several designs. In each, the factors of the other designs stay at 0.
pub(crate) fn screening(factors: usize, fold: bool) -> Vec<Vec<u8>> {
    let mut rows = Vec::new();
    let mut first = 0;
    while first < factors {
        let n = (factors - first).min(PB24.len());
        let base: &[u8] = if n <= PB12.len() { &PB12 } else { &PB24 };
        for shift in 0..=base.len() {
            let mut row = vec![0; factors];
            let mut mirror = vec![0; factors];
            for f in 0..n {
                // The last row is all at 0.
                let on = shift < base.len() && base[(f + base.len() - shift) % base.len()] == 1;
                row[first + f] = u8::from(on);
                mirror[first + f] = u8::from(!on);
            }
            rows.push(row);
            if fold {
                rows.push(mirror);
            }
        }
        first += n;
    }
    rows
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn any_two_factors_are_balanced() {
        for (n, runs) in [(5, 12), (11, 12), (20, 24), (23, 24)] {
            let rows = screening(n, false);
            assert_eq!(rows.len(), runs);
            for a in 0..n {
                assert_eq!(rows.iter().filter(|r| r[a] == 1).count(), runs / 2);
                for b in 0..a {
                    let both = rows.iter().filter(|r| r[a] == 1 && r[b] == 1).count();
                    assert_eq!(both, runs / 4, "{n}: {a} {b}");
                }
            }
        }
        assert_eq!(screening(20, true).len(), 48);
        assert_eq!(screening(30, false).len(), 36);
    }
}
