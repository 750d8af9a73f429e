//! The tally: the results of one run or many, in figures.

use crate::fault::FaultKind;
use crate::run::Run;
use serde::{Deserialize, Serialize};
use std::collections::BTreeMap;
use std::fmt;
use std::time::Duration;

/// The figures of runs.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Tally {
    /// Runs.
    pub seeds: u64,
    /// Simulated time, in milliseconds.
    pub simulated_millis: u64,
    /// Operations by the kind of their outcomes.
    pub operations: BTreeMap<String, u64>,
    /// Faults by kind.
    pub faults: BTreeMap<String, u64>,
    /// Crashes at named steps, by the step; they are also counted in `faults`.
    #[serde(default)]
    pub points: BTreeMap<String, u64>,
    /// Marks of members as lacking records.
    #[serde(default)]
    pub marks: u64,
    /// Seeds that broke an invariant, each with the invariants.
    pub broken: BTreeMap<u64, Vec<String>>,
    /// The checksum of the trace, if one was kept.
    pub trace_sum: Option<u64>,
}

impl Tally {
    /// The figures of one run.
    pub fn of(run: &Run) -> Self {
        let counts = |(name, count): (&'static str, u64)| (name.to_owned(), count);
        let violations = run.violations.iter().map(|violation| violation.invariant.to_owned());
        let broken = (!run.violations.is_empty()).then(|| (run.plan.seed.0, violations.collect()));
        let mut tally = Self {
            seeds: 1,
            simulated_millis: crate::millis(run.simulated),
            operations: run.history.counts().into_iter().map(counts).collect(),
            faults: run.faults.iter().map(|(kind, count)| (kind.name().to_owned(), *count)).collect(),
            points: run.points.iter().map(|(name, count)| ((*name).to_owned(), *count)).collect(),
            marks: run.facts.marked.values().map(|times| times.len() as u64).sum(),
            broken: broken.into_iter().collect(),
            trace_sum: None,
        };
        if let Some(restored) = &run.restored {
            // Broken is what the first run says, which has the violations of both.
            tally.add(Self { seeds: 0, broken: BTreeMap::new(), ..Self::of(restored) });
        }
        tally
    }

    /// A run that did not finish, for `reason`.
    pub fn failed(seed: u64, reason: &str) -> Self {
        Self { seeds: 1, broken: [(seed, vec![reason.to_owned()])].into(), ..Self::default() }
    }

    /// Adds `other`.
    pub fn add(&mut self, other: Self) {
        self.seeds += other.seeds;
        self.simulated_millis += other.simulated_millis;
        for (name, count) in other.operations {
            *self.operations.entry(name).or_default() += count;
        }
        for (name, count) in other.faults {
            *self.faults.entry(name).or_default() += count;
        }
        for (name, count) in other.points {
            *self.points.entry(name).or_default() += count;
        }
        self.marks += other.marks;
        self.broken.extend(other.broken);
    }

    /// The simulated time.
    pub fn simulated(&self) -> Duration {
        Duration::from_millis(self.simulated_millis)
    }

    /// The kinds of faults that began fewer than `least` times. For a kind that comes once in a run, a tenth
    /// is enough.
    pub fn rarer_than(&self, least: u64) -> Vec<&'static str> {
        let is_rare = |kind: &FaultKind| {
            let enough = if kind.is_once_a_run() { least / 10 } else { least };
            self.faults.get(kind.name()).copied().unwrap_or(0) < enough
        };
        FaultKind::ALL.into_iter().filter(is_rare).map(FaultKind::name).collect()
    }
}

impl fmt::Display for Tally {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let hours = self.simulated().as_secs_f64() / 3600.0;
        writeln!(f, "seeds           {:>9}", self.seeds)?;
        writeln!(f, "simulated hours {hours:>9.2}")?;
        writeln!(f, "operations      {:>9}", self.operations.values().sum::<u64>())?;
        self.operations.iter().try_for_each(|(name, count)| writeln!(f, "  {name:<18} {count:>9}"))?;
        writeln!(f, "faults          {:>9}", self.faults.values().sum::<u64>())?;
        for kind in FaultKind::ALL {
            let count = self.faults.get(kind.name()).copied().unwrap_or(0);
            writeln!(f, "  {:<18} {count:>9}", kind.name())?;
            if kind == FaultKind::CrashPoint {
                self.points
                    .iter()
                    .try_for_each(|(name, count)| writeln!(f, "    {name:<18}   {count:>5}"))?;
            }
        }
        writeln!(f, "members marked  {:>9}", self.marks)?;
        writeln!(f, "seeds that broke something: {}", self.broken.len())?;
        self.broken.iter().try_for_each(|(seed, names)| writeln!(f, "  seed {seed}: {}", names.join(", ")))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Figures add up, survive serialization, and name the broken invariants.
    #[test]
    fn figures_add_up() {
        let one = Tally {
            seeds: 1,
            simulated_millis: 1_800_000,
            operations: [("value".to_owned(), 3)].into(),
            faults: [("wipe".to_owned(), 2)].into(),
            ..Tally::default()
        };
        let mut sum = one.clone();
        sum.add(one);
        sum.add(Tally::failed(7, "no end"));
        let text = serde_json::to_string(&sum).unwrap();
        let sum: Tally = serde_json::from_str(&text).unwrap();
        assert_eq!((sum.seeds, sum.operations["value"], sum.faults["wipe"]), (3, 6, 4));
        assert!(sum.rarer_than(4).contains(&"restart") && !sum.rarer_than(4).contains(&"wipe"));
        assert!(!sum.rarer_than(4).contains(&"staggered-restore"), "one in ten is enough");
        let text = sum.to_string();
        assert!(text.contains("simulated hours      1.00") && text.contains("seed 7: no end"), "{text}");
    }
}
