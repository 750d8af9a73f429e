//! What the lab sees of the server's processes during a window: their CPU time, memory and threads each second, and the
//! pauses of JVMs for their garbage collectors.

use std::path::Path;
use std::sync::mpsc::{Receiver, RecvTimeoutError, Sender, channel};
use std::thread;
use std::time::{Duration, Instant};

use super::nodes::Cluster;
use super::processes;
use super::results::{Pause, Sample};
use crate::load::LEAD;

/// Between two samples.
const EVERY: Duration = Duration::from_secs(1);

/// The most pauses that are kept of a window: a collector that does more than that is not looked at pause by pause.
const PAUSES_MAX: usize = 10_000;

/// The most bytes of a log of collections that are read, from its end.
const LOG_MAX: usize = 64 << 20;

/// Does `work` under a load that begins after [`LEAD`]. Returns what the processes of `cluster` used meanwhile, second by
/// second, and their pauses.
pub(super) fn watched<T>(cluster: &Cluster, work: impl FnOnce() -> T) -> (T, Vec<Sample>, Vec<Pause>) {
    let begun = since_boot();
    // Dropped when `work` has ended, also by a panic.
    let (over, is_over): (Sender<()>, Receiver<()>) = channel();
    let (done, samples) = thread::scope(|scope| {
        let sampling = scope.spawn(move || samples(cluster, &is_over));
        let done = work();
        drop(over);
        (done, sampling.join().unwrap_or_default())
    });
    let pauses = begun.zip(since_boot()).map(|(begun, ended)| pauses(cluster, begun + LEAD, ended));
    (done, samples, pauses.unwrap_or_default())
}

fn samples(cluster: &Cluster, is_over: &Receiver<()>) -> Vec<Sample> {
    let mut samples = Vec::new();
    if let Err(RecvTimeoutError::Disconnected) = is_over.recv_timeout(LEAD) {
        return samples;
    }
    let begun = Instant::now();
    let Some(mut before) = cluster.usage() else { return samples };
    let mut looked = Duration::ZERO;
    for due in (1..).map(|nth| EVERY * nth) {
        let wait = due.saturating_sub(begun.elapsed());
        if let Err(RecvTimeoutError::Disconnected) = is_over.recv_timeout(wait) {
            break;
        }
        let Some(now) = cluster.usage() else { break };
        let at = begun.elapsed();
        let used = now.cpu_time.saturating_sub(before.cpu_time);
        samples.push(Sample {
            second: at.as_secs_f64(),
            cores: used.as_secs_f64() / (at.saturating_sub(looked)).as_secs_f64().max(1e-3),
            resident_bytes: now.resident_bytes,
            threads: now.threads,
        });
        (before, looked) = (now, at);
    }
    samples
}

/// How long the machine has been up: a JVM counts from its start, and the kernel counts that from the machine's.
fn since_boot() -> Option<Duration> {
    Duration::try_from(rustix::time::clock_gettime(rustix::time::ClockId::Boottime)).ok()
}

/// The pauses that began between `begun` and `ended`, both since the machine's start.
fn pauses(cluster: &Cluster, begun: Duration, ended: Duration) -> Vec<Pause> {
    let mut all = Vec::new();
    for (pid, log) in cluster.gc_logs() {
        let Some(started) = processes::started(pid) else { continue };
        for (uptime, seconds) in read(log) {
            let second = started.as_secs_f64() + uptime - seconds - begun.as_secs_f64();
            if second >= 0.0 && second <= (ended.saturating_sub(begun)).as_secs_f64() {
                all.push(Pause { second, seconds });
            }
        }
    }
    all.sort_by(|one, two| one.second.total_cmp(&two.second));
    all.truncate(PAUSES_MAX);
    all
}

/// The pauses in a log: the uptime at the end of each, and its length, in seconds.
fn read(log: &Path) -> Vec<(f64, f64)> {
    // A JVM that has not collected has no log, or an empty one.
    let bytes = std::fs::read(log).unwrap_or_default();
    let tail = bytes.get(bytes.len().saturating_sub(LOG_MAX)..).unwrap_or_default();
    String::from_utf8_lossy(tail).lines().filter_map(pause).collect()
}

/// Reads a line as `[0.523s][info][gc] GC(0) Pause Young (Normal) (G1 Evacuation Pause) 23M->3M(256M) 2.712ms`.
fn pause(line: &str) -> Option<(f64, f64)> {
    let (uptime, rest) = line.strip_prefix('[')?.split_once("s]")?;
    let (_, rest) = rest.split_once("] GC(")?;
    let (_, what) = rest.split_once(") ")?;
    let millis: f64 = what.strip_prefix("Pause ")?.rsplit_once(' ')?.1.strip_suffix("ms")?.parse().ok()?;
    let uptime: f64 = uptime.parse().ok()?;
    (uptime.is_finite() && millis.is_finite()).then_some((uptime, millis / 1e3))
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Goal: pauses are read from logs of all collectors, other lines are left out. Method: lines of JDK 17.
    #[test]
    fn pauses_are_read() {
        let check = |line: &str, expect: Option<(f64, f64)>| assert_eq!(pause(line), expect, "{line}");
        let g1 = "GC(0) Pause Young (Normal) (G1 Evacuation Pause) 23M->3M(256M) 2.500ms";
        check(&format!("[0.523s][info][gc] {g1}"), Some((0.523, 0.0025)));
        check(&format!("[0.523s][info][gc          ] {g1}"), Some((0.523, 0.0025)));
        check("[9.1s][info][gc,phases] GC(3) Pause Mark Start 0.005ms", Some((9.1, 0.000_005)));
        check("[1.2s][info][gc,start] GC(0) Pause Young (Normal) (G1 Evacuation Pause)", None);
        check("[1.2s][info][gc] GC(1) Concurrent Mark Cycle 4.500ms", None);
        check("[0.005s][info][gc] Using G1", None);
        check("[2026-11-26T03:00:00.000+0000][info][gc] GC(0) Pause Full 1M->1M(2M) 1ms", None);
        check("", None);
    }

    /// Goal: a log that is not there is one without pauses. Method: a path to nothing.
    #[test]
    fn a_missing_log_has_none() {
        assert_eq!(read(Path::new("/no/such/gc.log")), []);
    }
}
