//! The bound on operations in flight, and what happens to further ones.

use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use tokio::sync::{OwnedSemaphorePermit, Semaphore};
use tokio::time::{Instant, timeout_at};

/// What happens to an operation that finds the limit of operations in flight reached.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Overflow {
    /// It fails at once with [`Error::TooManyInFlight`](crate::Error::TooManyInFlight).
    Fail,
    /// It waits for its turn until its deadline.
    Wait {
        /// How many may wait; the next one fails at once.
        waiting_max: usize,
    },
}

/// The bound on operations in flight.
#[derive(Debug)]
pub(crate) struct Flight {
    /// One permit for each place; tokio hands them out in the order of the requests for them.
    places: Arc<Semaphore>,
    places_max: usize,
    overflow: Overflow,
    waiting: AtomicUsize,
}

/// An operation's place; dropping it lets the next one in.
#[derive(Debug)]
pub(crate) struct Place(#[expect(dead_code, reason = "held for its drop")] OwnedSemaphorePermit);

/// The error when there was no place.
#[derive(Debug, PartialEq, Eq)]
pub(crate) struct NoPlace {
    /// Whether the operation waited for one until its deadline.
    pub(crate) has_waited: bool,
}

impl Flight {
    pub(crate) fn new(places_max: usize, overflow: Overflow) -> Self {
        let places = Arc::new(Semaphore::new(places_max));
        Self { places, places_max, overflow, waiting: AtomicUsize::new(0) }
    }

    pub(crate) fn places_max(&self) -> usize {
        self.places_max
    }

    /// How many operations are in flight now.
    pub(crate) fn inside(&self) -> usize {
        self.places_max.saturating_sub(self.places.available_permits())
    }

    /// How many operations wait for their turn now.
    pub(crate) fn waiting(&self) -> usize {
        self.waiting.load(Ordering::Relaxed)
    }

    /// Takes a place, or waits for one if waiting is allowed.
    ///
    /// # Cancel safety
    /// A future that is dropped has no place, and no longer waits.
    pub(crate) async fn enter(&self, deadline: Instant) -> Result<Place, NoPlace> {
        if let Ok(permit) = Arc::clone(&self.places).try_acquire_owned() {
            return Ok(Place(permit));
        }
        let Overflow::Wait { waiting_max } = self.overflow else {
            return Err(NoPlace { has_waited: false });
        };
        let waiting = Waiting::begin(&self.waiting);
        if waiting.before >= waiting_max {
            return Err(NoPlace { has_waited: false });
        }
        match timeout_at(deadline, Arc::clone(&self.places).acquire_owned()).await {
            Ok(Ok(permit)) => Ok(Place(permit)),
            _ => Err(NoPlace { has_waited: true }),
        }
    }
}

/// Counts a waiting operation until it is dropped.
struct Waiting<'a> {
    count: &'a AtomicUsize,
    before: usize,
}

impl<'a> Waiting<'a> {
    fn begin(count: &'a AtomicUsize) -> Self {
        Self { count, before: count.fetch_add(1, Ordering::Relaxed) }
    }
}

impl Drop for Waiting<'_> {
    fn drop(&mut self) {
        self.count.fetch_sub(1, Ordering::Relaxed);
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::time::Duration;

    #[tokio::test]
    async fn places_and_those_who_wait_are_bounded() {
        let flight = Arc::new(Flight::new(1, Overflow::Wait { waiting_max: 1 }));
        let far = Instant::now() + Duration::from_mins(1);
        let place = flight.enter(far).await.unwrap();
        let next = tokio::spawn({
            let flight = Arc::clone(&flight);
            async move { flight.enter(far).await }
        });
        while flight.waiting() == 0 {
            tokio::task::yield_now().await;
        }
        assert_eq!(flight.enter(far).await.unwrap_err(), NoPlace { has_waited: false });
        assert_eq!((flight.inside(), flight.waiting()), (1, 1));
        drop(place);
        let place = next.await.unwrap().unwrap();
        assert_eq!((flight.inside(), flight.waiting()), (1, 0));
        // An operation that gave up no longer waits.
        assert_eq!(flight.enter(Instant::now()).await.unwrap_err(), NoPlace { has_waited: true });
        assert_eq!(flight.waiting(), 0);
        drop(place);
        assert_eq!(flight.inside(), 0);
    }

    #[tokio::test]
    async fn nobody_waits_where_nobody_may() {
        let flight = Flight::new(1, Overflow::Fail);
        let far = Instant::now() + Duration::from_mins(1);
        let place = flight.enter(far).await.unwrap();
        assert_eq!(flight.enter(far).await.unwrap_err(), NoPlace { has_waited: false });
        drop(place);
        assert!(flight.enter(far).await.is_ok());
    }
}
