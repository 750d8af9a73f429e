//! The history of the model so far, and whether some order of the operations explains it.
//!
//! The order is searched for while the operations end, so that states whose pasts differ in nothing that matters are
//! one: only the possible values now, and which operations under way have taken effect already, are kept.

use crate::{Case, Script};
use std::collections::BTreeSet;

/// A value: the client that wrote it. Client 0 writes nothing, so that 0 stands for the beginning.
pub(crate) type Value = usize;

/// How an operation ended.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub(crate) enum End {
    /// A write took effect.
    Wrote,
    /// A read returned a value, or a condition was judged on it and did not hold.
    Saw(Value),
}

/// One explanation of the past: the value now, and how those operations will end that are under way and have taken
/// effect. Operations take effect as late as possible.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord, Hash)]
struct Explanation {
    value: Value,
    effects: Vec<Option<End>>,
}

/// All explanations of the past.
#[derive(Debug, Clone, PartialEq, Eq, Hash)]
pub(crate) struct History {
    /// The operations that have begun and not ended; those of unknown outcome stay.
    under_way: Vec<bool>,
    explanations: BTreeSet<Explanation>,
}

impl History {
    pub(crate) fn new(clients: usize) -> Self {
        let nothing = Explanation { value: 0, effects: vec![None; clients] };
        Self { under_way: vec![false; clients], explanations: BTreeSet::from([nothing]) }
    }

    pub(crate) fn is_explained(&self) -> bool {
        !self.explanations.is_empty()
    }

    pub(crate) fn begin(&mut self, client: usize) {
        self.under_way[client] = true;
    }

    /// Whether a read that returned `value` now would be explained.
    pub(crate) fn explains_read(&self, case: &Case, value: Value) -> bool {
        let mut history = self.clone();
        // The reader under way may as well be the one that asks.
        history.begin(0);
        for explanation in &history.explanations {
            let mut left = BTreeSet::new();
            let mut explanation = explanation.clone();
            explanation.effects[0] = None;
            history.take_effect(case, explanation, (0, End::Saw(value)), &mut left);
            if !left.is_empty() {
                return true;
            }
        }
        false
    }

    /// Keeps the explanations in which the operation of `client` ends so.
    pub(crate) fn end(&mut self, case: &Case, client: usize, end: End) {
        let mut left = BTreeSet::new();
        for explanation in std::mem::take(&mut self.explanations) {
            self.take_effect(case, explanation, (client, end), &mut left);
        }
        self.under_way[client] = false;
        self.explanations = left;
    }

    /// Lets operations under way take effect, in every order, until `client` has.
    fn take_effect(
        &self,
        case: &Case,
        mut explanation: Explanation,
        (client, end): (usize, End),
        left: &mut BTreeSet<Explanation>,
    ) {
        if let Some(effect) = explanation.effects[client] {
            if effect == end {
                explanation.effects[client] = None;
                left.insert(explanation);
            }
            return;
        }
        for other in 0..self.under_way.len() {
            if self.under_way[other] && explanation.effects[other].is_none() {
                let mut next = explanation.clone();
                let (value, effect) = case.scripts[other].effect(other, explanation.value);
                (next.value, next.effects[other]) = (value, Some(effect));
                self.take_effect(case, next, (client, end), left);
            }
        }
    }
}

impl Script {
    /// The value after the operation of `client` takes effect at `value`, and how it ends.
    fn effect(self, client: usize, value: Value) -> (Value, End) {
        let holds = match self {
            Self::Read { .. } => false,
            Self::Write { .. } | Self::Left { .. } => true,
            Self::Cas { expects, .. } => expects == value,
        };
        if holds { (client, End::Wrote) } else { (value, End::Saw(value)) }
    }
}
