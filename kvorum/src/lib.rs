//! kvorum: a distributed key-value store behind plain HTTP. This crate is the node and its command line.

pub mod storage;
