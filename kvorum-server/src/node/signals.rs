//! Signals that end the process, and the other reasons for which it ends.

use super::Node;
use crate::supervise::Ended;
use std::io;
use std::task::Poll;
use std::thread;
use std::time::Duration;
use tokio::sync::watch;

/// How long a process that was told twice to end waits for its last lines to be written.
const SECOND_SIGNAL_FLUSH_MAX: Duration = Duration::from_millis(100);
/// How long a node whose thread has ended still shows that in its status before its process ends.
pub const END_SHOWN: Duration = Duration::from_secs(1);
/// The thread that waits for signals.
const SIGNAL_THREAD: &str = "kvorum:signal";

/// The signals SIGTERM and SIGINT. The first one asks the process to end in order; a second one ends it at once.
///
/// Without these handlers either signal would kill the process, so they are set before any node is visible. If a signal
/// comes while a store is being opened, the store is closed in order once it is open.
pub struct StopSignals {
    first: watch::Receiver<Option<&'static str>>,
    /// The runtime in which callers wait for the signals.
    pub(super) waiting: tokio::runtime::Runtime,
}

impl StopSignals {
    /// Installs the handlers.
    ///
    /// # Errors
    /// When the system refuses a handler or a thread.
    pub fn listen() -> io::Result<Self> {
        use tokio::signal::unix::{SignalKind, signal};
        let runtime = tokio::runtime::Builder::new_current_thread().enable_io().build()?;
        let entered = runtime.enter();
        let mut term = signal(SignalKind::terminate())?;
        let mut int = signal(SignalKind::interrupt())?;
        drop(entered);
        let mut next = move || {
            runtime.block_on(async {
                tokio::select! {
                    _ = term.recv() => "SIGTERM",
                    _ = int.recv() => "SIGINT",
                }
            })
        };
        let sender = watch::Sender::new(None);
        let first = sender.subscribe();
        #[expect(
            clippy::disallowed_methods,
            reason = "a thread of the process itself, not of the node's code"
        )]
        let listener = thread::Builder::new().name(SIGNAL_THREAD.to_owned()).spawn(move || {
            sender.send_replace(Some(next()));
            next();
            kvorum_output::flush(SECOND_SIGNAL_FLUSH_MAX);
            std::process::exit(130);
        });
        listener?;
        Ok(Self { first, waiting: tokio::runtime::Builder::new_current_thread().build()? })
    }

    /// Waits until the process must end: a signal tells it to, or one of `nodes` cannot serve any more. A signal that
    /// came before the call counts, too.
    pub fn wait(&self, nodes: &[Node]) -> Stop {
        self.waiting.block_on(self.stopped(nodes))
    }

    async fn stopped(&self, nodes: &[Node]) -> Stop {
        let services = nodes.iter().filter_map(|node| node.service.as_ref());
        let mut ends: Vec<_> = services.map(|service| Box::pin(service.supervisor.until_ended())).collect();
        let first = std::future::poll_fn(|cx| {
            let ended = ends.iter_mut().find_map(|end| match end.as_mut().poll(cx) {
                Poll::Ready(ended) => Some(ended),
                Poll::Pending => None,
            });
            ended.map_or(Poll::Pending, Poll::Ready)
        });
        tokio::select! {
            told = self.told() => told,
            ended = first => Stop::Ended(ended),
        }
    }

    /// Waits as [`Self::wait`] does, and for what `other` gives: that, unless the process must end first.
    ///
    /// # Errors
    /// The process must end.
    pub fn wait_beside<T>(&self, nodes: &[Node], other: impl Future<Output = T>) -> Result<T, Stop> {
        self.waiting.block_on(async {
            tokio::select! {
                biased;
                stop = self.stopped(nodes) => Err(stop),
                happened = other => Ok(happened),
            }
        })
    }

    pub(super) async fn told(&self) -> Stop {
        let mut first = self.first.clone();
        let name = first.wait_for(Option::is_some).await.ok().and_then(|name| *name);
        name.map_or_else(
            || {
                let part = SIGNAL_THREAD.to_owned();
                Stop::Ended(Ended { part, reason: "has ended by itself".to_owned() })
            },
            Stop::Told,
        )
    }
}

/// The reason why a process that runs nodes ends.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Stop {
    /// A signal, named here, told it to.
    Told(&'static str),
    /// A thread or task that cannot be restarted has ended.
    Ended(Ended),
}

impl Stop {
    /// Returns the signal that told the process to end.
    ///
    /// If a thread or task has ended instead, this does not return: the status shows that for [`END_SHOWN`], and the
    /// process exits with `code`. Acknowledged writes are as safe as after a crash.
    pub fn signal_or_exit(self, code: u8) -> &'static str {
        match self {
            Self::Told(signal) => signal,
            Self::Ended(ended) => {
                #[expect(clippy::disallowed_methods, reason = "the main thread, on which nobody waits")]
                thread::sleep(END_SHOWN);
                tracing::error!(
                    part = ended.part,
                    "the process ends, because one of its threads or tasks {}",
                    ended.reason
                );
                kvorum_output::flush(crate::log::FLUSH_MAX);
                std::process::exit(code.into());
            }
        }
    }
}
