use super::*;
use crate::lab::fixture::{results, run};

fn stacks(text: &str) -> Stacks {
    Stacks::read(text).unwrap()
}

fn runs(millis: &[f64]) -> Vec<Run> {
    millis.iter().map(|&one| run("PUT", one)).collect()
}

fn said(results: &Results, profiles: &Profiles, language: Language) -> Vec<String> {
    let all = conclusions(results, &Findings::of(results), profiles, language);
    all.into_iter().flat_map(|one| one.sentences).map(|text| text.replace('\u{a0}', " ")).collect()
}

/// Goal: a change has its direction, its absolute values, its interval and the number of rounds; what is not seen has a
/// bound; frames have their error. Method: the whole text in both languages, five rounds, a latency that doubles.
#[test]
fn sentences_have_everything() {
    let (one, two) = (runs(&[1.0, 1.02, 0.98, 1.01, 0.99]), runs(&[2.0, 2.02, 1.98, 2.01, 1.99]));
    let results = results(&[("one", &one), ("two", &two)]);
    let key = |name: &str| (name.to_owned(), "PUT".to_owned(), Event::Cpu);
    let profiles: Profiles = [
        (key("one"), stacks("net;node::http 900\nnet;libc::send 100\n")),
        (key("two"), stacks("net;node::http 600\nnet;node::http;node::peer 300\nnet;libc::send 100\n")),
    ]
    .into();
    let english = said(&results, &profiles, Language::En);
    assert_eq!(
        english[1],
        "PUT p90 rose from 1.00 to 2.00 ms (+100 %, 95 % interval +98.1 to +102.0 %, 5 rounds)."
    );
    assert_eq!(english.len(), 6, "{english:?}");
    let unseen = &english[4];
    assert!(
        unseen.starts_with("No difference larger than this can be seen (5 rounds): CPU per op"),
        "{unseen}"
    );
    let frames = &english[5];
    assert!(
        frames.starts_with("Of the CPU samples (1,000 and 1,000): `node::peer` rose from 0.0 to 30.0 %"),
        "{frames}"
    );
    assert!(!frames.contains("libc::send"), "it has not changed: {frames}");
    let russian = said(&results, &profiles, Language::Ru);
    assert!(
        russian[1].starts_with("PUT: p90: рост с 1,00 до 2,00 мс (+100 %; 95-процентный интервал от"),
        "{russian:?}"
    );
}

/// Goal: few rounds are called indicative, and one round is not judged. Method: two rounds, and one.
#[test]
fn few_rounds_are_called_few() {
    let results_of = |one: &[f64], two: &[f64]| results(&[("one", &runs(one)), ("two", &runs(two))]);
    let two_rounds = said(&results_of(&[1.0, 1.0], &[9.0, 9.0]), &Profiles::new(), Language::En);
    assert!(two_rounds[0].contains("2 rounds: indicative"), "{two_rounds:?}");
    let once = said(&results_of(&[1.0], &[9.0]), &Profiles::new(), Language::En);
    assert!(once[0].starts_with("Measured in one common round only"), "{once:?}");
    assert!(once[0].contains("p99 1.00 and 9.00 ms"), "{once:?}");
}

/// Goal: where the noise hides large differences, that is said instead of "no difference". Method: rounds between 1 and 9 ms.
#[test]
fn noise_is_called_noise() {
    let results = results(&[("one", &runs(&[1.0, 9.0, 2.0])), ("two", &runs(&[5.0, 1.5, 8.0]))]);
    let all = said(&results, &Profiles::new(), Language::En);
    assert!(
        all.iter().any(|text| text.starts_with("Not told from noise") && text.contains("p99 from")),
        "{all:?}"
    );
    assert!(!all.iter().any(|text| text.contains("rose") || text.contains("fell")), "{all:?}");
}

/// Goal: an overload is named with the worst rate, and nothing is compared. Method: one of two rounds.
#[test]
fn an_overload_is_not_compared() {
    let mut slow = run("PUT", 900.0);
    (slow.is_saturated, slow.kept_per_second) = (true, 412.0);
    let results = results(&[("one", &runs(&[1.0, 1.0])), ("two", &[run("PUT", 1.0), slow])]);
    assert_eq!(
        said(&results, &Profiles::new(), Language::En),
        [
            "two was overloaded: 412 of 1,000 operations/s were kept at the worst (1 of 2 rounds). Nothing is compared."
        ]
    );
}

/// Goal: rounds that were disturbed are left out, and said. Method: one stolen window of five.
#[test]
fn disturbed_rounds_are_named() {
    let (one, mut two) = (runs(&[1.0; 5]), runs(&[1.0, 1.0, 40.0, 1.0, 1.0]));
    two[2].steal_cores = 0.8;
    let results = results(&[("one", &one), ("two", &two)]);
    let all = said(&results, &Profiles::new(), Language::En);
    assert!(all.contains(&"Left out: round 3 (the hypervisor took 0.80 cores).".to_owned()), "{all:?}");
    assert!(!all.iter().any(|text| text.contains("rose")), "{all:?}");
}

/// Goal: no frame is named whose change may be chance; the largest change comes first. Method: few samples, and many.
#[test]
fn chance_is_not_named() {
    let (before, after) = (stacks("net;a 50\nnet;b 50\n"), stacks("net;a 55\nnet;b 45\n"));
    assert!(shifts(&before, &after).iter().all(|shift| !shift.change.is_beyond()));
    let (before, after) =
        (stacks("net;a 5000\nnet;b 5000\nnet;c 9\n"), stacks("net;a 5500\nnet;b 3000\nnet;c 1500\n"));
    let all = shifts(&before, &after);
    let names: Vec<&str> = all.iter().map(|shift| shift.frame).collect();
    assert_eq!(names, ["b", "c", "a"]);
    assert!(all[0].change.is_beyond() && all[0].change.difference() < 0.0);
}

/// Goal: a report says how often its method names differences between equals. Method: a configuration and its control, which
/// once differ by chance and once do not.
#[test]
fn the_control_is_told() {
    let mut with = results(&[("one", &runs(&[1.0, 1.1, 0.9])), ("two", &runs(&[1.0, 1.0, 1.0]))]);
    let none = control(&with, &Findings::of(&with), Language::En);
    assert!(none.last().unwrap().contains("no two configurations of this run are equal"), "{none:?}");
    let again = results(&[("again", &runs(&[1.05, 0.95, 1.0]))]);
    with.configurations.push(again.configurations[0].clone());
    with.configurations[2].control_of = Some("one".into());
    with.steps.extend(again.steps);
    let all = control(&with, &Findings::of(&with), Language::En);
    assert!(all[0].contains("of 6 comparisons are named"), "{all:?}");
    assert!(
        all[2].starts_with("Configurations between which nothing differs were compared (6 comparisons)."),
        "{all:?}"
    );
    assert!(all[3].starts_with("The largest difference between equals: PUT p"), "{all:?}");
}
