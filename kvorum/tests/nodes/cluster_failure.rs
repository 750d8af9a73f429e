//! A node that is killed, paused or cut off delays no request: latencies and failures of requests to the
//! other nodes.

use kvorum_testkit::cluster::Cluster;
use kvorum_testkit::history::{Class, Moment};
use kvorum_testkit::load::cluster::{Load, report, settle};
use kvorum_testkit::seed;
use std::thread;
use std::time::Duration;

const SECOND: u64 = 1_000_000_000;

/// Steady load on nodes 0 and 1 while `harm` is done to node 2, which `heal` undoes.
fn lose(name: &str, harm: impl FnOnce(&mut Cluster), heal: impl FnOnce(&mut Cluster)) {
    let mut cluster = Cluster::start(3);
    let load = Load {
        fixed: 4,
        roaming: 0,
        classes: &[(Class::default(2, 3), 1)],
        keys: (10, 500),
        puts: 40,
        deletes: 5,
        bytes: (24, 200, 400),
        pause: Duration::from_millis(2),
    };
    let mut instants = (0, 0, 0);
    let addresses = cluster.addresses();
    let mut history = load.run(&addresses, &[0, 1], seed(name), |_| {
        thread::sleep(Duration::from_millis(1500));
        instants.0 = Moment::now().mono;
        harm(&mut cluster);
        thread::sleep(Duration::from_secs(4));
        instants.1 = Moment::now().mono;
        heal(&mut cluster);
        thread::sleep(Duration::from_millis(1500));
        instants.2 = Moment::now().mono;
    });
    let asked = &history.asked;
    let (harmed, healed, ended) = instants;
    report(&format!("{name}, before"), asked, 0..harmed);
    report(&format!("{name}, first second"), asked, harmed..harmed + SECOND);
    let share = report(&format!("{name}, afterwards"), asked, harmed + SECOND..healed);
    report(&format!("{name}, healed"), asked, healed..ended);
    assert!(share >= 0.99, "{name}: too many requests fail although two of three nodes are well: {share}");
    settle(&cluster, &mut history, name);
}

#[test]
fn killed_node_delays_nobody() {
    lose(
        "kill -9",
        |cluster| cluster.kill9(2),
        |cluster| {
            cluster.start_node(2);
        },
    );
}

#[test]
fn paused_node_delays_nobody() {
    lose("SIGSTOP", |cluster| cluster.pause(2), |cluster| cluster.resume(2));
}
