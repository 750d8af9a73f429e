//! Restores: writes of a backup's records, which keep the `ETag` that they had.
//!
//! Such a record gets a new version, like every write, and notes the old one as its origin. So it needs no place below the
//! floors of tombstone GC, and no other node has to believe an old version. Clients see the origin: `ETag`,
//! `Last-Modified` and conditions are those of the backup.

use super::ballot::{End, Purpose};
use super::edit::Change;
use super::{Coordinator, CoordinatorError, Decided, Written};
use crate::canary::{self, Canary};
use crate::replica::ReplicaError;
use bytes::Bytes;
use kvorum_core::condition::Tags;
use kvorum_core::{Condition, Key, Quorum, UnixMillis, Version};
use std::rc::Rc;

impl Coordinator {
    /// Writes a record of a backup to `key`, which must have no value: of `origin`, its `ETag`, and with the expiry instant
    /// that it had. All versions that this node gives from then on are above `origin`.
    ///
    /// # Errors
    /// As for [`Self::write_if`]; [`ReplicaError::TooFarAhead`] for an `origin` that is further ahead than this node's clock
    /// bears out.
    ///
    /// # Cancel safety
    /// As for [`Self::write_if`].
    pub async fn restore(
        self: &Rc<Self>,
        key: Key,
        value: Bytes,
        origin: Version,
        expires: Option<UnixMillis>,
        quorum: Quorum,
    ) -> Result<Decided, CoordinatorError> {
        self.shared.timestamps.check(origin.clock()).map_err(ReplicaError::from)?;
        let absent = Condition { if_match: None, if_none_match: Some(Tags::Any) };
        let change = Change::Restore { value, origin, expires };
        let condition = (!canary::is(Canary::RestoreOverwrites)).then_some(absent);
        let purpose = Purpose::Write { change, condition, operation: None };
        Ok(match self.decide_apart(key, purpose, quorum, origin).await? {
            End::Done { version, confirmed, .. } => Decided::Written(Written { version, confirmed }),
            End::Failed { current } => Decided::Failed { current },
            // A value that does not depend on another one fits every record, and only a read keeps one.
            End::Unfit(_) | End::Kept(_) => return Err(CoordinatorError::Stopped),
        })
    }
}
