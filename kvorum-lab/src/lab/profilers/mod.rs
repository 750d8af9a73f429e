//! Where the profiles of a configuration come from.
//!
//! | `profiler` | events | how |
//! | --- | --- | --- |
//! | `"kvorum"` | cpu, alloc, lock | the nodes' own page `/debug/profile` |
//! | `"async-profiler"` | cpu, alloc, lock | its library, loaded into running JVMs by `jcmd` |
//! | `"pprof"` | cpu, alloc, lock | Go's page `/debug/pprof/` on the port of each node |
//! | `"perf"` | cpu | `perf record` of all processes |
//! | a table of commands | those of its keys | each writes collapsed stacks into `{file}` |
//! | `"none"` | none | |
//!
//! Each brings one set of stacks for each process or node, in the units of [`Event`].

use std::collections::BTreeMap;
use std::fmt;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::time::Duration;

use serde::Deserialize;

use super::nodes::Cluster;
use super::profile::{self, Event, Stacks};
use super::target::{find_program, unknown_placeholder};
use crate::error::LabError;
use crate::suite::process::output_within;

pub mod async_profiler;
mod command;
mod perf;
mod pprof;

/// The variable that names the library of async-profiler, or its jar.
pub const ASYNC_PROFILER: &str = "KVORUM_ASYNC_PROFILER";

/// How much longer than its window a profiler's command may take.
const COMMAND_MARGIN: Duration = Duration::from_mins(1);

/// A source of profiles.
#[derive(Debug, Clone, PartialEq, Eq, Deserialize)]
#[serde(untagged)]
pub enum Profiler {
    /// A known one.
    Known(Known),
    /// Commands that write collapsed stacks, by event.
    Commands(BTreeMap<Event, String>),
}

/// A source of profiles that the lab knows.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum Known {
    /// The nodes' own profiles.
    Kvorum,
    /// async-profiler in a JVM.
    AsyncProfiler,
    /// Go's net/http/pprof.
    Pprof,
    /// The kernel's sampling of any native program.
    Perf,
    /// No profiles.
    None,
}

impl fmt::Display for Profiler {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::Known(Known::Kvorum) => "kvorum",
            Self::Known(Known::AsyncProfiler) => "async-profiler",
            Self::Known(Known::Pprof) => "pprof",
            Self::Known(Known::Perf) => "perf",
            Self::Known(Known::None) => "none",
            // All commands of a table are of one tool, commonly.
            Self::Commands(commands) => {
                commands.values().next().and_then(|line| line.split_whitespace().next()).unwrap_or("none")
            }
        })
    }
}

impl Profiler {
    /// Whether it has profiles of `event`.
    pub fn has(&self, event: Event) -> bool {
        match self {
            Self::Known(Known::Kvorum | Known::AsyncProfiler | Known::Pprof) => true,
            Self::Known(Known::Perf) => event == Event::Cpu,
            Self::Known(Known::None) => false,
            Self::Commands(commands) => commands.contains_key(&event),
        }
    }

    /// How many samples it takes in a second of CPU time, at least about.
    pub const fn samples_per_cpu_second(&self) -> f64 {
        match self {
            Self::Known(Known::AsyncProfiler) => 800.0,
            Self::Known(Known::Perf) => 400.0,
            // 99 or 100 by the kernel's tick, which sees 0.4 to 0.9 of work that runs for less than a tick.
            Self::Known(Known::Kvorum | Known::Pprof | Known::None) | Self::Commands(_) => 60.0,
        }
    }

    /// Whether its tools are on this machine; `library` is that of async-profiler, if it was named.
    ///
    /// # Errors
    /// [`LabError::Usage`] with what is missing, and how to get it.
    pub fn check(&self, library: Option<&Path>) -> Result<(), LabError> {
        let need = |program: &str| {
            let why = || LabError::Usage(format!("profiler {self}: the program {program} is not installed"));
            find_program(program).map(drop).ok_or_else(why)
        };
        match self {
            Self::Known(Known::AsyncProfiler) => {
                need("jcmd")?;
                async_profiler::find(library).map(drop)
            }
            Self::Known(Known::Perf) => need("perf"),
            Self::Known(Known::Kvorum | Known::Pprof | Known::None) => Ok(()),
            Self::Commands(commands) => commands.values().try_for_each(|line| {
                if let Some(name) = unknown_placeholder(line, &command::PLACEHOLDERS) {
                    return Err(LabError::Usage(format!(
                        "profiler: {{{name}}} is not known; known are {{pid}}, {{seconds}}, {{file}}, {{port}}"
                    )));
                }
                if !line.contains("{file}") {
                    return Err(LabError::Usage(format!(
                        "profiler: {line:?} does not say where the stacks go: {{file}} is missing"
                    )));
                }
                need(line.split_whitespace().next().unwrap_or_default())
            }),
        }
    }

    /// Whether the running nodes have profiles at all.
    ///
    /// # Errors
    /// Only the machine's errors.
    pub fn is_offered(&self, cluster: &Cluster) -> Result<bool, LabError> {
        match (self, cluster.addresses().first()) {
            (Self::Known(Known::Kvorum), Some(&node)) => profile::is_offered(node),
            (Self::Known(Known::Pprof), Some(&node)) => pprof::is_offered(node),
            (Self::Known(Known::None), _) => Ok(false),
            (_, first) => Ok(first.is_some()),
        }
    }

    /// Takes one profile of every process, or node, at once; a note says what the reader must know.
    ///
    /// # Errors
    /// [`LabError::Subject`] with the text of the first that refused.
    pub fn take(&self, asked: &Asked<'_>) -> Result<(Vec<Stacks>, Option<String>), LabError> {
        let alone = |stacks| (stacks, None);
        match self {
            Self::Known(Known::Kvorum) => {
                profile::take(asked.cluster.addresses(), asked.event, asked.window).map(alone)
            }
            Self::Known(Known::AsyncProfiler) => async_profiler::take(asked),
            Self::Known(Known::Pprof) => {
                pprof::take(asked.cluster.addresses(), asked.event, asked.window).map(alone)
            }
            Self::Known(Known::Perf) => perf::take(asked).map(|stacks| (vec![stacks], None)),
            Self::Known(Known::None) => Ok((Vec::new(), None)),
            Self::Commands(commands) => {
                let line = commands.get(&asked.event).map_or("", String::as_str);
                command::take(line, asked).map(alone)
            }
        }
    }
}

/// A profile that is asked for.
#[derive(Debug, Clone, Copy)]
pub struct Asked<'a> {
    /// Of which processes.
    pub cluster: &'a Cluster,
    /// Of which event.
    pub event: Event,
    /// How long, in whole seconds.
    pub window: Duration,
    /// A directory for files of the profilers, on this machine.
    pub scratch: &'a Path,
    /// The library of async-profiler, if it was named.
    pub library: Option<&'a Path>,
}

impl Asked<'_> {
    /// A file for the profile of process `pid`.
    fn file(&self, pid: u32) -> PathBuf {
        self.scratch.join(format!("{}-{pid}.collapsed", self.event))
    }
}

/// Runs a command of a profiler, and returns its standard output.
///
/// # Errors
/// [`LabError::Subject`] with what the command said, if it failed.
fn run(command: Command, window: Duration) -> Result<String, LabError> {
    let shown = format!("{command:?}");
    let output = output_within(command, window + COMMAND_MARGIN)?;
    let text = String::from_utf8_lossy(&output.stdout).into_owned();
    if output.status.success() {
        return Ok(text);
    }
    let said = String::from_utf8_lossy(&output.stderr);
    Err(LabError::Subject(format!("{shown}: {}: {}{}", output.status, text.trim(), said.trim())))
}

/// The stacks in `file`, a text of a profiler.
fn read(file: &Path) -> Result<String, LabError> {
    let bytes = std::fs::read(file).map_err(LabError::machine(format!("read {}", file.display())))?;
    Ok(String::from_utf8_lossy(&bytes).into_owned())
}
