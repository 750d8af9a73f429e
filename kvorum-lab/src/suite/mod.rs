//! `make bench`: the node beside the bare responder and the bare device, in rows, each with its aim.
//!
//! Every row starts its own processes with empty stores, measures, and removes all its files. Rows that
//! cannot be measured are reported as missing; a missed aim is printed and is not an error of the suite.
//!
//! [`process`] starts and watches servers, [`wrk`] is the closed-loop load of rows `get` and `put` (`cpu`);
//! `range`, `memory` and `paced` use [`crate::load`], `cluster` uses both; [`table`] prints.

use std::path::{Path, PathBuf};
use std::process::ExitCode;
use std::time::Duration;

use clap::{Args, ValueEnum};
use tempfile::TempDir;

use crate::FLUSH_MAX;
use crate::cli::show;
use crate::error::LabError;
use crate::load::{Plan, StreamPlan};

mod cluster;
mod cpu;
mod memory;
mod paced;
pub mod process;
mod range;
pub mod table;
pub mod wrk;

use process::{NodeOptions, Server};
use table::Table;

/// Measure a node beside the bare responder and print the aims beside the figures.
#[derive(Debug, Clone, Args)]
pub struct SuiteArgs {
    /// The kvorum binary
    #[arg(long, value_name = "FILE")]
    pub kvorum: PathBuf,
    /// The bare responder; without it the one beside this program
    #[arg(long, value_name = "FILE")]
    pub bare: Option<PathBuf>,
    /// Where data may be put for the time being: on the disk to be measured
    #[arg(long, value_name = "DIR", default_value = "/var/tmp")]
    pub scratch: PathBuf,
    /// Short windows and small data sets: to see that it works, not to compare
    #[arg(long)]
    pub quick: bool,
    /// Only these rows
    #[arg(long, value_enum, value_delimiter = ',')]
    pub only: Vec<Section>,
    /// Also write the tables as Markdown
    #[arg(long, value_name = "FILE")]
    pub markdown: Option<PathBuf>,
    /// How often each row is measured; the median counts
    #[arg(long, default_value_t = 3, value_parser = clap::value_parser!(u8).range(1..))]
    pub rounds: u8,
    /// The core of the server
    #[arg(long, default_value_t = 0)]
    pub server_core: usize,
    /// The core of the load
    #[arg(long, default_value_t = 1)]
    pub load_core: usize,
    /// Tie server and load to their cores in the paced row, too; without it the scheduler places them
    #[arg(long)]
    pub pin_paced: bool,
    /// Threads of the load driver
    #[arg(long, default_value_t = 2, value_parser = clap::value_parser!(u8).range(1..))]
    pub load_threads: u8,
    /// One more argument for `kvorum serve` and `kvorum dev`; may be repeated
    #[arg(long, value_name = "ARG", allow_hyphen_values = true)]
    pub node_arg: Vec<String>,
}

/// A part of the suite.
#[derive(Debug, Clone, Copy, PartialEq, Eq, ValueEnum)]
pub enum Section {
    /// CPU per GET of a hot key
    Get,
    /// CPU per PUT, without and with durability
    Put,
    /// A range over a million records
    Range,
    /// A data set larger than the memory budget
    Memory,
    /// Durable PUTs and GETs at a constant rate
    Paced,
    /// Three nodes beside one: CPU and throughput by quorum, and latency at half of it
    Cluster,
}

/// The amount of work.
#[derive(Debug, Clone, Copy)]
struct Sizes {
    wrk: Duration,
    range_records: u64,
    memory_records: u64,
    memory_gets: Duration,
    paced: Duration,
    cluster: cluster::Sizes,
}

const FULL: Sizes = Sizes {
    wrk: Duration::from_secs(5),
    range_records: 1_000_000,
    // 640 MiB of 1 KiB values: ten times the budget.
    memory_records: 655_360,
    memory_gets: Duration::from_secs(20),
    paced: Duration::from_mins(1),
    cluster: cluster::FULL,
};

const QUICK: Sizes = Sizes {
    wrk: Duration::from_secs(2),
    range_records: 100_000,
    memory_records: 100_000,
    memory_gets: Duration::from_secs(2),
    paced: Duration::from_secs(10),
    cluster: cluster::QUICK,
};

/// Above this load average at the start, another program is running.
const LOAD_MAX: f64 = 0.5;

/// Measures one part and adds its tables; those added before an error count.
type Measure = fn(&Suite, &mut Vec<Table>) -> Result<(), LabError>;

/// The state that the rows share.
struct Suite {
    args: SuiteArgs,
    sizes: Sizes,
    bare: PathBuf,
    scratch: TempDir,
}

/// Runs the suite: tables to stdout, progress and complaints to stderr.
///
/// The exit code is 0 if every wanted row was measured, whatever the aims; 1 otherwise.
pub fn run(args: &SuiteArgs) -> ExitCode {
    let code = match Suite::new(args).and_then(|suite| suite.run()) {
        Ok(true) => ExitCode::SUCCESS,
        Ok(false) => ExitCode::FAILURE,
        Err(error) => {
            kvorum_output::tell_line!("kvorum-bench-suite: {error}");
            ExitCode::FAILURE
        }
    };
    kvorum_output::flush(FLUSH_MAX);
    code
}

/// The machine's properties that affect the figures, and its load.
fn machine() -> Table {
    let mut table = Table::new("Machine", &[]);
    let read = |path: &str| std::fs::read_to_string(path).unwrap_or_default().trim().to_owned();
    let cores = std::thread::available_parallelism().map_or(0, std::num::NonZero::get);
    table.note(format!("{cores} cores, kernel {}", read("/proc/sys/kernel/osrelease")));
    let load = read("/proc/loadavg");
    let busy = load.split(' ').next().and_then(|one_minute| one_minute.parse().ok()).unwrap_or(0.0);
    let caution = if busy > LOAD_MAX { "  !! other work on this machine: ratios are noisy" } else { "" };
    table.note(format!("load average {load}{caution}"));
    table
}

impl Suite {
    fn new(args: &SuiteArgs) -> Result<Self, LabError> {
        let bare = args.bare.clone().map_or_else(|| process::sibling("bare-responder"), Ok)?;
        let cores = std::thread::available_parallelism().map_err(LabError::machine("count the cores"))?;
        if cores.get() < 2 || args.server_core == args.load_core {
            return Err(LabError::Usage(
                "the suite needs two cores: one for the server, one for the load".into(),
            ));
        }
        let scratch = tempfile::Builder::new()
            .prefix("kvorum-suite-")
            .tempdir_in(&args.scratch)
            .map_err(LabError::machine(format!("create a directory in {}", args.scratch.display())))?;
        let sizes = if args.quick { QUICK } else { FULL };
        Ok(Self { args: args.clone(), sizes, bare, scratch })
    }

    /// Measures the wanted rows one by one. `false`: a row could not be measured.
    fn run(&self) -> Result<bool, LabError> {
        let machine = machine();
        show(format!("{}\n", machine.text()))?;
        let mut markdown = machine.markdown();
        let mut is_whole = true;
        let parts: [(&[Section], Measure); 5] = [
            (&[Section::Get, Section::Put], |suite, tables| cpu::run(suite).map(|table| tables.push(table))),
            (&[Section::Range], |suite, tables| range::run(suite).map(|table| tables.push(table))),
            (&[Section::Memory], |suite, tables| memory::run(suite).map(|table| tables.push(table))),
            (&[Section::Paced], |suite, tables| paced::run(suite).map(|table| tables.push(table))),
            (&[Section::Cluster], cluster::run),
        ];
        for (sections, measure) in parts {
            if !sections.iter().any(|&section| self.wants(section)) {
                continue;
            }
            let mut tables = Vec::new();
            if let Err(error) = measure(self, &mut tables) {
                is_whole = false;
                let mut missing = Table::new(format!("{sections:?}: NOT MEASURED"), &[]);
                missing.note(error.to_string());
                tables.push(missing);
            }
            for table in &mut tables {
                if self.args.quick {
                    table.note("Quick: small data sets and short windows; not to be compared with anything.");
                }
                show(format!("{}\n", table.text()))?;
                markdown.push_str(&table.markdown());
            }
        }
        if let Some(path) = &self.args.markdown {
            std::fs::write(path, markdown).map_err(LabError::machine(format!("write {}", path.display())))?;
        }
        Ok(is_whole)
    }

    fn wants(&self, section: Section) -> bool {
        self.args.only.is_empty() || self.args.only.contains(&section)
    }

    fn scratch(&self) -> &Path {
        self.scratch.path()
    }

    fn say(&self, progress: &str) {
        kvorum_output::tell_line!("# {progress}{}", if self.args.quick { " (quick)" } else { "" });
    }

    fn node<'a>(
        &'a self,
        durability: &'a str,
        memory_budget: &'a str,
        core: Option<usize>,
    ) -> NodeOptions<'a> {
        NodeOptions {
            binary: &self.args.kvorum,
            scratch: self.scratch(),
            core,
            durability,
            memory_budget,
            extra: &self.args.node_arg,
        }
    }

    /// A run against all nodes of `server`, the driver on its core.
    fn plan(&self, server: &Server, duration: Duration, streams: Vec<StreamPlan>) -> Plan {
        Plan {
            targets: server.addresses().map(Into::into).collect(),
            threads: usize::from(self.args.load_threads),
            duration,
            timeout: Duration::from_secs(5),
            core: Some(self.args.load_core),
            streams,
        }
    }
}
