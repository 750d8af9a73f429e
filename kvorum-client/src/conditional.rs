//! Updates: a value is read, a function makes the new one, and it is written only if the value is still the same.

use crate::client::Client;
use crate::entry::Version;
use crate::error::Error;
use crate::operation::{Condition, PutOptions, ReadOptions};
use crate::retry::later;
use bytes::Bytes;
use std::time::Duration;
use tokio::time::{Instant, sleep};

/// The longest pause after a rival has written in between. It begins at a millisecond and doubles.
const PAUSE_MAX: Duration = Duration::from_millis(100);

impl Client {
    /// Writes to `key` what `change` makes of its value, as one step: `change` is called again with the newer value where
    /// somebody else has written in between, until the deadline. It gets `None` for an absent value; where it returns `None`,
    /// nothing is written. Returns the new version, or `None` where nothing was written.
    ///
    /// `options` are those of the write; its quorum must be more than half of its replicas. Its deadline is that of all reads and
    /// writes together.
    ///
    /// ```
    /// # mod node { include!(concat!(env!("CARGO_MANIFEST_DIR"), "/tests/support/node.rs")); }
    /// # node::with_node(async |url| {
    /// # use kvorum_client::{Client, PutOptions};
    /// # let client = Client::builder().node(url).build()?;
    /// // Append a name to a list; other clients may do the same meanwhile.
    /// let add_name = |list: Option<&[u8]>| Some([list.unwrap_or_default(), b"ann\n"].concat().into());
    /// client.update("names", add_name, PutOptions::default()).await?;
    /// assert_eq!(client.get("names").await?.map(|entry| entry.value), Some("ann\n".into()));
    /// # Ok(())
    /// # });
    /// ```
    ///
    /// # Errors
    /// As [`Client::get_with`] and [`Client::put_if`]. After an unknown outcome it is not tried again:
    /// [`Error::may_have_taken_effect`] is then true. Where rivals were faster until the deadline,
    /// [`Error::is_condition_failed`] is true, and nothing was written.
    pub async fn update(
        &self,
        key: impl AsRef<[u8]>,
        mut change: impl FnMut(Option<&[u8]>) -> Option<Bytes>,
        options: PutOptions,
    ) -> Result<Option<Version>, Error> {
        let key = key.as_ref();
        let deadline = later(Instant::now(), options.timeout.unwrap_or(self.exchange.timeout));
        let mut pause = Duration::from_millis(1);
        loop {
            let left = || Some(deadline.saturating_duration_since(Instant::now()));
            let read = ReadOptions { replicas: options.replicas, timeout: left() };
            let entry = self.get_with(key, read).await?;
            let condition = match &entry {
                Some(entry) => Condition::Version(entry.version.clone()),
                None => Condition::Absent,
            };
            let Some(value) = change(entry.as_ref().map(|entry| &entry.value[..])) else { return Ok(None) };
            let write = PutOptions { timeout: left(), ..options };
            let error = match self.put_if(key, value, &condition, write).await {
                Ok(version) => return Ok(Some(version)),
                Err(error) => error,
            };
            if !error.is_condition_failed() || deadline.saturating_duration_since(Instant::now()) <= pause {
                return Err(error);
            }
            // The times of the rivals' reads differ already: that of each depends on its own write.
            sleep(pause).await;
            pause = (pause * 2).min(PAUSE_MAX);
        }
    }
}
