//! Loads of several kinds of operation in given shares, and the YCSB presets among them.
//!
//! The kind of a slot follows from its number, as its key does: the shares hold over any stretch of a run, in
//! a closed loop as in an open one.

use std::fmt;
use std::str::FromStr;

use super::keys::{KeyOrder, THETA};
use super::operation::Operation;
use crate::rng::{SplitMix64, mix};

/// The action of one slot.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub enum Action {
    /// Reads the key's value.
    Get,
    /// Writes the key's value.
    Put,
    /// Writes a key that was not stored.
    Insert,
    /// Removes the key.
    Delete,
    /// Reads records from the key on; without a limit, every key of the lab from the first.
    Scan {
        /// The request's `limit`.
        records: Option<u64>,
    },
    /// Reads the key's value, then writes it: two requests, one latency.
    ReadModifyWrite,
}

impl From<Operation> for Action {
    fn from(operation: Operation) -> Self {
        match operation {
            Operation::Put => Self::Put,
            Operation::Get => Self::Get,
            Operation::Scan { records } => Self::Scan { records },
        }
    }
}

impl Action {
    /// The name of its kind, in reports.
    pub const fn name(self) -> &'static str {
        match self {
            Self::Get => "get",
            Self::Put => "put",
            Self::Insert => "insert",
            Self::Delete => "delete",
            Self::Scan { .. } => "scan",
            Self::ReadModifyWrite => "read-modify-write",
        }
    }
}

/// Shares of kinds of operation, in parts of their sum.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct Mix {
    /// Reads.
    pub get: u32,
    /// Writes of stored keys.
    pub put: u32,
    /// Writes of new keys.
    pub insert: u32,
    /// Removals.
    pub delete: u32,
    /// Scans of 1 to `scan_records_max` records, all lengths equally likely.
    pub scan: u32,
    /// Reads, each followed by a write of the same key.
    pub read_modify_write: u32,
    /// The longest scan.
    pub scan_records_max: u64,
}

/// Makes the draw of a slot's kind independent of the draw of its key.
const KIND_SALT: u64 = 0x6b69_6e64_6f66_6f70;

impl Mix {
    /// A mix of removals only.
    pub fn deletes() -> Self {
        Self { delete: 1, ..Self::default() }
    }

    /// The action of `slot`.
    pub fn action(&self, slot: u64, seed: u64) -> Action {
        let mut rng = SplitMix64::new(mix(seed ^ KIND_SALT ^ mix(slot)));
        let records = Some(1 + SplitMix64::new(rng.next_u64()).below(self.scan_records_max.max(1)));
        let shares = self.shares(records);
        let mut at = rng.below(shares.iter().map(|&(_, share)| u64::from(share)).sum());
        for (action, share) in shares {
            match at.checked_sub(u64::from(share)) {
                Some(rest) => at = rest,
                None => return action,
            }
        }
        Action::Get
    }

    /// The names of the kinds that have a share.
    pub fn kinds(&self) -> impl Iterator<Item = &'static str> + use<> {
        self.shares(None).into_iter().filter(|&(_, share)| share > 0).map(|(action, _)| action.name())
    }

    const fn shares(&self, records: Option<u64>) -> [(Action, u32); 6] {
        [
            (Action::Get, self.get),
            (Action::Put, self.put),
            (Action::Insert, self.insert),
            (Action::Delete, self.delete),
            (Action::Scan { records }, self.scan),
            (Action::ReadModifyWrite, self.read_modify_write),
        ]
    }
}

impl fmt::Display for Mix {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let mut separator = "";
        for (action, share) in self.shares(None) {
            if share > 0 {
                write!(f, "{separator}{}={share}", action.name())?;
                separator = ",";
            }
        }
        Ok(())
    }
}

impl FromStr for Mix {
    type Err = String;

    /// Parses `get=95,put=5` and the like; the longest scan is 100 records, as in YCSB.
    fn from_str(text: &str) -> Result<Self, String> {
        let mut mix = Self { scan_records_max: 100, ..Self::default() };
        for part in text.split(',') {
            let (name, share) =
                part.split_once('=').ok_or_else(|| format!("{part:?} is not KIND=SHARE, as in get=95"))?;
            let share = share.parse::<u32>().map_err(|_| format!("{share:?} is not a share"))?;
            match name {
                "get" => mix.get = share,
                "put" => mix.put = share,
                "insert" => mix.insert = share,
                "delete" => mix.delete = share,
                "scan" => mix.scan = share,
                "read-modify-write" => mix.read_modify_write = share,
                _ => return Err(format!("unknown kind {name:?}")),
            }
        }
        let sum: u64 = mix.shares(None).iter().map(|&(_, share)| u64::from(share)).sum();
        if sum == 0 { Err("all shares are 0".into()) } else { Ok(mix) }
    }
}

/// The core workloads of YCSB (Cooper and others, 2010).
#[derive(Debug, Clone, Copy, PartialEq, Eq, clap::ValueEnum)]
#[value(rename_all = "UPPER")]
pub enum Ycsb {
    /// Half reads, half writes, zipfian: sessions
    #[value(alias = "a")]
    A,
    /// 95 % reads, 5 % writes, zipfian: tags on photos
    #[value(alias = "b")]
    B,
    /// Reads only, zipfian: a cache of profiles
    #[value(alias = "c")]
    C,
    /// 95 % reads of the latest, 5 % inserts: status updates
    #[value(alias = "d")]
    D,
    /// 95 % scans of 1 to 100 records, 5 % inserts, zipfian: threads of conversations
    #[value(alias = "e")]
    E,
    /// Half reads, half read-modify-writes, zipfian: records of users
    #[value(alias = "f")]
    F,
}

impl Ycsb {
    /// Its kinds of operation.
    pub fn mix(self) -> Mix {
        let none = Mix { scan_records_max: 100, ..Mix::default() };
        match self {
            Self::A => Mix { get: 50, put: 50, ..none },
            Self::B => Mix { get: 95, put: 5, ..none },
            Self::C => Mix { get: 100, ..none },
            Self::D => Mix { get: 95, insert: 5, ..none },
            Self::E => Mix { scan: 95, insert: 5, ..none },
            Self::F => Mix { get: 50, read_modify_write: 50, ..none },
        }
    }

    /// Its popularity of keys.
    pub fn order(self, seed: u64) -> KeyOrder {
        match self {
            Self::D => KeyOrder::Latest { seed, theta: THETA },
            Self::A | Self::B | Self::C | Self::E | Self::F => KeyOrder::Zipfian { seed, theta: THETA },
        }
    }
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeMap;

    use super::*;

    /// Goal: kinds come in their shares, scans in all lengths. Method: count 100,000 slots of E and of a mix.
    #[test]
    fn shares_hold() {
        let count = |mix: Mix| {
            let mut seen: BTreeMap<&str, u32> = BTreeMap::new();
            let mut longest = 0;
            for slot in 0..100_000 {
                let action = mix.action(slot, 1);
                *seen.entry(action.name()).or_default() += 1;
                if let Action::Scan { records } = action {
                    assert!((1..=100).contains(&records.unwrap()));
                    longest = longest.max(records.unwrap());
                }
            }
            (seen, longest)
        };
        let (seen, longest) = count(Ycsb::E.mix());
        assert!(seen["scan"].abs_diff(95_000) < 400 && seen["insert"].abs_diff(5_000) < 400, "{seen:?}");
        assert_eq!((seen.len(), longest), (2, 100));
        let (seen, _) = count("get=1,put=2,delete=1".parse().unwrap());
        assert!(seen["get"].abs_diff(25_000) < 700 && seen["put"].abs_diff(50_000) < 700, "{seen:?}");
        assert_eq!(seen.len(), 3);
        assert_eq!(count(Mix::deletes()).0["delete"], 100_000);
    }

    /// Goal: mixes are parsed, and other texts are refused. Method: a table.
    #[test]
    fn mixes_are_read() {
        for good in ["get=95,put=5", "insert=1", "get=1,read-modify-write=1", "get=5,scan=1"] {
            assert_eq!(good.parse::<Mix>().unwrap().to_string(), good);
        }
        for bad in ["", "get", "get=", "get=0", "wash=1", "get=1,", "get=-1"] {
            assert!(bad.parse::<Mix>().is_err(), "{bad:?}");
        }
    }
}
