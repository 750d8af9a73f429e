//! wrk as the load: found or installed, run on its core, its summary read.
//!
//! One wrk loads one address. A cluster is loaded by as many wrks at once as it has nodes, all on the same
//! core, with the connections and the keys of PUTs divided among them. So every node coordinates its share,
//! as behind a balancer.

use std::net::SocketAddr;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::time::Duration;

use super::process::{Server, output_within, outputs_within, pinned};
use crate::error::LabError;
use crate::load::Replicas;
use crate::machine::{self, StealWindow};

/// Connections of every run, over all nodes.
const CONNECTIONS: usize = 64;

/// How much longer than requested wrk may take.
const SLACK: Duration = Duration::from_secs(20);

/// How long an installation may take.
const INSTALL_MAX: Duration = Duration::from_mins(5);

/// The PUT script, as in `bench/put.lua`.
const PUT_LUA: &str = include_str!("../../../bench/put.lua");

/// The script of GETs of any key, as in `bench/get.lua`.
const GET_LUA: &str = include_str!("../../../bench/get.lua");

/// wrk, ready to run.
#[derive(Debug)]
pub struct Wrk {
    core: usize,
    put_script: PathBuf,
    get_script: PathBuf,
}

/// The requests of wrk.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum WrkLoad {
    /// GET of one key.
    Get,
    /// GET of any of [`KEYS`] keys.
    GetAny,
    /// PUT of 100 bytes under 100,000 keys in turn.
    Put,
}

/// The figures of one wrk run, and of the server under it.
#[derive(Debug, Clone, PartialEq)]
pub struct WrkSample {
    /// CPU time of the server, user and system, per request, in microseconds.
    pub cpu_micros: f64,
    /// Requests per second.
    pub rate: f64,
    /// Cores of steal during the run.
    pub steal_cores: f64,
    /// Answers that were no success, and socket errors.
    pub faults: u64,
}

/// wrk's own summary.
#[derive(Debug, Clone, Copy, PartialEq)]
struct Summary {
    requests: u64,
    rate: f64,
    faults: u64,
}

/// The key of [`WrkLoad::Get`].
pub const HOT_KEY: &str = "hot";

/// How many keys [`WrkLoad::GetAny`] reads: the first of the lab's ([`crate::dataset`]).
pub const KEYS: u64 = 10_000;

impl Wrk {
    /// Finds wrk, or installs it where that is possible; puts the scripts into `scratch`.
    pub fn find(scratch: &Path, core: usize) -> Result<Self, LabError> {
        if !is_there() && is_root() {
            let mut install = Command::new("apt-get");
            install.args(["install", "-y", "wrk"]);
            output_within(install, INSTALL_MAX)?;
        }
        if !is_there() {
            return Err(LabError::Usage(
                "wrk is not installed (apt-get install wrk): rows get, put and cluster are skipped".into(),
            ));
        }
        let put_script = scratch.join("put.lua");
        std::fs::write(&put_script, PUT_LUA).map_err(LabError::machine("write put.lua"))?;
        let get_script = scratch.join("get.lua");
        std::fs::write(&get_script, GET_LUA).map_err(LabError::machine("write get.lua"))?;
        Ok(Self { core, put_script, get_script })
    }

    /// Loads all nodes of `server` for `duration`, asking for `replicas` if any, and measures their process.
    pub fn measure(
        &self,
        server: &Server,
        load: WrkLoad,
        replicas: Option<Replicas>,
        duration: Duration,
    ) -> Result<WrkSample, LabError> {
        let nodes = server.addresses().count();
        let command =
            |(share, address)| self.command(address, load, replicas, duration, Share { share, of: nodes });
        let commands = server.addresses().enumerate().map(command).collect();
        let steal = StealWindow::begin()?;
        let before = machine::cpu_time(server.pid())?;
        let outputs = outputs_within(commands, duration + SLACK)?;
        let used = machine::cpu_time(server.pid())?.saturating_sub(before);
        let steal_cores = steal.cores()?;
        let mut all = Summary { requests: 0, rate: 0.0, faults: 0 };
        for output in outputs {
            let text = String::from_utf8_lossy(&output.stdout);
            let summary = parse(&text).ok_or_else(|| {
                let complaint = String::from_utf8_lossy(&output.stderr);
                LabError::Subject(format!("wrk gave no summary: {text}{complaint}"))
            })?;
            if summary.requests == 0 {
                return Err(LabError::Subject(format!("wrk made no request: {text}")));
            }
            all.add(summary);
        }
        Ok(WrkSample {
            cpu_micros: used.as_secs_f64() * 1e6 / crate::units::float(all.requests),
            rate: all.rate,
            steal_cores,
            faults: all.faults,
        })
    }

    fn command(
        &self,
        address: SocketAddr,
        load: WrkLoad,
        replicas: Option<Replicas>,
        duration: Duration,
        share: Share,
    ) -> Command {
        let query = replicas.map_or_else(String::new, Replicas::query);
        let mut command = pinned(Path::new("wrk"), Some(self.core));
        command.arg("-t1").arg(format!("-c{}", share.connections()));
        command.arg(format!("-d{}s", duration.as_secs().max(1)));
        let script = match load {
            WrkLoad::Get => None,
            WrkLoad::GetAny => Some(&self.get_script),
            WrkLoad::Put => Some(&self.put_script),
        };
        if let Some(script) = script {
            command.arg("-s").arg(script);
        }
        command.arg(format!("http://{address}/v0/entity?id={HOT_KEY}{query}")).arg("--").arg(query);
        match load {
            WrkLoad::Get => {}
            // Another order for each, otherwise all of them would read the same key at the same time.
            WrkLoad::GetAny => {
                command.arg(share.share.to_string());
            }
            WrkLoad::Put => {
                command.arg(share.of.to_string()).arg(share.share.to_string());
            }
        }
        command
    }
}

/// The place of one wrk among those that run at once.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
struct Share {
    /// From 0.
    share: usize,
    /// At least 1.
    of: usize,
}

impl Share {
    /// How many of the connections belong to it.
    fn connections(self) -> usize {
        CONNECTIONS / self.of + usize::from(self.share < CONNECTIONS % self.of)
    }
}

impl Summary {
    /// Adds the figures of a wrk that ran at the same time.
    fn add(&mut self, other: Self) {
        self.requests += other.requests;
        self.rate += other.rate;
        self.faults += other.faults;
    }
}

fn is_there() -> bool {
    let mut version = Command::new("wrk");
    version.arg("-v");
    output_within(version, Duration::from_secs(5)).is_ok()
}

fn is_root() -> bool {
    use std::os::unix::fs::MetadataExt;
    std::fs::metadata("/proc/self").is_ok_and(|own| own.uid() == 0)
}

fn parse(text: &str) -> Option<Summary> {
    let mut summary = Summary { requests: 0, rate: 0.0, faults: 0 };
    let mut is_whole = false;
    for line in text.lines().map(str::trim) {
        if let Some((count, _)) = line.split_once(" requests in ") {
            summary.requests = count.parse().ok()?;
        } else if let Some(count) = line.strip_prefix("Non-2xx or 3xx responses:") {
            summary.faults += count.trim().parse::<u64>().ok()?;
        } else if let Some(counts) = line.strip_prefix("Socket errors:") {
            let numbers =
                counts.split(',').map(|part| part.split_ascii_whitespace().nth(1)?.parse::<u64>().ok());
            summary.faults += numbers.sum::<Option<u64>>()?;
        } else if let Some(rate) = line.strip_prefix("Requests/sec:") {
            summary.rate = rate.trim().parse().ok()?;
            is_whole = true;
        }
    }
    is_whole.then_some(summary)
}

#[cfg(test)]
mod tests {
    use super::*;

    const GOOD: &str = "Running 5s test @ http://127.0.0.1:8080/v0/entity?id=hot
  1 threads and 64 connections
  Thread Stats   Avg      Stdev     Max   +/- Stdev
    Latency   300.50us   54.03us   2.63ms   92.23%
    Req/Sec   198.61k     5.36k  205.47k    84.00%
  987654 requests in 5.00s, 170.14MB read
Requests/sec: 197437.21
Transfer/sec:     34.01MB
";

    /// Goal: however many wrks run, they have all connections together. Method: a table.
    #[test]
    fn connections_are_divided() {
        let check = |of: usize, expect: &[usize]| {
            let shares: Vec<usize> = (0..of).map(|share| Share { share, of }.connections()).collect();
            assert_eq!(shares, expect);
        };
        check(1, &[64]);
        check(3, &[22, 21, 21]);
        check(5, &[13, 13, 13, 13, 12]);
    }

    /// Goal: a cluster's wrks ask for the quorum and do not write the same keys. Method: the arguments of
    /// one.
    #[test]
    fn a_wrk_is_told_its_share() {
        let wrk = Wrk { core: 1, put_script: "put.lua".into(), get_script: "get.lua".into() };
        let address = SocketAddr::from(([127, 0, 0, 1], 8081));
        let line = |load, replicas| {
            let share = Share { share: 1, of: 3 };
            let command = wrk.command(address, load, replicas, Duration::from_secs(5), share);
            let words: Vec<_> = command.get_args().map(|word| word.to_string_lossy().into_owned()).collect();
            words.join(" ")
        };
        let url = "http://127.0.0.1:8081/v0/entity?id=hot";
        assert_eq!(
            line(WrkLoad::Put, Replicas::new(2, 3)),
            format!("-c 1 wrk -t1 -c21 -d5s -s put.lua {url}&replicas=2/3 -- &replicas=2/3 3 1")
        );
        assert_eq!(
            line(WrkLoad::GetAny, Replicas::new(1, 1)),
            format!("-c 1 wrk -t1 -c21 -d5s -s get.lua {url}&replicas=1/1 -- &replicas=1/1 1")
        );
        assert!(line(WrkLoad::Get, None).starts_with(&format!("-c 1 wrk -t1 -c21 -d5s {url} -- ")));
    }

    /// Goal: wrk's summary is read, with every fault in it. Method: fixed texts.
    #[test]
    fn summaries_are_read() {
        let expect = Summary { requests: 987_654, rate: 197_437.21, faults: 0 };
        assert_eq!(parse(GOOD), Some(expect));
        let faults = "  Socket errors: connect 1, read 20, write 300, timeout 4000\n  Non-2xx or 3xx responses: 50000\nRequests/sec:";
        let bad = GOOD.replace("Requests/sec:", faults);
        assert_eq!(parse(&bad), Some(Summary { faults: 54_321, ..expect }));
        assert_eq!(parse("unable to connect to 127.0.0.1:8080 Connection refused"), None);
    }
}
