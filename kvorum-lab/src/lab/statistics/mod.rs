//! The statistics of repeats, as plain values: no file, no clock, no chance.
//!
//! - [`Sample`]: a mean with its confidence interval (Student), for one cell of a table.
//! - [`change`]: the ratio of a figure between two configurations with its interval and its p-value.
//! - [`discoveries`]: which of many changes to name, so that few of those named are chance.
//!
//! **Ratios are judged as logarithms.** Costs add up to ratios (a slow minute makes everything 10 % slower), and a ratio
//! and its inverse are equally far from 1. The lab measures all configurations in *rounds*, one after the other; the
//! two values of a round are a pair, and what the round did to both drops out of their ratio: paired t interval of the
//! log ratios (Student 1908; for ratios of benchmarks Kalibera and Jones, *Rigorous benchmarking in reasonable time*,
//! 2013). Values of two separate runs have no rounds in common: Welch's interval of the difference of the log means.
//! Both are exact for few rounds if log ratios are about normal, and wide there: with two rounds an interval is 12.7
//! standard errors to each side, with three 4.3, with five 2.8.
//!
//! **Many comparisons.** A report compares some 50 figures; at 5 % each, two or three of equal ones would be named.
//! The procedure of Benjamini and Hochberg (1995) holds the expected share of false ones among those named at 5 %; where
//! nothing differs at all it names anything in 5 % of reports. Holm's was refused: it bounds the chance of *one* false
//! name, and with five rounds (four degrees of freedom) and 50 comparisons only changes of 9 standard errors pass.
//! The figures of one window rise and fall together, for which the procedure holds (Benjamini and Yekutieli 2001);
//! neighbours in a chain of comparisons share a configuration, for which the tests here try it.

use crate::units::float;

#[cfg(test)]
mod statistics_tests;
mod student;

/// The level of all judgements: the share of false ones among changes that are named, and of intervals that miss.
pub const LEVEL: f64 = 0.05;

/// With fewer rounds a result is called indicative: the interval is then mostly the table of Student's t.
pub const ROUNDS_FIRM: usize = 5;

/// One figure, measured several times.
#[derive(Debug, Clone, PartialEq)]
pub struct Sample {
    /// The mean.
    pub mean: f64,
    /// How many times it was measured; at least 1.
    pub count: usize,
    /// The variance of one measurement, unbiased; 0 if there is only one.
    variance: f64,
}

impl Sample {
    /// The sample of `values`; `None` without any.
    pub fn of(values: &[f64]) -> Option<Self> {
        if values.is_empty() {
            return None;
        }
        let count = float(values.len() as u64);
        let mean = values.iter().sum::<f64>() / count;
        let squares: f64 = values.iter().map(|value| (value - mean).powi(2)).sum();
        let variance = if values.len() > 1 { squares / (count - 1.0) } else { 0.0 };
        Some(Self { mean, count: values.len(), variance })
    }

    /// Half the width of the mean's confidence interval at 95 %; `None` for a single measurement.
    pub fn half_width(&self) -> Option<f64> {
        let degrees = float(self.count as u64) - 1.0;
        (self.count > 1).then(|| student::critical(LEVEL, degrees) * self.error().sqrt())
    }

    /// The mean's variance.
    fn error(&self) -> f64 {
        self.variance / float(self.count as u64)
    }
}

/// The measurements of one figure under two configurations.
#[derive(Debug, Clone, PartialEq)]
pub enum Values {
    /// Before and after, round by round.
    Rounds(Vec<(f64, f64)>),
    /// Before and after, of separate runs.
    Separate(Vec<f64>, Vec<f64>),
}

/// The change of a figure from one configuration to another.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct Change {
    /// The geometric mean before.
    pub before: f64,
    /// The geometric mean after.
    pub after: f64,
    /// `after` divided by `before`.
    pub ratio: f64,
    /// The confidence interval of the ratio at 95 %.
    pub interval: (f64, f64),
    /// How likely a ratio as far from 1 would be if nothing differed.
    pub p_value: f64,
    /// How many rounds it is of; of separate runs the smaller number.
    pub rounds: usize,
}

impl Change {
    /// How large a difference may be without being seen: the farther end of the interval, as a share of the value before.
    pub fn unseen(&self) -> f64 {
        let (low, high) = self.interval;
        (high - 1.0).max(1.0 - low)
    }
}

/// The change that `values` show; `None` with fewer than two on either side, or if one is not positive.
///
/// `deviation_min` is the least standard deviation of one log ratio: rounds that agree by luck, or because the figure is
/// counted in coarse steps, are not exact.
pub fn change(values: &Values, deviation_min: f64) -> Option<Change> {
    match values {
        Values::Rounds(rounds) => {
            let before = logs(rounds.iter().map(|round| round.0))?;
            let after = logs(rounds.iter().map(|round| round.1))?;
            let ratios: Vec<f64> = before.iter().zip(&after).map(|(before, after)| after - before).collect();
            let ratio = Sample::of(&ratios).filter(|sample| sample.count > 1)?;
            let error = ratio.variance.max(deviation_min.powi(2)) / float(ratio.count as u64);
            let degrees = float(ratio.count as u64) - 1.0;
            Some(judged(mean(&before), mean(&after), error, degrees, ratio.count))
        }
        Values::Separate(before, after) => {
            let (before, after) = (logs(before.iter().copied())?, logs(after.iter().copied())?);
            let of = |values: &[f64]| Sample::of(values).filter(|sample| sample.count > 1);
            let (one, two) = (of(&before)?, of(&after)?);
            // A ratio's variance is that of both sides.
            let floor = deviation_min.powi(2) / 2.0;
            let error = |sample: &Sample| sample.variance.max(floor) / float(sample.count as u64);
            let freedom = |sample: &Sample| error(sample).powi(2) / (float(sample.count as u64) - 1.0);
            let both = error(&one) + error(&two);
            let divisor = freedom(&one) + freedom(&two);
            let least = float(one.count.min(two.count) as u64) - 1.0;
            let degrees = if divisor > 0.0 { both * both / divisor } else { least };
            Some(judged(one.mean, two.mean, both, degrees, one.count.min(two.count)))
        }
    }
}

/// The logarithms of `values`; `None` if one has none.
fn logs(values: impl Iterator<Item = f64>) -> Option<Vec<f64>> {
    values.map(|value| (value > 0.0 && value.is_finite()).then(|| value.ln())).collect()
}

fn mean(values: &[f64]) -> f64 {
    values.iter().sum::<f64>() / float(values.len().max(1) as u64)
}

/// The change between two log means whose difference has the variance `error`.
fn judged(before: f64, after: f64, error: f64, degrees: f64, rounds: usize) -> Change {
    let difference = after - before;
    let deviation = error.sqrt();
    let half = student::critical(LEVEL, degrees) * deviation;
    // Without any spread only equality is chance.
    let t = if deviation > 0.0 {
        difference.abs() / deviation
    } else if difference.abs() > 0.0 {
        f64::INFINITY
    } else {
        0.0
    };
    Change {
        before: before.exp(),
        after: after.exp(),
        ratio: difference.exp(),
        interval: ((difference - half).exp(), (difference + half).exp()),
        p_value: student::two_sided(t, degrees),
        rounds,
    }
}

/// The standard deviation of log ratios whose true value is 0: those of equal configurations. `None` with fewer than two.
///
/// The mean is not subtracted: an offset between equals is noise, too.
pub fn deviation_of_equals(rounds: &[(f64, f64)]) -> Option<f64> {
    let before = logs(rounds.iter().map(|round| round.0))?;
    let after = logs(rounds.iter().map(|round| round.1))?;
    let squares: f64 = before.iter().zip(&after).map(|(before, after)| (after - before).powi(2)).sum();
    (rounds.len() > 1).then(|| (squares / float(rounds.len() as u64)).sqrt())
}

/// The p-value up to which changes are named, by Benjamini and Hochberg at [`LEVEL`]. Without any change to name it is the
/// bound that the smallest of them missed.
pub fn discoveries(p_values: &[f64]) -> f64 {
    let mut sorted = p_values.to_vec();
    sorted.sort_by(f64::total_cmp);
    let count = float(sorted.len().max(1) as u64);
    let bound = |rank: usize| LEVEL * float(rank as u64 + 1) / count;
    let last = sorted.iter().enumerate().rev().find(|(rank, p_value)| **p_value <= bound(*rank));
    last.map_or(bound(0), |(rank, _)| bound(rank))
}

/// The change of a share between two counts of samples, such as a frame's in two profiles.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct ShareChange {
    /// The shares before and after, from 0 to 1.
    pub shares: (f64, f64),
    /// Half the width of the interval of their difference, so that of `family` such intervals all hold at 95 %.
    pub half_width: f64,
}

impl ShareChange {
    /// The change of a share from `before` to `after`, each a count of samples and their total; one of `family` such changes
    /// that are looked at (Bonferroni).
    ///
    /// The error is that of counts; one sample is added to each side (Agresti and Caffo 2000), so that none of a hundred
    /// has an error, too.
    pub fn of(before: (u64, u64), after: (u64, u64), family: usize) -> Self {
        let share = |(count, total): (u64, u64)| if total > 0 { float(count) / float(total) } else { 0.0 };
        let error = |(count, total): (u64, u64)| {
            let (count, total) = (float(count) + 1.0, float(total) + 2.0);
            let share = count / total;
            share * (1.0 - share) / total
        };
        // Degrees of freedom so many that Student's t is normal.
        let width = student::critical(LEVEL / float(family.max(1) as u64), 1e6);
        Self {
            shares: (share(before), share(after)),
            half_width: width * (error(before) + error(after)).sqrt(),
        }
    }

    /// The change in points, from -1 to 1.
    pub fn difference(&self) -> f64 {
        self.shares.1 - self.shares.0
    }

    /// Whether it is more than its error.
    pub fn is_beyond(&self) -> bool {
        self.difference().abs() > self.half_width
    }
}
