use super::*;
use crate::rng::SplitMix64;

/// Numbers of a normal distribution, from a seed (Box and Muller).
struct Noise(SplitMix64);

impl Noise {
    fn new(seed: u64) -> Self {
        Self(SplitMix64::new(seed))
    }

    fn normal(&mut self) -> f64 {
        let (one, two) = (self.0.unit().max(1e-300), self.0.unit());
        (-2.0 * one.ln()).sqrt() * (std::f64::consts::TAU * two).cos()
    }

    /// Mostly normal; one in ten is a spike of three to ten times the value.
    fn spiky(&mut self) -> f64 {
        let spike = if self.0.below(10) == 0 { 1.1 + 1.2 * self.0.unit() } else { 0.0 };
        self.normal() * 0.1 + spike
    }
}

fn sample(values: &[f64]) -> Sample {
    Sample::of(values).unwrap()
}

fn paired(rounds: &[(f64, f64)]) -> Change {
    change(&Values::Rounds(rounds.to_vec()), 0.0).unwrap()
}

/// Goal: the interval is Student's. Method: mean 10, s = 1, n = 3: 4.303 / sqrt(3).
#[test]
fn the_interval_is_students() {
    let three = sample(&[9.0, 10.0, 11.0]);
    assert!((three.mean - 10.0).abs() < 1e-12);
    assert!((three.half_width().unwrap() - 4.302_653 / 3.0_f64.sqrt()).abs() < 1e-6);
    assert_eq!(sample(&[5.0]).half_width(), None);
    assert_eq!(Sample::of(&[]), None);
}

/// Goal: a ratio, its interval and its p-value are those of the paired t test. Method: log ratios 0.1, 0.2, 0.3 by hand: mean
/// 0.2, standard error 0.1 / sqrt(3), t = 3.464 at two degrees of freedom, p = 0.0742.
#[test]
fn a_paired_change_by_hand() {
    let rounds: Vec<(f64, f64)> = [(2.0, 0.1), (5.0, 0.2), (11.0, 0.3)]
        .map(|(before, log): (f64, f64)| (before, before * log.exp()))
        .into();
    let one = paired(&rounds);
    let half = 4.302_653 * 0.1 / 3.0_f64.sqrt();
    assert!((one.ratio.ln() - 0.2).abs() < 1e-9, "{one:?}");
    assert!((one.interval.0.ln() - (0.2 - half)).abs() < 1e-6, "{one:?}");
    assert!((one.interval.1.ln() - (0.2 + half)).abs() < 1e-6, "{one:?}");
    assert!((one.p_value - 0.074_180).abs() < 1e-5, "{one:?}");
    assert!((one.before - 110.0_f64.cbrt()).abs() < 1e-9 && one.rounds == 3, "{one:?}");
    assert!((one.after / one.before - one.ratio).abs() < 1e-9, "{one:?}");
}

/// Goal: separate runs are judged by Welch's test of the logs. Method: a published example, on its exponentials: t = 2.8455 at
/// 27.88 degrees of freedom, p = 0.00822.
#[test]
fn separate_runs_by_welch() {
    let of = |values: &[f64]| values.iter().map(|value| (value / 10.0).exp()).collect::<Vec<_>>();
    let before =
        of(&[27.5, 21.0, 19.0, 23.6, 17.0, 17.9, 16.9, 20.1, 21.9, 22.6, 23.1, 19.6, 19.0, 21.7, 21.4]);
    let after =
        of(&[27.1, 22.0, 20.8, 23.4, 23.4, 23.5, 25.8, 22.0, 24.8, 20.2, 21.9, 22.1, 22.9, 30.5, 24.4]);
    let one = change(&Values::Separate(before, after), 0.0).unwrap();
    assert!((one.ratio.ln() - (354.8 - 312.3) / 150.0).abs() < 1e-9, "{one:?}");
    assert!((one.p_value - 0.008_22).abs() < 2e-4, "{one:?}");
    assert!(one.interval.0 > 1.0 && one.rounds == 15);
}

/// Goal: what cannot be judged is not, and luck is not certainty. Method: the edges.
#[test]
fn edges() {
    let none = |values| assert_eq!(change(&values, 0.0), None, "{values:?}");
    none(Values::Rounds(vec![]));
    none(Values::Rounds(vec![(1.0, 9.0)]));
    none(Values::Rounds(vec![(1.0, 9.0), (0.0, 9.0)]));
    none(Values::Rounds(vec![(1.0, 9.0), (f64::INFINITY, 9.0)]));
    none(Values::Separate(vec![1.0], vec![2.0, 2.0]));
    let alike = [(1.0, 1.01), (1.0, 1.01)];
    assert!(paired(&alike).p_value < 1e-6, "without a floor two equal ratios are certain");
    let floored = change(&Values::Rounds(alike.to_vec()), 0.02).unwrap();
    assert!(floored.p_value > 0.05 && floored.unseen() > 0.01, "{floored:?}");
    let still = paired(&[(5.0, 5.0), (6.0, 6.0)]);
    assert_eq!((still.ratio, still.p_value), (1.0, 1.0));
    assert_eq!(deviation_of_equals(&[(1.0, 2.0)]), None);
    let apart = deviation_of_equals(&[(1.0, 2.0), (1.0, 2.0)]).unwrap();
    assert!((apart - 2.0_f64.ln()).abs() < 1e-9, "an offset between equals is noise: {apart}");
}

/// Goal: swapping the sides inverts a change, and what a round does to both drops out. Method: a thousand made sets, each turned
/// round, and each with a factor a round.
#[test]
fn changes_are_symmetric_and_blocked() {
    let mut noise = Noise::new(3);
    for _ in 0..1_000 {
        let rounds: Vec<(f64, f64)> =
            (0..4).map(|_| (noise.normal().exp(), (noise.normal() + 0.5).exp())).collect();
        let one = paired(&rounds);
        let turned = paired(&rounds.iter().map(|&(before, after)| (after, before)).collect::<Vec<_>>());
        assert!((one.ratio * turned.ratio - 1.0).abs() < 1e-9, "{one:?} {turned:?}");
        assert!((one.interval.0 * turned.interval.1 - 1.0).abs() < 1e-9, "{one:?} {turned:?}");
        assert!((one.p_value - turned.p_value).abs() < 1e-9, "{one:?} {turned:?}");
        assert!(one.interval.0 <= one.ratio && one.ratio <= one.interval.1);
        assert_eq!(one.p_value <= LEVEL, one.interval.0 > 1.0 || one.interval.1 < 1.0, "{one:?}");
        let slower = |(before, after): &(f64, f64), factor: f64| (before * factor, after * factor);
        let moved: Vec<_> = rounds.iter().map(|round| slower(round, noise.normal().exp())).collect();
        assert!((paired(&moved).p_value - one.p_value).abs() < 1e-9);
    }
}

/// Goal: known differences are found as often as theory says, and intervals hold the truth as often as they claim. Method: 4,000 made
/// sets each, with noise of 5 % a window and a drift of 30 % a round; the rates are those of the noncentral t distribution.
#[test]
fn known_differences_are_found_at_the_stated_rate() {
    for (ratio, rounds, expect) in POWERS {
        let mut noise = Noise::new(7);
        let (mut found, mut held) = (0, 0);
        for _ in 0..4_000 {
            let round = |noise: &mut Noise| {
                let drift = noise.normal() * 0.3;
                let window = |noise: &mut Noise| (drift + noise.normal() * 0.05).exp();
                (window(noise), ratio * window(noise))
            };
            let one = paired(&(0..rounds).map(|_| round(&mut noise)).collect::<Vec<_>>());
            found += i32::from(one.p_value <= LEVEL && one.ratio > 1.0);
            held += i32::from((one.interval.0..=one.interval.1).contains(&ratio));
        }
        let (found, held) = (f64::from(found) / 4_000.0, f64::from(held) / 4_000.0);
        assert!((found - expect).abs() < 0.025, "x{ratio} in {rounds} rounds: found {found}, not {expect}");
        assert!((held - 0.95).abs() < 0.012, "x{ratio} in {rounds} rounds: held {held}");
    }
}

/// A made report in which nothing differs: two loads, five configurations, each compared with the one before, six figures of
/// each window that rise and fall together. Returns the p-values.
fn made_of_equals(noise: &mut Noise, rounds: usize, is_spiky: bool) -> Vec<f64> {
    let mut p_values = Vec::new();
    for _ in 0..2 {
        let windows: Vec<Vec<[f64; 6]>> = (0..rounds)
            .map(|_| {
                let drift = noise.normal() * 0.2;
                let window = |noise: &mut Noise| {
                    let shared = if is_spiky { noise.spiky() } else { noise.normal() * 0.1 };
                    [0.2, 0.5, 1.0, 2.0, 0.3, 0.0]
                        .map(|part| (drift + part * shared + noise.normal() * 0.03).exp())
                };
                (0..5).map(|_| window(noise)).collect()
            })
            .collect();
        for pair in 0..4 {
            for figure in 0..6 {
                let values: Vec<(f64, f64)> =
                    windows.iter().map(|round| (round[pair][figure], round[pair + 1][figure])).collect();
                p_values.push(paired(&values).p_value);
            }
        }
    }
    p_values
}

/// Goal: where nothing differs, a report names something no more often than stated. Method: 1,000 made reports of 48 comparisons each, of
/// two to five rounds, with normal noise and with spikes; 5 % of them may name anything, within the error of so many reports.
#[test]
fn a_thousand_sets_of_equals_cry_wolf_no_more_than_stated() {
    for (rounds, is_spiky) in [(2, false), (3, false), (5, false), (3, true), (5, true)] {
        let mut noise = Noise::new(11);
        let cried = (0..1_000)
            .filter(|_| {
                let p_values = made_of_equals(&mut noise, rounds, is_spiky);
                let bound = discoveries(&p_values);
                p_values.iter().any(|&p_value| p_value <= bound)
            })
            .count();
        // A method that errs in exactly 5 % of reports errs in 50 of 1,000, give or take three standard errors of 7.
        assert!(cried <= 71, "{rounds} rounds, spiky {is_spiky}: {cried} of 1,000 reports");
        assert!(cried > 0 || is_spiky, "{rounds} rounds: a method that never errs here judges nothing");
    }
}

/// Goal: of the changes named, no more are false than stated, also where most are real. Method: 1,000 made reports of 48 comparisons, half
/// of them of a real difference of 40 %.
#[test]
fn few_of_those_named_are_false() {
    let mut noise = Noise::new(13);
    let (mut shares, mut found) = (0.0, 0);
    for _ in 0..1_000 {
        let one = |noise: &mut Noise, ratio: f64| {
            let values: Vec<(f64, f64)> = (0..5)
                .map(|_| ((noise.normal() * 0.05).exp(), ratio * (noise.normal() * 0.05).exp()))
                .collect();
            paired(&values).p_value
        };
        let p_values: Vec<f64> =
            (0..48).map(|nth| one(&mut noise, if nth < 24 { 1.4 } else { 1.0 })).collect();
        let bound = discoveries(&p_values);
        let named = |range: &[f64]| range.iter().filter(|p_value| **p_value <= bound).count();
        let (real, chance) = (named(&p_values[..24]), named(&p_values[24..]));
        shares += float(chance as u64) / float((real + chance).max(1) as u64);
        found += real;
    }
    assert!(shares / 1_000.0 <= LEVEL, "{} of those named are false", shares / 1_000.0);
    assert!(found > 23_500, "only {found} of 24,000 real differences were found");
}

/// Goal: the procedure is Benjamini and Hochberg's. Method: the example of their paper (1995, 15 p-values): four are named, where
/// Bonferroni's would name three.
#[test]
fn discoveries_are_those_of_the_paper() {
    let p_values = [
        0.0001, 0.0004, 0.0019, 0.0095, 0.0201, 0.0278, 0.0298, 0.0344, 0.0459, 0.3240, 0.4262, 0.5719,
        0.6528, 0.7590, 1.0,
    ];
    let bound = discoveries(&p_values);
    assert_eq!(p_values.iter().filter(|p_value| **p_value <= bound).count(), 4);
    assert!((discoveries(&[0.9, 0.5]) - 0.025).abs() < 1e-12, "none: the bound that the smallest missed");
    assert!((discoveries(&[]) - LEVEL).abs() < 1e-12);
}

/// Goal: the change of a share has the error of its counts, and one of many frames a wider one. Method: made samples of equal shares: of 2,000
/// profiles of 40 frames each at most 5 % name a frame; and a known change is named.
#[test]
fn shares_have_their_own_error() {
    let mut noise = Noise::new(17);
    let mut cried = 0;
    for _ in 0..2_000 {
        let count = |noise: &mut Noise| {
            let mut counts = [0_u64; 40];
            for _ in 0..250 {
                counts[usize::try_from(noise.0.below(40)).unwrap()] += 1;
            }
            counts
        };
        let (before, after) = (count(&mut noise), count(&mut noise));
        let is_named = before
            .iter()
            .zip(&after)
            .any(|(&one, &two)| ShareChange::of((one, 250), (two, 250), 40).is_beyond());
        cried += i32::from(is_named);
    }
    assert!(cried <= 100, "{cried} of 2,000 profiles of equals name a frame");
    let one = ShareChange::of((20, 1000), (121, 1000), 1);
    assert!(one.is_beyond() && (one.difference() - 0.101).abs() < 1e-9, "{one:?}");
    assert!((one.half_width - 0.0225).abs() < 0.001, "{one:?}");
    assert!(!ShareChange::of((0, 0), (5, 10), 1).is_beyond(), "an empty profile says nothing");
}

/// A ratio, rounds, and how often it is found at 5 %: the noncentral t distribution, by 200,000 draws elsewhere.
const POWERS: [(f64, usize, f64); 5] =
    [(1.2, 2, 0.2244), (1.2, 3, 0.6410), (1.1, 5, 0.6245), (1.2, 5, 0.9861), (1.1, 8, 0.9017)];
