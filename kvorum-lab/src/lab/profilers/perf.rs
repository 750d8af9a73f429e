//! Profiles of native programs by `perf record`, folded by inferno.

use std::process::Command;

use inferno::collapse::Collapse;
use inferno::collapse::perf::{Folder, Options};

use super::{Asked, run};
use crate::error::LabError;
use crate::lab::profile::Stacks;

/// Samples a second, out of step with ticks of 100 and 250 a second.
const FREQUENCY: &str = "499";

/// Samples all processes of the cluster together.
pub(super) fn take(asked: &Asked<'_>) -> Result<Stacks, LabError> {
    let pids: Vec<String> = asked.cluster.processes().iter().map(ToString::to_string).collect();
    let file = asked.scratch.join("perf.data");
    let mut record = Command::new("perf");
    record.args(["record", "-q", "-g", "-F", FREQUENCY, "-p", &pids.join(","), "-o"]).arg(&file);
    record.args(["--", "sleep", &asked.window.as_secs().to_string()]);
    run(record, asked.window)?;
    let listing = asked.scratch.join("perf.txt");
    let output = std::fs::File::create(&listing).map_err(LabError::machine("create perf.txt"))?;
    let mut script = Command::new("perf");
    script.args(["script", "-i"]).arg(&file).stdin(std::process::Stdio::null()).stdout(output);
    // Its output does not fit a pipe, so it is not run as the others are.
    let said = script.stderr(std::process::Stdio::null()).status();
    let status = said.map_err(LabError::machine("run perf script"))?;
    if !status.success() {
        return Err(LabError::Subject(format!("perf script: {status}")));
    }
    let text = std::fs::read(&listing).map_err(LabError::machine("read perf.txt"))?;
    fold(&text)
}

/// The stacks of the output of `perf script`.
fn fold(text: &[u8]) -> Result<Stacks, LabError> {
    let mut folded = Vec::new();
    Folder::from(Options::default())
        .collapse(text, &mut folded)
        .map_err(LabError::machine("fold the output of perf script"))?;
    Stacks::read(&String::from_utf8_lossy(&folded))
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Goal: samples become stacks, the outermost frame first, below the thread. Method: two samples of one stack.
    #[test]
    fn samples_are_folded() {
        let sample = "server 42 10.5: 1 cycles:u: \n\t5581 inner+0x1 (/bin/server)\n\t5582 outer+0x2 (/bin/server)\n\n";
        let stacks = fold(sample.repeat(2).as_bytes()).unwrap();
        assert_eq!(stacks.text(), "server;outer;inner 2\n");
    }
}
