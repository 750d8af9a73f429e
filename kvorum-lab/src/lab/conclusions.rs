//! The conclusions from the figures, in words: changes beyond noise, rates that were not kept, and the frame
//! of the CPU profile that gained most, if there are enough samples. Nothing that the figures do not support.

use std::fmt::Write;

use super::Profiles;
use super::figures::{Cell, Figure};
use super::profile::{Event, Stacks};
use super::results::{Results, Task};
use super::statistics::Verdict;
use crate::units::{float, grouped};

/// Standard errors that a share must have gained to be named.
const ERRORS_MIN: f64 = 3.0;

/// Profiles with fewer samples are not compared: their shares are not reliable, and neither are the errors of
/// the shares.
const SAMPLES_MIN: u64 = 100;

/// The figures that are compared in words: few, so that few differ by chance.
const COMPARED: [Figure; 5] = [Figure::P50, Figure::P99, Figure::P999, Figure::Cpu, Figure::Memory];

/// How a frame's share of a profile has changed.
#[derive(Debug, Clone, PartialEq)]
pub struct Shift<'a> {
    /// The frame's name.
    pub frame: &'a str,
    /// Its share before and after, with what it calls, from 0 to 1.
    pub shares: (f64, f64),
}

/// Warnings that a reader must not overlook, one sentence each; none after a run without fault.
pub fn warnings(results: &Results) -> Vec<String> {
    let (mut out, mut late) = (Vec::new(), Vec::new());
    if results.is_quick {
        out.push(
            "This was a quick run: windows of seconds, to see that it works. Its figures are not results."
                .into(),
        );
    }
    for step in &results.steps {
        let place = format!("{}, {}", step.configuration, step.task);
        if let Some(error) = &step.error {
            out.push(format!("{place}: NOT MEASURED: {error}"));
        }
        out.extend(step.notes.iter().map(|note| format!("{place}: {note}")));
        for run in &step.runs {
            let place = format!("{place}, {}", run.load);
            if run.is_saturated && step.task == Task::Profile {
                out.push(format!(
                    "{place}: the rate was not kept ({:.0}/s of {:.0}/s, {} failed): these profiles are of something else.",
                    run.kept_per_second,
                    run.wanted_per_second,
                    grouped(run.failed),
                ));
            } else if run.is_saturated {
                out.push(format!(
                    "{place}: THE RATE WAS NOT KEPT: {:.0}/s of {:.0}/s; its latencies are no result.",
                    run.kept_per_second, run.wanted_per_second
                ));
            } else if run.failed > 0 {
                let what: Vec<String> = run
                    .statuses
                    .iter()
                    .map(|(status, count)| format!("{status}: {count}"))
                    .chain(run.failures.iter().map(|(kind, count)| format!("{kind}: {count}")))
                    .collect();
                out.push(format!(
                    "{place}: {} operations failed ({}).",
                    grouped(run.failed),
                    what.join(", ")
                ));
            }
            if run.wrong_bodies > 0 {
                out.push(format!("{place}: WRONG BODIES: {}.", grouped(run.wrong_bodies)));
            }
            if run.is_driver_late && step.task != Task::Profile {
                late.push(place);
            }
        }
    }
    if !late.is_empty() {
        out.push(format!(
            "The driver itself woke late, and much of p99.9 and above is the machine's, not the nodes', in: {}.",
            late.join("; ")
        ));
    }
    let missing = results.configurations.iter().filter(|one| results.steps_of(&one.name).next().is_none());
    out.extend(missing.map(|one| format!("{}: not measured yet.", one.name)));
    out
}

/// For each load, the change from each configuration to the one compared with it.
pub fn conclusions(results: &Results, profiles: &Profiles) -> Vec<String> {
    let mut out = Vec::new();
    for load in results.load_names() {
        for (before, after) in &results.pairs {
            out.extend(conclusion(results, profiles, &load, before, after));
        }
    }
    out
}

fn conclusion(
    results: &Results,
    profiles: &Profiles,
    load: &str,
    before: &str,
    after: &str,
) -> Option<String> {
    let place = format!("{load}, {before} → {after}");
    let cell = |name| Figure::P99.cell(results, name, load);
    match (cell(before), cell(after)) {
        (Cell::Missing, _) | (_, Cell::Missing) => return None,
        (Cell::Overloaded, _) => {
            return Some(format!("{place}: the former did not keep its rate; no latencies to compare."));
        }
        (_, Cell::Overloaded) => {
            return Some(format!("{place}: the latter did not keep its rate; no latencies to compare."));
        }
        (Cell::Value(_), Cell::Value(_)) => {}
    }
    let (mut beyond, mut within, mut unknown) = (Vec::new(), Vec::new(), Vec::new());
    for figure in COMPARED {
        let Some(change) = figure.change(results, load, before, after) else { continue };
        let Some(ratio) = change.ratio else { continue };
        match change.verdict {
            Verdict::Beyond => beyond.push(format!("{figure} x{ratio:.2}")),
            Verdict::Within => within.push(figure.to_string()),
            Verdict::Unknown => unknown.push(format!("{figure} x{ratio:.2}")),
        }
    }
    let mut text = if !unknown.is_empty() {
        format!("{place}: measured once, so that nobody can tell it from noise: {}.", unknown.join(", "))
    } else if beyond.is_empty() {
        format!("{place}: nothing differs beyond the noise of the repeats.")
    } else if within.is_empty() {
        format!("{place}: {}, all beyond the noise of the repeats.", beyond.join(", "))
    } else {
        format!(
            "{place}: {} beyond the noise of the repeats; {} within it.",
            beyond.join(", "),
            within.join(", ")
        )
    };
    let key = |name: &str| (name.to_owned(), load.to_owned(), Event::Cpu);
    if let (Some(old), Some(new)) = (profiles.get(&key(before)), profiles.get(&key(after)))
        && let Some(Shift { frame, shares: (old, new) }) = most_gained(old, new)
    {
        let (old, new) = (old * 100.0, new * 100.0);
        // Writing into a `String` cannot fail.
        let _ = write!(
            text,
            " Of the CPU samples, `{frame}` with what it calls gained the most: {old:.1} % before, {new:.1} % after."
        );
    }
    Some(text)
}

/// The frame of kvorum's own code, or else of any, whose share grew most, if that is more than chance.
fn most_gained<'a>(before: &'a Stacks, after: &'a Stacks) -> Option<Shift<'a>> {
    if before.total().min(after.total()) < SAMPLES_MIN {
        return None;
    }
    let gained = shifts(before, after);
    let is_sure = |shift: &&Shift<'_>| {
        let error = |share: f64, total: u64| share * (1.0 - share) / float(total);
        let (old, new) = shift.shares;
        let both = (error(old, before.total()) + error(new, after.total())).sqrt();
        new - old > ERRORS_MIN * both
    };
    let mut sure = gained.iter().filter(is_sure);
    let is_own =
        |shift: &&Shift<'_>| shift.frame.trim_start_matches(['<', '&']).split("::").next() == Some("kvorum");
    gained.iter().filter(is_sure).find(is_own).or_else(|| sure.next()).cloned()
}

/// Frames by how much their share of the profile has grown, most first; those that shrank come last.
///
/// The outermost frame is the thread and left out.
pub fn shifts<'a>(before: &'a Stacks, after: &'a Stacks) -> Vec<Shift<'a>> {
    let (old, new) = (before.inclusive(), after.inclusive());
    let share = |value: Option<&u64>, total: u64| match (value, total) {
        (Some(&value), 1..) => float(value) / float(total),
        _ => 0.0,
    };
    let threads: std::collections::BTreeSet<&str> = before.threads().chain(after.threads()).collect();
    let names: std::collections::BTreeSet<&str> = old.keys().chain(new.keys()).copied().collect();
    let mut all: Vec<Shift<'a>> = names
        .difference(&threads)
        .map(|&frame| Shift {
            frame,
            shares: (share(old.get(frame), before.total()), share(new.get(frame), after.total())),
        })
        .collect();
    let gain = |shift: &Shift<'_>| shift.shares.1 - shift.shares.0;
    all.sort_by(|a, b| gain(b).total_cmp(&gain(a)).then_with(|| a.frame.cmp(b.frame)));
    all
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::lab::fixture::{results, run};

    fn stacks(text: &str) -> Stacks {
        Stacks::read(text).unwrap()
    }

    /// Goal: the text matches the figures: which differ, which do not, which frame. Method: the whole text.
    #[test]
    fn words_are_carried_by_figures() {
        let of = |millis: &[f64]| millis.iter().map(|&one| run("PUT", one)).collect::<Vec<_>>();
        let (one, two) = (of(&[1.0, 1.01, 0.99]), of(&[2.0, 2.01, 1.99]));
        let results = results(&[("one", &one), ("two", &two)]);
        let key = |name: &str| (name.to_owned(), "PUT".to_owned(), Event::Cpu);
        let profiles: Profiles = [
            (key("one"), stacks("net;kvorum::http 900\nnet;libc::send 100\n")),
            (
                key("two"),
                stacks("net;kvorum::http 600\nnet;kvorum::http;kvorum::peer::send 300\nnet;libc::send 100\n"),
            ),
        ]
        .into();
        let expect = "PUT, one → two: p50 x2.00, p99 x2.00, p99.9 x2.00 beyond the noise of the repeats; cpu, memory \
            within it. Of the CPU samples, `kvorum::peer::send` with what it calls gained the most: 0.0 % before, \
            30.0 % after.";
        assert_eq!(conclusions(&results, &profiles), [expect]);
    }

    /// Goal: no frame is named whose gain may be chance. Method: few samples.
    #[test]
    fn chance_is_not_named() {
        let (before, after) = (stacks("net;a 50\nnet;b 50\n"), stacks("net;a 55\nnet;b 45\n"));
        assert_eq!(most_gained(&before, &after), None);
        let (before, after) = (stacks("net;a 1\n"), stacks("net;b 500\n"));
        assert_eq!(most_gained(&before, &after), None, "one sample says nothing");
        let (before, after) = (stacks("net;a 5000\nnet;b 5000\n"), stacks("net;a 5500\nnet;b 4500\n"));
        assert_eq!(most_gained(&before, &after).unwrap().frame, "a");
        assert_eq!(shifts(&before, &after).last().unwrap().frame, "b");
    }

    /// Goal: failures are reported. Method: a quick run with an overload, failures and a configuration
    /// without a run.
    #[test]
    fn what_failed_is_said() {
        let mut slow = run("PUT", 900.0);
        (slow.is_saturated, slow.kept_per_second) = (true, 412.0);
        let mut broken = run("PUT", 1.0);
        broken.failed = 3;
        broken.statuses.insert(504, 3);
        let mut results = results(&[("one", &[slow.clone(), broken]), ("two", &[])]);
        results.is_quick = true;
        let mut profiled = results.steps[0].clone();
        (profiled.task, profiled.runs) = (Task::Profile, vec![slow]);
        results.steps.push(profiled);
        let warnings = warnings(&results);
        assert_eq!(warnings.len(), 5, "{warnings:?}");
        assert!(warnings[3].contains("profiles are of something else"), "{warnings:?}");
        assert!(warnings[0].contains("not results"));
        assert_eq!(
            warnings[1],
            "one, repeat 1, PUT: THE RATE WAS NOT KEPT: 412/s of 1000/s; its latencies are no result."
        );
        assert_eq!(warnings[2], "one, repeat 2, PUT: 3 operations failed (504: 3).");
        assert_eq!(warnings[4], "two: not measured yet.");
        assert!(conclusions(&results, &Profiles::new()).is_empty());
    }
}
