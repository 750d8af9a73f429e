//! The power is cut under load: writes that were acknowledged under `--durability always` are there
//! afterwards.
//!
//! Killing the process would not do, because it loses nothing that was written. The file system is shut down
//! below the node, so that all bytes that were not synced are gone.

use kvorum_testkit::disk::Mounted;
use kvorum_testkit::history::{History, Outcome};
use kvorum_testkit::load::alone::Load;
use kvorum_testkit::node::Node;
use kvorum_testkit::session::read_all;
use kvorum_testkit::{rounds, seed, skip};
use std::sync::atomic::Ordering;
use std::thread;
use std::time::Duration;

/// Loads a node, cuts its power, starts it again and reads everything, `rounds` times over one store; then
/// judges the history with `after`.
fn cut_power(test: &str, durability: &str, rounds: u32, mut after: impl FnMut(History)) {
    let mut disk = match Mounted::ext4(256) {
        Ok(disk) => disk,
        Err(why) => return skip(test, &why),
    };
    let seed = seed(test);
    // Little memory, so that tables are flushed and merged when the power goes.
    let arguments = ["--durability", durability, "--memory-budget", "16MiB"];
    let mut history = History::default();
    let mut node = Node::start(&disk.data_dir(), &arguments);
    for round in 0..rounds {
        let mut cut_at = u64::MAX;
        let mut observed = Load::MIXED.run(node.address(), seed ^ u64::from(round), |dying| {
            thread::sleep(Duration::from_millis(700));
            dying.store(true, Ordering::SeqCst);
            cut_at = disk.cut_power();
            node.kill9();
        });
        // The node outlives its power by a moment. Its answers in that time are not judged: the kernel itself
        // is wrong about an fdatasync that overlaps the shutdown (4 of 60 in a bare loop of write and
        // fdatasync returned 0, and the bytes were gone).
        observed.unhear_from(cut_at);
        history.absorb(observed);
        history.killed_alone();
        disk.restore_power();
        node = Node::start(&disk.data_dir(), &arguments);
        read_all(node.address(), &mut history);
    }
    after(history);
    drop(node);
}

#[test]
fn power_loss_loses_nothing_acknowledged() {
    let test = "power loss, --durability always";
    cut_power(test, "always", rounds(3), |history| {
        let writes = history.writes.iter().filter(|write| matches!(write.outcome, Outcome::Acked(_)));
        assert!(writes.count() > 100, "too little was written");
        history.assert_holds(test);
    });
}

/// Without syncs the latest writes may be gone; the store opens, and every value in it was written.
#[test]
fn power_loss_without_syncs_leaves_a_store_that_opens() {
    let test = "power loss, --durability os";
    cut_power(test, "os", rounds(3), |history| {
        println!(
            "{test}: {}; {} violations of the full contract",
            history.summary(),
            history.violations().len()
        );
        let wrong = history.wrong_values();
        assert!(wrong.is_empty(), "{wrong:#?}");
    });
}
