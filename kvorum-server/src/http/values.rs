//! Values that requests bring: a PUT of a key, and the reading of its body in its turn.

use super::admission::{Admitted, LARGE_BYTES};
use super::body::{ReplyBody, Reserved, announced, read_value};
use super::by_token::User;
use super::conditions::{self, Wish};
use super::connection::Connection;
use super::error::Failure;
use super::handler::{Service, ThreadState, parse_entity, quorum_of, token_turn, written};
use crate::coordinator::{Mutation, allowance_for};
use crate::slow;
use bytes::Bytes;
use http::header::EXPECT;
use http::{HeaderMap, Request, Response, StatusCode};
use http_body::Body;
use std::cell::Cell;
use std::future::Future;
use std::pin::pin;
use std::time::Duration;

pub(super) async fn put<B>(
    state: &ThreadState,
    connection: &Connection,
    request: Request<B>,
) -> Result<Response<ReplyBody>, Failure>
where
    B: Body<Data = Bytes> + Unpin,
{
    let wish = conditions::of_write(request.headers(), request.method())?;
    let coordinator = state.coordinator()?;
    let (query, quorum) = parse_entity(state, coordinator, &request)?;
    Wish::check(wish.as_ref(), quorum)?;
    let (head, body) = request.into_parts();
    let Brought { value, taken } = read(state, connection, &head.headers, body).await?;
    // The cluster may have grown or shrunk while the body came.
    let quorum = quorum_of(query.replicas, coordinator).unwrap_or(quorum);
    let mutation = Mutation::Put { value, ttl_millis: query.ttl_millis };
    let done = conditions::write(coordinator, query.key, mutation, wish, quorum).await;
    taken.end(&state.service, done.is_ok());
    written(StatusCode::CREATED, done?, quorum)
}

/// A value that was read from a request and may be written now.
pub(super) struct Brought {
    pub(super) value: Bytes,
    pub(super) taken: Taken,
}

/// The memory that a value takes until it is written, and its turn if it is a large one. Dropping gives both back.
pub(super) struct Taken {
    _reserved: Reserved,
    /// With the time at which it began.
    turn: Option<(Admitted, Duration)>,
    length: u64,
    timeout: Duration,
}

impl Taken {
    /// Gives all of it back. The time that a large value took decides how many are admitted at a time.
    pub(super) fn end(self, service: &Service, is_written: bool) {
        if let Some((_, begun)) = self.turn {
            let took = service.clock.mono().saturating_sub(begun);
            let in_time = (self.timeout + allowance_for(self.length)) / 2;
            service.admission.note(self.length, is_written.then_some(took), in_time);
        }
    }
}

/// Reads the value that a request brings, and waits for its turn.
pub(super) async fn read<B>(
    state: &ThreadState,
    connection: &Connection,
    headers: &HeaderMap,
    body: B,
) -> Result<Brought, Failure>
where
    B: Body<Data = Bytes> + Unpin,
{
    let (service, coordinator) = (&state.service, state.coordinator()?);
    let announced = announced(headers)?;
    let limits = &service.limits;
    let is_lost = || connection.is_lost();
    let is_long = announced.is_some_and(|length| length > limits.value_bytes_max);
    let timeout = coordinator.request_timeout();
    let wait = (timeout / 2).min(TURN_WAIT_MAX);
    // A client that sends `Expect` is not asked for a body before its value could be admitted.
    if let Some(length) = announced.filter(|_| !is_long && headers.contains_key(EXPECT)) {
        drop(admit(connection.user(), service, length, wait).await?);
    }
    let turn = Cell::new(None);
    let take_turn = async || {
        turn.set(admit(connection.user(), service, announced.unwrap_or(0), wait).await?);
        Ok(())
    };
    let budget = &service.body_budget;
    let reading = read_value(body, announced, limits.value_bytes_max, budget, is_lost, take_turn);
    let (value, reserved) = match announced {
        Some(length) if length >= LARGE_BYTES => {
            slow::step("body", None, read_swiftly(reading, &turn)).await?
        }
        _ => slow::step("body", None, reading).await?,
    };
    let length = value.len() as u64;
    let turn = match turn.take() {
        None => slow::step("turn", None, admit(connection.user(), service, length, timeout)).await?,
        turn => turn,
    };
    token_turn(state, connection).await?;
    let turn = turn.map(|turn| (turn, service.clock.mono()));
    let taken = Taken { _reserved: reserved, turn, length, timeout };
    Ok(Brought { value, taken })
}

/// Reads a large value. Two checks, [`SWIFT_BODY`] apart, find a value that is still arriving; the second takes its
/// `turn` away, so that a slow client keeps nobody waiting.
async fn read_swiftly<T>(reading: impl Future<Output = T>, turn: &Cell<Option<Admitted>>) -> T {
    let mut reading = pin!(reading);
    let mut is_second_look = false;
    loop {
        if let Ok(read) = tokio::time::timeout(SWIFT_BODY, &mut reading).await {
            return read;
        }
        let taken = turn.take();
        if taken.is_some() && !is_second_look {
            is_second_look = true;
            turn.set(taken);
        }
    }
}

/// How long a large value may wait for its turn before its body is read: less than a body may be silent.
const TURN_WAIT_MAX: Duration = Duration::from_secs(2);
/// How often the node checks whether a large value has arrived.
const SWIFT_BODY: Duration = Duration::from_millis(150);

/// Waits until a value of `length` bytes may be written, if it is a large one.
pub(super) async fn admit(
    user: User,
    service: &Service,
    length: u64,
    wait: Duration,
) -> Result<Option<Admitted>, Failure> {
    if length < LARGE_BYTES {
        return Ok(None);
    }
    let admitted = service.admission.admit(user, length, wait).await;
    admitted.map(Some).map_err(|crowded| Failure::crowded(crowded.retry_after))
}
