//! What a replica answered before it lost its store counts no more.

use super::{Client, calm, tell, until};
use kvorum_sim::fault::{Fault, FaultEvent, FaultKind};
use kvorum_sim::history::{Outcome, Request};
use kvorum_sim::plan::nodes_by_key;
use std::time::Duration;

const NODES: u16 = 5;
const KEY: &str = "k";

fn at(millis: u64) -> Duration {
    Duration::from_millis(millis)
}

/// Goal: a write is not confirmed by a store that was lost since, and refilled without the record. Method: of the three
/// replicas, the first takes the record at once. The second gets it when the first has lost its disk and was compared with it.
/// The third does not get it. Then the first and the third are read.
#[test]
fn answers_of_a_lost_store_do_not_count() {
    let nodes = nodes_by_key(NODES)(KEY.as_bytes());
    let [lost, late, cut_off, writer, reader] = nodes[..] else { panic!("{nodes:?}") };
    let mut plan = calm(NODES);
    let fault = |from, to, kind, fault| FaultEvent::between(at(from), at(to), kind, fault);
    let hold = |from, to, source, target| fault(from, to, FaultKind::Hold, Fault::Hold { source, target });
    plan.faults = vec![
        hold(3000, 3880, writer, late),
        hold(3000, 8000, writer, cut_off),
        fault(3100, 3150, FaultKind::Wipe, Fault::Wipe { node: lost }),
        hold(3950, 8000, reader, late),
    ];
    let cluster = tell(&plan, async move |mut client: Client| {
        let put = Request::Put { ttl: None };
        until(at(2000)).await;
        let first = client.ask(writer, KEY, put.clone(), (3, 3)).await;
        assert!(matches!(first, Outcome::Acknowledged { .. }), "{first}");
        until(at(3010)).await;
        let second = client.ask(writer, KEY, put, (2, 3)).await;
        until(at(4500)).await;
        let read = client.ask(reader, KEY, Request::Get, (2, 3)).await;
        let (Outcome::Acknowledged { version: written }, Outcome::Value { version, .. }) = (&second, &read)
        else {
            panic!("{second}, then {read}")
        };
        assert!(version >= written, "{second}, then {read}");
    });
    assert_eq!(cluster.counts().get(&FaultKind::Wipe), Some(&1));
}
