//! The chain of configurations that this store has adopted, and its part in deciding the next one.
//!
//! A store that has adopted none is at epoch 0: the set of nodes is the `--cluster` list, as ever. What is stored here is
//! what the store must not forget: a promise or an acceptance that was answered, and an epoch that was adopted. Both are
//! synced before anybody is told, whatever the durability of writes is. `docs/decisions/0033-*` has the reasons.

use super::{Replica, ReplicaError};
use crate::crash::{self, Point};
use crate::storage::chain_format::{
    self, ChainFormatError, META_AGREEMENT, META_CONFIGURATION, META_FORGOTTEN,
};
use crate::storage::{Change, Durability, Engine, Keyspace};
use bytes::Bytes;
use kvorum_core::agreement::{Ballots, Epoch, Instance};
use kvorum_core::configuration::{Configuration, ConfigurationDecodeError, SuccessorError};
use std::fmt;
use std::ops::Bound;

/// What a store has stored of configurations.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Chain {
    /// The adopted configurations, each the successor of the one before; none at epoch 0.
    pub configurations: Vec<Configuration>,
    /// What was promised and accepted, and for which decision: that about the successor of the last configuration.
    pub agreement: Option<(Instance, Ballots<Configuration>)>,
    /// Whether the store was found to be an older copy, which may have forgotten what it promised.
    pub has_forgotten: bool,
}

/// The reason why a store's chain cannot be used. Such a store must not vote or serve: it does not know its epoch.
#[derive(Debug)]
pub enum ChainError {
    /// The store cannot be read.
    Store(ReplicaError),
    /// The row of an epoch is damaged, or of a later release.
    Configuration {
        /// The epoch; none where not even its key can be read.
        epoch: Option<Epoch>,
        /// Why.
        error: ChainFormatError,
    },
    /// The row of an epoch holds another one.
    OtherEpoch {
        /// The epoch of the row.
        row: Epoch,
        /// The epoch in it.
        found: Epoch,
    },
    /// A configuration does not follow the one before: a row is missing, or of another branch.
    Broken {
        /// Its epoch.
        epoch: Epoch,
        /// Why it does not follow.
        error: SuccessorError,
    },
    /// The row of promises is damaged, or of a later release.
    Agreement {
        /// Why.
        error: ChainFormatError,
    },
    /// The promises are about another configuration than the last one: a row is missing.
    OtherInstance {
        /// The epoch of the last configuration.
        last: Epoch,
        /// What the promises are about.
        found: Instance,
    },
}

impl Chain {
    /// Reads the chain of `engine`'s store, and checks that it is one.
    ///
    /// # Errors
    /// [`ChainError`] names the row at fault.
    pub fn read(engine: &dyn Engine) -> Result<Self, ChainError> {
        let configurations = Self::adopted(engine)?;
        let agreement = engine.get(Keyspace::Meta, META_AGREEMENT).map_err(store)?;
        let agreement = agreement.map(|row| chain_format::decode_agreement(&row)).transpose();
        let agreement = agreement.map_err(|error| ChainError::Agreement { error })?;
        let last = configurations.last().map(Configuration::instance);
        if let Some((found, _)) = agreement
            && last.map_or(found.epoch != Epoch(0), |last| last != found)
        {
            return Err(ChainError::OtherInstance { last: last.map_or(Epoch(0), |last| last.epoch), found });
        }
        let has_forgotten = engine.get(Keyspace::Meta, META_FORGOTTEN).map_err(store)?.is_some();
        Ok(Self { configurations, agreement, has_forgotten })
    }

    /// The configurations that `engine`'s store has adopted, without its part in the next one.
    ///
    /// # Errors
    /// [`ChainError`] names the row at fault.
    pub fn adopted(engine: &dyn Engine) -> Result<Vec<Configuration>, ChainError> {
        let mut configurations: Vec<Configuration> = Vec::new();
        for row in engine.scan(Keyspace::Meta, META_CONFIGURATION, Bound::Unbounded).map_err(store)? {
            let (key, value) = row.map_err(store)?;
            if !key.starts_with(META_CONFIGURATION) {
                break;
            }
            let epoch = chain_format::decode_configuration_key(&key)
                .map_err(|error| ChainError::Configuration { epoch: None, error })?;
            let damaged = |error| ChainError::Configuration {
                epoch: Some(epoch),
                error: ChainFormatError::Configuration(error),
            };
            let next = Configuration::decode(&value).map_err(damaged)?;
            if next.epoch != epoch {
                return Err(ChainError::OtherEpoch { row: epoch, found: next.epoch });
            }
            if let Some(last) = configurations.last() {
                last.check_successor(&next).map_err(|error| ChainError::Broken { epoch, error })?;
            }
            configurations.push(next);
        }
        Ok(configurations)
    }

    /// Forgets the chain of `engine`'s store, with what was promised about it. Only for a cluster in which no other node has
    /// ever been: nobody else knows of it.
    ///
    /// # Errors
    /// Nothing was forgotten.
    pub fn forget(&self, engine: &dyn Engine) -> Result<(), ReplicaError> {
        let remove = |key| Change::Remove { keyspace: Keyspace::Meta, key };
        let epochs = self.configurations.iter().map(|configuration| configuration.epoch);
        let mut rows: Vec<Change> =
            epochs.map(|epoch| remove(chain_format::encode_configuration_key(epoch))).collect();
        rows.push(remove(Bytes::from_static(META_AGREEMENT)));
        engine.commit(rows, Durability::Synced)?;
        Ok(())
    }

    /// Whether there has ever been another member than the first ones.
    pub fn has_grown(&self) -> bool {
        let first = self.configurations.first().map_or(0, |first| first.slots_used);
        self.configurations.last().is_some_and(|last| last.slots_used > first)
    }

    /// The `meta` rows of a chain, for a store that takes another one's place and keeps its identity.
    pub fn rows<'a>(
        configurations: impl Iterator<Item = &'a Configuration>,
        agreement: Option<&(Instance, Ballots<Configuration>)>,
    ) -> Vec<(Bytes, Bytes)> {
        let row = |configuration: &Configuration| {
            let key = chain_format::encode_configuration_key(configuration.epoch);
            (key, configuration.encode().into())
        };
        let mut rows: Vec<(Bytes, Bytes)> = configurations.map(row).collect();
        rows.extend(agreement.map(|(instance, ballots)| {
            (Bytes::from_static(META_AGREEMENT), chain_format::encode_agreement(*instance, ballots))
        }));
        rows
    }

    /// What was promised and accepted for `instance`; nothing if that was never asked for.
    pub fn ballots(&self, instance: Instance) -> Ballots<Configuration> {
        let of_it = self.agreement.as_ref().filter(|(known, _)| *known == instance);
        of_it.map(|(_, ballots)| ballots.clone()).unwrap_or_default()
    }
}

/// The change that stores what was promised and accepted for `instance`.
fn agreement_row(instance: Instance, ballots: &Ballots<Configuration>) -> Change {
    let value = chain_format::encode_agreement(instance, ballots);
    Change::Put { keyspace: Keyspace::Meta, key: Bytes::from_static(META_AGREEMENT), value }
}

/// The changes that adopt `configuration`. The promises about it are over, and go with the same batch: after a crash
/// between the two the store could answer for a decision that is made.
fn adoption_rows(configuration: &Configuration) -> Vec<Change> {
    let key = chain_format::encode_configuration_key(configuration.epoch);
    let value = configuration.encode().into();
    vec![
        Change::Put { keyspace: Keyspace::Meta, key, value },
        Change::Remove { keyspace: Keyspace::Meta, key: Bytes::from_static(META_AGREEMENT) },
    ]
}

impl Replica {
    /// Reads the chain of this store.
    pub fn chain(&self) -> Result<Chain, ChainError> {
        Chain::read(&*self.shared.engine)
    }

    /// Durably remembers what was promised and accepted for `instance`. Nobody may be told before this returns.
    pub async fn store_ballots(
        &self,
        instance: Instance,
        ballots: &Ballots<Configuration>,
    ) -> Result<(), ReplicaError> {
        crash::point(Point::BallotBefore);
        self.store_side(vec![agreement_row(instance, ballots)], true).await?;
        crash::point(Point::BallotAfter);
        Ok(())
    }

    /// Durably adopts `configuration`, the decided successor of the last one. Nobody may be told before this returns.
    pub async fn store_configuration(&self, configuration: &Configuration) -> Result<(), ReplicaError> {
        crash::point(Point::EpochBefore);
        self.store_side(adoption_rows(configuration), true).await?;
        crash::point(Point::EpochAfter);
        Ok(())
    }

    /// Durably remembers that this store is an older copy, which may have forgotten what it promised.
    pub async fn store_forgotten(&self) -> Result<(), ReplicaError> {
        let (key, value) = (Bytes::from_static(META_FORGOTTEN), Bytes::from_static(&[1]));
        self.store_side(vec![Change::Put { keyspace: Keyspace::Meta, key, value }], true).await
    }
}

fn store(error: crate::storage::EngineError) -> ChainError {
    ChainError::Store(error.into())
}

impl ChainError {
    /// Whether bytes on disk differ from those that were written.
    pub fn is_damage(&self) -> bool {
        match self {
            Self::Store(error) => error.is_damage(),
            Self::Configuration { error, .. } | Self::Agreement { error } => !matches!(
                error,
                ChainFormatError::Form { .. }
                    | ChainFormatError::Configuration(ConfigurationDecodeError::Form { .. })
            ),
            Self::OtherEpoch { .. } | Self::Broken { .. } | Self::OtherInstance { .. } => true,
        }
    }
}

impl fmt::Display for ChainError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Store(error) => write!(f, "cannot read the configurations of the store: {error}"),
            Self::Configuration { epoch: Some(epoch), error } => {
                write!(f, "the stored configuration of epoch {epoch} is damaged: {error}")
            }
            Self::Configuration { epoch: None, error } => {
                write!(f, "the key of a stored configuration is damaged: {error}")
            }
            Self::OtherEpoch { row, found } => {
                write!(f, "the stored configuration of epoch {row} says that it is of epoch {found}")
            }
            Self::Broken { epoch, error } => {
                write!(f, "the stored configuration of epoch {epoch} does not follow the one before: {error}")
            }
            Self::Agreement { error } => {
                write!(f, "the stored promises about configurations are damaged: {error}")
            }
            Self::OtherInstance { last, found } => write!(
                f,
                "the stored promises are about epoch {} with hash {}, but the last configuration is of epoch {last}",
                found.epoch, found.hash
            ),
        }
    }
}

impl std::error::Error for ChainError {}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::storage::memory::MemoryEngine;
    use kvorum_core::agreement::{Acceptor, Ballot, Voter};
    use kvorum_core::{ClusterId, Placement, Topology};

    fn genesis() -> Configuration {
        let topology = Topology::of_urls(["http://a:1", "http://b:1", "http://c:1"]).unwrap();
        Configuration::genesis(ClusterId::new(7).unwrap(), &topology, &Placement::initial(&topology))
    }

    /// Epoch 1, which names the stores, and epochs after it, which change a URL each.
    fn chain(length: u64) -> Vec<Configuration> {
        let mut chain = vec![genesis()];
        for epoch in 1..=length {
            let last = chain.last().unwrap();
            let mut next = Configuration { epoch: Epoch(epoch), previous: last.hash(), ..last.clone() };
            for (store, member) in (1..).zip(&mut next.members) {
                member.store = Some(store);
            }
            if epoch > 1 {
                next.members[0].url = format!("http://a:{epoch}");
            }
            last.check_successor(&next).unwrap();
            chain.push(next);
        }
        chain.split_off(1)
    }

    fn commit(engine: &MemoryEngine, rows: Vec<Change>) {
        engine.commit(rows, Durability::Synced).unwrap();
    }

    fn ballot(round: u64) -> Ballot {
        Ballot { round, proposer: Voter { node: genesis().members[1].id, store: 2 } }
    }

    /// A store without these rows is at epoch 0, as every store of an earlier release is.
    #[test]
    fn a_store_without_a_chain_is_at_epoch_0() {
        let engine = MemoryEngine::new();
        assert_eq!(Chain::read(&engine).unwrap(), Chain::default());
        commit(
            &engine,
            vec![Change::Put {
                keyspace: Keyspace::Meta,
                key: Bytes::from_static(crate::storage::format::META_STORE_ID),
                value: Bytes::from_static(&[1; 16]),
            }],
        );
        assert_eq!(Chain::read(&engine).unwrap(), Chain::default());
    }

    /// Promises, acceptances and adopted epochs are there again after a restart; an adoption ends the promises.
    #[test]
    fn a_chain_is_read_again() {
        let (engine, zero, decided) = (MemoryEngine::new(), genesis(), chain(3));
        let own = Voter { node: zero.members[0].id, store: 1 };
        let instance = zero.instance();
        let start = |engine: &MemoryEngine| {
            let ballots = Chain::read(engine).unwrap().ballots(instance);
            Acceptor::new(own, instance, &zero.electorate(), ballots)
        };
        let mut acceptor = start(&engine);
        acceptor.prepare(instance, ballot(3)).unwrap();
        commit(&engine, vec![agreement_row(instance, acceptor.ballots())]);
        let mut acceptor = start(&engine);
        assert!(acceptor.prepare(instance, ballot(3)).is_err(), "a promise is not forgotten");
        acceptor.accept(instance, ballot(3), decided[0].clone()).unwrap();
        commit(&engine, vec![agreement_row(instance, acceptor.ballots())]);
        let accepted = start(&engine).prepare(instance, ballot(4)).unwrap();
        assert_eq!(accepted, Some((ballot(3), decided[0].clone())));
        for (at, configuration) in decided.iter().enumerate() {
            commit(&engine, adoption_rows(configuration));
            let read = Chain::read(&engine).unwrap();
            assert_eq!(read, Chain { configurations: decided[..=at].to_vec(), ..Chain::default() });
            assert_eq!(read.ballots(configuration.instance()), Ballots::default());
        }
    }

    /// Every kind of damage is found and named: damaged rows, missing rows, rows of another branch.
    #[test]
    fn damage_is_found() {
        let decided = chain(3);
        let whole = || {
            let engine = MemoryEngine::new();
            for configuration in &decided {
                commit(&engine, adoption_rows(configuration));
            }
            engine
        };
        let put = |epoch: u64, value: Vec<u8>| Change::Put {
            keyspace: Keyspace::Meta,
            key: chain_format::encode_configuration_key(Epoch(epoch)),
            value: value.into(),
        };
        let check = |change: Change, is_it: fn(&ChainError) -> bool| {
            let engine = whole();
            commit(&engine, vec![change]);
            let error = Chain::read(&engine).unwrap_err();
            assert!(is_it(&error), "{error:?}");
            assert!(!error.to_string().contains('\n'));
        };
        let mut bytes = decided[1].encode();
        bytes.truncate(40);
        check(put(2, bytes), |error| {
            matches!(error, ChainError::Configuration { epoch: Some(Epoch(2)), .. })
        });
        check(put(2, decided[2].encode()), |error| matches!(error, ChainError::OtherEpoch { .. }));
        let key = chain_format::encode_configuration_key(Epoch(2));
        let missing = Change::Remove { keyspace: Keyspace::Meta, key };
        check(missing, |error| matches!(error, ChainError::Broken { epoch: Epoch(3), .. }));
        let mut branch = decided[1].clone();
        branch.members[0].url = "http://other:1".into();
        check(put(2, branch.encode()), |error| matches!(error, ChainError::Broken { epoch: Epoch(3), .. }));
        let short = Change::Put {
            keyspace: Keyspace::Meta,
            key: Bytes::from_static(META_CONFIGURATION),
            value: Bytes::new(),
        };
        check(short, |error| matches!(error, ChainError::Configuration { epoch: None, .. }));
        let garbage = Change::Put {
            keyspace: Keyspace::Meta,
            key: Bytes::from_static(META_AGREEMENT),
            value: Bytes::from_static(&[9]),
        };
        check(garbage, |error| matches!(error, ChainError::Agreement { .. }));
        let stale = agreement_row(decided[1].instance(), &Ballots::default());
        check(stale, |error| matches!(error, ChainError::OtherInstance { last: Epoch(3), .. }));
        let right = agreement_row(decided[2].instance(), &Ballots::default());
        let engine = whole();
        commit(&engine, vec![right]);
        assert!(Chain::read(&engine).unwrap().agreement.is_some());
    }
}
