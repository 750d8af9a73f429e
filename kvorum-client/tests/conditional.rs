//! Writes with conditions, counters and updates, against a real node.

#![expect(clippy::unwrap_used, reason = "helpers of tests, which may")]

#[expect(
    unreachable_pub,
    clippy::default_trait_access,
    reason = "the examples of the documentation include it, too"
)]
mod node {
    include!("support/node.rs");
}

use bytes::Bytes;
use kvorum_client::{AddOptions, Condition, DeleteOptions, PutOptions};
use kvorum_client::{Client, Error};

fn number(text: Option<&[u8]>) -> u32 {
    text.map_or(0, |text| std::str::from_utf8(text).unwrap().parse().unwrap())
}

/// A condition that does not hold leaves everything as it was, and says so.
#[test]
fn conditions_are_judged() {
    node::with_node(async |url| {
        let client = Client::builder().node(url).build()?;
        let put = PutOptions::default();
        let first = client.put_if("k", "1", &Condition::Absent, put).await?;
        let failed = client.put_if("k", "2", &Condition::Absent, put).await.unwrap_err();
        assert!(failed.is_condition_failed() && !failed.may_have_taken_effect(), "{failed}");
        let second = client.put_if("k", "2", &Condition::Version(first.clone()), put).await?;
        let stale = Condition::Version(first);
        assert!(client.put_if("k", "3", &stale, put).await.is_err_and(|error| error.is_condition_failed()));
        let delete = DeleteOptions::default();
        assert!(client.delete_if("k", &stale, delete).await.is_err_and(|error| error.is_condition_failed()));
        assert_eq!(client.get("k").await?.map(|entry| entry.version), Some(second));
        client.delete_if("k", &Condition::Present, delete).await?;
        assert!(client.delete_if("k", &Condition::Present, delete).await.is_err());
        assert_eq!(client.get("k").await?, None);
        Ok(())
    });
}

/// Additions answer the new number; what is no number is refused, and nothing is done.
#[test]
fn numbers_are_added() {
    node::with_node(async |url| {
        let client = Client::builder().node(url).build()?;
        assert_eq!(client.add("n", 40, AddOptions::default()).await?, 40);
        assert_eq!(client.add("n", -42, AddOptions::default()).await?, -2);
        client.put("word", "two").await?;
        let error = client.add("word", 1, AddOptions::default()).await.unwrap_err();
        assert!(matches!(error, Error::Refused { status: 409, .. }), "{error}");
        assert!(!error.may_have_taken_effect());
        Ok(())
    });
}

/// Updates of rivals are all done: each is made from the value that the one before left.
#[test]
fn updates_of_rivals_are_all_done() {
    node::with_node(async |url| {
        let client = Client::builder().node(url).build()?;
        let more = |old: Option<&[u8]>| Some(Bytes::from((number(old) + 1).to_string()));
        let work = async || {
            for _ in 0..20 {
                client.update("sum", more, PutOptions::default()).await?;
            }
            Ok::<(), Error>(())
        };
        let (one, two, three) = tokio::join!(work(), work(), work());
        one.and(two).and(three)?;
        assert_eq!(number(client.get("sum").await?.as_ref().map(|entry| &entry.value[..])), 60);
        // A function that wants no change leaves the value.
        assert_eq!(client.update("sum", |_| None, PutOptions::default()).await?, None);
        Ok(())
    });
}
