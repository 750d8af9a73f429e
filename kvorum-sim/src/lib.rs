//! kvorum-sim: the same node code in a deterministic simulation, and the oracle that judges what clients saw.
pub mod history;
pub mod invariants;
pub mod seed;
