//! Backups of a cluster: every live record, in a folder, checked before it is used.
//!
//! A backup is exact ([`create_exact`]): all nodes keep their records as of one timestamp, and are read. Or it is a scan of
//! the whole key space by read quorums ([`create()`]), which needs no right but `scan`: it has every write that was
//! acknowledged before it began, and of the writes during it some.
//!
//! [`pack`] is the format of the records, [`manifest`] says which packs a backup has, [`folder`] keeps both on disk.
//! [`create()`], [`verify()`] and [`restore()`] are the verbs. Time comes in as arguments.

pub mod create;
pub mod error;
mod exact;
pub mod folder;
pub mod manifest;
mod nodes;
pub mod pack;
mod restore;
mod retention;
mod row;
mod verify;

pub use create::{Created, Plan, create};
pub use error::BackupError;
pub use exact::{Connect, create_exact};
pub use folder::Folder;
pub use manifest::Manifest;
pub use restore::{Restored, Target, restore};
pub use retention::Retention;
pub use verify::{Depth, Verified, verify};
