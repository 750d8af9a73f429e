//! The highest rate that a bound allows: which rate to try next, and when to stop.
//!
//! It doubles the rate until one is refused, then halves the gap until it is small. One bad run in a noisy
//! minute would hide every higher rate, so a refused rate is tried once more before it counts.

/// How close the highest accepted and the lowest refused rate come: a twentieth.
const GAP_DIVISOR: u64 = 20;

/// Doublings from the first rate: a million times.
const DOUBLINGS_MAX: u32 = 20;

/// The highest rate, from `first` on or below it, that `accepts`; `None` if not even 1 is accepted.
///
/// The rates tried are whole numbers. `accepts` is called about 10 to 15 times, more if `first` is far off.
///
/// # Errors
/// The errors of `accepts`, at once.
pub fn highest<E>(first: u64, mut accepts: impl FnMut(u64) -> Result<bool, E>) -> Result<Option<u64>, E> {
    let mut twice = |rate: u64| -> Result<bool, E> { Ok(accepts(rate)? || accepts(rate)?) };
    let (mut good, mut bad) = (0_u64, None);
    let mut rate = first.max(1);
    for _ in 0..DOUBLINGS_MAX {
        if !twice(rate)? {
            bad = Some(rate);
            break;
        }
        good = rate;
        rate = rate.saturating_mul(2);
    }
    while let Some(refused) = bad {
        if refused - good <= (good / GAP_DIVISOR).max(1) {
            break;
        }
        let middle = if good == 0 { refused / 2 } else { good.midpoint(refused) };
        if twice(middle)? {
            good = middle;
        } else {
            bad = Some(middle);
        }
    }
    Ok((good > 0).then_some(good))
}

#[cfg(test)]
mod tests {
    use std::convert::Infallible;

    use super::*;

    fn found(first: u64, limit: u64) -> (Option<u64>, u32) {
        let mut tries = 0;
        let highest = highest(first, |rate| {
            tries += 1;
            Ok::<_, Infallible>(rate <= limit)
        });
        (highest.unwrap(), tries)
    }

    /// Goal: the found rate is accepted and a twentieth more is not, after few tries. Method: known limits,
    /// from below and from above.
    #[test]
    fn the_limit_is_found() {
        for limit in [1, 2, 7, 999, 1_000, 5_000, 123_456] {
            for first in [1, 1_000, 50_000] {
                let (highest, tries) = found(first, limit);
                let highest = highest.unwrap();
                assert!(highest <= limit, "{highest} for {limit}");
                assert!(limit - highest <= (highest / GAP_DIVISOR).max(1), "{highest} for {limit}");
                assert!(tries <= 45, "{tries} tries");
            }
        }
        assert_eq!(found(1_000, 0).0, None);
    }

    /// Goal: one bad run does not hide the limit. Method: `accepts` refuses every rate the first time.
    #[test]
    fn one_bad_run_is_not_believed() {
        let mut seen = std::collections::BTreeSet::new();
        let highest = highest(1_000, |rate| Ok::<_, Infallible>(rate <= 5_000 && !seen.insert(rate)));
        assert!(highest.unwrap().unwrap() >= 4_750);
    }

    /// Goal: a failure ends the search. Method: fail at once.
    #[test]
    fn a_failure_ends_the_search() {
        assert_eq!(highest(1, |_| Err("gone")), Err("gone"));
    }
}
