//! The operations, one method each.

use crate::batch::Batch;
use crate::config::Builder;
use crate::entry::{Entry, Head, Page, Status, Version};
use crate::error::Error;
use crate::exchange::Exchange;
use crate::operation::{
    AddOptions, Condition, DeleteOptions, PutOptions, ReadOptions, Replicas, ScanOptions,
};
use crate::request::Call;
use crate::scan::{LineStream, Scan};
use bytes::Bytes;
use std::sync::Arc;
use std::time::Duration;

/// A handle on a cluster; clones share connections and limits.
///
/// Operations need a tokio runtime with I/O and time enabled. They go to replicas of their key once the
/// placement is learned ([`Builder::routing`]) and take turns among equals; conditional writes and additions go to the
/// first of them, where rivals share their rounds. Each ends, with a result or an
/// error, by its deadline ([`Builder::timeout`]). A node that fails is set aside until it answers
/// `/v0/status` with 200 again. Where no node is healthy, requests go to the nodes that are set aside.
///
/// # Cancel safety
/// Dropping the future of an operation closes the connections it used and frees its place in flight. A write
/// may then have taken effect, as with an error whose [`Error::may_have_taken_effect`] is true; a read has
/// changed nothing.
#[derive(Debug, Clone)]
pub struct Client {
    pub(crate) exchange: Arc<Exchange>,
}

impl Client {
    /// Begins a client; it needs at least one [`Builder::node`].
    pub fn builder() -> Builder {
        Builder::default()
    }

    pub(crate) fn new(exchange: Exchange) -> Self {
        Self { exchange: Arc::new(exchange) }
    }

    /// Reads the value of `key`, with the cluster's default quorum; `None` if it has none.
    ///
    /// # Errors
    /// See [`Client::get_with`].
    pub async fn get(&self, key: impl AsRef<[u8]>) -> Result<Option<Entry>, Error> {
        self.get_with(key, ReadOptions::default()).await
    }

    /// Reads the value of `key`; `None` if it has none: never written, deleted, or expired.
    ///
    /// # Errors
    /// Any but [`Error::InvalidConfig`] and [`Error::DiskFull`]; [`Error::TooLarge`] beyond
    /// [`Builder::answer_bytes_max`], [`Error::TooManyInFlight`] beyond [`Builder::in_flight_max`].
    pub async fn get_with(
        &self,
        key: impl AsRef<[u8]>,
        options: ReadOptions,
    ) -> Result<Option<Entry>, Error> {
        let key = key.as_ref();
        let options = ReadOptions { replicas: self.replicas(options.replicas), ..options };
        let answer = self.exchange.whole(&Call::get(key, options)?).await?;
        answer.into_entry(Bytes::copy_from_slice(key))
    }

    /// Reads all but the value of `key`, with the cluster's default quorum; `None` if it has no value.
    ///
    /// # Errors
    /// See [`Client::get_with`].
    pub async fn head(&self, key: impl AsRef<[u8]>) -> Result<Option<Head>, Error> {
        self.head_with(key, ReadOptions::default()).await
    }

    /// Reads all but the value of `key`; `None` if it has no value.
    ///
    /// # Errors
    /// See [`Client::get_with`].
    pub async fn head_with(
        &self,
        key: impl AsRef<[u8]>,
        options: ReadOptions,
    ) -> Result<Option<Head>, Error> {
        let key = key.as_ref();
        let options = ReadOptions { replicas: self.replicas(options.replicas), ..options };
        let answer = self.exchange.whole(&Call::head(key, options)?).await?;
        answer.into_head(Bytes::copy_from_slice(key))
    }

    /// Writes `value` to `key`, without expiry and with the cluster's default quorum.
    ///
    /// # Errors
    /// See [`Client::put_with`].
    pub async fn put(&self, key: impl AsRef<[u8]>, value: impl Into<Bytes>) -> Result<Version, Error> {
        self.put_with(key, value, PutOptions::default()).await
    }

    /// Writes `value` to `key`, and returns its version once the quorum holds it durably.
    ///
    /// # Errors
    /// Any but [`Error::InvalidConfig`], [`Error::TooLarge`] and [`Error::Cut`]. Ask [`Error::may_have_taken_effect`]
    /// before concluding that nothing was written.
    pub async fn put_with(
        &self,
        key: impl AsRef<[u8]>,
        value: impl Into<Bytes>,
        options: PutOptions,
    ) -> Result<Version, Error> {
        let options = PutOptions { replicas: self.replicas(options.replicas), ..options };
        let call = Call::put(key.as_ref(), value.into(), options)?;
        self.exchange.whole(&call).await?.into_version()
    }

    /// Writes a record of a backup: `value` under the `version` that it had, to a `key` without a value. It may be repeated. It
    /// needs the right `admin`.
    ///
    /// # Errors
    /// As for [`Client::put_with`]. Where the key has a value of another version, [`Error::is_condition_failed`] is true, and
    /// nothing was written.
    pub async fn restore(
        &self,
        key: impl AsRef<[u8]>,
        value: impl Into<Bytes>,
        version: &Version,
        expires_millis: Option<u64>,
    ) -> Result<Version, Error> {
        let call = Call::restore(key.as_ref(), value.into(), version, expires_millis)?;
        self.exchange.whole(&call).await?.into_version()
    }

    /// Writes `value` to `key` if `condition` holds, as one step. The quorum must be more than half of its replicas.
    ///
    /// # Errors
    /// As for [`Client::put_with`]. Where the condition does not hold, [`Error::is_condition_failed`] is true, and nothing was
    /// written. It is never repeated after an unknown outcome.
    pub async fn put_if(
        &self,
        key: impl AsRef<[u8]>,
        value: impl Into<Bytes>,
        condition: &Condition,
        options: PutOptions,
    ) -> Result<Version, Error> {
        let options = PutOptions { replicas: self.replicas(options.replicas), ..options };
        let call = Call::put(key.as_ref(), value.into(), options)?.on(condition)?;
        self.exchange.whole(&call).await?.into_version()
    }

    /// Deletes `key` if `condition` holds, as one step. The quorum must be more than half of its replicas.
    ///
    /// # Errors
    /// See [`Client::put_if`].
    pub async fn delete_if(
        &self,
        key: impl AsRef<[u8]>,
        condition: &Condition,
        options: DeleteOptions,
    ) -> Result<Version, Error> {
        let options = DeleteOptions { replicas: self.replicas(options.replicas), ..options };
        let call = Call::delete(key.as_ref(), options)?.on(condition)?;
        self.exchange.whole(&call).await?.into_version()
    }

    /// Adds `addend` to the number that is the value of `key`, as one step, and returns the new number. An absent value counts
    /// as 0; an expiry stays.
    ///
    /// # Errors
    /// As for [`Client::put_with`]; [`Error::Refused`] with status 409 where the value is no number of 64 bits or the sum would
    /// be none. Where [`Error::may_have_taken_effect`] is true, the number may have been added, once.
    pub async fn add(&self, key: impl AsRef<[u8]>, addend: i64, options: AddOptions) -> Result<i64, Error> {
        let options = AddOptions { replicas: self.replicas(options.replicas), ..options };
        self.exchange.whole(&Call::add(key.as_ref(), addend, options)?).await?.into_number()
    }

    /// Deletes `key`, with the cluster's default quorum. A key without a value gets a tombstone, too.
    ///
    /// # Errors
    /// See [`Client::put_with`].
    pub async fn delete(&self, key: impl AsRef<[u8]>) -> Result<Version, Error> {
        self.delete_with(key, DeleteOptions::default()).await
    }

    /// Deletes `key`, and returns the deletion's version once the quorum holds it durably.
    ///
    /// # Errors
    /// See [`Client::put_with`].
    pub async fn delete_with(&self, key: impl AsRef<[u8]>, options: DeleteOptions) -> Result<Version, Error> {
        let options = DeleteOptions { replicas: self.replicas(options.replicas), ..options };
        let call = Call::delete(key.as_ref(), options)?;
        self.exchange.whole(&call).await?.into_version()
    }

    /// Carries out `operations`, one JSON object a line, and returns their answers, a line each in the same order. Not atomic:
    /// each line has its own outcome. The members of a line are those of the HTTP API's `/v0/batch`.
    ///
    /// Returns once the answers begin. It is not repeated after an unknown outcome.
    ///
    /// # Errors
    /// As [`Client::put_with`]; [`Error::Refused`] with status 413 for more than 10,000 lines or 64 MiB, which does nothing. A
    /// failure after the answers have begun is an error of [`Batch::next`].
    pub async fn batch(&self, operations: impl Into<Bytes>) -> Result<Batch, Error> {
        let (opened, place) = self.exchange.open(&Call::batch(operations.into())?).await?;
        Ok(Batch::new(opened, place, self.exchange.timeout))
    }

    /// Reads the entries with `start <= key < end`, sorted by the bytes of their keys; without `end`, all from `start`.
    ///
    /// Returns once the stream has begun. It uses bounded memory: entries are read as they are asked for.
    ///
    /// ```
    /// # mod node { include!(concat!(env!("CARGO_MANIFEST_DIR"), "/tests/support/node.rs")); }
    /// # node::with_node(async |url| {
    /// # use kvorum_client::{Client, ScanOptions};
    /// # let client = Client::builder().node(url).build()?;
    /// for key in ["user/1", "user/2", "user/3"] {
    ///     client.put(key, "somebody").await?;
    /// }
    /// // Two at a time, each part from behind the last key of the one before it.
    /// let (mut start, mut keys) = (b"user/".to_vec(), Vec::new());
    /// loop {
    ///     let part = ScanOptions { limit: Some(2), ..ScanOptions::default() };
    ///     let mut scan = client.scan(&start, Some(b"user0"), part).await?;
    ///     while let Some(entry) = scan.next().await {
    ///         keys.push(entry?.key);
    ///     }
    ///     let Some(last) = scan.last_key() else { break };
    ///     start = [last, &b"\0"[..]].concat();
    /// }
    /// assert_eq!(keys, ["user/1", "user/2", "user/3"]);
    /// # Ok(())
    /// # });
    /// ```
    ///
    /// # Errors
    /// As [`Client::get_with`]. A failure after the stream has begun is an error of [`Scan::next`].
    pub async fn scan(
        &self,
        start: impl AsRef<[u8]>,
        end: Option<&[u8]>,
        options: ScanOptions,
    ) -> Result<Scan, Error> {
        let call = Call::scan(start.as_ref(), end, options)?;
        let (opened, place) = self.exchange.open(&call).await?;
        let timeout = options.timeout.unwrap_or(self.exchange.timeout);
        Ok(Scan::new(call.operation, opened, place, timeout, self.exchange.answer_bytes_max))
    }

    /// Asks which record every node holds of `key`: a table for people, or JSON.
    ///
    /// # Errors
    /// As for a read.
    pub async fn explain(&self, key: impl AsRef<[u8]>, json: bool) -> Result<String, Error> {
        Ok(self.exchange.whole(&Call::explain(key.as_ref(), json)?).await?.into_text())
    }

    /// Asks one node for the configuration of the cluster, epoch and members: lines for people, or JSON. It answers clients
    /// on its own machine, or with the right `admin`; the code of the answer says whether it did.
    ///
    /// # Errors
    /// Those of [`Client::status`].
    pub async fn cluster(&self, json: bool) -> Result<Page, Error> {
        Ok(self.exchange.whole(&Call::cluster(json)?).await?.into_page())
    }

    /// Compares one node with all others now, in one partition or in all, and repairs the differences.
    /// Returns the result as JSON when that is done. The time depends on the number of differences; give the
    /// client a timeout to match.
    ///
    /// # Errors
    /// As for a read; also when another such repair is under way on the node.
    pub async fn repair(&self, partition: Option<u16>) -> Result<String, Error> {
        Ok(self.exchange.whole(&Call::repair(partition)?).await?.into_text())
    }

    /// Drops from one node the records that are too far ahead of its clock to be accepted
    /// (`--clock-offset-limit`). Returns the count, as JSON. The values are lost on that node.
    ///
    /// # Errors
    /// As for a read.
    pub async fn drop_unbelievable(&self) -> Result<String, Error> {
        Ok(self.exchange.whole(&Call::drop_unbelievable()?).await?.into_text())
    }

    /// Asks one node for its state: the next in turn that answers, whatever the status of its answer.
    ///
    /// # Errors
    /// [`Error::Unreachable`], [`Error::TimedOut`], [`Error::Protocol`], [`Error::TooLarge`] or [`Error::Cut`]; a
    /// node that is not ready is no error, but a [`Status`].
    pub async fn status(&self) -> Result<Status, Error> {
        Ok(self.exchange.whole(&Call::status()?).await?.into_status())
    }

    /// Asks one node for a page other than the operations, such as `/metrics` or
    /// `/debug/profile?event=alloc`: the next node in turn that answers, whatever the status of its answer.
    /// It waits for the page as for any answer: give the client a timeout to match. Use
    /// [`RetryPolicy::NONE`](crate::RetryPolicy::NONE) where a second attempt would show another time.
    ///
    /// ```
    /// # mod node { include!(concat!(env!("CARGO_MANIFEST_DIR"), "/tests/support/node.rs")); }
    /// # node::with_node(async |url| {
    /// # let client = kvorum_client::Client::builder().node(url).build()?;
    /// let metrics = client.page("/metrics").await?;
    /// assert_eq!(metrics.code, 200);
    /// assert!(metrics.body.starts_with(b"# HELP"));
    /// # Ok(())
    /// # });
    /// ```
    ///
    /// # Errors
    /// [`Error::InvalidRequest`] where `target` is no path with a query; otherwise those of [`Client::status`].
    pub async fn page(&self, target: &str) -> Result<Page, Error> {
        Ok(self.exchange.whole(&Call::page(target)?).await?.into_page())
    }

    /// Orders a node to do something that is not about one key, by a POST to `target`, such as
    /// `/admin/workers/sweep/pause`. It may be repeated. Returns the answer, whatever its status.
    ///
    /// # Errors
    /// Those of [`Client::status`].
    pub async fn order(&self, target: &str) -> Result<Page, Error> {
        Ok(self.exchange.whole(&Call::order(target)?).await?.into_page())
    }

    /// Reads a stream of lines that is not a scan, such as the records of a cut. `timeout` bounds the wait for its
    /// beginning, and then for each next line; without it, the client's does.
    ///
    /// # Errors
    /// As [`Client::scan`].
    pub async fn lines(&self, target: &str, timeout: Option<Duration>) -> Result<LineStream, Error> {
        let call = Call::lines(target, timeout)?;
        let (opened, place) = self.exchange.open(&call).await?;
        let timeout = timeout.unwrap_or(self.exchange.timeout);
        let scan = Scan::new(call.operation, opened, place, timeout, self.exchange.answer_bytes_max);
        Ok(LineStream::of(scan))
    }

    /// How many operations are in flight now.
    pub fn in_flight(&self) -> usize {
        self.exchange.flight.inside()
    }

    /// How many operations wait for their turn now.
    pub fn waiting(&self) -> usize {
        self.exchange.flight.waiting()
    }

    /// How many nodes are set aside now.
    pub fn nodes_aside(&self) -> usize {
        self.exchange.nodes.aside_count()
    }

    /// The epoch of the cluster's topology that the client knows; `None` until it was learned.
    pub fn topology_epoch(&self) -> Option<String> {
        self.exchange.nodes.epoch()
    }

    /// The quorum of an operation that asks for `asked`.
    fn replicas(&self, asked: Option<Replicas>) -> Option<Replicas> {
        asked.or(self.exchange.default_replicas)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn can_be_shared_over_threads() {
        fn check<T: Send + Sync + Clone>() {}
        fn check_send<T: Send>(_: T) {}
        check::<Client>();
        let client = Client::builder().node("http://a:1").build().unwrap();
        check_send(client.put("k", "v"));
        check_send(client.scan("a", None, ScanOptions::default()));
    }
}
