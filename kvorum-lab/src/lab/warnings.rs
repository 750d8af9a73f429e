//! What a reader must not overlook, each with the place that it is about.

use super::language::{Language, Unit};
use super::results::{Results, Run, Step, Task};
use super::texts::Text;
use crate::units::float;

/// The share of the machine's cores whose loss to the hypervisor is told.
const STEAL_SHARE_TOLD: f64 = 0.02;

/// One warning.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Warning {
    /// The configuration that it is about; `None` if it is about everything.
    pub configuration: Option<String>,
    /// The load that it is about; `None` if it is about all of them.
    pub load: Option<String>,
    /// The step, as in "repeat 1".
    step: String,
    /// The sentence.
    text: String,
    /// Whether it takes the figures of its place away, and not only some doubt.
    pub is_grave: bool,
}

impl Warning {
    /// The sentence with its place.
    pub fn said(&self) -> String {
        let place = [self.configuration.as_deref(), Some(self.step.as_str()), self.load.as_deref()];
        let place: Vec<&str> = place.into_iter().flatten().filter(|part| !part.is_empty()).collect();
        if place.is_empty() { self.text.clone() } else { format!("{}: {}", place.join(", "), self.text) }
    }
}

/// The name of a task.
pub fn task(task: &Task, language: Language) -> String {
    match task {
        Task::Measure(number) => Text::Repeat.fill(language, &[("number", &number.to_string())]),
        Task::Profile => Text::TaskProfiles.of(language).into(),
        Task::Maximum => Text::TaskMaximum.of(language).into(),
    }
}

/// The warnings of `results`, in the order of the steps; none after a run without fault.
pub fn warnings(results: &Results, language: Language) -> Vec<Warning> {
    let mut out = Vec::new();
    if results.is_quick {
        let text = Text::WarnQuick.of(language).into();
        out.push(Warning { configuration: None, load: None, step: String::new(), text, is_grave: true });
    }
    for step in &results.steps {
        let of_step = |text, is_grave| Warning {
            configuration: Some(step.configuration.clone()),
            load: None,
            step: task(&step.task, language),
            text,
            is_grave,
        };
        if let Some(error) = &step.error {
            out.push(of_step(Text::WarnNotMeasured.fill(language, &[("error", error)]), true));
        }
        out.extend(step.notes.iter().map(|note| of_step(note.clone(), false)));
        for run in &step.runs {
            let said = of_run(results, step, run, language);
            out.extend(
                said.into_iter().map(|(text, is_grave)| Warning {
                    load: Some(run.load.clone()),
                    ..of_step(text, is_grave)
                }),
            );
        }
    }
    let missing = results.configurations.iter().filter(|one| results.steps_of(&one.name).next().is_none());
    out.extend(missing.map(|one| Warning {
        configuration: Some(one.name.clone()),
        load: None,
        step: String::new(),
        text: Text::WarnMissing.of(language).into(),
        is_grave: true,
    }));
    out
}

/// What is wrong with one window: sentences, and whether each takes its figures away.
fn of_run(results: &Results, step: &Step, run: &Run, language: Language) -> Vec<(String, bool)> {
    let count = |count: u64| language.number(float(count), 0);
    let (kept, wanted) = (language.number(run.kept_per_second, 0), language.number(run.wanted_per_second, 0));
    let failed = count(run.failed);
    let places = [("kept", kept.as_str()), ("wanted", &wanted), ("failed", &failed)];
    let mut out = Vec::new();
    if run.is_saturated {
        let is_profile = step.task == Task::Profile;
        let text = if is_profile { Text::WarnProfileRate } else { Text::WarnRate };
        out.push((text.fill(language, &places), true));
    } else if run.failed > 0 {
        let kinds: Vec<String> = run
            .statuses
            .iter()
            .map(|(status, count)| format!("{status}: {count}"))
            .chain(run.failures.iter().map(|(kind, count)| format!("{kind}: {count}")))
            .collect();
        let places = [("failed", failed.as_str()), ("kinds", &kinds.join(", "))];
        out.push((Text::WarnFailed.fill(language, &places), true));
    }
    if run.wrong_bodies > 0 {
        out.push((Text::WarnBodies.fill(language, &[("count", &count(run.wrong_bodies))]), true));
    }
    if step.task == Task::Profile {
        return out;
    }
    if run.is_driver_late {
        let lag = run.driver_lag.get("99.9").copied().unwrap_or(0);
        let lag = if lag > 0 { language.amount(Unit::Nanos, float(lag)) } else { "?".into() };
        out.push((Text::WarnLate.fill(language, &[("lag", &lag)]), false));
    }
    if run.steal_cores > STEAL_SHARE_TOLD * float(results.machine.cores.max(1) as u64) {
        let cores = language.number(run.steal_cores, 2);
        out.push((Text::WarnSteal.fill(language, &[("cores", &cores)]), false));
    }
    out
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::lab::fixture::{results, run};

    /// Goal: failures are reported, each at its place. Method: a quick run with an overload, failures, a late driver, steal and a
    /// configuration without a run.
    #[test]
    fn what_failed_is_said() {
        let mut slow = run("PUT", 900.0);
        (slow.is_saturated, slow.kept_per_second) = (true, 412.0);
        let mut broken = run("PUT", 1.0);
        broken.failed = 3;
        broken.statuses.insert(504, 3);
        (broken.is_driver_late, broken.steal_cores) = (true, 0.3);
        broken.driver_lag.insert("99.9".into(), 4_200_000);
        let mut results = results(&[("one", &[slow.clone(), broken]), ("two", &[])]);
        results.is_quick = true;
        let mut profiled = results.steps[0].clone();
        (profiled.task, profiled.runs) = (Task::Profile, vec![slow]);
        results.steps.push(profiled);
        let all = warnings(&results, Language::En);
        let said: Vec<String> = all.iter().map(|one| one.said().replace('\u{a0}', " ")).collect();
        assert_eq!(
            said,
            [
                "This was a quick run: windows of seconds, to see that it works. Its figures are not results.",
                "one, repeat 1, PUT: THE RATE WAS NOT KEPT: 412/s of 1,000/s; its latencies are no result.",
                "one, repeat 2, PUT: operations failed: 3 (504: 3).",
                "one, repeat 2, PUT: the driver itself woke late (p99.9 4.20 ms): much of p99.9 and above is the \
                 machine's, not the nodes'.",
                "one, repeat 2, PUT: the hypervisor took 0.30 cores.",
                "one, profiles, PUT: the rate was not kept (412/s of 1,000/s, 0 failed): these profiles are of something \
                 else.",
                "two: not measured yet.",
            ]
        );
        assert_eq!(all.iter().filter(|one| !one.is_grave).count(), 2);
        let russian = warnings(&results, Language::Ru);
        assert!(russian[1].said().contains("one, повтор 1, PUT: НАГРУЗКА НЕ ВЫДЕРЖАНА"), "{russian:?}");
    }
}
