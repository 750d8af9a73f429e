//! The example of docs/clients.md as a program: `cargo run -p kvorum-client --example recipe URL…`

use kvorum_client::{Client, Error, PutOptions, Replicas, ScanOptions};
use std::time::Duration;

#[tokio::main(flavor = "current_thread")]
async fn main() -> Result<(), Error> {
    let client = Client::builder().nodes(std::env::args().skip(1)).timeout(Duration::from_secs(5)).build()?;

    let version = client.put("recipe/greeting", "hello").await?;
    let entry = client.get("recipe/greeting").await?;
    assert_eq!(entry.map(|entry| (entry.value, entry.version)), Some(("hello".into(), version)));

    let session = PutOptions {
        ttl: Some(Duration::from_millis(300)),
        replicas: Some(Replicas { ack: 2, from: 3 }),
        ..PutOptions::default()
    };
    client.put_with("recipe/session", "token", session).await?;
    client.put(b"recipe/\x00\xff +%&=/#\n", "keys are bytes").await?;

    tokio::time::sleep(Duration::from_millis(400)).await;
    assert_eq!(client.get("recipe/session").await?, None);

    // In the order of the keys' bytes, as they come. Where the range is cut, the last item is an error.
    let mut keys = Vec::new();
    let mut scan = client.scan("recipe/", Some(b"recipe0"), ScanOptions::default()).await?;
    while let Some(entry) = scan.next().await {
        keys.push(entry?.key);
    }
    assert_eq!(keys, [&b"recipe/\x00\xff +%&=/#\n"[..], b"recipe/greeting"]);
    for key in keys {
        client.delete(key).await?;
    }

    let impossible = PutOptions { replicas: Some(Replicas { ack: 99, from: 99 }), ..PutOptions::default() };
    let refused = client.put_with("recipe/x", "x", impossible).await;
    assert!(
        matches!(&refused, Err(Error::Refused { status: 400, .. })),
        "more replicas than nodes: {refused:?}"
    );
    assert!(refused.is_err_and(|error| !error.may_have_taken_effect() && !error.is_retry_safe()));
    println!("rust with kvorum-client: put, get, delete, ttl, range, failures: ok");
    Ok(())
}
