//! fjall's worker threads, which flush and compact: puts them at the low priority of background work.
//!
//! Unnecessary once fjall takes a hook that runs at the start of each worker. Until then the workers are found by their
//! name. They get it only once they have run, on a busy machine later than they are looked for; but they inherit the
//! name of the thread that starts them. So the store is opened on a thread that has it already.

use crate::sched::{self, Turns};
use std::{io, thread};

/// The name of fjall's workers.
pub(in crate::storage) const NAME: &str = "fjall:worker";

/// Runs `open`, which starts the workers, on a thread of their name. A panic of `open` is the inner error.
///
/// # Errors
/// The thread could not be started.
pub(in crate::storage) fn on_named_thread<T: Send>(
    open: impl FnOnce() -> T + Send,
) -> io::Result<thread::Result<T>> {
    thread::scope(|scope| {
        let opener = thread::Builder::new().name(NAME.to_owned());
        opener.spawn_scoped(scope, open).map(thread::ScopedJoinHandle::join)
    })
}

/// Lowers the priority of all workers of this process.
pub(super) fn take_low_priority() {
    sched::take_named(NAME, Turns::Polite);
}
