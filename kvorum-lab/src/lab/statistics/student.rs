//! Student's t distribution, for any level and any degrees of freedom, also broken ones (Welch's).

use statrs::distribution::{ContinuousCDF, StudentsT};

/// The probability that |t| is at least `t` where nothing differs; 1 without a number.
pub(super) fn two_sided(t: f64, degrees: f64) -> f64 {
    match StudentsT::new(0.0, 1.0, degrees) {
        Ok(_) if t.is_infinite() => 0.0,
        Ok(student) if !t.is_nan() => (2.0 * student.sf(t.abs())).clamp(0.0, 1.0),
        _ => 1.0,
    }
}

/// The t that |t| exceeds with the probability `level`, between 0 and 1; infinite without degrees of freedom.
pub(super) fn critical(level: f64, degrees: f64) -> f64 {
    // By symmetry the lower tail, which keeps its digits where it is small.
    StudentsT::new(0.0, 1.0, degrees).map_or(f64::INFINITY, |student| -student.inverse_cdf(level / 2.0))
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Goal: quantiles are those of printed tables. Method: two-sided at 5, 1 and 0.1 %, from 1 to 1,000
    /// degrees of freedom, and a broken one between its neighbours.
    #[test]
    fn quantiles_are_those_of_tables() {
        let table = [
            (1.0, [12.706_205, 63.656_741, 636.619_249]),
            (2.0, [4.302_653, 9.924_843, 31.599_055]),
            (3.0, [3.182_446, 5.840_909, 12.923_979]),
            (4.0, [2.776_445, 4.604_095, 8.610_302]),
            (10.0, [2.228_139, 3.169_273, 4.586_894]),
            (30.0, [2.042_272, 2.749_996, 3.645_959]),
            (1000.0, [1.962_339, 2.580_755, 3.300_283]),
        ];
        for (degrees, expect) in table {
            for (level, expect) in [0.05, 0.01, 0.001].into_iter().zip(expect) {
                let got = critical(level, degrees);
                assert!((got / expect - 1.0).abs() < 1e-6, "{level} at {degrees}: {got}, not {expect}");
            }
        }
        let broken = critical(0.05, 2.5);
        assert!(critical(0.05, 3.0) < broken && broken < critical(0.05, 2.0), "{broken}");
    }

    /// Goal: a tail is the inverse of its quantile, falls with t, and has an answer for odd input. Method: a
    /// grid, and the edges.
    #[test]
    fn tails_are_the_inverse_of_quantiles() {
        for degrees in [1.0, 1.7, 2.0, 4.0, 9.0, 80.0] {
            for level in [0.9, 0.5, 0.05, 0.001, 1e-6] {
                let back = two_sided(critical(level, degrees), degrees);
                assert!((back / level - 1.0).abs() < 1e-6, "{level} at {degrees}: {back}");
            }
            let tails: Vec<f64> = (0..50).map(|step| two_sided(f64::from(step) / 5.0, degrees)).collect();
            assert!(tails.windows(2).all(|pair| pair[0] >= pair[1]), "{tails:?}");
        }
        for (t, degrees, expect) in [
            (0.0, 3.0, 1.0),
            (f64::INFINITY, 3.0, 0.0),
            (f64::NAN, 3.0, 1.0),
            (2.0, 0.0, 1.0),
            (2.0, f64::NAN, 1.0),
        ] {
            let tail = two_sided(t, degrees);
            assert!((tail - expect).abs() < 1e-9, "{t} at {degrees}: {tail}");
        }
        assert!(critical(0.05, f64::NAN).is_infinite());
    }
}
