//! Carries out a lab file, step by step, and keeps the result of each step.
//!
//! A step is one task on one fresh cluster: a repeat of all loads, the profiles, or the search for the
//! highest rates. Repeats go round all configurations, so that a machine that gets slower by the hour is slow
//! for all. Profiles are taken in a step of their own, so that they affect no figure. The result of a step is
//! on disk before the next step begins, and a later run continues after it.

use std::collections::BTreeSet;
use std::io::IsTerminal;
use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};

use super::file::{Configuration, LabFile, Load};
use super::nodes::{Cluster, ProcessGuard, shell};
use super::profile::{Event, Stacks};
use super::profilers::{Asked, Profiler};
use super::progress::Progress;
use super::results::{
    ConfigurationRecord, FORMAT, LoadRecord, Machine, Maximum, ProfileRecord, Results, Run, Step, Task,
    WarmUp, now,
};
use super::warm_up::warm;
use super::watching::watched;
use super::{nodes, results};
use crate::cli::{self, BenchArgs, is_good};
use crate::dataset::{Dataset, Sizes};
use crate::error::LabError;
use crate::find_max::highest;
use crate::hdr_log::percentiles;
use crate::load::{LEAD, Outcome, Pacing, Plan, RunOptions, prefill_with, run_with};
use crate::monitor::{Monitor, SecondFigures};
use crate::report::{Distributions, Report};
use crate::units::{float, nanos};

/// The longest that filling a store may take a round.
const PREFILL_MAX: Duration = Duration::from_mins(10);

/// How long a cluster may continue to work after it was filled.
const SETTLE_MAX: Duration = Duration::from_secs(10);

/// The pause between profiles of one load: the time that a node needs to end one and begin another.
const PROFILE_GAP: Duration = Duration::from_millis(500);

/// How many samples a CPU profile should have over all nodes, so that a frame's share is meaningful. Then how
/// many samples nodes take in a second of CPU time: 99 by the kernel's tick, which sees 0.4 to 0.9 of work
/// that runs for less than a tick. Then how many windows to wait for them if the load is light.
const SAMPLES_AIM: f64 = 250.0;
const SAMPLES_PER_CPU_SECOND: f64 = 60.0;
const WINDOWS_MAX: u32 = 6;

/// How often per second a profiled load goes through all phases of the kernel's tick; and the rate below
/// which adding this many operations would make it a different load.
const BEATS_PER_SECOND: u64 = 3;
const RATE_IN_STEP_MIN: u64 = 150;

/// How long each rate of a search runs before it is measured.
const TRIAL_WARM_UP: Duration = Duration::from_millis(300);

/// The first rate of the search, as a share of a closed loop's rate: a fixed rate without queues is less.
const FIRST_SHARE: f64 = 0.7;

/// The options of a run.
#[derive(Debug, Clone)]
pub struct Options {
    /// The binary of the nodes.
    pub binary: PathBuf,
    /// The folder of the results.
    pub folder: PathBuf,
    /// The directory for the nodes' temporary data.
    pub scratch: PathBuf,
    /// The caller's name for this run.
    pub label: Option<String>,
    /// Whether all windows are shortened.
    pub is_quick: bool,
    /// No further step begins after this long.
    pub stop_after: Option<Duration>,
    /// The library of async-profiler or its jar; `None` for the local Maven folder's.
    pub async_profiler: Option<PathBuf>,
}

/// A run under way.
struct Lab<'a> {
    file: &'a LabFile,
    options: &'a Options,
    guard: ProcessGuard,
    progress: Progress,
}

/// The records that the store has been filled with: a load that needs the same finds them there.
type Filled = Vec<(Dataset, Option<Sizes>, Option<Sizes>)>;

/// Runs the remaining steps of `file` and returns all measurements so far; the flag says whether no step is
/// left.
///
/// A step that fails is kept with its error, and the next begins.
///
/// # Errors
/// [`LabError::Usage`] if the folder holds results of another lab, [`LabError::Machine`] if it cannot be
/// written.
pub fn run(file: &LabFile, text: &str, options: &Options) -> Result<(Results, bool), LabError> {
    let guard = ProcessGuard::start()?;
    for configuration in &file.configurations {
        nodes::check(&options.binary, configuration)?;
    }
    let mut results = begin(file, text, options)?;
    note_versions(file, &mut results);
    let tasks = tasks(file);
    complain_of_profilers(file, options)?;
    let left: Vec<_> = tasks.iter().filter(|(name, task)| !results.has(&name.name, task)).collect();
    let planned = left.iter().map(|(_, task)| planned(file, task));
    let progress = Progress::new(planned.collect(), tasks.len() - left.len());
    let mut lab = Lab { file, options, guard, progress };
    let begun = Instant::now();
    for (configuration, task) in &left {
        if options.stop_after.is_some_and(|bound| begun.elapsed() >= bound) {
            return Ok((results, false));
        }
        let step = lab.step(configuration, task, &mut results)?;
        results.steps.retain(|old| (&old.configuration, &old.task) != (&step.configuration, &step.task));
        results.steps.push(step);
        results.write(&options.folder)?;
    }
    Ok((results, true))
}

/// Keeps the versions of programs that are not kvorum. A version that cannot be had is a complaint: the figures are
/// measured all the same.
fn note_versions(file: &LabFile, results: &mut Results) {
    for (configuration, record) in file.configurations.iter().zip(&mut results.configurations) {
        let Some(command) = &configuration.version else { continue };
        match nodes::foreign_version(command) {
            Ok(version) => record.version = version,
            Err(error) => kvorum_output::tell_line!("!! {}: {error}", configuration.name),
        }
    }
}

/// Says before anything is measured which profiles there will not be.
fn complain_of_profilers(file: &LabFile, options: &Options) -> Result<(), LabError> {
    if file.profile.is_empty() {
        return Ok(());
    }
    for configuration in file.configurations.iter().filter(|one| one.control_of.is_none()) {
        if let Some(why) = missing(&configuration.profiler(), options)? {
            kvorum_output::tell_line!("!! {}: there will be no profiles: {why}", configuration.name);
        }
    }
    Ok(())
}

/// What a profiler lacks on this machine; `None` if nothing.
fn missing(profiler: &Profiler, options: &Options) -> Result<Option<String>, LabError> {
    match profiler.check(options.async_profiler.as_deref()) {
        Err(LabError::Usage(why)) => Ok(Some(why)),
        checked => checked.map(|()| None),
    }
}

/// Every step of a whole run, in order: the first figures of all, the profiles, the rest.
fn tasks(file: &LabFile) -> Vec<(&Configuration, Task)> {
    let mut rounds: Vec<Task> = (1..=file.repeats).map(Task::Measure).collect();
    if !file.profile.is_empty() {
        rounds.insert(1, Task::Profile);
    }
    if file.maximum.is_some() {
        rounds.push(Task::Maximum);
    }
    rounds
        .into_iter()
        .flat_map(|task| {
            let is_for_all = matches!(task, Task::Measure(_));
            let of_it = file.configurations.iter().filter(move |one| is_for_all || one.control_of.is_none());
            of_it.map(move |one| (one, task.clone()))
        })
        .collect()
}

/// The length of a task's windows, for a first estimate.
fn planned(file: &LabFile, task: &Task) -> Duration {
    let loads = u32::try_from(file.loads.len()).unwrap_or(1);
    let events = u32::try_from(file.profile.len()).unwrap_or(0);
    let second = Duration::from_secs(1);
    let warm_up = file.warm_up_max.map_or(file.warm_up, |max| max.min(file.warm_up * 4));
    let each = match task {
        Task::Measure(_) => warm_up + file.window + second,
        Task::Profile => warm_up + (file.profile_window + PROFILE_GAP) * (1 + events),
        // Ten rates are usually enough.
        Task::Maximum => (file.maximum_window + TRIAL_WARM_UP + second / 2) * 10,
    };
    each * loads
}

/// The results in the folder, if they are of this lab; otherwise empty results.
fn begin(file: &LabFile, text: &str, options: &Options) -> Result<Results, LabError> {
    let folder = &options.folder;
    let make = |path: &Path| {
        std::fs::create_dir_all(path).map_err(LabError::machine(format!("make {}", path.display())))
    };
    make(folder)?;
    make(&folder.join("histograms"))?;
    make(&folder.join("profiles"))?;
    let version = nodes::version(&options.binary)?;
    if folder.join(results::FILE_NAME).exists() {
        let mut known = Results::read(folder)?;
        let other = |what: &str| {
            Err(LabError::Usage(format!(
                "{}: holds results of {what}; choose another folder, or remove them",
                folder.display()
            )))
        };
        if known.lab != text || known.is_quick != options.is_quick {
            return other("another lab file, or the same with or without --quick");
        }
        if known.kvorum != version || known.machine != Machine::here() {
            return other("another version or machine");
        }
        if options.label.is_some() {
            known.label.clone_from(&options.label);
        }
        return Ok(known);
    }
    let write = |name: &str, text: &str| {
        let path = folder.join(name);
        std::fs::write(&path, text).map_err(LabError::machine(format!("write {}", path.display())))
    };
    write("lab.toml", text)?;
    Ok(Results {
        format: FORMAT,
        lab: text.into(),
        title: file.title.clone(),
        label: options.label.clone(),
        is_quick: options.is_quick,
        kvorum: version,
        machine: Machine::here(),
        configurations: file
            .configurations
            .iter()
            .map(|one| ConfigurationRecord {
                name: one.name.clone(),
                nodes: one.size(),
                commands: Vec::new(),
                replicas: one.replicas.clone(),
                version: String::new(),
                program: one.program(),
                control_of: one.control_of.clone(),
            })
            .collect(),
        loads: file
            .loads
            .iter()
            .map(|one| LoadRecord { name: one.name.clone(), bench: one.bench.clone() })
            .collect(),
        pairs: file.pairs(),
        equals: file.equals.clone(),
        steps: Vec::new(),
        is_of_separate_runs: false,
    })
}

impl Lab<'_> {
    /// Does one step. A failure of the step is kept in the step; the outer error is the lab's own.
    fn step(
        &mut self,
        configuration: &Configuration,
        task: &Task,
        results: &mut Results,
    ) -> Result<Step, LabError> {
        let begun = Instant::now();
        let mut step = Step {
            configuration: configuration.name.clone(),
            task: task.clone(),
            began: now(),
            seconds: 0.0,
            error: None,
            notes: Vec::new(),
            runs: Vec::new(),
            profiles: Vec::new(),
            maxima: Vec::new(),
        };
        self.progress.begin(&format!("{}, {task}", configuration.name));
        match self.perform(configuration, task, &mut step, results) {
            Ok(()) => {}
            Err(LabError::Usage(why)) => return Err(LabError::Usage(why)),
            Err(error) => {
                self.progress.complain(&error.to_string());
                step.error = Some(error.to_string());
            }
        }
        step.seconds = begun.elapsed().as_secs_f64();
        self.progress.end(begun.elapsed());
        Ok(step)
    }

    fn perform(
        &mut self,
        configuration: &Configuration,
        task: &Task,
        step: &mut Step,
        results: &mut Results,
    ) -> Result<(), LabError> {
        self.progress.say("starting nodes");
        let cluster =
            Cluster::start(&self.guard, &self.options.binary, &self.options.scratch, configuration)?;
        for record in results.configurations.iter_mut().filter(|record| record.name == configuration.name) {
            record.commands = cluster.commands().to_vec();
        }
        if *task == Task::Profile
            && let Some(why) = self.no_profiles(configuration, &cluster)?
        {
            self.progress.complain(&format!("no profiles: {why}"));
            step.notes.push(format!("no profiles: {why}"));
            return Ok(());
        }
        let mut filled = Filled::new();
        for load in &self.file.loads {
            let mut args = load.args(configuration, &cluster.urls()).map_err(LabError::Usage)?;
            let warm_up = self.fit(&mut args);
            let (plan, mut options) = (cli::plan(&args)?, cli::options(&args)?);
            options.template = configuration.template().map_err(LabError::Usage)?;
            self.fill(&args, &plan, &options, &cluster, &mut filled)?;
            match task {
                Task::Measure(repeat) => {
                    let warm_up = self.warm(configuration, load, (&plan, &options), &cluster, warm_up)?;
                    let runs = self.measure(load, &plan, &options, &cluster)?;
                    for (mut run, histogram) in runs {
                        run.warm_up = Some(warm_up.clone());
                        let name = format!("{}-{}-{repeat}.hgrm", slug(&configuration.name), slug(&run.load));
                        write(&self.options.folder.join("histograms").join(name), &histogram)?;
                        step.runs.push(run);
                    }
                }
                Task::Profile => {
                    self.warm(configuration, load, (&plan, &options), &cluster, warm_up)?;
                    self.profile(configuration, load, (&plan, &options), &cluster, step)?;
                }
                Task::Maximum => {
                    if let Some(bound) = self.file.maximum.filter(|_| Load::has_maximum(&args)) {
                        step.maxima.push(self.maximum(load, &plan, &options, bound)?);
                    }
                }
            }
        }
        Ok(())
    }

    /// Why no profiles of the running cluster can be taken; `None` if they can.
    fn no_profiles(
        &self,
        configuration: &Configuration,
        cluster: &Cluster,
    ) -> Result<Option<String>, LabError> {
        let profiler = configuration.profiler();
        if let Some(why) = missing(&profiler, self.options)? {
            return Ok(Some(why));
        }
        Ok((!profiler.is_offered(cluster)?).then(|| format!("the nodes offer none (profiler: {profiler})")))
    }

    /// Fills in the lab's default lengths where the load's arguments have none, and returns the length of the
    /// warm-up.
    fn fit(&self, args: &mut BenchArgs) -> Duration {
        let is_staged = matches!(args.rate, Some(cli::Rate::Stages(_)));
        if !is_staged && (args.duration.is_none() || self.options.is_quick) {
            args.duration = Some(self.file.window);
        }
        let said = args.warmup.take().filter(|_| !self.options.is_quick);
        said.unwrap_or(self.file.warm_up)
    }

    /// Warms the cluster up, in parts of `length` where the lab file bounds the whole.
    fn warm(
        &self,
        configuration: &Configuration,
        load: &Load,
        (plan, options): (&Plan, &RunOptions),
        cluster: &Cluster,
        length: Duration,
    ) -> Result<WarmUp, LabError> {
        self.progress.say(&format!("{}: warming up", load.name));
        let warmed = warm(plan, options, cluster, (length, self.file.warm_up_max))?;
        if warmed.is_settled == Some(false) {
            let seconds = warmed.seconds;
            let (name, load) = (&configuration.name, &load.name);
            self.progress
                .complain(&format!("{name}, {load}: CPU per operation still fell after {seconds:.0} s"));
        }
        Ok(warmed)
    }

    /// Fills the store if the load asks for it and no load before has done it.
    fn fill(
        &self,
        args: &BenchArgs,
        plan: &Plan,
        options: &RunOptions,
        cluster: &Cluster,
        filled: &mut Filled,
    ) -> Result<(), LabError> {
        let Some(keys) = cli::prefill_of(args)? else { return Ok(()) };
        let Some(stream) = plan.streams.first() else { return Ok(()) };
        let dataset = Dataset { keys: keys.unwrap_or(stream.dataset.keys), ..stream.dataset };
        let wanted = (dataset, options.key_bytes, options.value_bytes);
        if filled.contains(&wanted) {
            return Ok(());
        }
        self.progress.say("filling the store");
        prefill_with(plan, options, keys, PREFILL_MAX)?;
        cluster.settle(SETTLE_MAX)?;
        filled.push(wanted);
        Ok(())
    }

    /// Runs the load for its window. Returns each stream's figures, and writes its histogram as `.hgrm`.
    fn measure(
        &self,
        load: &Load,
        plan: &Plan,
        options: &RunOptions,
        cluster: &Cluster,
    ) -> Result<Vec<(Run, String)>, LabError> {
        self.progress.say(&format!("{}: measuring", load.name));
        let before = cluster.cpu_time();
        let (watched, samples, pauses) = watched(cluster, || self.watched(plan, options, &load.name));
        let (outcome, seconds) = watched?;
        let usage = cluster.usage();
        let after = usage.map(|usage| usage.cpu_time);
        let pauses = (cluster.gc_logs().count() > 0).then_some(pauses);
        let operations: u64 = outcome.streams.iter().map(|stream| stream.tally.succeeded).sum();
        let used = after.zip(before).map(|(after, before)| after.saturating_sub(before));
        let cpu = used.filter(|_| operations > 0).map(|used| used.as_secs_f64() * 1e6 / float(operations));
        let report = Report {
            plan,
            options,
            outcome: &outcome,
            fdatasync: None,
            distributions: Distributions { corrected: true, uncorrected: false },
        };
        let text = report.to_string();
        let command = command(load, plan);
        let streams = outcome.streams.iter().zip(seconds).map(|(stream, seconds)| {
            let name = if outcome.streams.len() == 1 {
                load.name.clone()
            } else {
                format!("{} ({})", load.name, stream.plan.name)
            };
            let mut run = Run::of(name, stream, seconds, outcome.steal_cores);
            run.cpu_micros_per_operation = cpu;
            run.resident_bytes = usage.map(|usage| usage.resident_bytes);
            run.samples.clone_from(&samples);
            run.pauses.clone_from(&pauses);
            run.text.clone_from(&text);
            run.command.clone_from(&command);
            (run, percentiles(&stream.tally.latency))
        });
        let complaints = report.complaints();
        if !complaints.is_empty() {
            self.progress.complain(&format!("{}:\n{}", load.name, complaints.trim_end()));
        }
        Ok(streams.collect())
    }

    /// Runs the load without a profile, to know the cost of profiles, and then while profiles are taken, one
    /// after the other, each on all nodes at once.
    fn profile(
        &self,
        configuration: &Configuration,
        load: &Load,
        (plan, options): (&Plan, &RunOptions),
        cluster: &Cluster,
        step: &mut Step,
    ) -> Result<(), LabError> {
        let (window, profiler) = (self.file.profile_window, &configuration.profiler());
        let wanted = self.file.profile.iter().copied();
        let events: &BTreeSet<Event> = &wanted.filter(|&event| profiler.has(event)).collect();
        let scratch =
            tempfile::tempdir_in(&self.options.scratch).map_err(LabError::machine("create a directory"))?;
        let scratch = scratch.path();
        let mut plan = Plan { duration: window, ..plan.clone() };
        for stream in &mut plan.streams {
            stream.pacing = Pacing::Open { rate_per_second: out_of_step(mean_rate(&stream.pacing)) };
        }
        let unprofiled = self.measure(load, &plan, options, cluster)?;
        let rate_of = |runs: &[(Run, String)]| runs.iter().map(|(run, _)| run.kept_per_second).sum::<f64>();
        let unprofiled_cpu = unprofiled.first().and_then(|(run, _)| run.cpu_micros_per_operation);
        let cores = unprofiled_cpu.map(|micros| micros * rate_of(&unprofiled) / 1e6);
        let windows_max = if self.options.is_quick { 1 } else { WINDOWS_MAX };
        let window_of = |event| match cores {
            Some(cores) if event == Event::Cpu => cpu_window(window, windows_max, cores),
            _ => window,
        };
        // Longer than the profiles: they do not wait for the end of the load.
        plan.duration = events.iter().map(|&event| window_of(event) + PROFILE_GAP).sum();
        let folder = &self.options.folder;
        let (taken, runs) = std::thread::scope(|scope| {
            let taking = scope.spawn(|| -> Result<_, LabError> {
                std::thread::sleep(LEAD);
                let mut taken = Vec::new();
                for &event in events {
                    self.progress.say(&format!("{}: {event} profiles", load.name));
                    let window = window_of(event);
                    let library = self.options.async_profiler.as_deref();
                    let asked = Asked { cluster, event, window, scratch, library };
                    let asking = scope.spawn(move || profiler.take(&asked));
                    // Naming the stacks happens after the window.
                    let cores = cores_over(cluster, window);
                    let (nodes, note) = asking.join().unwrap_or_else(|_| Err(panicked()))?;
                    taken.push((event, nodes, cores, note));
                }
                Ok(taken)
            });
            let runs = self.measure(load, &plan, options, cluster);
            let taken = taking.join().unwrap_or_else(|_| Err(panicked()));
            (taken, runs)
        });
        let runs = runs?;
        let rate = rate_of(&runs);
        for (event, nodes, cores, note) in taken? {
            step.notes.extend(note);
            let prefix = format!("{}-{}-{event}", slug(&configuration.name), slug(&load.name));
            let mut all = Stacks::default();
            for (node, stacks) in (1..).zip(&nodes) {
                all.merge(stacks);
                if nodes.len() > 1 {
                    let path = folder.join("profiles").join(format!("{prefix}-node{node}.collapsed"));
                    write(&path, &stacks.text())?;
                }
            }
            let file = format!("profiles/{prefix}.collapsed");
            write(&folder.join(&file), &all.text())?;
            let window = window_of(event);
            step.profiles.push(ProfileRecord {
                load: load.name.clone(),
                event,
                seconds: window.as_secs(),
                operations: rate * window.as_secs_f64(),
                total: all.total(),
                cpu_micros_per_operation: cores.filter(|_| rate > 0.0).map(|cores| cores * 1e6 / rate),
                unprofiled_cpu_micros_per_operation: unprofiled_cpu,
                file,
            });
        }
        step.runs.extend(runs.into_iter().map(|(run, _)| run));
        Ok(())
    }

    /// Searches for the highest rate whose p99 is within `bound` and at which nothing fails.
    fn maximum(
        &self,
        load: &Load,
        plan: &Plan,
        options: &RunOptions,
        bound: Duration,
    ) -> Result<Maximum, LabError> {
        self.progress.say(&format!("{}: closed loop", load.name));
        let duration = self.file.maximum_window;
        let options = RunOptions { warm_up: TRIAL_WARM_UP, ..options.clone() };
        let paced = |pacing: Pacing| {
            let mut plan = Plan { duration, ..plan.clone() };
            for stream in &mut plan.streams {
                stream.pacing = pacing.clone();
            }
            plan
        };
        let (closed, _) = self.watched(&paced(Pacing::Closed), &options, &load.name)?;
        let closed_per_second = closed.streams.first().map_or(0.0, crate::load::StreamOutcome::rate);
        let mut trials = Vec::new();
        let highest = highest(whole(closed_per_second * FIRST_SHARE), |rate_per_second| {
            self.progress.say(&format!("{}: trying {rate_per_second}/s", load.name));
            let (outcome, _) =
                self.watched(&paced(Pacing::Open { rate_per_second }), &options, &load.name)?;
            let stream = outcome.streams.first().ok_or_else(|| LabError::Usage("no stream".into()))?;
            let p99 = stream.tally.latency.percentile(99.0);
            let is_accepted = is_good(&outcome) && p99 <= nanos(bound);
            trials.push((rate_per_second, p99, is_accepted));
            Ok::<_, LabError>(is_accepted)
        })?;
        Ok(Maximum { load: load.name.clone(), p99_max: nanos(bound), closed_per_second, highest, trials })
    }

    /// One run, second by second.
    fn watched(
        &self,
        plan: &Plan,
        options: &RunOptions,
        name: &str,
    ) -> Result<(Outcome, Vec<Vec<SecondFigures>>), LabError> {
        let label = std::io::stderr().is_terminal().then(|| format!("{} {name}: ", self.progress.place()));
        let (monitor, ticks) = Monitor::start(plan, label)?;
        // The options with the sender end here, and so the monitor ends.
        let outcome = run_with(plan, &RunOptions { ticks: Some(ticks), ..options.clone() });
        let watched = monitor.finish()?;
        Ok((outcome?, watched.streams))
    }
}

/// The command that would make the same run by hand.
fn command(load: &Load, plan: &Plan) -> String {
    let mut words: Vec<String> = load.bench.split_whitespace().map(ToOwned::to_owned).collect();
    if !load.bench.contains("--replicas")
        && let Some(replicas) = plan.streams.first().and_then(|stream| stream.replicas)
    {
        words.extend(["--replicas".into(), replicas.to_string()]);
    }
    words.push("--latency".into());
    words.extend(plan.targets.iter().map(|target| format!("http://{target}")));
    format!("kvorum bench -d{}s {}", plan.duration.as_secs_f64(), shell(&words))
}

/// A rate for profiles: a little higher, so that it drifts against the kernel's tick.
///
/// CPU time is sampled when the tick (250 a second, commonly) finds a thread running. Operations at a
/// multiple of that rate have the same phase in every tick: the samples would see the nodes running always
/// or, mostly, never.
const fn out_of_step(rate: u64) -> u64 {
    if rate < RATE_IN_STEP_MIN { rate } else { rate + BEATS_PER_SECOND }
}

fn panicked() -> LabError {
    LabError::Subject("a profiling thread panicked".into())
}

/// How many cores the nodes use during the next `window`; `None` if they are not the lab's.
fn cores_over(cluster: &Cluster, window: Duration) -> Option<f64> {
    let (begun, before) = (Instant::now(), cluster.cpu_time());
    std::thread::sleep(window);
    let used = cluster.cpu_time().zip(before).map(|(after, before)| after.saturating_sub(before));
    used.map(|used| used.as_secs_f64() / begun.elapsed().as_secs_f64())
}

/// How long a CPU profile needs to get its samples from nodes that use `cores`, in whole seconds: at least
/// `window`, at most `windows_max` of them.
fn cpu_window(window: Duration, windows_max: u32, cores: f64) -> Duration {
    let seconds = (SAMPLES_AIM / (SAMPLES_PER_CPU_SECOND * cores)).ceil();
    let enough = Duration::try_from_secs_f64(seconds).unwrap_or(Duration::MAX);
    enough.clamp(window, window * windows_max)
}

fn mean_rate(pacing: &Pacing) -> u64 {
    whole(pacing.rate_per_second().unwrap_or(1.0))
}

/// A rate as a whole number that can be requested.
#[expect(
    clippy::cast_possible_truncation,
    clippy::cast_sign_loss,
    reason = "a rate, below 2^53 and at least 1"
)]
fn whole(rate: f64) -> u64 {
    rate.max(1.0).round() as u64
}

fn write(path: &Path, text: &str) -> Result<(), LabError> {
    std::fs::write(path, text).map_err(LabError::machine(format!("write {}", path.display())))
}

/// A name as part of a file name: letters, digits and single dashes.
pub fn slug(name: &str) -> String {
    let mut slug = String::new();
    for c in name.chars() {
        if c.is_ascii_alphanumeric() {
            slug.push(c.to_ascii_lowercase());
        } else if !slug.ends_with('-') && !slug.is_empty() {
            slug.push('-');
        }
    }
    slug.trim_end_matches('-').to_owned()
}

#[cfg(test)]
#[path = "run_tests.rs"]
mod tests;
