//! Plans of operators: a change on an epoch, shown before it is applied.
//!
//! A node keeps one plan, in memory. It is bound to the configuration that it was planned on: where another change was
//! decided since, it is refused, and must be planned again. The coordinator makes and applies it.

use super::Configurations;
use kvorum_core::agreement::Epoch;
use kvorum_core::configuration::{Configuration, Preview, ZONE_BYTES_MAX};
use std::sync::{Arc, PoisonError};

/// A change that can be planned.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum ChangeKind {
    /// Names the stores of all members: epoch 1.
    Name,
    /// Raises the feature level to the highest that all members are able to work at.
    Upgrade,
    /// A node joins.
    Add,
    /// A member leaves.
    Remove,
    /// A node joins in the place of a member that leaves.
    Replace,
    /// A member gets another share of the data.
    Weight,
    /// A member gets another zone.
    Zone,
    /// A member's new store takes the place of the one that it lost.
    Store,
    /// The members that are left go on without a majority that is lost for good.
    Force,
}

/// A change that an operator asks for.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum ChangeOrder {
    /// [`ChangeKind::Name`].
    Name,
    /// [`ChangeKind::Upgrade`].
    Upgrade,
    /// [`ChangeKind::Store`].
    Store {
        /// The member.
        node: String,
    },
    /// [`ChangeKind::Force`]: a member is named by its URL or its id.
    Force {
        /// The members that are lost.
        lost: Vec<String>,
    },
    /// A change that moves data, of so many partitions at once.
    Members(MembersOrder, u32),
}

/// A change of members that an operator asks for. A member is named by its URL or its id.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum MembersOrder {
    /// [`ChangeKind::Add`].
    Add(Newcomer),
    /// [`ChangeKind::Remove`].
    Remove {
        /// The member.
        node: String,
    },
    /// [`ChangeKind::Replace`].
    Replace {
        /// The member.
        node: String,
        /// The node that joins.
        by: Newcomer,
    },
    /// [`ChangeKind::Weight`].
    Weight {
        /// The member.
        node: String,
        /// Its weight.
        weight: u32,
    },
    /// [`ChangeKind::Zone`].
    Zone {
        /// The member.
        node: String,
        /// Its zone.
        zone: String,
    },
}

/// A node that is to join. Its zone and weight, where none are given, are those that its settings name, else those of the
/// member that it replaces, else no zone and 1.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Newcomer {
    /// Its URL; empty for one that the process of the node that plans is to start.
    pub url: String,
    /// Its zone.
    pub zone: Option<String>,
    /// Its weight.
    pub weight: Option<u32>,
}

/// A plan.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Planned {
    /// The change.
    pub kind: ChangeKind,
    /// The configuration that it leads to.
    pub next: Arc<Configuration>,
    /// What it changes, a line each.
    pub lines: Vec<String>,
    /// What it moves; none for a change that moves no data.
    pub moves: Option<Preview>,
    /// An estimate of the bytes of one copy of a partition, by what the node that planned stores; none if it holds none.
    pub copy_bytes: Option<u64>,
}

impl ChangeOrder {
    /// Its kind.
    pub fn kind(&self) -> ChangeKind {
        match self {
            Self::Name => ChangeKind::Name,
            Self::Upgrade => ChangeKind::Upgrade,
            Self::Store { .. } => ChangeKind::Store,
            Self::Force { .. } => ChangeKind::Force,
            Self::Members(MembersOrder::Add(_), _) => ChangeKind::Add,
            Self::Members(MembersOrder::Remove { .. }, _) => ChangeKind::Remove,
            Self::Members(MembersOrder::Replace { .. }, _) => ChangeKind::Replace,
            Self::Members(MembersOrder::Weight { .. }, _) => ChangeKind::Weight,
            Self::Members(MembersOrder::Zone { .. }, _) => ChangeKind::Zone,
        }
    }
}

impl ChangeKind {
    /// All of them.
    pub const ALL: [Self; 9] = [
        Self::Name,
        Self::Upgrade,
        Self::Add,
        Self::Remove,
        Self::Replace,
        Self::Weight,
        Self::Zone,
        Self::Store,
        Self::Force,
    ];

    /// Its name for operators.
    pub fn name(self) -> &'static str {
        match self {
            Self::Name => "name",
            Self::Upgrade => "upgrade",
            Self::Add => "add",
            Self::Remove => "remove",
            Self::Replace => "replace",
            Self::Weight => "weight",
            Self::Zone => "zone",
            Self::Store => "store",
            Self::Force => "force",
        }
    }

    /// The change of this name.
    pub fn of_name(name: &str) -> Option<Self> {
        Self::ALL.into_iter().find(|kind| kind.name() == name)
    }
}

/// The name of a zone; empty for none.
pub(crate) fn parse_zone(text: &str) -> Result<String, String> {
    let is_zone = text.len() <= ZONE_BYTES_MAX && text.bytes().all(|byte| byte.is_ascii_graphic());
    if is_zone {
        Ok(text.to_owned())
    } else {
        Err(format!("allowed are up to {ZONE_BYTES_MAX} visible ASCII characters"))
    }
}

/// A weight, from 1.
pub(crate) fn parse_weight(text: &str) -> Result<u32, String> {
    text.parse()
        .ok()
        .filter(|weight| *weight > 0)
        .ok_or_else(|| format!("allowed is a number from 1 to {}", u32::MAX))
}

impl Planned {
    /// The epoch that it was planned on.
    pub fn base(&self) -> Epoch {
        Epoch(self.next.epoch.0.saturating_sub(1))
    }
}

impl Configurations {
    /// The plan that this node keeps.
    pub fn planned(&self) -> Option<Planned> {
        self.planned.lock().unwrap_or_else(PoisonError::into_inner).clone()
    }

    /// Keeps `planned` in the place of any other plan.
    pub(crate) fn keep_plan(&self, planned: Planned) {
        *self.planned.lock().unwrap_or_else(PoisonError::into_inner) = Some(planned);
    }

    /// Drops the plan. Returns whether there was one.
    pub fn drop_plan(&self) -> bool {
        self.planned.lock().unwrap_or_else(PoisonError::into_inner).take().is_some()
    }
}
