//! Catching up: one task for each other node tells it which configuration this node works with, and asks for those after
//! it.
//!
//! It asks twice a second, and at once when the link comes up, when this node adopts a configuration, and when the other
//! node shows a newer epoch. So both ends of each link know each other's epoch. The driver of a change has those asked more often
//! that it waits for.

use super::worker::{Work, Worker};
use crate::coordinator::Coordinator;
use crate::membership::{Configurations, LearnError, PAGE_BYTES};
use crate::peer::{Link, Reply, Request};
use kvorum_core::Slot;
use kvorum_core::agreement::Epoch;
use std::rc::Rc;
use std::time::Duration;

/// The first version of the protocol that has these messages.
const SINCE: u16 = 8;
/// The time between two questions to one node.
const ASK_EVERY: Duration = Duration::from_millis(500);
/// The same while the driver of a change waits for that node: a window of a change waits for each member a few times.
const AWAITED_EVERY: Duration = Duration::from_millis(50);
/// How long an answer may take.
const ASK_TIMEOUT: Duration = Duration::from_secs(1);
/// The time before a node is asked again that did not answer.
const FAILED_WAIT: Duration = Duration::from_millis(50);
/// The time before a node is asked again whose configurations this node could not adopt.
const REFUSED_WAIT: Duration = Duration::from_secs(5);

/// The task for one other node.
pub(crate) struct CatchUp {
    own: Rc<Coordinator>,
    index: Slot,
    /// The epoch that this node has told the other one, while the link has been up.
    told: Option<Epoch>,
    /// Whether the log has said that a configuration cannot be stored; no longer once one could be.
    has_warned: bool,
}

impl CatchUp {
    pub(crate) fn new(own: Rc<Coordinator>, index: Slot) -> Self {
        Self { own, index, told: None, has_warned: false }
    }

    fn configurations(&self) -> &Configurations {
        &self.own.shared.configurations
    }

    /// The link, if the other node can be asked. Without the cluster's id there is no configuration to tell, and a node of
    /// an older release knows none.
    fn link(&self) -> Option<&Rc<Link>> {
        let link = self.own.link(self.index)?;
        let is_able = link.is_usable() && link.protocol() >= SINCE && self.own.shared.cluster.id().is_some();
        is_able.then_some(link)
    }
}

impl Worker for CatchUp {
    async fn work(&mut self) -> Work {
        let shared = &self.own.shared;
        let adopted = shared.cluster.configuration();
        let Some(link) = self.link().cloned() else {
            self.told = None;
            return Work::Idle;
        };
        let request = Request::Configurations { adopted: adopted.instance(), bytes: PAGE_BYTES };
        let Ok(Reply::ConfigurationList { adopted: theirs, level_max, compared, configurations }) =
            link.call(&request, ASK_TIMEOUT).await
        else {
            self.told = None;
            return Work::Throttled(FAILED_WAIT);
        };
        self.told = Some(adopted.epoch);
        self.configurations().note_said(self.index, theirs, (level_max, compared), shared.clock.mono());
        let from = shared.cluster.id_of(self.index);
        let learnt = self.configurations().learn(configurations, Some(from)).await;
        let node = shared.cluster.url_of(self.index);
        match learnt {
            // Until it can be stored, this node serves in an epoch that the others have left.
            Err(error @ LearnError::Store(_)) => {
                if !std::mem::replace(&mut self.has_warned, true) {
                    tracing::warn!(node, %error, "cannot store a configuration: this node tries again");
                }
                Work::Throttled(ASK_EVERY)
            }
            Err(error) => {
                tracing::error!(
                    node,
                    %error,
                    "this node cannot adopt the configuration of another node, and stays at its own"
                );
                Work::Throttled(REFUSED_WAIT)
            }
            Ok(is_new) => {
                self.has_warned = false;
                if is_new { Work::Busy } else { Work::Idle }
            }
        }
    }

    async fn wait_for_work(&mut self) {
        let shared = &self.own.shared;
        let is_due = || {
            let is_untold = self.told != Some(shared.cluster.epoch());
            self.link().is_some() && (is_untold || shared.configurations.is_ahead(self.index))
        };
        // The end of the time is as good as news.
        if tokio::time::timeout(AWAITED_EVERY, shared.cluster.until(is_due)).await.is_err() {
            let is_awaited =
                || is_due() || self.link().is_some() && shared.configurations.is_awaited(self.index);
            let left = ASK_EVERY.saturating_sub(AWAITED_EVERY);
            let _ = tokio::time::timeout(left, shared.cluster.until(is_awaited)).await;
        }
    }
}
