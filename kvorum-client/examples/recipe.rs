//! The example of docs/clients.md as a program: `cargo run -p kvorum-client --example recipe URL…`

use bytes::Bytes;
use kvorum_client::{
    AddOptions, Client, Condition, DeleteOptions, Error, PutOptions, Replicas, ScanOptions, Version,
};
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

    conditions(&client).await?;

    let impossible = PutOptions { replicas: Some(Replicas { ack: 99, from: 99 }), ..PutOptions::default() };
    let refused = client.put_with("recipe/x", "x", impossible).await;
    assert!(
        matches!(&refused, Err(Error::Refused { status: 400, .. })),
        "more replicas than nodes: {refused:?}"
    );
    assert!(refused.is_err_and(|error| !error.may_have_taken_effect() && !error.is_retry_safe()));
    println!("rust with kvorum-client: put, get, delete, ttl, range, failures, conditions: ok");
    Ok(())
}

async fn conditions(client: &Client) -> Result<(), Error> {
    // An optimistic update, and a counter.
    for name in ["ann ", "bob "] {
        let add_name = |old: Option<&[u8]>| Some([old.unwrap_or_default(), name.as_bytes()].concat().into());
        client.update("recipe/names", add_name, PutOptions::default()).await?;
    }
    assert_eq!(client.get("recipe/names").await?.map(|entry| entry.value), Some("ann bob ".into()));
    client.add("recipe/hits", 5, AddOptions::default()).await?;
    assert_eq!(client.add("recipe/hits", -2, AddOptions::default()).await?, 3);
    // Create: of two, one does it.
    client.put_if("recipe/order", "1", &Condition::Absent, PutOptions::default()).await?;
    let again = client.put_if("recipe/order", "2", &Condition::Absent, PutOptions::default()).await;
    assert!(again.is_err_and(|error| error.is_condition_failed()));
    // A lock. Its first holder sleeps until it is another's: without the token it would write over the second one's work.
    let lock = async |ttl: Duration| {
        let options = PutOptions { ttl: Some(ttl), ..PutOptions::default() };
        client.put_if("recipe/lock", "", &Condition::Absent, options).await
    };
    let first = lock(Duration::from_millis(300)).await?;
    assert!(lock(Duration::from_millis(300)).await.is_err_and(|error| error.is_condition_failed()));
    tokio::time::sleep(Duration::from_millis(400)).await;
    let second = lock(Duration::from_secs(30)).await?;
    assert!(fenced_put(client, "recipe/work", &second, "of the second").await?);
    assert!(!fenced_put(client, "recipe/work", &first, "too late").await?);
    client.delete_if("recipe/lock", &Condition::Version(second), DeleteOptions::default()).await?;
    for key in ["names", "hits", "order", "work"] {
        client.delete(format!("recipe/{key}")).await?;
    }
    Ok(())
}

/// Stores a value under a lock's token; returns false where a later holder of the lock has written.
async fn fenced_put(client: &Client, key: &str, token: &Version, value: &str) -> Result<bool, Error> {
    let change = |old: Option<&[u8]>| {
        let latest = old.and_then(|old| old.split(|byte| *byte == b' ').next()).unwrap_or_default();
        (latest <= token.as_str().as_bytes()).then(|| Bytes::from(format!("{token} {value}")))
    };
    Ok(client.update(key, change, PutOptions::default()).await?.is_some())
}
