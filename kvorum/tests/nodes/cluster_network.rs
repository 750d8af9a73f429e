//! The network between nodes is cut, both ways and one way, under load. Requests that can reach enough
//! replicas are answered, the clients' history keeps the contract, and all copies become equal.
//!
//! Needs root and network namespaces; prints that it was skipped where they are not available.

use kvorum_testkit::cluster::{Cluster, Launch};
use kvorum_testkit::history::{Asked, Class, History, Moment};
use kvorum_testkit::load::cluster::{Load, settle};
use kvorum_testkit::net::{Cut, Network};
use kvorum_testkit::{seed, skip};
use std::thread;
use std::time::Duration;

const SECOND: u64 = 1_000_000_000;
const CLASSES: &[(Class, u64)] = &[
    // Few requests need all three replicas: a client that waits for one sends no other request meanwhile.
    (Class::default(2, 3), 400),
    (Class::new("all", (3, 3), (3, 3)), 2),
    (Class::new("write-all", (3, 3), (1, 3)), 2),
    (Class::new("read-all", (1, 3), (3, 3)), 2),
    (Class::new("loose", (1, 3), (1, 3)), 4),
];

/// How many default requests to nodes 0 and 1 began in a span, and how many of them failed.
fn failed(asked: &[Asked], span: std::ops::Range<u64>) -> (usize, usize) {
    let is_of = |asked: &&Asked| span.contains(&asked.begun) && asked.class.is_default && asked.node < 2;
    let of_span: Vec<&Asked> = asked.iter().filter(is_of).collect();
    (of_span.len(), of_span.iter().filter(|asked| !asked.is_ok()).count())
}

/// Cuts node 2 off from the others, twice, while clients ask all three.
fn partition(test: &str, number: u8, cut: Cut) {
    let network = match Network::new(3, number) {
        Ok(network) => network,
        Err(why) => return skip(test, &why),
    };
    let mut cluster = Cluster::at(&network.addresses(), &["--memory-budget", "16MiB"]);
    for node in 0..3 {
        let prefix = network.prefix(node);
        cluster.set_launch(usize::from(node), Launch { prefix, ..Launch::default() });
    }
    cluster.start_all();
    let load = Load {
        fixed: 6,
        roaming: 2,
        classes: CLASSES,
        keys: (3, 60),
        puts: 45,
        deletes: 10,
        bytes: (24, 300, 200_000),
        pause: Duration::from_millis(2),
    };
    let mut spans = Vec::new();
    let mut broken = History::default();
    let mut history = load.run(&network.addresses(), &[0, 1, 2], seed(test), |stage| {
        for _ in 0..2 {
            thread::sleep(Duration::from_millis(800));
            let begun = Moment::now().mono;
            network.cut(2, cut).unwrap();
            broken.fault("partition");
            thread::sleep(Duration::from_millis(3500));
            let healed = Moment::now().mono;
            network.heal(2).unwrap();
            thread::sleep(Duration::from_millis(1200));
            spans.push((begun, healed, Moment::now().mono));
            stage.next_round();
        }
    });
    history.absorb(broken);
    let mut after = (0, 0);
    for (begun, healed, ended) in spans {
        let first = failed(&history.asked, begun..begun + SECOND);
        let rest = failed(&history.asked, begun + SECOND..healed);
        let again = failed(&history.asked, healed..ended);
        println!(
            "figures: {test}: failed of the default requests to the two that are together: {} of {} in the first \
             second, {} of {} afterwards, {} of {} after it healed",
            first.1, first.0, rest.1, rest.0, again.1, again.0
        );
        after = (after.0 + rest.0, after.1 + rest.1);
    }
    assert!(
        after.1 * 100 <= after.0,
        "{test}: more than 1 % of requests fail although two of three are together"
    );
    settle(&cluster, &mut history, test);
}

#[test]
fn symmetric_partition() {
    partition("symmetric partition", 0, Cut::Both);
}

/// Requests arrive at the node, its replies do not come back.
#[test]
fn one_way_partition_of_replies() {
    partition("replies are lost", 1, Cut::Sent);
}

/// The node's own requests arrive, replies to them do not.
#[test]
fn one_way_partition_of_requests() {
    partition("requests are lost", 2, Cut::Received);
}
