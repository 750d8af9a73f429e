//! No test hangs: a process that a test started and that lives too long is killed. What waits for it, for its answer or for the end
//! of its log then fails in its own test, and the others go on.

use std::collections::BTreeMap;
use std::sync::Once;
use std::time::{Duration, Instant};

/// How long a process of a test may live. It is no measurement: what lives longer hangs.
const LIFE_MAX: Duration = Duration::from_mins(10);
/// Settings that make a test as long as one likes: then nothing is killed.
const LONG_RUNS: [&str; 2] = ["KVORUM_TEST_ROUNDS", "KVORUM_CHAIN_OPERATIONS"];

/// Watches the processes that this one starts, from the first call on.
pub(crate) fn watch() {
    static BEGUN: Once = Once::new();
    BEGUN.call_once(|| {
        if LONG_RUNS.iter().any(|name| std::env::var_os(name).is_some()) {
            return;
        }
        std::thread::spawn(|| {
            let mut seen = BTreeMap::new();
            loop {
                std::thread::sleep(Duration::from_secs(5));
                for child in overdue(&mut seen, &children(), Instant::now()) {
                    eprintln!("the process {child} of a test was killed: it lived for over {LIFE_MAX:?}");
                    if let Some(pid) = i32::try_from(child).ok().and_then(rustix::process::Pid::from_raw) {
                        let _ = rustix::process::kill_process(pid, rustix::process::Signal::KILL);
                    }
                }
            }
        });
    });
}

/// Those of `children` that were first seen too long ago; notes the others in `seen`.
fn overdue(seen: &mut BTreeMap<u32, Instant>, children: &[u32], now: Instant) -> Vec<u32> {
    seen.retain(|child, _| children.contains(child));
    let is_overdue = |child: &u32| now.duration_since(*seen.entry(*child).or_insert(now)) > LIFE_MAX;
    children.iter().copied().filter(is_overdue).collect()
}

/// The processes whose parent is this one.
fn children() -> Vec<u32> {
    let own = std::process::id();
    let parent = |process: u32| {
        let stat = std::fs::read_to_string(format!("/proc/{process}/stat")).ok()?;
        // Its name, in parentheses, may be anything. Then its state, and its parent.
        stat.rsplit_once(") ")?.1.split(' ').nth(1)?.parse::<u32>().ok()
    };
    let entries = std::fs::read_dir("/proc").into_iter().flatten().flatten();
    let processes = entries.filter_map(|entry| entry.file_name().to_str()?.parse().ok());
    processes.filter(|process| parent(*process) == Some(own)).collect()
}

#[test]
fn only_old_children_are_overdue() {
    let (begun, mut seen) = (Instant::now(), BTreeMap::new());
    let mut at = |seconds, there: &[u32]| overdue(&mut seen, there, begun + Duration::from_secs(seconds));
    assert!(at(0, &[7, 8]).is_empty());
    assert_eq!(at(601, &[7, 9]), [7]);
    // Another process of the same number is new.
    assert!(at(602, &[9]).is_empty() && at(1200, &[7, 9]).is_empty());
    assert_eq!(at(1202, &[7, 9]), [9]);
    let mut child = std::process::Command::new("sleep").arg("60").spawn().unwrap();
    let is_child = children().contains(&child.id());
    child.kill().unwrap();
    child.wait().unwrap();
    assert!(is_child && !children().contains(&child.id()));
}
