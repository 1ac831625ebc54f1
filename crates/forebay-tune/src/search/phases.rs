//! The share of each phase in the runs of a search.

/// Numbers of the runs at which the phases of a search end.
pub(super) struct Phases {
    pub(super) noise: usize,
    pub(super) screen: usize,
    pub(super) model: usize,
    pub(super) knock_out: usize,
    pub(super) all: usize,
    /// Runs of the confirmation.
    pub(super) confirming: usize,
}

impl Phases {
    pub(super) fn of(runs: usize) -> Phases {
        let share = |f: f64| (runs as f64 * f) as usize;
        let noise = share(0.05).clamp(6, 12);
        // The confirmation has a fifth, and at least eight pairs; the knock-out has enough for nine lines, also when there are
        // few runs: the model alone is no proof.
        let confirming = share(0.22).max(16);
        let judging = share(0.26).max(24);
        Phases {
            noise,
            screen: share(0.30).max(noise + 26),
            model: share(0.50).min(runs.saturating_sub(confirming + judging)),
            knock_out: runs.saturating_sub(confirming),
            all: runs,
            confirming,
        }
    }
}
