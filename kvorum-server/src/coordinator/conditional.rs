//! Conditional writes: what clients ask of ballots ([`super::ballot`]).
//!
//! Restores belong to them: writes of a backup's records, which keep the `ETag` that they had. Such a record gets a new version, like
//! every write, and notes the old one as its origin. So it needs no place below the floors of tombstone GC, and no other node
//! has to believe an old version. Clients see the origin: `ETag`, `Last-Modified` and conditions are those of the backup.

use super::ballot::{End, Purpose};
use super::edit::{Change, Edit};
use super::{Coordinator, CoordinatorError, Mutation, Written};
use crate::canary::{self, Canary};
use crate::replica::ReplicaError;
use bytes::Bytes;
use kvorum_core::condition::{ApplyError, Tags};
use kvorum_core::{Condition, Key, Quorum, UnixMillis, Version};
use std::num::NonZeroU128;
use std::rc::Rc;

/// The answer to a conditional write.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Decided {
    /// The condition held, and the record is written.
    Written(Written),
    /// The condition did not hold: nothing was done. `current` is the `ETag` of the value; none where there is no value.
    Failed {
        /// The `ETag`.
        current: Option<Version>,
    },
}

/// The answer to an edit.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Edited {
    /// The new value is written.
    Written {
        /// The write.
        written: Written,
        /// The new number of a counter; none for an append.
        number: Option<Bytes>,
    },
    /// The condition did not hold: nothing was done. `current` is the `ETag` of the value; none where there is no value.
    Failed {
        /// The `ETag`.
        current: Option<Version>,
    },
    /// The edit cannot be done on the value that is there: nothing was done.
    Unfit(ApplyError),
}

impl Coordinator {
    /// Writes `mutation` to `key` if `condition` holds for the newest record, as one step. `operation` is the digest of
    /// the name that the client gave the write: a write of this name that is the key's newest has been done before.
    ///
    /// The quorum must be a majority: `2 * ACK > FROM`.
    ///
    /// # Errors
    /// As for [`Self::write`]. [`CoordinatorError::NotEnoughReplicas`] leaves the write of unknown outcome.
    ///
    /// # Cancel safety
    /// A write that has begun goes on when the future is dropped; its outcome is then unknown.
    pub async fn write_if(
        self: &Rc<Self>,
        key: Key,
        mutation: Mutation,
        condition: Condition,
        operation: Option<NonZeroU128>,
        quorum: Quorum,
    ) -> Result<Decided, CoordinatorError> {
        let expires = mutation.expires(self.shared.clock.wall());
        let purpose = Purpose::Write {
            change: Change::Set { mutation, expires },
            condition: Some(condition),
            operation,
        };
        Ok(match self.decide_apart(key, purpose, quorum, Version::ZERO).await? {
            End::Done { version, confirmed, .. } => Decided::Written(Written { version, confirmed }),
            End::Failed { current } => Decided::Failed { current },
            // A value that does not depend on another one fits every record, and only a read keeps one.
            End::Unfit(_) | End::Kept(_) => return Err(CoordinatorError::Stopped),
        })
    }

    /// Edits the value of `key` if `condition` holds for it, as one step; as [`Self::write_if`] in every respect.
    ///
    /// # Errors
    /// As for [`Self::write_if`]: after [`CoordinatorError::NotEnoughReplicas`] it may have been done, once.
    ///
    /// # Cancel safety
    /// As for [`Self::write_if`].
    pub async fn edit(
        self: &Rc<Self>,
        key: Key,
        edit: Edit,
        condition: Condition,
        operation: Option<NonZeroU128>,
        quorum: Quorum,
    ) -> Result<Edited, CoordinatorError> {
        let purpose = Purpose::Write { change: Change::Edit(edit), condition: Some(condition), operation };
        Ok(match self.decide_apart(key, purpose, quorum, Version::ZERO).await? {
            End::Done { version, confirmed, number } => {
                Edited::Written { written: Written { version, confirmed }, number }
            }
            End::Failed { current } => Edited::Failed { current },
            End::Unfit(error) => Edited::Unfit(error),
            // Only a read keeps a record.
            End::Kept(_) => return Err(CoordinatorError::Stopped),
        })
    }

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
