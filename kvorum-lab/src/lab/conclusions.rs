//! The conclusions from the figures, in words. Each sentence has its direction, the absolute values, the interval and the
//! number of rounds; what the figures do not support is not said.

use std::collections::BTreeSet;

use super::Profiles;
use super::figures::{Cell, Figure};
use super::findings::{Disturbance, Finding, Findings, Judged, State};
use super::language::{Language, Unit};
use super::profile::{Event, Stacks};
use super::results::{Results, Run};
use super::statistics::{LEVEL, ROUNDS_FIRM, ShareChange};
use super::texts::Text;
use crate::units::float;

/// Profiles with fewer samples are not compared: their shares are not reliable, and neither are the errors of
/// the shares.
const SAMPLES_MIN: u64 = 100;

/// How many frames a sentence names.
const FRAMES_MAX: usize = 3;

/// A frame that is in neither profile with this share cannot have changed much, and is not looked at.
const SHARE_MIN: f64 = 0.01;

/// Where a difference may be larger than this, the figure is called too noisy.
const UNSEEN_MAX: f64 = 0.5;

/// What is said of one pair of configurations under one load.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Conclusion {
    /// The load.
    pub load: String,
    /// The pair.
    pub pair: (String, String),
    /// The sentences, the most important first.
    pub sentences: Vec<String>,
}

impl Conclusion {
    /// Which pair it is about.
    pub fn place(&self) -> String {
        format!("{}, {} → {}", self.load, self.pair.0, self.pair.1)
    }
}

/// How a frame's share of a profile has changed.
#[derive(Debug, Clone, PartialEq)]
pub struct Shift<'a> {
    /// The frame's name.
    pub frame: &'a str,
    /// Its share, with what it calls.
    pub change: ShareChange,
}

/// For each load, what changes from each configuration to the one compared with it.
pub fn conclusions(
    results: &Results,
    findings: &Findings,
    profiles: &Profiles,
    language: Language,
) -> Vec<Conclusion> {
    let mut out = Vec::new();
    for load in results.load_names() {
        for pair in &results.pairs {
            let of_pair = findings.pair(&load, &pair.0, &pair.1);
            let mut sentences = sentences(results, &load, pair, &of_pair, language);
            let is_overloaded = of_pair.iter().any(|one| one.state == State::Overloaded);
            if !sentences.is_empty() && !is_overloaded {
                sentences.extend(frames(results, profiles, &load, pair, language));
            }
            if !sentences.is_empty() {
                out.push(Conclusion { load: load.clone(), pair: pair.clone(), sentences });
            }
        }
    }
    out
}

/// What the comparison of equals says about the method, and how many comparisons are named.
pub fn control(results: &Results, findings: &Findings, language: Language) -> Vec<String> {
    let (judged, named) = findings.counts();
    let mut out = Vec::new();
    if judged > 0 {
        let (judged, named) = (judged.to_string(), named.to_string());
        out.push(Text::Discoveries.fill(language, &[("judged", &judged), ("named", &named)]));
    }
    if judged > 0 && usize::try_from(results.repeats()).unwrap_or(0) < ROUNDS_FIRM {
        out.push(Text::Indicative.of(language).into());
    }
    let control = &findings.control;
    if control.judged == 0 {
        if judged > 0 {
            out.push(Text::ControlNone.of(language).into());
        }
        return out;
    }
    let expected = language.short(float(control.judged as u64) * LEVEL);
    let [judged, by_itself, named] =
        [control.judged, control.by_itself, control.named].map(|count| count.to_string());
    let places = [
        ("judged", judged.as_str()),
        ("expected", expected.as_str()),
        ("by_itself", by_itself.as_str()),
        ("named", named.as_str()),
    ];
    out.push(Text::ControlSays.fill(language, &places));
    let distance = |one: &(&Finding, &Judged)| one.1.change.ratio.ln().abs();
    let judged = control.findings.iter().filter_map(|one| Some((one, one.judged()?)));
    if let Some((finding, judged)) = judged.max_by(|one, two| distance(one).total_cmp(&distance(two))) {
        let places = [
            ("load", finding.load.as_str()),
            ("figure", &finding.figure.word(language)),
            ("change", &language.change(judged.change.ratio)),
        ];
        out.push(Text::ControlWorst.fill(language, &places));
    }
    out
}

fn sentences(
    results: &Results,
    load: &str,
    pair: &(String, String),
    of_pair: &[&Finding],
    language: Language,
) -> Vec<String> {
    if of_pair.iter().any(|one| one.state == State::Overloaded) {
        let of = |name: &String| overloaded(results, load, name, language);
        return [of(&pair.0), of(&pair.1)].into_iter().flatten().collect();
    }
    let judged: Vec<(Figure, &Judged)> =
        of_pair.iter().filter_map(|one| Some((one.figure, one.judged()?))).collect();
    let mut out: Vec<String> = judged
        .iter()
        .filter(|(_, judged)| judged.is_named)
        .map(|(figure, judged)| changed(load, *figure, judged, language))
        .collect();
    let rest = || judged.iter().filter(|(_, judged)| !judged.is_named);
    let list = |is_noisy: bool| -> Option<(String, String)> {
        let part: Vec<_> =
            rest().filter(|(_, judged)| (judged.change.unseen() > UNSEEN_MAX) == is_noisy).collect();
        let least = part.iter().map(|(_, judged)| *judged).min_by_key(|judged| judged.change.rounds)?;
        let say = if is_noisy { noisy } else { unseen };
        let said: Vec<String> = part.iter().map(|(figure, judged)| say(*figure, judged, language)).collect();
        Some((said.join(", "), rounds(least, language)))
    };
    for (text, is_noisy) in [(Text::Unseen, false), (Text::Noisy, true)] {
        if let Some((list, rounds)) = list(is_noisy) {
            out.push(text.fill(language, &[("list", &list), ("rounds", &rounds)]));
        }
    }
    let once: Vec<String> = of_pair
        .iter()
        .filter_map(|one| match one.state {
            State::Once(before, after) => {
                let (before, after) = one.figure.two_texts(before, after, language);
                let figure = one.figure.word(language);
                let places = [("figure", figure.as_str()), ("before", &before), ("after", &after)];
                Some(Text::OnceOne.fill(language, &places))
            }
            State::Missing | State::Overloaded | State::Judged(_) => None,
        })
        .collect();
    if !once.is_empty() {
        out.push(Text::Once.fill(language, &[("list", &once.join(", "))]));
    }
    for (text, of) in [
        (Text::LeftOut, (|judged| &judged.left_out) as fn(&Judged) -> &Vec<(u32, Disturbance)>),
        (Text::Disturbed, |judged| &judged.disturbed),
    ] {
        let said = disturbances(&judged, of, language);
        if !said.is_empty() {
            out.push(text.fill(language, &[("list", &said.join(", "))]));
        }
    }
    out
}

/// A change that is named.
fn changed(load: &str, figure: Figure, judged: &Judged, language: Language) -> String {
    let change = &judged.change;
    let (before, after) = figure.two_texts(change.before, change.after, language);
    let (low, high) = language.interval(change.interval);
    let text = if change.ratio > 1.0 { Text::Rose } else { Text::Fell };
    let places = [
        ("load", load),
        ("figure", &figure.word(language)),
        ("before", &before),
        ("after", &after),
        ("change", &language.change(change.ratio)),
        ("low", &low),
        ("high", &high),
        ("rounds", &rounds(judged, language)),
    ];
    text.fill(language, &places)
}

fn rounds(judged: &Judged, language: Language) -> String {
    let text = if judged.is_indicative() { Text::RoundsIndicative } else { Text::Rounds };
    text.fill(language, &[("count", &judged.change.rounds.to_string())])
}

fn unseen(figure: Figure, judged: &Judged, language: Language) -> String {
    let places = [("figure", figure.word(language)), ("bound", language.percent(judged.change.unseen()))];
    Text::UnseenOne.fill(language, &places.each_ref().map(|(name, value)| (*name, value.as_str())))
}

fn noisy(figure: Figure, judged: &Judged, language: Language) -> String {
    let (before, after) = figure.two_texts(judged.change.before, judged.change.after, language);
    let (low, high) = language.interval(judged.change.interval);
    let places = [
        ("figure", figure.word(language)),
        ("before", before),
        ("after", after),
        ("low", low),
        ("high", high),
    ];
    Text::NoisyOne.fill(language, &places.each_ref().map(|(name, value)| (*name, value.as_str())))
}

/// The disturbed rounds of a pair, each with its reason and, if the driver was late, the figures it matters for.
fn disturbances(
    judged: &[(Figure, &Judged)],
    of: fn(&Judged) -> &Vec<(u32, Disturbance)>,
    language: Language,
) -> Vec<String> {
    let all = || {
        judged
            .iter()
            .flat_map(|(figure, one)| of(one).iter().map(move |(round, why)| (*figure, *round, *why)))
    };
    let numbers: BTreeSet<u32> = all().map(|(_, round, _)| round).collect();
    let mut out = Vec::new();
    for number in numbers {
        let round = number.to_string();
        let (mut figures, mut lag, mut cores) = (Vec::new(), 0, None);
        for (figure, _, why) in all().filter(|(_, round, _)| *round == number) {
            match why {
                Disturbance::Steal(taken) => cores = Some(taken),
                Disturbance::Late(late) => {
                    figures.push(figure.word(language));
                    lag = lag.max(late);
                }
            }
        }
        if let Some(cores) = cores {
            let cores = language.number(cores, 2);
            out.push(Text::RoundSteal.fill(language, &[("round", &round), ("cores", &cores)]));
        } else {
            let text = if lag > 0 { Text::RoundLate } else { Text::RoundLateUnknown };
            let (figures, lag) = (figures.join(", "), language.amount(Unit::Nanos, float(lag)));
            out.push(text.fill(language, &[("round", &round), ("figures", &figures), ("lag", &lag)]));
        }
    }
    out
}

/// That a configuration did not keep its rate; `None` if it did.
fn overloaded(results: &Results, load: &str, name: &str, language: Language) -> Option<String> {
    if Figure::P50.cell(results, name, load) != Cell::Overloaded {
        return None;
    }
    let runs = results.runs(name, load);
    let lost: Vec<&&Run> = runs.iter().filter(|run| !run.is_latency_result()).collect();
    let worst = lost.iter().min_by(|one, two| one.kept_per_second.total_cmp(&two.kept_per_second))?;
    let places = [
        ("configuration", name.to_owned()),
        ("kept", language.number(worst.kept_per_second, 0)),
        ("wanted", language.number(worst.wanted_per_second, 0)),
        ("rounds", lost.len().to_string()),
        ("all", runs.len().to_string()),
    ];
    Some(Text::OverloadedWas.fill(language, &places.each_ref().map(|(key, value)| (*key, value.as_str()))))
}

/// The largest changes between two CPU profiles beyond their own error; `None` without profiles that can be compared.
fn frames(
    results: &Results,
    profiles: &Profiles,
    load: &str,
    pair: &(String, String),
    language: Language,
) -> Option<String> {
    let of = |name: &String| profiles.get(&(name.clone(), load.to_owned(), Event::Cpu));
    let (before, after) = (of(&pair.0)?, of(&pair.1)?);
    if !results.have_one_program(&pair.0, &pair.1) {
        return Some(Text::FramesOtherProgram.of(language).into());
    }
    if before.total().min(after.total()) < SAMPLES_MIN {
        return None;
    }
    let all = shifts(before, after);
    let points = |share: f64| language.number(share * 100.0, 1);
    let said: Vec<String> = all
        .iter()
        .filter(|shift| shift.change.is_beyond())
        .take(FRAMES_MAX)
        .map(|Shift { frame, change }| {
            let is_more = change.difference() > 0.0;
            let sign = if is_more { "+" } else { "" };
            let places = [
                ("frame", (*frame).to_owned()),
                ("before", points(change.shares.0)),
                ("after", points(change.shares.1)),
                ("points", format!("{sign}{}", points(change.difference()))),
                ("error", points(change.half_width)),
            ];
            let text = if is_more { Text::FrameRose } else { Text::FrameFell };
            text.fill(language, &places.each_ref().map(|(key, value)| (*key, value.as_str())))
        })
        .collect();
    let (old, new) = (language.number(float(before.total()), 0), language.number(float(after.total()), 0));
    if said.is_empty() {
        let error = points(all.iter().map(|shift| shift.change.half_width).fold(0.0, f64::max));
        let places = [("before", old.as_str()), ("after", &new), ("error", &error)];
        return Some(Text::FramesNone.fill(language, &places));
    }
    let places = [("before", old.as_str()), ("after", &new), ("list", &said.join("; "))];
    Some(Text::Frames.fill(language, &places))
}

/// Frames by how much their share of the profile has changed, most first, each with its error.
///
/// The outermost frame is the thread and left out, and so are frames that are small in both. Of frames that always come
/// together, as a function and the only one that calls it, the first stands for all.
pub fn shifts<'a>(before: &'a Stacks, after: &'a Stacks) -> Vec<Shift<'a>> {
    let (old, new) = (before.inclusive(), after.inclusive());
    let count = |value: Option<&u64>| value.copied().unwrap_or(0);
    let threads: BTreeSet<&str> = before.threads().chain(after.threads()).collect();
    let names: BTreeSet<&str> = old.keys().chain(new.keys()).copied().collect();
    let is_large = |value: u64, total: u64| float(value) >= SHARE_MIN * float(total.max(1));
    let mut counts: Vec<(&'a str, u64, u64)> = names
        .difference(&threads)
        .map(|&frame| (frame, count(old.get(frame)), count(new.get(frame))))
        .filter(|&(_, one, two)| is_large(one, before.total()) || is_large(two, after.total()))
        .collect();
    let mut seen = BTreeSet::new();
    // Equal counts in both profiles, each of at least a per cent of all samples: the same stacks.
    counts.retain(|&(_, one, two)| seen.insert((one, two)));
    let family = counts.len();
    let mut all: Vec<Shift<'a>> = counts
        .into_iter()
        .map(|(frame, one, two)| Shift {
            frame,
            change: ShareChange::of((one, before.total()), (two, after.total()), family),
        })
        .collect();
    let size = |shift: &Shift<'_>| shift.change.difference().abs();
    all.sort_by(|a, b| size(b).total_cmp(&size(a)).then_with(|| a.frame.cmp(b.frame)));
    all
}

#[cfg(test)]
#[path = "conclusions_tests.rs"]
mod tests;
