//! Operations per second of this client with a fixed number in flight, and their latencies, against a cluster
//! that runs already: `cargo run --release -p kvorum-client --example bench URL,URL IN_FLIGHT ROUTING SECONDS
//! [ACK/FROM]`
//!
//! Keys and values are those of the Java client's benchmark (`clients/java/bench`): 10,000 keys, 100 bytes.
//! The quorum is 1/1 by default, so that routing has a hop to save. One thread runs as many tasks as
//! operations in flight; each performs one operation after the other. Prints a row of a table for reads, and
//! one for writes.

use hdrhistogram::Histogram;
use kvorum_client::{Client, Overflow, Replicas};
use std::error::Error;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;
use tokio::task::JoinSet;
use tokio::time::Instant;

const KEYS: u64 = 10_000;
const VALUE: &[u8] = &[0; 100];
/// Longer latencies are recorded as this one.
const LATENCY_US_MAX: u64 = 60_000_000;
const WARM_UP: Duration = Duration::from_secs(2);

#[tokio::main(flavor = "current_thread")]
async fn main() -> Result<(), Box<dyn Error>> {
    let arguments: Vec<String> = std::env::args().skip(1).collect();
    let [urls, in_flight, routing, seconds, rest @ ..] = &arguments[..] else {
        return Err("URL,URL IN_FLIGHT ROUTING SECONDS [ACK/FROM] are needed".into());
    };
    let (in_flight, routing): (usize, bool) = (in_flight.parse()?, routing.parse()?);
    let replicas = rest.first().map_or("1/1", String::as_str);
    let (ack, from) = replicas.split_once('/').ok_or("ACK/FROM is such as 2/3")?;
    let client = Client::builder()
        .nodes(urls.split(','))
        .default_replicas(Replicas { ack: ack.parse()?, from: from.parse()? })
        .routing(routing)
        .connections_per_node_max(in_flight)
        .in_flight_max(in_flight, Overflow::Fail)
        .build()?;
    for key in 0..KEYS {
        client.put(format!("bench-{key}"), VALUE).await?;
    }
    for is_write in [false, true] {
        load(&client, in_flight, is_write, WARM_UP).await?;
        let span = Duration::from_secs(seconds.parse()?);
        let latencies = load(&client, in_flight, is_write, span).await?;
        let micros = |share| latencies.value_at_quantile(share);
        println!(
            "| {} | {in_flight} | {routing} | {} | {} / {} / {} |",
            if is_write { "PUT" } else { "GET" },
            latencies.len() / span.as_secs(),
            micros(0.5),
            micros(0.99),
            micros(0.999),
        );
    }
    Ok(())
}

/// The latencies, in microseconds, of the operations that are done in `span`.
async fn load(
    client: &Client,
    in_flight: usize,
    is_write: bool,
    span: Duration,
) -> Result<Histogram<u64>, Box<dyn Error>> {
    let end = Instant::now() + span;
    let next = Arc::new(AtomicU64::new(0));
    let latencies = Arc::new(Mutex::new(Histogram::<u64>::new_with_max(LATENCY_US_MAX, 3)?));
    let mut tasks: JoinSet<Result<(), kvorum_client::Error>> = JoinSet::new();
    for _ in 0..in_flight {
        let (client, next) = (client.clone(), Arc::clone(&next));
        let latencies = Arc::clone(&latencies);
        tasks.spawn(async move {
            loop {
                let begun = Instant::now();
                if begun >= end {
                    return Ok(());
                }
                // Every key as often as every other, in an order without a pattern (7,919 is prime).
                let key = format!("bench-{}", next.fetch_add(7_919, Ordering::Relaxed) % KEYS);
                let done = if is_write {
                    client.put(key, VALUE).await.map(drop)
                } else {
                    client.get(key).await.map(drop)
                };
                done?;
                let micros = u64::try_from(begun.elapsed().as_micros()).unwrap_or(u64::MAX);
                latencies.lock().unwrap_or_else(PoisonError::into_inner).saturating_record(micros);
            }
        });
    }
    while let Some(done) = tasks.join_next().await {
        done??;
    }
    let latencies = latencies.lock().unwrap_or_else(PoisonError::into_inner);
    Ok(latencies.clone())
}
