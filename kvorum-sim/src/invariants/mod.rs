//! The oracle: one file for each invariant of the HTTP contract.
//!
//! Each has one function, `check`, over what clients saw ([`History`]) and the effects of the run on the
//! nodes ([`Facts`]). A check is silent where the contract promises nothing, so every file begins with the
//! precondition of its promise. A write of unknown outcome may take effect once, at any later time, or never.
//! No check relies on such a write, and every check accepts it as an explanation.
//!
//! [`facts`] alone decides which losses excuse which failures.

pub mod alone;
pub mod availability;
pub mod conditions;
pub mod convergence;
pub mod copies;
pub mod counters;
pub mod cut;
pub mod deadlines;
pub mod durability;
pub mod epochs;
pub mod expiry;
pub mod facts;
mod floor;
pub mod freshness;
pub mod linearizable;
pub mod no_resurrection;
pub mod order;
pub mod phantoms;
pub mod queues;
pub mod range_equals_keys;
pub mod reads_never_go_back;
pub mod register;
pub mod restore;
pub mod restored;
#[cfg(test)]
mod testing;
pub mod wing_gong;

use crate::history::{History, Operation};
use bytes::Bytes;
pub use facts::Facts;
use std::fmt;

/// A broken promise, with its evidence.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Violation {
    /// The invariant: the name of its file.
    pub invariant: &'static str,
    /// The key, if the violation concerns one.
    pub key: Option<Bytes>,
    /// The explanation, with the numbers of the operations.
    pub explanation: String,
    /// The history of the key.
    pub operations: Vec<Operation>,
}

/// The function of an invariant.
pub type Check = fn(&History, &Facts) -> Result<(), Violation>;

/// All invariants, by name, the simplest first: of several that break together the first explains most.
pub const ALL: [(&str, Check); 22] = [
    ("phantoms", phantoms::check),
    ("expiry", expiry::check),
    ("durability", durability::check),
    ("freshness", freshness::check),
    ("order", order::check),
    ("reads_never_go_back", reads_never_go_back::check),
    ("no_resurrection", no_resurrection::check),
    ("linearizable", linearizable::check),
    ("wing_gong", wing_gong::check),
    ("conditions", conditions::check),
    ("counters", counters::check),
    ("range_equals_keys", range_equals_keys::check),
    ("copies", copies::check),
    ("convergence", convergence::check),
    ("availability", availability::check),
    ("alone", alone::check),
    ("deadlines", deadlines::check),
    ("queues", queues::check),
    ("restored", restored::check),
    ("cut", cut::check),
    ("restore", restore::check),
    ("epochs", epochs::check),
];

/// Checks every invariant.
///
/// # Errors
/// The first violation of each that is broken.
pub fn check_all(history: &History, facts: &Facts) -> Result<(), Vec<Violation>> {
    let violations: Vec<_> = ALL.iter().filter_map(|(_, check)| check(history, facts).err()).collect();
    if violations.is_empty() { Ok(()) } else { Err(violations) }
}

impl Violation {
    /// A violation on one key, with that key's history.
    fn on_key(invariant: &'static str, key: &Bytes, explanation: String, operations: &[&Operation]) -> Self {
        let operations = operations.iter().map(|operation| (*operation).clone()).collect();
        Self { invariant, key: Some(key.clone()), explanation, operations }
    }
}

impl fmt::Display for Violation {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}: ", self.invariant)?;
        if let Some(key) = &self.key {
            write!(f, "key {}: ", key.escape_ascii())?;
        }
        writeln!(f, "{}", self.explanation)?;
        self.operations.iter().try_for_each(|operation| writeln!(f, "  {operation}"))
    }
}
