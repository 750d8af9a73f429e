use super::*;
use crate::lab::fixture::{results, run};
use crate::rng::SplitMix64;

const ROUNDS: usize = 5;

/// A latency of about `millis`: what the round did to everybody, and some noise of its own.
fn latency(millis: f64, round: f64, rng: &mut SplitMix64) -> f64 {
    // The sum of twelve uniform values is about normal, with a deviation of 1.
    let normal = (0..12).map(|_| rng.unit()).sum::<f64>() - 6.0;
    millis * round * (0.05 * normal).exp()
}

/// A report of two configurations and the control of the first, the second `ratio` times as slow.
fn made(template: &Run, ratio: f64, seed: u64) -> Results {
    let mut rng = SplitMix64::new(seed);
    let mut sides: [Vec<Run>; 3] = Default::default();
    for _ in 0..ROUNDS {
        let round = 1.0 + rng.unit();
        for (side, millis) in sides.iter_mut().zip([1.0, ratio, 1.0]) {
            let mut run = template.clone();
            for nanos in run.latency.nanos.values_mut() {
                *nanos =
                    (latency(millis, round, &mut rng) * 1e6).round().max(1.0).to_string().parse().unwrap();
            }
            run.cpu_micros_per_operation = Some(latency(20.0, round, &mut rng));
            side.push(run);
        }
    }
    let [one, two, again] = &sides;
    let mut results = results(&[("one", one), ("two", two), ("again", again)]);
    results.configurations[2].control_of = Some("one".into());
    results.pairs.truncate(1);
    results
}

/// Goal: between equals the report names a difference no more often than it says, 5 %; and most differences that are there are
/// found. Method: 300 made reports of each kind, with rounds that are slower for everybody by up to twice.
#[test]
fn wolf_is_cried_rarely() {
    let template = run("PUT", 1.0);
    let named = |ratio: f64| {
        let names_some = |seed: &u64| Findings::of(&made(&template, ratio, *seed)).counts().1 > 0;
        (0..300).filter(names_some).count()
    };
    let (of_equals, of_different) = (named(1.0), named(1.3));
    // 5 % of 300 are 15; four standard errors more are 30.
    assert!(of_equals <= 30, "{of_equals} of 300 reports name a difference between equals");
    assert!(of_different >= 285, "{of_different} of 300 reports find 30 % in four latencies");
}

/// Goal: equals are the control and not among the findings; the noise between them is granted to every comparison. Method: a
/// control that differs by a factor in one figure takes the certainty away.
#[test]
fn the_noise_of_equals_is_granted() {
    let quiet = made(&run("PUT", 1.0), 1.1, 7);
    let p_value = |results: &Results| {
        let findings = Findings::of(results);
        findings.one("PUT", &results.pairs[0], Figure::P99).unwrap().judged().unwrap().change.p_value
    };
    let mut noisy = quiet.clone();
    for step in noisy.steps.iter_mut().filter(|step| step.configuration == "again") {
        for run in &mut step.runs {
            run.latency.nanos.values_mut().for_each(|nanos| *nanos *= 3);
        }
    }
    assert!(p_value(&noisy) > 0.3 && p_value(&quiet) < 0.1, "{} {}", p_value(&noisy), p_value(&quiet));
    let findings = Findings::of(&quiet);
    assert!(findings.pair("PUT", "one", "again").is_empty());
    assert_eq!(findings.control.judged, Figure::JUDGED.len());
}

/// Goal: a declared equality is a control under its load only. Method: both loads.
#[test]
fn equality_has_a_load() {
    let mut results = results(&[("one", &[run("PUT", 1.0)]), ("two", &[run("PUT", 1.0)])]);
    results.equals = vec![super::super::results::Equal {
        configurations: ["one".into(), "two".into()],
        load: Some("GET".into()),
    }];
    assert_eq!(results.equals_under("PUT"), []);
    assert_eq!(results.equals_under("GET"), [("one".to_owned(), "two".to_owned())]);
}

/// Goal: where most rounds are disturbed all are kept, and the finding says so; memory has no use for the CPU that was stolen.
/// Method: three of four windows.
#[test]
fn too_much_is_not_left_out() {
    let mut two: Vec<Run> = (0..4).map(|_| run("PUT", 1.0)).collect();
    two.iter_mut().take(3).for_each(|run| run.steal_cores = 1.0);
    let one: Vec<Run> = (0..4).map(|_| run("PUT", 1.0)).collect();
    let results = results(&[("one", &one), ("two", &two)]);
    let findings = Findings::of(&results);
    let of = |figure| findings.one("PUT", &results.pairs[0], figure).unwrap().judged().unwrap();
    assert_eq!((of(Figure::P99).change.rounds, of(Figure::P99).left_out.len()), (4, 0));
    assert_eq!(of(Figure::P99).disturbed.len(), 3);
    assert_eq!(of(Figure::Memory).disturbed, []);
}
