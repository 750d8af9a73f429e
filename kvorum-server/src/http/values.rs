//! Values that requests bring: a PUT of a key, and the reading of its body in its turn.

use super::admission::{Admitted, LARGE_BYTES};
use super::body::{ReplyBody, announced, read_value};
use super::by_token::User;
use super::conditions::{self, Wish};
use super::connection::Connection;
use super::error::Failure;
use super::handler::{Service, ThreadState, parse_entity, quorum_of, token_turn, written};
use crate::coordinator::{CoordinatorError, Decided, Mutation, allowance_for};
use crate::slow;
use bytes::Bytes;
use http::header::EXPECT;
use http::{Request, Response, StatusCode};
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
    let mut asked = quorum;
    let done = write_value(state, connection, request, async |value| {
        let mutation = Mutation::Put { value, ttl_millis: query.ttl_millis };
        // The cluster may have grown or shrunk while the body came.
        asked = quorum_of(query.replicas, coordinator).unwrap_or(quorum);
        conditions::write(coordinator, query.key, mutation, wish, asked).await
    });
    let done = done.await?;
    written(StatusCode::CREATED, done, asked)
}

/// Reads the value that a request brings, and has `write` write it once it has its turn.
pub(super) async fn write_value<B>(
    state: &ThreadState,
    connection: &Connection,
    request: Request<B>,
    write: impl AsyncFnOnce(Bytes) -> Result<Decided, CoordinatorError>,
) -> Result<Decided, Failure>
where
    B: Body<Data = Bytes> + Unpin,
{
    let (service, coordinator) = (&state.service, state.coordinator()?);
    let headers = request.headers();
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
    let (body, budget) = (request.into_body(), &service.body_budget);
    let reading = read_value(body, announced, limits.value_bytes_max, budget, is_lost, take_turn);
    let (value, _reserved) = match announced {
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
    let begun = turn.as_ref().map(|_| service.clock.mono());
    let done = write(value).await;
    if let Some(begun) = begun {
        let took = service.clock.mono().saturating_sub(begun);
        let in_time = (timeout + allowance_for(length)) / 2;
        service.admission.note(length, done.is_ok().then_some(took), in_time);
    }
    drop(turn);
    Ok(done?)
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
