//! The operations, one method each.

use crate::config::Builder;
use crate::entry::{Entry, Head, Status, Version};
use crate::error::Error;
use crate::exchange::Exchange;
use crate::operation::{DeleteOptions, PutOptions, ReadOptions, ScanOptions};
use crate::request::Call;
use crate::scan::Scan;
use bytes::Bytes;
use std::sync::Arc;

/// This is a handle on a cluster; clones share connections and limits.
///
/// Operations need a tokio runtime with I/O and time enabled. They take turns over the nodes; each ends, with a result
/// or an error, by its deadline ([`Builder::timeout`]).
///
/// # Cancel safety
/// Dropping the future of an operation closes the connection it used. A write may then have taken effect, as with an
/// error whose [`Error::may_have_taken_effect`] is true.
#[derive(Debug, Clone)]
pub struct Client {
    exchange: Arc<Exchange>,
}

impl Client {
    /// Begins a client; it needs at least one [`Builder::node`].
    pub fn builder() -> Builder {
        Builder::default()
    }

    pub(crate) fn new(exchange: Exchange) -> Self {
        Self { exchange: Arc::new(exchange) }
    }

    /// Reads the value of `key`, with the cluster's default quorum; nothing if it has none.
    ///
    /// # Errors
    /// See [`Client::get_with`].
    pub async fn get(&self, key: impl AsRef<[u8]>) -> Result<Option<Entry>, Error> {
        self.get_with(key, ReadOptions::default()).await
    }

    /// Reads the value of `key`; nothing if it has none: never written, deleted, or expired.
    ///
    /// # Errors
    /// Any but [`Error::InvalidConfig`] and [`Error::DiskFull`]; [`Error::TooLarge`] beyond
    /// [`Builder::answer_bytes_max`].
    pub async fn get_with(
        &self,
        key: impl AsRef<[u8]>,
        options: ReadOptions,
    ) -> Result<Option<Entry>, Error> {
        let key = key.as_ref();
        let answer = self.exchange.whole(&Call::get(key, options)?).await?;
        answer.into_entry(Bytes::copy_from_slice(key))
    }

    /// Reads all but the value of `key`, with the cluster's default quorum; nothing if it has none.
    ///
    /// # Errors
    /// See [`Client::get_with`].
    pub async fn head(&self, key: impl AsRef<[u8]>) -> Result<Option<Head>, Error> {
        self.head_with(key, ReadOptions::default()).await
    }

    /// Reads all but the value of `key`; nothing if it has none.
    ///
    /// # Errors
    /// See [`Client::get_with`].
    pub async fn head_with(
        &self,
        key: impl AsRef<[u8]>,
        options: ReadOptions,
    ) -> Result<Option<Head>, Error> {
        let key = key.as_ref();
        let answer = self.exchange.whole(&Call::head(key, options)?).await?;
        answer.into_head(Bytes::copy_from_slice(key))
    }

    /// Writes `value` to `key`, for ever and with the cluster's default quorum.
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
        let call = Call::put(key.as_ref(), value.into(), options)?;
        self.exchange.whole(&call).await?.into_version()
    }

    /// Deletes `key`, with the cluster's default quorum; a key without a value is deleted, too.
    ///
    /// # Errors
    /// See [`Client::put_with`].
    pub async fn delete(&self, key: impl AsRef<[u8]>) -> Result<(), Error> {
        self.delete_with(key, DeleteOptions::default()).await
    }

    /// Deletes `key`, and returns once the quorum holds the deletion durably.
    ///
    /// # Errors
    /// See [`Client::put_with`].
    pub async fn delete_with(&self, key: impl AsRef<[u8]>, options: DeleteOptions) -> Result<(), Error> {
        let call = Call::delete(key.as_ref(), options)?;
        self.exchange.whole(&call).await.map(drop)
    }

    /// Reads the entries with `start <= key < end`, sorted by the bytes of their keys; without `end`, all from `start`.
    ///
    /// Returns once the stream has begun. It uses bounded memory: entries are read as they are asked for.
    ///
    /// # Errors
    /// As [`Client::get_with`]. What fails once the stream has begun is an error of [`Scan::next`].
    pub async fn scan(
        &self,
        start: impl AsRef<[u8]>,
        end: Option<&[u8]>,
        options: ScanOptions,
    ) -> Result<Scan, Error> {
        let call = Call::scan(start.as_ref(), end, options)?;
        let opened = self.exchange.open(&call).await?;
        Ok(Scan::new(call.operation, opened, self.exchange.timeout(), self.exchange.answer_bytes_max()))
    }

    /// Asks what every node holds of `key`: a table for people, or JSON.
    ///
    /// # Errors
    /// As for a read.
    pub async fn explain(&self, key: impl AsRef<[u8]>, json: bool) -> Result<String, Error> {
        Ok(self.exchange.whole(&Call::explain(key.as_ref(), json)?).await?.into_text())
    }

    /// Asks one node for its state: the next in turn that answers, whatever it answers.
    ///
    /// # Errors
    /// [`Error::Unreachable`], [`Error::TimedOut`], [`Error::Protocol`], [`Error::TooLarge`] or [`Error::Cut`]; a
    /// node that is not ready is no error, but a [`Status`].
    pub async fn status(&self) -> Result<Status, Error> {
        Ok(self.exchange.whole(&Call::status()?).await?.into_status())
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
