//! Links: the connections of one thread to the other members, and its tasks for them. Both begin and end with the membership.

use super::serve::hear_at_once;
use super::sign::Signs;
use super::{Coordinator, Gauges, Shared};
use crate::background;
use crate::cluster::{Cluster, Contact, News, SlotTable};
use crate::membership::Configurations;
use crate::peer::{
    Connector, HandshakeError, Hello, Link, LinkObserver, LinkParts, PeerAuth, PeerLimits, Setback,
};
use crate::supervise::Part;
use kvorum_core::Slot;
use std::rc::Rc;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;
use tokio::task::AbortHandle;

/// The longest time between two calls on a link; see [`crate::peer::IDLE_MAX`].
const LINK_ASKED_EVERY: Duration = Duration::from_secs(15);

/// What the links of all threads share.
pub struct Peering {
    /// The bounds of messages from peers.
    pub limits: Arc<PeerLimits>,
    /// What peers must prove, and what this node proves to them.
    pub auth: Arc<PeerAuth>,
    /// By node, counts its connections to this node: at each, every thread retries its own link to the node.
    signs: SlotTable<Signs>,
    /// The state of the threads' links.
    pub gauges: Gauges,
    /// Whether this node was told to stop: it then loses its peers by its own doing.
    is_draining: AtomicBool,
    pub(super) cluster: Arc<Cluster>,
    pub(super) configurations: Arc<Configurations>,
}

impl Peering {
    pub(super) fn new(
        limits: Arc<PeerLimits>,
        auth: Arc<PeerAuth>,
        cluster: &Arc<Cluster>,
        configurations: &Arc<Configurations>,
    ) -> Self {
        Self {
            limits,
            auth,
            signs: SlotTable::default(),
            gauges: Gauges::default(),
            is_draining: AtomicBool::new(false),
            cluster: Arc::clone(cluster),
            configurations: Arc::clone(configurations),
        }
    }

    /// Notes that this node was told to stop. From now on it logs no peer as lost.
    pub fn note_draining(&self) {
        self.is_draining.store(true, Ordering::Relaxed);
    }

    /// Notes that the node at `index` is alive: it has connected.
    pub(super) fn note_sign_of_life(&self, index: Slot) {
        self.signs.at(index).note();
    }
}

impl Coordinator {
    /// The link of this thread to the node at `index`; `None` for this node itself, and for a member that this thread has
    /// not begun to connect to.
    pub fn link(&self, index: Slot) -> Option<&Rc<Link>> {
        self.links.get(index)
    }

    /// All links of this thread.
    pub(crate) fn links(&self) -> impl Iterator<Item = &Rc<Link>> {
        self.links.values()
    }

    /// Starts a supervised task of this thread, for the peer at `index` or for the node.
    pub(crate) fn keep<F: Future<Output = ()> + 'static>(
        self: &Rc<Self>,
        part: Part,
        index: Option<Slot>,
        mut begin: impl FnMut(Rc<Self>) -> F + 'static,
    ) {
        let own = Rc::clone(self);
        let of = index.map_or("", |index| self.shared.cluster.url_of(index));
        let task = self.shared.replica.supervisor().task(part, of, move || begin(Rc::clone(&own)));
        if let Some(index) = index {
            self.tasks.borrow_mut().entry(index).or_default().push(task.abort_handle());
        }
    }

    /// Starts what this thread has for each new member, a link first, and ends what it has for those that are gone.
    pub(super) fn meet_members(self: &Rc<Self>) {
        let (view, me) = (self.view(), self.shared.cluster.me());
        // A node that was removed leaves the others alone.
        let is_removed = self.shared.cluster.is_removed();
        let is_gone = |slot: Slot| is_removed || !view.has(slot);
        let gone = self.tasks.borrow_mut().extract_if(.., |slot, _| is_gone(*slot)).collect::<Vec<_>>();
        for (slot, tasks) in gone {
            tasks.iter().for_each(AbortHandle::abort);
            self.link(slot).inspect(|link| link.end());
        }
        let others = || view.slots().iter().copied().filter(|slot| *slot != me && !is_removed);
        for slot in others() {
            self.links.get_or_init(slot, || start_link(&self.shared, &self.connector, slot));
        }
        for slot in others() {
            if self.tasks.borrow().contains_key(&slot) {
                continue;
            }
            self.keep(Part::Reconnect, Some(slot), move |own| own.watch_signs(slot));
            if self.does_background.get() {
                background::start_for(self, slot);
            }
        }
    }

    /// Follows the members of the cluster, forever.
    pub(super) async fn follow_members(self: Rc<Self>) {
        loop {
            self.meet_members();
            let (cluster, seen) = (&self.shared.cluster, self.view.borrow().0);
            cluster.until(|| cluster.views() != seen).await;
        }
    }

    /// Has this thread do the background work, for the members of now and of later.
    pub(crate) fn begin_background(self: &Rc<Self>) {
        self.does_background.set(true);
        for slot in self.shared.cluster.others() {
            background::start_for(self, slot);
        }
    }

    /// Retries this thread's link whenever its peer connects to this node, despite the link's back-off. Also calls the
    /// peer every [`LINK_ASKED_EVERY`], so that the peer does not close the link as unused.
    async fn watch_signs(self: Rc<Self>, index: Slot) {
        let signs = self.shared.peering.signs.at(index);
        let mut seen = signs.count();
        let mut next = tokio::time::Instant::now() + LINK_ASKED_EVERY;
        loop {
            let sign = tokio::time::timeout_at(next, signs.after(seen)).await;
            let Some(link) = self.link(index) else { return };
            if let Ok(count) = sign {
                seen = count;
                if !link.is_usable() {
                    link.probe_now();
                }
                continue;
            }
            next = tokio::time::Instant::now() + LINK_ASKED_EVERY;
            if link.is_usable() {
                // The answer does not matter here: the heartbeat task handles it.
                let _ = link.call(&self.shared.background.membership.ping(), LINK_ASKED_EVERY / 2).await;
            }
        }
    }

    /// Whether the node at `index` is this one, or answers.
    pub(crate) fn is_ready(&self, index: Slot) -> bool {
        self.is_me(index) || self.link(index).is_some_and(|link| link.is_usable())
    }
}

fn start_link(shared: &Arc<Shared>, connector: &Rc<dyn Connector>, index: Slot) -> Rc<Link> {
    let (url, peer) = (shared.cluster.url_of(index), shared.cluster.id_of(index));
    let (greeting, working) = (Arc::clone(shared), Arc::clone(shared));
    Link::start(LinkParts {
        authority: url.split_once("://").map_or(url, |(_, authority)| authority).to_owned(),
        peer,
        connector: Rc::clone(connector),
        hello: Box::new(move || greeting.cluster.hello_to(peer, greeting.clock.wall())),
        epoch: Box::new(move || working.cluster.placed_since()),
        clock: Arc::clone(&shared.clock),
        limits: Arc::clone(&shared.peering.limits),
        auth: Arc::clone(&shared.peering.auth),
        rng: Arc::clone(&shared.rng),
        observer: Rc::new(Observer { shared: Arc::clone(shared), index }),
        supervisor: shared.replica.supervisor().clone(),
    })
}

/// The observer of a link, which notes the contact with its peer.
struct Observer {
    shared: Arc<Shared>,
    index: Slot,
}

impl Observer {
    /// Notes a change of the contact with the peer, and logs it if it is worth a line.
    fn tell(&self, happened: impl FnOnce(&mut Contact, Duration) -> Option<News>) {
        let cluster = &self.shared.cluster;
        cluster.note_change();
        let now = self.shared.clock.mono();
        let (news, reason) = cluster.contact(self.index, |contact| {
            let news = happened(contact, now);
            (news, contact.reason().to_owned())
        });
        let node = cluster.url_of(self.index);
        match news {
            // This node ends its connections itself.
            Some(News::Lost | News::Unreachable)
                if self.shared.peering.is_draining.load(Ordering::Relaxed) =>
            {
                tracing::debug!(node, reason, "lost a peer while draining");
            }
            Some(News::Met) => tracing::info!(node, "connected to a node"),
            Some(News::Back { away }) => tracing::info!(
                node,
                away_s = away.as_secs_f32(),
                "a node is back: hints and anti-entropy bring it the writes that it missed"
            ),
            Some(News::Lost) => tracing::warn!(
                node,
                reason,
                "lost a node, which has stopped or cannot be reached: requests go to the others, and hints keep the writes that it misses"
            ),
            Some(News::Unreachable) => {
                tracing::warn!(node, reason, "cannot reach a node: this node tries until it answers");
            }
            None => {}
        }
    }
}

impl LinkObserver for Observer {
    fn connected(&self, theirs: &Hello) {
        // Before the first request.
        hear_at_once(&self.shared, theirs);
        self.tell(Contact::connected);
        // A node that comes back may have missed writes.
        self.shared.background.handoff.call(self.index);
    }

    fn disconnected(&self, reason: Option<&str>) {
        self.tell(|contact, now| contact.disconnected(now, reason));
    }

    fn failed(&self, reason: &str, setback: Setback) {
        self.tell(|contact, now| contact.failed(now, reason, setback));
    }

    fn admit(&self, ours: &Hello, theirs: &Hello) -> Result<(), HandshakeError> {
        self.shared.cluster.admit(ours, theirs, self.shared.clock.mono())
    }
}
