//! The measurements of a lab, as kept in `results.json`: everything that the report and a comparison need,
//! except for profiles. Their stacks are beside it in `profiles/`.
//!
//! The format has a number ([`FORMAT`]); a reader refuses others. Latencies are in nanoseconds.

use std::collections::BTreeMap;
use std::fmt;
use std::path::Path;
use std::time::Duration;

use serde::{Deserialize, Serialize};

use super::profile::Event;
use crate::error::LabError;
use crate::histogram::{Latencies, PERCENTILES};
use crate::load::StreamOutcome;
use crate::monitor::SecondFigures;

/// The format's number: it changes when a field changes its meaning.
pub const FORMAT: u32 = 1;

/// The file's name in a result folder.
pub const FILE_NAME: &str = "results.json";

/// The content of `results.json`.
#[derive(Debug, Clone, Serialize, Deserialize)]
pub struct Results {
    /// [`FORMAT`].
    pub format: u32,
    /// The lab file's text.
    pub lab: String,
    /// The report's title.
    pub title: String,
    /// The caller's name for this run, such as a commit.
    pub label: Option<String>,
    /// Whether every window was shortened: then none of the figures is a result.
    pub is_quick: bool,
    /// The version that the binary reports.
    pub kvorum: String,
    /// The machine on which it ran.
    pub machine: Machine,
    /// The measured clusters, in the file's order.
    pub configurations: Vec<ConfigurationRecord>,
    /// The loads, in the file's order.
    pub loads: Vec<LoadRecord>,
    /// Configurations that are compared, by name.
    pub pairs: Vec<(String, String)>,
    /// What is the same by the lab file: settings that it has twice, and what it declares.
    #[serde(default)]
    pub equals: Vec<Equal>,
    /// The finished steps.
    pub steps: Vec<Step>,
    /// Whether the configurations belong to separate runs: then their repeats were not made in common rounds.
    #[serde(skip)]
    pub is_of_separate_runs: bool,
}

/// Two configurations between which nothing differs.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Equal {
    /// Their names.
    pub configurations: [String; 2],
    /// The load under which they are the same; `None` for every load.
    pub load: Option<String>,
}

/// The machine on which a lab ran.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct Machine {
    /// The processor's name.
    pub cpu: String,
    /// Cores that the lab may use.
    pub cores: usize,
    /// Bytes of memory.
    pub memory_bytes: u64,
    /// The kernel's release.
    pub kernel: String,
}

/// A configuration of the report.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct ConfigurationRecord {
    /// Its name.
    pub name: String,
    /// How many nodes it has.
    pub nodes: usize,
    /// The command of each node, to be pasted: with fixed ports and directories, not those of the run.
    pub commands: Vec<String>,
    /// The quorum of every load.
    #[serde(default)]
    pub replicas: Option<String>,
    /// The version and commit of its program; empty for that of the whole run.
    #[serde(default)]
    pub version: String,
    /// The name of its program; `None` for kvorum's own. Flame graphs of two programs have few frames in common.
    #[serde(default)]
    pub program: Option<String>,
    /// The configuration that it is a second measurement of: the control, which tells the noise between equals.
    #[serde(default)]
    pub control_of: Option<String>,
}

/// A load of the report.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct LoadRecord {
    /// Its name.
    pub name: String,
    /// Its arguments.
    pub bench: String,
}

/// One unit of work on a fresh cluster.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum Task {
    /// Every load for its window; the number of the repeat, from 1.
    Measure(u32),
    /// Every load again, under profiles.
    Profile,
    /// The search for the highest rate of every load.
    Maximum,
}

impl fmt::Display for Task {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Measure(repeat) => write!(f, "repeat {repeat}"),
            Self::Profile => f.write_str("profiles"),
            Self::Maximum => f.write_str("highest rate"),
        }
    }
}

/// The result of a [`Task`].
#[derive(Debug, Clone, Serialize, Deserialize)]
pub struct Step {
    /// The configuration's name.
    pub configuration: String,
    /// The task.
    pub task: Task,
    /// Seconds since 1970 at its begin.
    pub began: u64,
    /// How long it took, including the start of the cluster.
    pub seconds: f64,
    /// Why it failed; the next run tries it again.
    pub error: Option<String>,
    /// Notes for the reader.
    pub notes: Vec<String>,
    /// The measurements, one for each stream of each load.
    pub runs: Vec<Run>,
    /// The profiles.
    pub profiles: Vec<ProfileRecord>,
    /// The highest rates.
    pub maxima: Vec<Maximum>,
}

/// One stream of one load in one window.
#[derive(Debug, Clone, Serialize, Deserialize)]
pub struct Run {
    /// The load's name; if a load has several streams, followed by the stream's name.
    pub load: String,
    /// Operations per second that were requested.
    pub wanted_per_second: f64,
    /// Operations per second that succeeded.
    pub kept_per_second: f64,
    /// Operations that succeeded.
    pub succeeded: u64,
    /// Operations that did not succeed, for any reason, including those never sent.
    pub failed: u64,
    /// Operations due and never sent.
    pub unsent: u64,
    /// Bodies that were not the expected ones.
    pub wrong_bodies: u64,
    /// Answers with other statuses, by status.
    pub statuses: BTreeMap<u16, u64>,
    /// Failures below HTTP, by kind.
    pub failures: BTreeMap<String, u64>,
    /// Whether the rate was not kept: then the latencies are those of an overloaded system.
    pub is_saturated: bool,
    /// Whether the driver itself caused much of the slowest latencies.
    pub is_driver_late: bool,
    /// How late the driver woke for due operations: nanoseconds at the percentiles of wrk2's table, by number. Empty in
    /// results of older versions.
    #[serde(default)]
    pub driver_lag: BTreeMap<String, u64>,
    /// Latencies, from the moment at which operations were due.
    pub latency: LatencyFigures,
    /// The figures of each second.
    pub seconds: Vec<SecondFigures>,
    /// CPU time of all nodes divided by the operations of all streams; `None` if the nodes are not the lab's.
    pub cpu_micros_per_operation: Option<f64>,
    /// Resident bytes of all nodes at the end of the window.
    pub resident_bytes: Option<u64>,
    /// The hypervisor's steal in the window, in cores.
    pub steal_cores: f64,
    /// What the nodes' processes used, second by second; empty if they are not the lab's.
    #[serde(default)]
    pub samples: Vec<Sample>,
    /// The pauses of JVMs for their collectors, if the lab file names their log.
    #[serde(default)]
    pub pauses: Option<Vec<Pause>>,
    /// The warm-up before the window.
    #[serde(default)]
    pub warm_up: Option<WarmUp>,
    /// The report in wrk2's style.
    pub text: String,
    /// The command that would make the same run.
    pub command: String,
}

/// What the processes of all nodes, and those that they started, used in a second.
#[derive(Debug, Clone, Copy, PartialEq, Serialize, Deserialize)]
pub struct Sample {
    /// Its end, in seconds since the begin of the load.
    pub second: f64,
    /// CPU time by time.
    pub cores: f64,
    /// Resident bytes at its end.
    pub resident_bytes: u64,
    /// Threads at its end.
    pub threads: u64,
}

/// A time in which a JVM did nothing but collect garbage.
#[derive(Debug, Clone, Copy, PartialEq, Serialize, Deserialize)]
pub struct Pause {
    /// Its begin, in seconds since the begin of the load.
    pub second: f64,
    /// Its length.
    pub seconds: f64,
}

/// The warm-up before a window.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct WarmUp {
    /// How long it was.
    pub seconds: f64,
    /// Whether the CPU time of an operation fell no more; `None` if that was not looked at.
    pub is_settled: Option<bool>,
    /// The CPU time of an operation in each part of it.
    pub cpu_micros_per_operation: Vec<f64>,
}

/// A distribution of latencies.
#[derive(Debug, Clone, Serialize, Deserialize)]
pub struct LatencyFigures {
    /// How many there are.
    pub count: u64,
    /// Their mean.
    pub mean: f64,
    /// The longest.
    pub max: u64,
    /// The percentiles of wrk2's table, by number.
    pub nanos: BTreeMap<String, u64>,
    /// The whole distribution: shares from 0 to 1, and the latency that each share does not exceed.
    pub spectrum: Vec<(f64, u64)>,
}

/// One profile, over all nodes.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct ProfileRecord {
    /// The load under which it was taken.
    pub load: String,
    /// The profiled event.
    pub event: Event,
    /// Its length.
    pub seconds: u64,
    /// Operations that succeeded in that time, at the load's rate.
    pub operations: f64,
    /// The sum of its values.
    pub total: u64,
    /// CPU time of all nodes divided by the operations in that time; `None` if the nodes are not the lab's.
    /// Naming the stacks is not included: it happens afterwards.
    #[serde(default)]
    pub cpu_micros_per_operation: Option<f64>,
    /// The same figure just before, without a profile.
    #[serde(default)]
    pub unprofiled_cpu_micros_per_operation: Option<f64>,
    /// The file of the stacks, relative to the result folder; each node's own stacks are beside it.
    pub file: String,
}

/// The highest rate of one load.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct Maximum {
    /// The load.
    pub load: String,
    /// The bound on p99.
    pub p99_max: u64,
    /// The rate of a closed loop, in operations per second, from which the search began.
    pub closed_per_second: f64,
    /// The highest rate that was kept within the bound; `None` if none was.
    pub highest: Option<u64>,
    /// The rates tried: rate, p99, whether it was accepted.
    pub trials: Vec<(u64, u64, bool)>,
}

impl LatencyFigures {
    /// The figures of `latencies`.
    pub fn of(latencies: &Latencies) -> Self {
        Self {
            count: latencies.count(),
            mean: latencies.mean(),
            max: latencies.max(),
            nanos: Self::at_percentiles(latencies),
            spectrum: latencies.spectrum().iter().map(|point| (point.quantile, point.nanos)).collect(),
        }
    }

    fn at_percentiles(latencies: &Latencies) -> BTreeMap<String, u64> {
        let at = |percentile: &f64| (percentile.to_string(), latencies.percentile(*percentile));
        PERCENTILES.iter().map(at).collect()
    }

    /// The latency at one of wrk2's percentiles; `None` without any operation.
    pub fn percentile(&self, percentile: f64) -> Option<u64> {
        self.nanos.get(&percentile.to_string()).copied().filter(|_| self.count > 0)
    }
}

impl Run {
    /// The figures that a stream has by itself; the caller adds those of the cluster.
    pub fn of(load: String, stream: &StreamOutcome, seconds: Vec<SecondFigures>, steal_cores: f64) -> Self {
        let tally = &stream.tally;
        Self {
            load,
            wanted_per_second: stream.plan.pacing.rate_per_second().unwrap_or(0.0),
            kept_per_second: stream.rate(),
            succeeded: tally.succeeded,
            failed: stream.failed(),
            unsent: tally.unsent,
            wrong_bodies: tally.wrong_bodies,
            statuses: tally.statuses.clone(),
            failures: tally.failures.iter().map(|(kind, &count)| (kind.to_string(), count)).collect(),
            is_saturated: stream.is_saturated(),
            is_driver_late: stream.is_driver_late(),
            driver_lag: LatencyFigures::at_percentiles(&tally.driver_lag),
            latency: LatencyFigures::of(&tally.latency),
            seconds,
            cpu_micros_per_operation: None,
            resident_bytes: None,
            steal_cores,
            samples: Vec::new(),
            pauses: None,
            warm_up: None,
            text: String::new(),
            command: String::new(),
        }
    }

    /// Whether its latencies are a result: the rate was kept and something succeeded.
    pub fn is_latency_result(&self) -> bool {
        !self.is_saturated && self.succeeded > 0
    }
}

impl Results {
    /// Reads the results in `folder`.
    ///
    /// # Errors
    /// [`LabError::Machine`] if there are none, [`LabError::Usage`] if they have another format.
    pub fn read(folder: &Path) -> Result<Self, LabError> {
        let path = folder.join(FILE_NAME);
        let text =
            std::fs::read_to_string(&path).map_err(LabError::machine(format!("read {}", path.display())))?;
        let bad = |why: &dyn fmt::Display| LabError::Usage(format!("{}: {why}", path.display()));
        let value: serde_json::Value = serde_json::from_str(&text).map_err(|error| bad(&error))?;
        match value.get("format").and_then(serde_json::Value::as_u64) {
            Some(format) if format == u64::from(FORMAT) => {}
            Some(format) => return Err(bad(&format!("format {format}; this kvorum reads {FORMAT}"))),
            None => return Err(bad(&"no results of a lab")),
        }
        serde_json::from_value(value).map_err(|error| bad(&error))
    }

    /// Writes the results into `folder`, all of them or none.
    ///
    /// # Errors
    /// [`LabError::Machine`] if the file cannot be written.
    pub fn write(&self, folder: &Path) -> Result<(), LabError> {
        let path = folder.join(FILE_NAME);
        let new = folder.join("results.json.new");
        let text = serde_json::to_string(self).map_err(|error| LabError::Subject(error.to_string()))?;
        std::fs::write(&new, text + "\n").map_err(LabError::machine(format!("write {}", new.display())))?;
        std::fs::rename(&new, &path).map_err(LabError::machine(format!("write {}", path.display())))
    }

    /// Whether `task` is finished on `configuration`.
    pub fn has(&self, configuration: &str, task: &Task) -> bool {
        let mut steps = self.steps_of(configuration);
        steps.any(|step| step.task == *task && step.error.is_none())
    }

    /// The finished steps on `configuration`, in order of time.
    pub fn steps_of(&self, configuration: &str) -> impl Iterator<Item = &Step> {
        self.steps.iter().filter(move |step| step.configuration == configuration)
    }

    /// The measured runs of one load on one configuration, without those under profiles.
    pub fn runs(&self, configuration: &str, load: &str) -> Vec<&Run> {
        self.rounds(configuration, load).into_values().collect()
    }

    /// The same by round: repeats of one number were made one after the other, configuration by configuration.
    pub fn rounds(&self, configuration: &str, load: &str) -> BTreeMap<u32, &Run> {
        let mut rounds = BTreeMap::new();
        for step in self.steps_of(configuration) {
            if let Task::Measure(round) = step.task {
                rounds.extend(step.runs.iter().filter(|run| run.load == load).map(|run| (round, run)));
            }
        }
        rounds
    }

    /// The configurations of tables and plots: all but the control.
    pub fn shown(&self) -> impl Iterator<Item = &ConfigurationRecord> {
        self.configurations.iter().filter(|one| one.control_of.is_none())
    }

    /// How often every load is measured.
    pub fn repeats(&self) -> u32 {
        let rounds = self.steps.iter().filter_map(|step| match step.task {
            Task::Measure(round) => Some(round),
            Task::Profile | Task::Maximum => None,
        });
        rounds.max().unwrap_or(0)
    }

    /// Whether the flame graphs of two configurations can be compared: those of one program.
    pub fn have_one_program(&self, one: &str, two: &str) -> bool {
        let of = |name: &str| self.configurations.iter().find(|it| it.name == name).map(|it| &it.program);
        of(one) == of(two)
    }

    /// Pairs of configurations between which nothing differs under `load`: a control and its original, and what the lab file
    /// has twice or declares to be the same.
    pub fn equals_under(&self, load: &str) -> Vec<(String, String)> {
        let controls = self.configurations.iter();
        let controls = controls.filter_map(|one| Some((one.control_of.clone()?, one.name.clone())));
        let declared = self.equals.iter().filter(|equal| equal.load.as_deref().is_none_or(|one| one == load));
        let declared = declared.map(|Equal { configurations: [one, two], .. }| (one.clone(), two.clone()));
        controls.chain(declared).collect()
    }

    /// The names of loads that were measured: those of the file, or of their streams.
    pub fn load_names(&self) -> Vec<String> {
        let mut names: Vec<String> = Vec::new();
        for run in self.steps.iter().flat_map(|step| &step.runs) {
            if !names.contains(&run.load) {
                names.push(run.load.clone());
            }
        }
        names
    }

    /// The highest rate of one load on one configuration.
    pub fn maximum(&self, configuration: &str, load: &str) -> Option<&Maximum> {
        self.steps_of(configuration).flat_map(|step| &step.maxima).find(|maximum| maximum.load == load)
    }

    /// One profile.
    pub fn profile(&self, configuration: &str, load: &str, event: Event) -> Option<&ProfileRecord> {
        let mut profiles = self.steps_of(configuration).flat_map(|step| &step.profiles);
        profiles.find(|profile| profile.load == load && profile.event == event)
    }
}

impl Machine {
    /// The machine that runs this program.
    pub fn here() -> Self {
        let read = |path: &str| std::fs::read_to_string(path).unwrap_or_default();
        let field = |text: &str, name: &str| -> Option<String> {
            let line = text.lines().find_map(|line| line.strip_prefix(name))?;
            Some(line.trim_start_matches([' ', '\t', ':']).trim().to_owned())
        };
        let memory = field(&read("/proc/meminfo"), "MemTotal");
        let kibibytes = memory.and_then(|text| text.strip_suffix("kB")?.trim().parse::<u64>().ok());
        Self {
            cpu: field(&read("/proc/cpuinfo"), "model name").unwrap_or_else(|| "unknown".into()),
            cores: std::thread::available_parallelism().map_or(0, std::num::NonZero::get),
            memory_bytes: kibibytes.unwrap_or(0) * 1024,
            kernel: read("/proc/sys/kernel/osrelease").trim().to_owned(),
        }
    }
}

/// Seconds since 1970.
pub fn now() -> u64 {
    std::time::SystemTime::now().duration_since(std::time::UNIX_EPOCH).unwrap_or(Duration::ZERO).as_secs()
}
