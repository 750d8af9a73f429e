//! Another node: `kvorum dev`, whose nodes share a process, starts one where an operator plans a node without naming its URL.

use tokio::sync::{mpsc, oneshot};

/// Orders that may wait for the process.
const ORDERS_WAITING_MAX: usize = 4;

/// An order to start another node, which is answered with the node's URL, or with the reason why there is none.
pub type Order = oneshot::Sender<Result<String, String>>;

/// Orders another node from the process that this one runs in.
#[derive(Debug, Clone)]
pub struct Another(mpsc::Sender<Order>);

impl Another {
    /// With the orders, for the process.
    pub fn new() -> (Self, mpsc::Receiver<Order>) {
        let (orders, taken) = mpsc::channel(ORDERS_WAITING_MAX);
        (Self(orders), taken)
    }

    /// Has another node started, and gives its URL. A node that was started before and still waits to join is as good.
    ///
    /// # Errors
    /// The process cannot start one.
    pub(super) async fn start(&self) -> Result<String, String> {
        let (started, outcome) = oneshot::channel();
        let ending = || "the process is about to end".to_owned();
        self.0.try_send(started).map_err(|_| "other nodes are being started".to_owned())?;
        outcome.await.map_err(|_| ending())?
    }
}
