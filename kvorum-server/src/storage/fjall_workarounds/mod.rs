//! Workarounds for fjall 3.1: what it does or lacks, and what is done here about it. Each file opens with what would
//! make it unnecessary; no file changes what is stored.
//!
//! | file | what fjall does |
//! | --- | --- |
//! | [`inspect`] | takes some damage for the traces of a crash, and cuts it off |
//! | [`held`], [`writeback`] | frees files and memtables, and syncs whole tables, in a lock that every request needs |
//! | [`reclaim`] | leaves removed rows on the disk until enough is written |
//! | [`snapshots`] | looks for ended snapshots only once in 10,000 of them |
//! | [`uncached`] | reads blocks from its cache whatever the disk holds by now |
//! | [`workers`] | starts its threads at the priority of the requests |
//!
//! They reach into `keyspace.tree`, `database.supervisor` and fjall's names of folders and threads, which its versions
//! do not promise: an upgrade is tested as `docs/dev/storage.md` says.

mod held;
mod inspect;
pub(super) mod reclaim;
mod snapshots;
pub(super) mod uncached;
pub(super) mod workers;
mod writeback;

pub(super) use held::HeldResources;
pub(super) use inspect::inspect;
