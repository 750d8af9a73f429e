//! Scripts of wrk and wrk2, as far as they only say what a request is.
//!
//! Read are assignments to `wrk.method`, `wrk.path`, `wrk.body` and `wrk.headers[…]`, and a function `request` that ends
//! with `return wrk.format(…)`. Texts may be joined from strings, counters (`n = n + 1`) and `math.random`. There is no
//! Lua here: the script is read once, before the run, and becomes a [`Template`] whose numbers follow from the request's
//! number. So the driver's cost does not depend on a script. Everything else is refused with its line and the reason,
//! because a script that is followed by half would measure something else.
//!
//! [`tokens`] splits the text, [`parser`] reads statements and follows them.

use std::fmt;

use super::template::Template;

mod parser;
mod tokens;

/// Why a script cannot be used.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct ScriptError {
    /// The line, from 1.
    pub line: usize,
    /// The statement that is not understood, and why.
    pub why: String,
}

impl fmt::Display for ScriptError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "line {}: {}", self.line, self.why)
    }
}

/// Reads a script; requests go to `path` where it names none.
///
/// # Errors
/// The first statement that is not understood.
pub fn read(text: &str, path: &str) -> Result<Template, ScriptError> {
    parser::read(text, path)
}

#[cfg(test)]
#[path = "script_tests.rs"]
mod tests;
