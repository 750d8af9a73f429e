//! The statistics of repeats: a mean with its confidence interval, and whether two means differ by more than
//! noise.
//!
//! Both are Student's. The interval of a mean is `t * s / sqrt(n)` at 95 %. Two means differ beyond noise by
//! Welch's test at 5 % (unequal variances; degrees of freedom by Welch and Satterthwaite, rounded down). They
//! take repeats as independent and about normal. Of twenty comparisons of equal things one is expected to
//! look different.

use crate::units::float;

/// Student's t, two-sided at 95 %, for 1 to 30 degrees of freedom.
const T_95: [f64; 30] = [
    12.706, 4.303, 3.182, 2.776, 2.571, 2.447, 2.365, 2.306, 2.262, 2.228, 2.201, 2.179, 2.160, 2.145, 2.131,
    2.120, 2.110, 2.101, 2.093, 2.086, 2.080, 2.074, 2.069, 2.064, 2.060, 2.056, 2.052, 2.048, 2.045, 2.042,
];

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

/// The change of a figure from one configuration to another.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct Change {
    /// The new mean divided by the old one; `None` if the old one is 0.
    pub ratio: Option<f64>,
    /// Whether it is more than chance.
    pub verdict: Verdict,
}

/// Whether a change is more than chance.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Verdict {
    /// It exceeds the noise of the repeats.
    Beyond,
    /// It does not exceed the noise.
    Within,
    /// One of the two was measured only once, so the change cannot be judged.
    Unknown,
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
        (self.count > 1).then(|| t_95(float(self.count as u64 - 1)) * self.error().sqrt())
    }

    /// The change from `before`.
    pub fn change_from(&self, before: &Self) -> Change {
        let ratio = (before.mean > 0.0).then(|| self.mean / before.mean);
        Change { ratio, verdict: self.verdict(before) }
    }

    fn verdict(&self, other: &Self) -> Verdict {
        if self.count < 2 || other.count < 2 {
            return Verdict::Unknown;
        }
        let (one, two) = (self.error(), other.error());
        let both = one + two;
        let freedom = |error: f64, count: usize| error * error / float(count as u64 - 1);
        let divisor = freedom(one, self.count) + freedom(two, other.count);
        // Without any spread every difference is beyond noise.
        let degrees = if divisor > 0.0 { both * both / divisor } else { f64::INFINITY };
        let is_beyond = (self.mean - other.mean).abs() > t_95(degrees) * both.sqrt();
        if is_beyond { Verdict::Beyond } else { Verdict::Within }
    }

    /// The mean's variance.
    fn error(&self) -> f64 {
        self.variance / float(self.count as u64)
    }
}

/// Student's t for `degrees` of freedom, rounded down; beyond 30 as for 30.
#[expect(clippy::cast_possible_truncation, clippy::cast_sign_loss, reason = "clamped to 1..=30")]
fn t_95(degrees: f64) -> f64 {
    let row = degrees.clamp(1.0, 30.0).floor() as usize;
    T_95.get(row - 1).copied().unwrap_or(f64::INFINITY)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn sample(values: &[f64]) -> Sample {
        Sample::of(values).unwrap()
    }

    /// Goal: the interval is Student's. Method: mean 10, s = 1, n = 3: 4.303 / sqrt(3).
    #[test]
    fn the_interval_is_students() {
        let three = sample(&[9.0, 10.0, 11.0]);
        assert!((three.mean - 10.0).abs() < 1e-12);
        assert!((three.half_width().unwrap() - 4.303 / 3.0_f64.sqrt()).abs() < 1e-9);
        assert_eq!(sample(&[5.0]).half_width(), None);
        assert_eq!(Sample::of(&[]), None);
    }

    /// Goal: Welch's test, Method: t = 2.85 at 27.9 degrees of freedom for the first pair, beyond 2.052; 1.22 at 4 for
    /// the second, within 2.776; 24 for the third.
    #[test]
    fn changes_are_judged() {
        let before =
            [27.5, 21.0, 19.0, 23.6, 17.0, 17.9, 16.9, 20.1, 21.9, 22.6, 23.1, 19.6, 19.0, 21.7, 21.4];
        let after =
            [27.1, 22.0, 20.8, 23.4, 23.4, 23.5, 25.8, 22.0, 24.8, 20.2, 21.9, 22.1, 22.9, 30.5, 24.4];
        let change = sample(&after).change_from(&sample(&before));
        assert_eq!(change.verdict, Verdict::Beyond);
        assert!((change.ratio.unwrap() - 354.8 / 312.3).abs() < 1e-9, "{change:?}");
        let near = sample(&[10.0, 12.0, 11.0]).change_from(&sample(&[9.0, 11.0, 10.0]));
        assert_eq!(near.verdict, Verdict::Within);
        let far = sample(&[20.0, 20.5, 21.0]).change_from(&sample(&[10.0, 10.5, 11.0]));
        assert_eq!(far.verdict, Verdict::Beyond);
    }

    /// Goal: a single measurement proves nothing; without spread every difference counts. Method: the edge
    /// cases.
    #[test]
    fn edges() {
        let once = sample(&[5.0]);
        assert_eq!(sample(&[50.0, 51.0]).change_from(&once).verdict, Verdict::Unknown);
        let still = sample(&[5.0, 5.0]);
        assert_eq!(sample(&[6.0, 6.0]).change_from(&still).verdict, Verdict::Beyond);
        assert_eq!(still.change_from(&still).verdict, Verdict::Within);
        assert_eq!(still.change_from(&sample(&[0.0, 0.0])).ratio, None);
    }
}
