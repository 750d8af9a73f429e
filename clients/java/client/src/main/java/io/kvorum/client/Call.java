package io.kvorum.client;

import java.net.URI;
import java.net.http.HttpClient;
import java.net.http.HttpRequest;
import java.net.http.HttpResponse;
import java.net.http.HttpResponse.BodySubscriber;
import java.time.Duration;
import java.util.ArrayList;
import java.util.List;
import java.util.concurrent.CompletableFuture;
import java.util.concurrent.Future;
import java.util.concurrent.ThreadLocalRandom;
import java.util.concurrent.atomic.AtomicReference;
import java.util.function.Consumer;

/**
 * The course of one operation: its turn, its attempts one after the other (or two at once, when hedged), its end.
 *
 * <p>Nothing here blocks. Answers come on the client's threads, and so does {@link #wakeUp}, the one timer of a call,
 * which is set to whatever is due next. The lock guards the fields below it, is held for a few instructions, and never
 * while a future is completed or the HTTP client is called.
 *
 * <p>The result may be completed by anybody who has it, by cancelling above all. Then attempts under way are cancelled,
 * which closes their connections, and the place in flight is given back.
 */
final class Call<T> implements Runnable, Consumer<Core.ClientClosed> {
    private static final long NEVER = Long.MAX_VALUE;

    private final Core core;
    private final Operation<T> operation;
    private final CompletableFuture<T> result = new CompletableFuture<>();
    private final long begunAt = System.nanoTime();
    /** Instants here are nanoseconds since {@link #begunAt}. */
    private final long deadline;
    private final int turn;

    private final List<Attempt> active = new ArrayList<>(2);
    private final List<Node> tried = new ArrayList<>(2);
    private int attempts;
    private boolean isOutcomeUnknown;
    private boolean isInside;
    private boolean isOver;
    /** Why the last failed attempt did; null before. */
    private Failure lastFailure;
    private long retryAt = NEVER;
    private long hedgeAt = NEVER;
    private long patienceEnd = NEVER;
    private long wakeAt = NEVER;
    private Future<?> wake;

    Call(Core core, Operation<T> operation, Duration timeout) {
        this.core = core;
        this.operation = operation;
        this.deadline = Limits.nanos(timeout);
        this.turn = core.nodes().nextTurn();
    }

    /** The node of the next attempt. What is not repeated depends on the value before, so it has rivals. */
    private Node choose(long clock) {
        return core.nodes().choose(
                operation.routingKey(), operation.replicas(), operation.isOnce(), turn, tried, clock);
    }

    /** Begins; to be called once. */
    CompletableFuture<T> start() {
        if (!core.enroll(this)) {
            result.completeExceptionally(core.closed(course()));
            return result;
        }
        result.whenComplete((value, error) -> {
            // Whoever completed it from outside wants no more of it. From inside, this is over before.
            if (end()) {
                core.strike(this);
            }
        });
        switch (core.turnstile().enter(this)) {
            case GRANTED -> run();
            case WAITING -> arm();
            case REFUSED -> fail(new TooManyInFlightException(
                    course(), "as many operations are in flight, and wait, as this client was allowed", null));
        }
        return result;
    }

    /** It is this call's turn, and the place is its. */
    @Override
    public void run() {
        boolean isLate;
        synchronized (this) {
            isLate = isOver;
            isInside = !isLate;
        }
        if (isLate) {
            core.leave();
            return;
        }
        if (operation.isHedgeable() && core.hedging().isOn()) {
            core.hedgeBudget().earn();
        }
        attempt(false);
    }

    /** The client ends. */
    @Override
    public void accept(Core.ClientClosed closed) {
        KvorumException.Course course;
        synchronized (this) {
            isOutcomeUnknown |= operation.isWrite() && !active.isEmpty();
            course = course();
        }
        fail(closed.exception(course));
    }

    private long now() {
        return System.nanoTime() - begunAt;
    }

    private synchronized KvorumException.Course course() {
        URI node = tried.isEmpty() ? null : tried.get(tried.size() - 1).uri();
        return new KvorumException.Course(operation.words(), node, attempts, isOutcomeUnknown);
    }

    private void attempt(boolean isHedge) {
        long clock = System.nanoTime();
        Attempt attempt;
        synchronized (this) {
            if (isOver) {
                return;
            }
            Node node = choose(clock);
            attempts++;
            // The one that was tried last stands last, and once.
            tried.remove(node);
            tried.add(node);
            attempt = new Attempt(node, now());
            active.add(attempt);
            retryAt = NEVER;
            if (!isHedge) {
                setPatience(clock);
            }
        }
        attempt.send();
        arm();
    }

    /** When to lose patience with the attempt that begins, and when to ask a second node beside it. */
    private void setPatience(long clock) {
        boolean hasOther = !operation.isWrite()
                && attempts < core.retry().attemptsMax()
                && core.nodes().hasOther(tried, clock);
        patienceEnd = hasOther ? now() + Limits.nanos(core.retry().patience()) : NEVER;
        boolean isHedged = hasOther && attempts == 1 && operation.isHedgeable() && core.hedging().isOn();
        hedgeAt = isHedged ? now() + Limits.nanos(core.hedging().delay()) : NEVER;
    }

    /** Sets the timer to what is due next. */
    private synchronized void arm() {
        if (isOver) {
            return;
        }
        long next = Math.min(Math.min(deadline, retryAt), Math.min(hedgeAt, patienceEnd));
        // One that comes too early looks again, which is cheaper than to set it anew each time.
        if (wakeAt <= next) {
            return;
        }
        if (wake != null) {
            wake.cancel(false);
        }
        wakeAt = next;
        wake = core.later(this::wakeUp, Math.max(0, next - now()));
    }

    private void wakeUp() {
        boolean isLate = false;
        boolean isRetryDue = false;
        boolean isHedgeDue = false;
        List<Attempt> tooSlow = List.of();
        synchronized (this) {
            if (isOver) {
                return;
            }
            wakeAt = NEVER;
            wake = null;
            long now = now();
            if (now >= deadline) {
                isLate = true;
            } else if (now >= retryAt) {
                retryAt = NEVER;
                isRetryDue = true;
            } else if (now >= patienceEnd) {
                patienceEnd = NEVER;
                hedgeAt = NEVER;
                tooSlow = List.copyOf(active);
            } else if (now >= hedgeAt) {
                hedgeAt = NEVER;
                isHedgeDue = active.size() == 1 && core.nodes().hasOther(tried, System.nanoTime());
            }
        }
        if (isLate) {
            timeOut();
        } else if (isRetryDue) {
            attempt(false);
        } else if (isHedgeDue && core.hedgeBudget().spend()) {
            attempt(true);
        }
        tooSlow.forEach(attempt -> attempt.fail(Failure.impatient(core.retry().patience())));
        arm();
    }

    private void timeOut() {
        KvorumException error;
        List<Attempt> slow;
        synchronized (this) {
            slow = List.copyOf(active);
            isOutcomeUnknown |= operation.isWrite() && !slow.isEmpty();
            String what = !isInside ? "no place in flight" : !slow.isEmpty() ? "no answer" : "no success";
            String why = what + " within " + Duration.ofNanos(deadline).toMillis() + " ms"
                    + (lastFailure == null ? "" : "; before that, " + lastFailure.why());
            error = new OperationTimeoutException(course(), why, lastFailure == null ? null : lastFailure.thrown());
        }
        long patience = Limits.nanos(core.retry().patience());
        for (Attempt attempt : slow) {
            // A short deadline says little about the node.
            if (now() - attempt.sentAt >= patience) {
                core.nodes().suspect(attempt.node);
            }
        }
        fail(error);
    }

    /** An attempt failed: another one, or the end. */
    private void afterFailure(Attempt attempt, Failure failure) {
        if (failure.isNodeSuspect()) {
            core.nodes().suspect(attempt.node);
        }
        if (failure.status() == 503 && failure.retryAfter() != null) {
            attempt.node.rest(Nodes.until(failure.retryAfter()));
        }
        KvorumException error;
        synchronized (this) {
            active.remove(attempt);
            if (isOver) {
                return;
            }
            isOutcomeUnknown |= operation.isWrite() && failure.isOutcomeUnknown();
            lastFailure = failure;
            if (!active.isEmpty()) {
                // The other one of a hedged pair may still succeed.
                return;
            }
            hedgeAt = NEVER;
            patienceEnd = NEVER;
            retryAt = dueAfter(failure);
            error = retryAt == NEVER ? failure.exception(course(), operation.replicas()) : null;
        }
        if (error != null) {
            fail(error);
        } else {
            arm();
        }
    }

    /** When the next attempt is due; never, if there is none. */
    private long dueAfter(Failure failure) {
        boolean again = failure.isRepeatable(operation.isWrite(), core.retry())
                // Its repetition would be judged against the write itself, or count twice.
                && !(operation.isOnce() && failure.isOutcomeUnknown())
                && attempts < core.retry().attemptsMax()
                && operation.isSendable();
        if (!again) {
            return NEVER;
        }
        long clock = System.nanoTime();
        Node next = choose(clock);
        long backoff = Limits.nanos(core.retry().backoff(attempts, ThreadLocalRandom.current().nextDouble()));
        long due = now() + Math.max(backoff, next.restLeft(clock));
        // To wait for what will not be done in time would only replace what is known by a time-out.
        return due >= deadline ? NEVER : due;
    }

    /** What end() must do happens once, whoever comes first; true for that one. */
    private boolean end() {
        List<Attempt> leftOver;
        boolean wasInside;
        synchronized (this) {
            if (isOver) {
                return false;
            }
            isOver = true;
            wasInside = isInside;
            leftOver = List.copyOf(active);
            active.clear();
            if (wake != null) {
                wake.cancel(false);
            }
        }
        leftOver.forEach(Attempt::abandon);
        if (wasInside) {
            core.leave();
        } else {
            // If it is not in the line any more, its turn comes, and run() gives the place back.
            core.turnstile().giveUp(this);
        }
        return true;
    }

    private void fail(KvorumException error) {
        if (end()) {
            core.strike(this);
            result.completeExceptionally(error);
        }
    }

    private void succeed(Attempt attempt, T value) {
        synchronized (this) {
            active.remove(attempt);
        }
        if (end()) {
            core.strike(this);
            result.complete(value);
        }
    }

    /** One request to one node. */
    private final class Attempt {
        private enum State { RUNNING, ANSWERED, ABANDONED }

        private final Node node;
        private final long sentAt;
        private final AtomicReference<State> state = new AtomicReference<>(State.RUNNING);
        private volatile Future<?> exchange;

        Attempt(Node node, long sentAt) {
            this.node = node;
            this.sentAt = sentAt;
        }

        void send() {
            HttpClient http = core.http();
            if (http == null) {
                return; // The client's end is about to end this call.
            }
            CompletableFuture<?> exchange;
            try {
                HttpRequest request = operation.request(core.request(node, operation.target())).build();
                exchange = http.sendAsync(request, this::receive);
            } catch (RuntimeException refused) {
                fail(Failure.local(refused));
                return;
            }
            this.exchange = exchange;
            if (state.get() == State.ABANDONED) {
                exchange.cancel(true);
            }
            // Success is seen where the body ends: this future takes a detour over the JDK's own pool.
            exchange.whenComplete((nothing, error) -> {
                if (error != null) {
                    fail(Failure.thrown(error));
                }
            });
        }

        private BodySubscriber<Void> receive(HttpResponse.ResponseInfo info) {
            core.nodes().notice(info.headers().firstValue("kvorum-epoch").orElse(null), node);
            BodySubscriber<Void> stream = operation.stream();
            if (stream == null || !operation.isSuccess(info.statusCode())) {
                return new Collector(
                        core.answerBytesMax(),
                        body -> answered(new Answer(info.statusCode(), info.headers(), body)));
            }
            // Too late, the body is not wanted: a collector of nothing ends the exchange at the first byte.
            return beginStream() ? stream : new Collector(0, nothing -> { });
        }

        /** The stream has begun: the call is over, and its place goes over to the stream. False if that is too late. */
        private boolean beginStream() {
            if (!state.compareAndSet(State.RUNNING, State.ANSWERED)) {
                return false;
            }
            synchronized (Call.this) {
                active.remove(this);
                if (isOver) {
                    return false;
                }
                isOver = true;
                if (wake != null) {
                    wake.cancel(false);
                }
            }
            core.strike(Call.this);
            boolean isWanted = result.complete(null);
            if (!isWanted) {
                core.leave();
            }
            return isWanted;
        }

        private void answered(Answer answer) {
            if (!state.compareAndSet(State.RUNNING, State.ANSWERED)) {
                return;
            }
            if (!operation.isSuccess(answer.status())) {
                afterFailure(this, Failure.status(answer));
                return;
            }
            T value;
            try {
                value = operation.decode(answer);
            } catch (Json.MalformedException malformed) {
                afterFailure(this, Failure.unexpected(malformed.getMessage()));
                return;
            }
            succeed(this, value);
        }

        void fail(Failure failure) {
            if (state.compareAndSet(State.RUNNING, State.ABANDONED)) {
                cancelExchange();
                afterFailure(this, failure);
            }
        }

        /** Ends the exchange; its connection is closed. */
        void abandon() {
            if (state.getAndSet(State.ABANDONED) == State.RUNNING) {
                cancelExchange();
            }
        }

        private void cancelExchange() {
            Future<?> exchange = this.exchange;
            if (exchange != null) {
                exchange.cancel(true);
            }
        }
    }
}
