//! The commit thread's part in a cut ([`crate::replica::cut`]): when it is closed, and what may be confirmed afterwards.

use super::Committer;
use crate::canary::{self, Canary};
use crate::replica::StoreState;
use crate::replica::answer::Applied;
use crate::replica::cut::CutStep;
use crate::replica::queue::{Request, Source};
use crate::replica::stage::Stage;
use crate::storage::format::Mark;
use kvorum_core::{Key, Record, Version};
use std::time::Duration;

impl Committer {
    /// Takes the steps of cuts in `group`, and closes the armed one if the group has a record above it. Called before
    /// anything of the group is judged.
    pub(super) fn cut_first(&mut self, group: &[Request], now: Duration) {
        self.cuts.tend(now);
        if self.cuts.has_stamp() && !canary::is(Canary::CutBelievesAnyTimestamp) {
            self.cuts.forget_above(self.timestamps.max());
        }
        if self.health.state() != StoreState::Ok {
            self.cuts.drop_for("the store is short of something or has failed");
        }
        for request in group {
            let Request::Cut { step, .. } = request else { continue };
            match *step {
                CutStep::Arm { upto, age_max } => {
                    self.cuts.arm(upto, age_max, now);
                }
                CutStep::Close { upto } if self.cuts.armed() == Some(upto) => self.close_cut(now),
                // A backup says so again for as long as it reads.
                CutStep::Close { upto } => drop(self.cuts.touch(upto, now)),
                CutStep::Drop { upto } => self.cuts.drop_at(upto),
            }
        }
        let Some(upto) = self.cuts.armed() else { return };
        let is_passed = group.iter().any(|request| request.newest() > upto);
        if is_passed && !canary::is(Canary::CutClosesLate) {
            self.close_cut(now);
        }
    }

    fn close_cut(&mut self, now: Duration) {
        match self.engine.snapshot() {
            Ok(snapshot) => {
                let digests = self.digests.as_ref().map_or_else(Vec::new, |digests| digests.totals());
                self.cuts.close(snapshot, digests, now);
            }
            Err(error) => self.cuts.drop_for(&format!("it cannot be taken: {error}")),
        }
    }

    /// Whether a step that was in the group has been taken.
    pub(super) fn has_cut(&self, step: CutStep) -> bool {
        match step {
            CutStep::Arm { upto, .. } => self.cuts.is_kept(upto),
            CutStep::Close { upto } => self.cuts.is_closed(upto),
            CutStep::Drop { upto } => !self.cuts.is_kept(upto),
        }
    }

    /// The answer to a client's record at or below the closed cut. `None` when the usual answer is right: the snapshot has
    /// the record, or a ballot decides.
    ///
    /// A record that is here may have come in by repair since: then nothing in the snapshot stands for it, and a
    /// confirmation would be of a write that the backup lacks. One that is not here may still come in by repair or by a reader
    /// that found it elsewhere, so it must not be stamped again as if nobody could see it: [`Applied::TooLate`] would be false.
    /// The coordinator goes on by ballots, above the cut.
    pub(super) fn cut_off(
        &self,
        stage: &Stage,
        key: &Key,
        record: &Record,
        stored: Option<Mark>,
        is_held: bool,
        source: Source,
    ) -> Option<Applied> {
        let closed = self.cuts.closed();
        if record.version > closed || !matches!(source, Source::Writer | Source::Ballot) {
            return None;
        }
        if canary::is(Canary::CutTakesLateWrites) {
            return None;
        }
        let stored = stored.map_or(Version::ZERO, |mark| mark.version);
        let promised = self.promised(stage, key);
        let by = closed.max(stored).max(promised);
        if is_held || stored == record.version {
            return (!self.cuts.has(key, record.version)).then_some(Applied::Contested { by });
        }
        // The usual judgement refuses a ballot up to the cut.
        if source == Source::Ballot {
            return None;
        }
        Some(Applied::Contested { by })
    }
}
