//! wrk as the load: found or installed, run on its core, its summary read.

use std::path::{Path, PathBuf};
use std::process::Command;
use std::time::Duration;

use super::process::{Server, output_within, pinned};
use crate::error::LabError;
use crate::machine::{self, StealWindow};

/// Connections of every wrk run.
const CONNECTIONS: &str = "-c64";

/// How much longer than asked wrk may take.
const SLACK: Duration = Duration::from_secs(20);

/// How long an installation may take.
const INSTALL_MAX: Duration = Duration::from_mins(5);

/// The PUT script, as in `bench/put.lua`.
const PUT_LUA: &str = include_str!("../../../bench/put.lua");

/// wrk, ready to run.
#[derive(Debug)]
pub struct Wrk {
    core: usize,
    put_script: PathBuf,
}

/// What wrk sends.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum WrkLoad {
    /// GET of one key.
    Get,
    /// PUT of 100 bytes under 100,000 keys in turn.
    Put,
}

/// What one wrk run, and the server under it, came to.
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

/// The key that GETs read.
pub const HOT_KEY: &str = "hot";

impl Wrk {
    /// Finds wrk, or installs it where that is possible; puts the PUT script into `scratch`.
    pub fn find(scratch: &Path, core: usize) -> Result<Self, LabError> {
        if !is_there() && is_root() {
            let mut install = Command::new("apt-get");
            install.args(["install", "-y", "wrk"]);
            output_within(install, INSTALL_MAX)?;
        }
        if !is_there() {
            return Err(LabError::Usage(
                "wrk is not installed (apt-get install wrk): rows get and put are skipped".into(),
            ));
        }
        let put_script = scratch.join("put.lua");
        std::fs::write(&put_script, PUT_LUA).map_err(LabError::machine("write put.lua"))?;
        Ok(Self { core, put_script })
    }

    /// Loads `server` for `duration` and measures it.
    pub fn measure(&self, server: &Server, load: WrkLoad, duration: Duration) -> Result<WrkSample, LabError> {
        let mut command = pinned(Path::new("wrk"), Some(self.core));
        command.args(["-t1", CONNECTIONS]).arg(format!("-d{}s", duration.as_secs().max(1)));
        if load == WrkLoad::Put {
            command.arg("-s").arg(&self.put_script);
        }
        command.arg(format!("http://{}/v0/entity?id={HOT_KEY}", server.address()));
        let steal = StealWindow::begin()?;
        let before = machine::cpu_time(server.pid())?;
        let output = output_within(command, duration + SLACK)?;
        let used = machine::cpu_time(server.pid())?.saturating_sub(before);
        let text = String::from_utf8_lossy(&output.stdout);
        let summary = parse(&text).ok_or_else(|| {
            let complaint = String::from_utf8_lossy(&output.stderr);
            LabError::Subject(format!("wrk gave no summary: {text}{complaint}"))
        })?;
        if summary.requests == 0 {
            return Err(LabError::Subject(format!("wrk made no request: {text}")));
        }
        Ok(WrkSample {
            cpu_micros: used.as_secs_f64() * 1e6 / crate::units::float(summary.requests),
            rate: summary.rate,
            steal_cores: steal.cores()?,
            faults: summary.faults,
        })
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
