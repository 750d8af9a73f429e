//! A lab file: which configurations, which loads, how long, how often.
//!
//! TOML; an unknown key is refused by name. [`LabFile::read`] checks everything that can be checked without
//! starting a node, so that a run of an hour does not fail at its last configuration because of a misspelt
//! word.

use std::collections::{BTreeMap, BTreeSet};
use std::fmt;
use std::path::PathBuf;
use std::sync::Arc;
use std::time::Duration;

use clap::Parser;
use serde::{Deserialize, Deserializer};

use super::profile::Event;
use super::profilers::{Known, Profiler};
use super::results::Equal;
use super::run::slug;
use super::target::{GC_LOG, Ready, Stop, check_command, parsed};
use crate::cli::{self, BenchArgs, Rate};
use crate::error::LabError;
use crate::load::Replicas;
use crate::load::template::{Template, TemplateTexts};
use crate::units::parse_duration;

/// The file of `kvorum lab run ladder`.
pub const LADDER: &str = include_str!("ladder.toml");

/// The file of `kvorum lab run stages`.
pub const STAGES: &str = include_str!("stages.toml");

/// The most nodes of a configuration, and the most repeats: all of it runs on one machine, one after the other.
const NODES_MAX: u16 = 16;
const REPEATS_MAX: u32 = 100;

/// Settings of a node that the lab decides.
const DECIDED: [&str; 5] = ["listen", "cluster", "advertise", "data-dir", "config"];

/// A whole file.
#[derive(Debug, Clone, Deserialize)]
#[serde(deny_unknown_fields, rename_all = "kebab-case")]
pub struct LabFile {
    /// The report's title.
    pub title: String,
    /// How often every load is measured on every configuration, each time on a fresh cluster.
    #[serde(default = "three")]
    pub repeats: u32,
    /// How long a load is measured if its arguments do not say.
    #[serde(default = "window", deserialize_with = "duration")]
    pub window: Duration,
    /// The default warm-up before the measurement, if the load's arguments do not say.
    #[serde(default = "warm_up", deserialize_with = "duration")]
    pub warm_up: Duration,
    /// How long the warm-up goes on, in parts as long as `warm_up`, until the CPU time of an operation has settled; `None`
    /// for one part.
    #[serde(default, deserialize_with = "some_duration")]
    pub warm_up_max: Option<Duration>,
    /// The events that are profiled on every node.
    #[serde(default = "all_events")]
    pub profile: BTreeSet<Event>,
    /// How long each profile lasts, in whole seconds.
    #[serde(default = "profile_window", deserialize_with = "duration")]
    pub profile_window: Duration,
    /// The bound on p99 in the search for the highest rate; `None` for no search.
    #[serde(default, deserialize_with = "some_duration")]
    pub maximum: Option<Duration>,
    /// How long a rate is tried in that search.
    #[serde(default = "maximum_window", deserialize_with = "duration")]
    pub maximum_window: Duration,
    /// Names of configurations to compare, in pairs; `None` compares neighbours.
    pub compare: Option<Vec<[String; 2]>>,
    /// Whether the first configuration is measured a second time, as the control: what differs between equals is noise.
    #[serde(default = "yes")]
    pub control: bool,
    /// Configurations that are the same under a load, although their commands differ.
    #[serde(default)]
    pub equals: Vec<Equal>,
    /// The clusters to measure.
    #[serde(rename = "configuration", default)]
    pub configurations: Vec<Configuration>,
    /// The loads to measure them with.
    #[serde(rename = "load", default)]
    pub loads: Vec<Load>,
}

/// A cluster to be started, or one that runs already.
#[derive(Debug, Clone, Deserialize)]
#[serde(deny_unknown_fields, rename_all = "kebab-case")]
pub struct Configuration {
    /// Its name in the report; unique.
    pub name: String,
    /// How many nodes are started; 1 if neither this nor `urls` is given.
    pub nodes: Option<u16>,
    /// The quorum of every load, as 2/3, if its arguments do not say.
    pub replicas: Option<String>,
    /// Flags of `kvorum serve`, without dashes.
    #[serde(default)]
    pub serve: BTreeMap<String, toml::Value>,
    /// The nodes of a cluster that runs already, in place of `nodes` and `serve`.
    pub urls: Option<Vec<String>>,
    /// Program and arguments of a server that is not kvorum, with placeholders.
    pub command: Option<Vec<String>>,
    /// A command whose first line of output is the version of that program, for the report.
    pub version: Option<Vec<String>>,
    /// Its environment, with placeholders.
    #[serde(default)]
    pub env: BTreeMap<String, String>,
    /// How many processes of `command` serve the nodes: one for each node, or one for all; each if not given.
    pub processes: Option<u16>,
    /// The answer that shows that a node of `command` serves; that of kvorum's contract if not given.
    #[serde(default, deserialize_with = "parsed")]
    pub ready: Option<Ready>,
    /// The signal that asks the processes of `command` to end before they are killed; none if not given.
    #[serde(default, deserialize_with = "parsed")]
    pub stop: Option<Stop>,
    /// The jar of the Java reference, if a command names it.
    #[serde(skip)]
    pub reference: Option<PathBuf>,
    /// Where profiles come from; the nodes' own page for kvorum, none for a `command` if not given.
    pub profiler: Option<Profiler>,
    /// The requests of a service whose paths are not kvorum's.
    pub target: Option<TemplateTexts>,
    /// The configuration that it is a second measurement of.
    #[serde(skip)]
    pub control_of: Option<String>,
}

/// A load, with the arguments of `kvorum bench`.
#[derive(Debug, Clone, Deserialize)]
#[serde(deny_unknown_fields, rename_all = "kebab-case")]
pub struct Load {
    /// Its name in the report; unique.
    pub name: String,
    /// The arguments of `kvorum bench`, without the nodes.
    pub bench: String,
}

const fn yes() -> bool {
    true
}

fn three() -> u32 {
    3
}

fn window() -> Duration {
    Duration::from_secs(10)
}

fn warm_up() -> Duration {
    Duration::from_secs(2)
}

fn profile_window() -> Duration {
    Duration::from_secs(5)
}

fn maximum_window() -> Duration {
    Duration::from_secs(2)
}

fn all_events() -> BTreeSet<Event> {
    Event::ALL.into()
}

fn duration<'de, D: Deserializer<'de>>(deserializer: D) -> Result<Duration, D::Error> {
    let text = String::deserialize(deserializer)?;
    parse_duration(&text).map_err(serde::de::Error::custom)
}

fn some_duration<'de, D: Deserializer<'de>>(deserializer: D) -> Result<Option<Duration>, D::Error> {
    duration(deserializer).map(Some)
}

/// `kvorum bench`, as a parser of its words.
#[derive(Debug, Parser)]
#[command(name = "bench")]
struct Bench {
    #[command(flatten)]
    args: BenchArgs,
}

/// An error in a file, with its place.
fn bad(place: impl fmt::Display, why: impl fmt::Display) -> LabError {
    LabError::Usage(format!("{place}: {why}"))
}

impl LabFile {
    /// Reads and checks `text`; `name` is the file's, for complaints.
    ///
    /// # Errors
    /// [`LabError::Usage`], which names the place and what is allowed there.
    pub fn read(name: &str, text: &str) -> Result<Self, LabError> {
        let mut file: Self = toml::from_str(text).map_err(|error| bad(name, error))?;
        file.find_equals();
        if file.control && file.equals.is_empty() {
            file.add_control();
        }
        file.check(name).map(|()| file)
    }

    /// Declares configurations with the same settings to be the same: each and the nearest one before that it is like.
    fn find_equals(&mut self) {
        let is_like = |one: &Configuration, two: &Configuration| {
            (one.size(), one.processes, &one.replicas, &one.serve, &one.urls)
                == (two.size(), two.processes, &two.replicas, &two.serve, &two.urls)
                // Other requests are another load, whoever answers them.
                && (&one.command, &one.env, &one.target) == (&two.command, &two.env, &two.target)
        };
        for (place, one) in self.configurations.iter().enumerate() {
            let mut before = self.configurations.iter().take(place).rev();
            if let Some(like) = before.find(|before| is_like(before, one)) {
                let configurations = [like.name.clone(), one.name.clone()];
                self.equals.push(Equal { configurations, load: None });
            }
        }
    }

    /// Adds the control, unless nothing is compared.
    fn add_control(&mut self) {
        if self.pairs().is_empty() {
            return;
        }
        if let Some(first) = self.configurations.first() {
            let name = format!("{} (control)", first.name);
            let control = Configuration { name, control_of: Some(first.name.clone()), ..first.clone() };
            self.configurations.push(control);
        }
    }

    fn check(&self, name: &str) -> Result<(), LabError> {
        if self.configurations.is_empty() || self.loads.is_empty() {
            return Err(bad(name, "at least one [[configuration]] and one [[load]] are needed"));
        }
        if !(1..=REPEATS_MAX).contains(&self.repeats) {
            return Err(bad(name, format!("repeats = {}: 1 to {REPEATS_MAX}", self.repeats)));
        }
        if self.profile_window.subsec_nanos() != 0 {
            return Err(bad(name, "profile-window: whole seconds"));
        }
        let configurations: Vec<&str> = self.configurations.iter().map(|one| one.name.as_str()).collect();
        let loads: Vec<&str> = self.loads.iter().map(|one| one.name.as_str()).collect();
        for (kind, names) in [("configuration", &configurations), ("load", &loads)] {
            let mut seen = BTreeSet::new();
            // Names become file names.
            let is_taken = |one: &&&str| slug(one).is_empty() || !seen.insert(slug(one));
            if let Some(twice) = names.iter().find(is_taken) {
                return Err(bad(
                    name,
                    format!("{kind} {twice:?}: a name of its own is needed, in letters and digits"),
                ));
            }
        }
        for unknown in self.compare.iter().flatten().flatten() {
            if !configurations.contains(&unknown.as_str()) {
                return Err(bad(name, format!("compare: there is no configuration {unknown:?}")));
            }
        }
        for equal in &self.equals {
            let unknown = equal.configurations.iter().find(|one| !configurations.contains(&one.as_str()));
            if let Some(unknown) = unknown {
                return Err(bad(name, format!("equals: there is no configuration {unknown:?}")));
            }
            if let Some(load) = equal.load.as_deref().filter(|one| !loads.contains(one)) {
                return Err(bad(name, format!("equals: there is no load {load:?}")));
            }
        }
        for configuration in &self.configurations {
            let place = format!("{name}: configuration {:?}", configuration.name);
            configuration.check().map_err(|why| bad(&place, why))?;
            for load in &self.loads {
                let place = format!("{place}, load {:?}", load.name);
                let args = load.args(configuration, &["127.0.0.1:1".to_owned()]);
                let args = args.map_err(|why| bad(&place, why))?;
                cli::plan(&args).and_then(|_| cli::options(&args)).map_err(|why| bad(&place, why))?;
            }
        }
        Ok(())
    }

    /// The pairs of configurations to be compared.
    pub fn pairs(&self) -> Vec<(String, String)> {
        if let Some(pairs) = &self.compare {
            return pairs.iter().cloned().map(|[before, after]| (before, after)).collect();
        }
        let names = self.configurations.iter().filter(|one| one.control_of.is_none());
        let names = names.map(|one| one.name.clone());
        names.clone().zip(names.skip(1)).collect()
    }

    /// Shortens everything to seconds, to see that it works.
    pub fn make_quick(&mut self) {
        let second = Duration::from_secs(1);
        self.repeats = self.repeats.min(2);
        self.window = self.window.min(2 * second);
        self.warm_up = self.warm_up.min(second / 2);
        self.warm_up_max = self.warm_up_max.map(|max| max.min(4 * second));
        self.profile_window = self.profile_window.min(second);
        self.maximum_window = self.maximum_window.min(second / 2);
    }
}

impl Configuration {
    /// The name of its program, without the path; `None` for kvorum's own.
    pub fn program(&self) -> Option<String> {
        let program = self.command.as_ref()?.first()?;
        Some(program.rsplit_once('/').map_or(program.as_str(), |(_, name)| name).to_owned())
    }

    /// Whether its command writes a log of collections where the lab reads it.
    pub fn has_gc_log(&self) -> bool {
        let placeholder = format!("{{{GC_LOG}}}");
        self.command.iter().flatten().chain(self.env.values()).any(|text| text.contains(&placeholder))
    }

    /// How many nodes it has.
    pub fn size(&self) -> usize {
        self.urls.as_ref().map_or(usize::from(self.nodes.unwrap_or(1)), Vec::len)
    }

    /// The flags of `kvorum serve` that the file asks for.
    ///
    /// # Errors
    /// A value that cannot be a flag's value.
    pub fn flags(&self) -> Result<Vec<String>, String> {
        let mut flags = Vec::new();
        for (name, value) in &self.serve {
            let text = match value {
                toml::Value::String(text) => text.clone(),
                toml::Value::Integer(number) => number.to_string(),
                toml::Value::Float(_)
                | toml::Value::Boolean(_)
                | toml::Value::Datetime(_)
                | toml::Value::Array(_)
                | toml::Value::Table(_) => return Err(format!("serve.{name}: a text or a number is needed")),
            };
            flags.extend([format!("--{name}"), text]);
        }
        Ok(flags)
    }

    fn check(&self) -> Result<(), String> {
        if self.urls.is_some() && (self.nodes.is_some() || !self.serve.is_empty()) {
            return Err("urls are of a cluster that runs already: no nodes and no serve beside them".into());
        }
        if self.urls.as_ref().is_some_and(Vec::is_empty) {
            return Err("urls: at least one is needed".into());
        }
        if !(1..=NODES_MAX).contains(&self.nodes.unwrap_or(1)) {
            return Err(format!("nodes: 1 to {NODES_MAX}"));
        }
        self.check_foreign()?;
        if let Some(name) = self.serve.keys().find(|name| DECIDED.contains(&name.as_str())) {
            return Err(format!("serve.{name}: the lab decides this"));
        }
        if let Some(replicas) = &self.replicas {
            replicas.parse::<Replicas>().map_err(|why| format!("replicas: {why}"))?;
        }
        self.flags().map(drop)
    }

    /// Checks the settings of a server that is not kvorum.
    fn check_foreign(&self) -> Result<(), String> {
        self.template()?;
        let Some(command) = &self.command else {
            let is_set = self.processes.is_some()
                || self.ready.is_some()
                || self.stop.is_some()
                || self.version.is_some()
                || !self.env.is_empty();
            if is_set {
                return Err("env, processes, ready, stop and version are for a command of one's own".into());
            }
            return Ok(());
        };
        if self.urls.is_some() || !self.serve.is_empty() {
            return Err("command: no urls and no serve beside it".into());
        }
        let nodes = self.nodes.unwrap_or(1);
        if self.processes.is_some_and(|processes| processes != 1 && processes != nodes) {
            return Err(format!("processes: 1 for all nodes, or {nodes}, one for each"));
        }
        if self.version.as_ref().is_some_and(Vec::is_empty) {
            return Err("version: a program is needed".into());
        }
        check_command(command, &self.env)
    }

    /// The requests of its service; `None` for kvorum's.
    ///
    /// # Errors
    /// A mistake in the texts.
    pub fn template(&self) -> Result<Option<Arc<Template>>, String> {
        let read = self.target.as_ref().map(Template::read).transpose()?;
        Ok(read.map(Arc::new))
    }

    /// Where its profiles come from.
    pub fn profiler(&self) -> Profiler {
        let default = if self.command.is_some() { Known::None } else { Known::Kvorum };
        self.profiler.clone().unwrap_or(Profiler::Known(default))
    }
}

impl Load {
    /// The load's arguments against `urls`, with the quorum of `configuration`.
    ///
    /// # Errors
    /// Arguments that are not those of bench, or not allowed in a lab.
    pub fn args(&self, configuration: &Configuration, urls: &[String]) -> Result<BenchArgs, String> {
        let words = std::iter::once("bench").chain(self.bench.split_whitespace());
        let mut args = Bench::try_parse_from(words).map_err(|error| error.to_string())?.args;
        let is_taken = args.json.is_some()
            || args.hgrm.is_some()
            || args.hlog.is_some()
            || args.find_max.is_some()
            || args.fdatasync.is_some();
        if is_taken {
            return Err(
                "--json, --hgrm, --hlog, --find-max and --fdatasync are not for loads of a lab".into()
            );
        }
        args.check_lab()?;
        if args.words.len() > 1 || args.words.iter().any(|word| word.contains([':', '/', '.'])) {
            return Err("no URL: the lab knows the nodes".into());
        }
        if args.rate.is_none() && args.put_rate.is_none() {
            return Err("a rate is needed (-R): latencies without one are not comparable".into());
        }
        args.words.extend_from_slice(urls);
        if let (None, Some(replicas)) = (args.replicas, &configuration.replicas) {
            args.replicas = Some(replicas.parse()?);
        }
        Ok(args)
    }

    /// Whether the highest rate of `args` can be searched for: a single load at a constant rate.
    pub fn has_maximum(args: &BenchArgs) -> bool {
        matches!(args.rate, Some(Rate::Constant(_)))
    }
}

#[cfg(test)]
#[path = "file_tests.rs"]
mod tests;
