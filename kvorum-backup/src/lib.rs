//! Backups of a cluster: every live record, in a folder, checked before it is used.
//!
//! A backup is read through the public API: a scan of the whole key space by read quorums. So it has every write that was
//! acknowledged before it began, and of the writes during it some. Each partition is seen as of one instant for each piece
//! of the scan; the backup as a whole is *not* one instant ([`create()`]).
//!
//! [`pack`] is the format of the records, [`manifest`] says which packs a backup has, [`folder`] keeps both on disk.
//! [`create()`], [`verify()`] and [`restore()`] are the verbs. Time comes in as arguments.

pub mod create;
pub mod error;
pub mod folder;
pub mod manifest;
pub mod pack;
mod restore;
mod retention;
mod verify;

pub use create::{Created, Plan, create};
pub use error::BackupError;
pub use folder::Folder;
pub use manifest::Manifest;
pub use restore::{Restored, Target, restore};
pub use retention::Retention;
pub use verify::{Depth, Verified, verify};
