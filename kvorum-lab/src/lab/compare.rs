//! Two result folders beside each other: tables, and conditions that a build must not meet.

use std::fmt;
use std::fmt::Write;
use std::str::FromStr;

use super::figures::{Cell, Figure};
use super::findings::Findings;
use super::language::Language;
use super::report::change_cell;
use super::results::{ConfigurationRecord, Results};
use super::texts::Text;
use super::{Profiles, warnings};
use crate::error::LabError;
use crate::suite::table::Table;

/// A condition on the change of a figure from A to B, as in `p99 > 1.2x` or `GET p99.9 >= 1.5x`.
#[derive(Debug, Clone, PartialEq)]
pub struct Condition {
    /// The load that it applies to; `None` for all loads.
    load: Option<String>,
    figure: Figure,
    is_above: bool,
    /// Whether a ratio equal to the limit meets it.
    is_with: bool,
    ratio: f64,
}

impl FromStr for Condition {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        let bad =
            |why: String| format!("{text:?}: {why}; wanted [LOAD] FIGURE > RATIOx, as in \"p99 > 1.2x\"");
        let at = text.find(['<', '>']).ok_or_else(|| bad("neither < nor >".into()))?;
        let (left, right) = text.split_at(at);
        let is_above = right.starts_with('>');
        let right = right.get(1..).unwrap_or_default();
        let (is_with, right) = right.strip_prefix('=').map_or((false, right), |rest| (true, rest));
        let number = right.trim();
        let ratio = number
            .strip_suffix('x')
            .and_then(|number| number.trim().parse::<f64>().ok())
            .filter(|ratio| ratio.is_finite() && *ratio > 0.0)
            .ok_or_else(|| bad(format!("{number:?} is no ratio, as 1.2x")))?;
        let left = left.trim();
        let (load, figure) = left
            .rsplit_once(char::is_whitespace)
            .map_or((None, left), |(load, figure)| (Some(load.trim().to_owned()), figure));
        Ok(Self { load, figure: figure.parse().map_err(bad)?, is_above, is_with, ratio })
    }
}

impl fmt::Display for Condition {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let load = self.load.as_ref().map_or_else(String::new, |load| format!("{load} "));
        let sign = if self.is_above { '>' } else { '<' };
        write!(f, "{load}{} {sign}{} {}x", self.figure, if self.is_with { "=" } else { "" }, self.ratio)
    }
}

impl Condition {
    fn is_met_by(&self, ratio: f64) -> bool {
        let is_equal = (ratio - self.ratio).abs() < f64::EPSILON;
        if is_equal { self.is_with } else { self.is_above == (ratio > self.ratio) }
    }

    /// A sentence for each configuration and load that meets it.
    ///
    /// A rate that A kept and B did not meets every condition on latencies.
    ///
    /// # Errors
    /// [`LabError::Usage`] if no figure could be checked: a condition that can never be met would guard
    /// nothing.
    fn met(&self, both: &Comparison) -> Result<Vec<String>, LabError> {
        let (mut met, mut looked_at) = (Vec::new(), 0);
        for name in &both.names {
            let loads = both.loads.iter().filter(|load| self.load.as_ref().is_none_or(|one| one == *load));
            for load in loads {
                let place = format!("{name}, {load}");
                match (self.figure.cell(&both.a, name, load), self.figure.cell(&both.b, name, load)) {
                    (Cell::Value(_), Cell::Overloaded) => {
                        looked_at += 1;
                        met.push(format!("{self}: {place}: B did not keep the rate"));
                    }
                    (Cell::Value(before), Cell::Value(after)) => {
                        if before.mean <= 0.0 {
                            continue;
                        }
                        let ratio = after.mean / before.mean;
                        looked_at += 1;
                        if self.is_met_by(ratio) {
                            met.push(format!("{self}: {place}: x{ratio:.3}"));
                        }
                    }
                    _ => {}
                }
            }
        }
        if looked_at == 0 {
            return Err(LabError::Usage(format!("{self}: neither A nor B has what this is about")));
        }
        Ok(met)
    }
}

/// The results of two folders, and their common configurations and loads.
#[derive(Debug)]
pub struct Comparison {
    a: Results,
    b: Results,
    /// Configurations that both have.
    names: Vec<String>,
    /// Loads that both have.
    loads: Vec<String>,
}

impl Comparison {
    /// Compares B with A.
    ///
    /// # Errors
    /// [`LabError::Usage`] if they have no configuration and load in common, or loads of one name differ.
    pub fn new(a: Results, b: Results) -> Result<Self, LabError> {
        for (load, other) in a.loads.iter().flat_map(|load| b.loads.iter().map(move |other| (load, other))) {
            if load.name == other.name && load.bench != other.bench {
                return Err(LabError::Usage(format!(
                    "load {:?} is not the same: A has \"{}\", B has \"{}\"",
                    load.name, load.bench, other.bench
                )));
            }
        }
        let common = |one: Vec<String>, two: Vec<String>| -> Vec<String> {
            one.into_iter().filter(|name| two.contains(name)).collect()
        };
        let names = |results: &Results| results.shown().map(|one| one.name.clone()).collect();
        let (names, loads) = (common(names(&a), names(&b)), common(a.load_names(), b.load_names()));
        if names.is_empty() || loads.is_empty() {
            return Err(LabError::Usage("A and B have no configuration and load in common".into()));
        }
        Ok(Self { a, b, names, loads })
    }

    /// Warnings that a reader needs before the tables.
    fn cautions(&self, language: Language) -> Vec<String> {
        let mut out = Vec::new();
        let (a, b) = (&self.a, &self.b);
        if a.machine != b.machine {
            out.push(format!("Different machines: A {}, B {}", described(a), described(b)));
        }
        if a.is_quick || b.is_quick {
            out.push("A quick run is among them: no results".into());
        }
        for (letter, own, other) in [("A", a, b), ("B", b, a)] {
            let missing =
                own.shown().filter(|one| !other.configurations.iter().any(|two| two.name == one.name));
            out.extend(missing.map(|one| format!("Only {letter} has {:?}", one.name)));
            let of_own = warnings::warnings(own, language).into_iter();
            out.extend(of_own.map(|warning| format!("{letter}: {}", warning.said())));
        }
        out
    }

    /// The tables, for a terminal; `merged` is [`Self::merged`], judged.
    pub fn text(&self, merged: &Results, findings: &Findings, language: Language) -> String {
        let mut out = String::new();
        for caution in self.cautions(language) {
            // Writing into a `String` cannot fail.
            let _ = writeln!(out, "!! {caution}");
        }
        for (name, pair) in self.names.iter().zip(&merged.pairs) {
            for load in &self.loads {
                let mut table = Table::new(format!("{name}, {load}"), &["", "A", "B", "B/A"]);
                for figure in Figure::ALL {
                    let (a, b) = (figure.cell(&self.a, name, load), figure.cell(&self.b, name, load));
                    if a == Cell::Missing && b == Cell::Missing {
                        continue;
                    }
                    let change = change_cell(merged, findings, load, pair, figure, language);
                    let [a, b] = [&a, &b].map(|cell| figure.cell_text(cell, language));
                    table.row([figure.title().of(language).into(), a, b, change]);
                }
                out.push_str(&table.text());
                out.push('\n');
            }
        }
        out.push_str(Text::Legend.of(language));
        out.push('\n');
        out
    }

    /// A sentence for each of `conditions` that is met.
    ///
    /// # Errors
    /// The error of a condition that applies to no figure here.
    pub fn met(&self, conditions: &[Condition]) -> Result<Vec<String>, LabError> {
        let mut met = Vec::new();
        for condition in conditions {
            met.extend(condition.met(self)?);
        }
        Ok(met)
    }

    /// Both folders as the results of one lab, in which each configuration of B is compared with A's, and
    /// their profiles.
    pub fn merged(&self, of_a: Profiles, of_b: Profiles) -> (Results, Profiles) {
        let called = |letter: &str, results: &Results| match &results.label {
            Some(label) => format!("{letter}: {label}"),
            None => letter.to_owned(),
        };
        let (a, b) = (called("A", &self.a), called("B", &self.b));
        let renamed = |name: &str, of: &str| format!("{name} [{of}]");
        let mut all = self.a.clone();
        all.title = format!("{}: {a} and {b}", self.a.title);
        all.label = None;
        all.is_quick = self.a.is_quick || self.b.is_quick;
        if self.a.machine != self.b.machine {
            all.machine.cpu = format!("A {}; B {}", described(&self.a), described(&self.b));
        }
        all.kvorum = format!("A {}; B {}", self.a.kvorum, self.b.kvorum);
        (all.configurations, all.steps, all.pairs) = (Vec::new(), Vec::new(), Vec::new());
        (all.equals, all.is_of_separate_runs) = (Vec::new(), true);
        for name in &self.names {
            for (of, results) in [(&a, &self.a), (&b, &self.b)] {
                let is_of_it =
                    |one: &&ConfigurationRecord| one.name == *name || one.control_of.as_ref() == Some(name);
                let records: Vec<_> = results.configurations.iter().filter(is_of_it).cloned().collect();
                for record in &records {
                    all.steps.extend(results.steps_of(&record.name).cloned().map(|mut step| {
                        step.configuration = renamed(&record.name, of);
                        step
                    }));
                }
                all.configurations.extend(records.into_iter().map(|mut one| {
                    one.name = renamed(&one.name, of);
                    one.control_of = one.control_of.map(|control| renamed(&control, of));
                    one.version.clone_from(&results.kvorum);
                    one
                }));
            }
            all.pairs.push((renamed(name, &a), renamed(name, &b)));
        }
        let moved = |profiles: Profiles, of: String| {
            profiles
                .into_iter()
                .map(move |((name, load, event), stacks)| ((renamed(&name, &of), load, event), stacks))
        };
        let profiles = moved(of_a, a).chain(moved(of_b, b)).collect();
        (all, profiles)
    }
}

fn described(results: &Results) -> String {
    let machine = &results.machine;
    format!("{} x {}, kernel {}", machine.cores, machine.cpu, machine.kernel)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::lab::fixture::{results, run};

    fn comparison(a: f64, b: f64) -> Comparison {
        let of = |millis| results(&[("one", &[run("PUT", millis), run("PUT", millis)])]);
        Comparison::new(of(a), of(b)).unwrap()
    }

    fn met(text: &str, both: &Comparison) -> usize {
        both.met(&[text.parse().unwrap()]).unwrap().len()
    }

    /// Goal: conditions are evaluated correctly. Method: a table over a figure that has doubled.
    #[test]
    fn conditions_are_judged() {
        let both = comparison(1.0, 2.0);
        let check = |text: &str, expect: usize| assert_eq!(met(text, &both), expect, "{text}");
        check("p99 > 1.2x", 1);
        check("p99>1.2x", 1);
        check("PUT p99 > 1.2x", 1);
        check("p99 > 2x", 0);
        check("p99 >= 2x", 1);
        check("p99 > 2.1x", 0);
        check("p99 < 2.1x", 1);
        check("rate < 0.9x", 0);
        check("cpu >= 1x", 1);
    }

    /// Goal: conditions that cannot be parsed or met are refused, with the reason. Method: a table.
    #[test]
    fn bad_conditions_are_refused() {
        let check = |text: &str, expect: &str| {
            let error = text.parse::<Condition>().unwrap_err();
            assert!(error.contains(expect), "{text}: {error}");
        };
        check("p99 1.2x", "neither < nor >");
        check("p99 > 1.2", "is no ratio");
        check("p99 > -1x", "is no ratio");
        check("p98 > 1.2x", "known are rate, mean");
        check("> 1.2x", "is no figure");
        let both = comparison(1.0, 2.0);
        let about_nothing = both.met(&["GET p99 > 1.2x".parse().unwrap()]);
        assert!(matches!(about_nothing, Err(LabError::Usage(_))), "{about_nothing:?}");
        let not_measured = both.met(&["alloc > 1.2x".parse().unwrap()]);
        assert!(matches!(not_measured, Err(LabError::Usage(_))), "{not_measured:?}");
    }

    /// Goal: a rate that is no longer kept meets conditions on latencies. Method: B overloaded.
    #[test]
    fn a_lost_rate_is_met() {
        let mut slow = run("PUT", 1.0);
        slow.is_saturated = true;
        let a = results(&[("one", &[run("PUT", 1.0)])]);
        let both = Comparison::new(a, results(&[("one", &[slow])])).unwrap();
        assert_eq!(met("p99 > 9x", &both), 1);
        let (all, _) = both.merged(Profiles::new(), Profiles::new());
        let text = both.text(&all, &Findings::of(&all), Language::En);
        assert!(text.contains("overloaded"), "{text}");
    }

    /// Goal: loads that differ are not compared. Method: one different word.
    #[test]
    fn loads_must_be_the_same() {
        let (a, mut b) = (results(&[("one", &[run("PUT", 1.0)])]), results(&[("one", &[run("PUT", 1.0)])]));
        b.loads[0].bench = "put -R2000".into();
        assert!(Comparison::new(a.clone(), b).unwrap_err().to_string().contains("-R2000"));
        let other = results(&[("two", &[run("PUT", 1.0)])]);
        assert!(Comparison::new(a, other).is_err());
    }

    /// Goal: as one lab, B's configurations stand beside A's and are compared with them. Method: names and a change.
    #[test]
    fn both_become_one_lab() {
        let (all, _) = comparison(1.0, 2.0).merged(Profiles::new(), Profiles::new());
        assert_eq!(all.pairs, [("one [A]".to_owned(), "one [B]".to_owned())]);
        let findings = Findings::of(&all);
        let change = findings.one("PUT", &all.pairs[0], Figure::P99).unwrap().judged().unwrap();
        assert!((change.change.ratio - 2.0).abs() < 0.01 && change.is_named, "{change:?}");
    }
}
