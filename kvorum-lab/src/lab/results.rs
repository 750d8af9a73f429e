//! What a lab has measured, as kept in `results.json`: all that the report and a comparison need, but for profiles,
//! whose stacks lie beside it in `profiles/`.
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

/// The format's number: a field that changes its meaning changes it.
pub const FORMAT: u32 = 1;

/// The file's name in a result folder.
pub const FILE_NAME: &str = "results.json";

/// Everything.
#[derive(Debug, Clone, Serialize, Deserialize)]
pub struct Results {
    /// [`FORMAT`].
    pub format: u32,
    /// The lab file's text.
    pub lab: String,
    /// The report's title.
    pub title: String,
    /// What the caller calls this run, such as a commit.
    pub label: Option<String>,
    /// Whether every window was shortened: then nothing here is a result.
    pub is_quick: bool,
    /// What the binary says of its version.
    pub kvorum: String,
    /// Where it ran.
    pub machine: Machine,
    /// What was loaded, in the file's order.
    pub configurations: Vec<ConfigurationRecord>,
    /// With what, in the file's order.
    pub loads: Vec<LoadRecord>,
    /// Configurations that are compared, by name.
    pub pairs: Vec<(String, String)>,
    /// What has been done so far.
    pub steps: Vec<Step>,
}

/// Where a lab ran.
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
    /// What was run for each node; ports are those of its last start.
    pub commands: Vec<String>,
}

/// A load of the report.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct LoadRecord {
    /// Its name.
    pub name: String,
    /// Its words.
    pub bench: String,
}

/// One thing that is done on a fresh cluster.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum Task {
    /// Every load for its window; the number of the repeat, from 1.
    Measure(u32),
    /// Every load again, under profiles.
    Profile,
    /// Every load at ever other rates.
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

/// What came of a [`Task`].
#[derive(Debug, Clone, Serialize, Deserialize)]
pub struct Step {
    /// The configuration's name.
    pub configuration: String,
    /// What was done.
    pub task: Task,
    /// Seconds since 1970 at its begin.
    pub began: u64,
    /// How long it took, with the start of the cluster.
    pub seconds: f64,
    /// Why it could not be done; tried again by the next run.
    pub error: Option<String>,
    /// What a reader should know.
    pub notes: Vec<String>,
    /// What was measured, one for each stream of each load.
    pub runs: Vec<Run>,
    /// What was profiled.
    pub profiles: Vec<ProfileRecord>,
    /// The rates that were sought.
    pub maxima: Vec<Maximum>,
}

/// One stream of one load in one window.
#[derive(Debug, Clone, Serialize, Deserialize)]
pub struct Run {
    /// The load's name; where a load has several streams, with the stream's behind it.
    pub load: String,
    /// Operations per second that were asked for.
    pub wanted_per_second: f64,
    /// Operations per second that succeeded.
    pub kept_per_second: f64,
    /// Operations that succeeded.
    pub succeeded: u64,
    /// Operations that did not, for whatever reason, also those never sent.
    pub failed: u64,
    /// Operations due and never sent.
    pub unsent: u64,
    /// Bodies that were not what they should be.
    pub wrong_bodies: u64,
    /// Answers with other statuses, by status.
    pub statuses: BTreeMap<u16, u64>,
    /// Failures below HTTP, by kind.
    pub failures: BTreeMap<String, u64>,
    /// Whether the rate was not kept: then the latencies are those of an overloaded system.
    pub is_saturated: bool,
    /// Whether much of the slowest latencies is the driver's own.
    pub is_driver_late: bool,
    /// From when operations were due.
    pub latency: LatencyFigures,
    /// What was seen second by second.
    pub seconds: Vec<SecondFigures>,
    /// CPU time of all nodes by operations of all streams; `None` where the nodes are not the lab's.
    pub cpu_micros_per_operation: Option<f64>,
    /// Resident bytes of all nodes at the end of the window.
    pub resident_bytes: Option<u64>,
    /// Cores of the hypervisor's steal in the window.
    pub steal_cores: f64,
    /// The report in wrk2's style.
    pub text: String,
    /// What would make the same run.
    pub command: String,
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
    /// The whole distribution: shares from 0 to 1, and what they do not exceed.
    pub spectrum: Vec<(f64, u64)>,
}

/// One profile, over all nodes.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct ProfileRecord {
    /// The load under which it was taken.
    pub load: String,
    /// What was profiled.
    pub event: Event,
    /// Its length.
    pub seconds: u64,
    /// Operations that succeeded in that time, at the load's rate.
    pub operations: f64,
    /// The sum of its values.
    pub total: u64,
    /// CPU time of all nodes by operations in that time; `None` where the nodes are not the lab's. Naming the stacks comes
    /// after it.
    #[serde(default)]
    pub cpu_micros_per_operation: Option<f64>,
    /// The same just before, without a profile.
    #[serde(default)]
    pub unprofiled_cpu_micros_per_operation: Option<f64>,
    /// The stacks, relative to the result folder; the nodes' own lie beside them.
    pub file: String,
}

/// The highest rate of one load.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct Maximum {
    /// The load.
    pub load: String,
    /// The bound on p99.
    pub p99_max: u64,
    /// Operations per second of a closed loop, where the search began.
    pub closed_per_second: f64,
    /// The highest rate that was kept within the bound; `None` where none was.
    pub highest: Option<u64>,
    /// What was tried: rate, p99, whether it was accepted.
    pub trials: Vec<(u64, u64, bool)>,
}

impl LatencyFigures {
    /// The figures of `latencies`.
    pub fn of(latencies: &Latencies) -> Self {
        let at = |percentile: &f64| (percentile.to_string(), latencies.percentile(*percentile));
        Self {
            count: latencies.count(),
            mean: latencies.mean(),
            max: latencies.max(),
            nanos: PERCENTILES.iter().map(at).collect(),
            spectrum: latencies.spectrum().iter().map(|point| (point.quantile, point.nanos)).collect(),
        }
    }

    /// The latency at one of wrk2's percentiles; `None` without any operation.
    pub fn percentile(&self, percentile: f64) -> Option<u64> {
        self.nanos.get(&percentile.to_string()).copied().filter(|_| self.count > 0)
    }
}

impl Run {
    /// What a run's stream says by itself; the caller adds what the cluster says.
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
            latency: LatencyFigures::of(&tally.latency),
            seconds,
            cpu_micros_per_operation: None,
            resident_bytes: None,
            steal_cores,
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
    /// [`LabError::Machine`] where there are none, [`LabError::Usage`] where they are of another format.
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

    /// Writes them into `folder`, whole or not at all.
    ///
    /// # Errors
    /// [`LabError::Machine`].
    pub fn write(&self, folder: &Path) -> Result<(), LabError> {
        let path = folder.join(FILE_NAME);
        let new = folder.join("results.json.new");
        let text = serde_json::to_string(self).map_err(|error| LabError::Subject(error.to_string()))?;
        std::fs::write(&new, text + "\n").map_err(LabError::machine(format!("write {}", new.display())))?;
        std::fs::rename(&new, &path).map_err(LabError::machine(format!("write {}", path.display())))
    }

    /// Whether `task` has been done on `configuration`.
    pub fn has(&self, configuration: &str, task: &Task) -> bool {
        let mut steps = self.steps_of(configuration);
        steps.any(|step| step.task == *task && step.error.is_none())
    }

    /// What has been done on `configuration`, in time's order.
    pub fn steps_of(&self, configuration: &str) -> impl Iterator<Item = &Step> {
        self.steps.iter().filter(move |step| step.configuration == configuration)
    }

    /// The measured runs of one load on one configuration, without those under profiles.
    pub fn runs(&self, configuration: &str, load: &str) -> Vec<&Run> {
        let steps = self.steps_of(configuration).filter(|step| matches!(step.task, Task::Measure(_)));
        steps.flat_map(|step| &step.runs).filter(|run| run.load == load).collect()
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
    /// This machine.
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
