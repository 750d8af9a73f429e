package io.kvorum.client;

import java.net.http.HttpResponse.BodySubscriber;
import java.nio.ByteBuffer;
import java.time.Duration;
import java.util.List;
import java.util.concurrent.CompletableFuture;
import java.util.concurrent.CompletionStage;
import java.util.concurrent.Flow;
import java.util.concurrent.Future;
import java.util.concurrent.atomic.AtomicBoolean;
import java.util.concurrent.atomic.AtomicInteger;
import java.util.concurrent.atomic.AtomicLong;
import java.util.concurrent.atomic.AtomicReference;
import java.util.function.Consumer;

/**
 * One answer in lines, of a range or a batch, between the connection and a subscriber.
 *
 * <p>Demand pulls: the request is made with the first demand, and bytes are taken from the connection only when
 * lines are wanted and none is at hand. So what is in memory is what the HTTP client hands over at a time (some tens
 * of KiB) and one line; everything else waits in the node, which works no faster than it is taken from.
 *
 * <p>All signals come from {@link #drain}, which one thread at a time is in: whoever brings something (bytes, demand,
 * an end) while another is there leaves it to that one. This is what keeps signals in order without a lock, and
 * {@code request} within {@code onNext} from recursing.
 */
final class LineSubscription<T>
        implements Flow.Subscription, BodySubscriber<Void>, Consumer<Core.ClientClosed> {
    private final Core core;
    private final LineSource<T> source;
    private final Duration timeout;
    private final Flow.Subscriber<? super T> subscriber;

    private final AtomicLong demand = new AtomicLong();
    private final AtomicInteger work = new AtomicInteger();
    private final AtomicBoolean holdsPlace = new AtomicBoolean();
    /** The body's end, which the HTTP client watches. */
    private final CompletableFuture<Void> done = new CompletableFuture<>();
    private volatile boolean isBegun;
    private volatile boolean isCancelled;
    /** Ends everything at once, whatever is at hand: what the subscriber is told. */
    private final AtomicReference<Throwable> aborted = new AtomicReference<>();
    private volatile Flow.Subscription connection;
    /** What the connection brought and nobody took yet; at most one such list is asked for at a time. */
    private final AtomicReference<List<ByteBuffer>> brought = new AtomicReference<>();
    private volatile boolean hasEnded;
    /** With {@link #hasEnded}: why, if not well. */
    private volatile Throwable endedBy;

    // Touched within drain() only.
    private final Lines<T> lines;
    private boolean isPulling;
    private boolean isTerminated;
    private long taken;
    private Future<?> patience;
    private volatile CompletableFuture<Void> call;

    LineSubscription(Core core, LineSource<T> source, Duration timeout, Flow.Subscriber<? super T> subscriber) {
        this.core = core;
        this.source = source;
        this.timeout = timeout;
        this.subscriber = subscriber;
        this.lines = new Lines<>(core.answerBytesMax(), (line, length) -> source.parse(taken, line, length));
    }

    // The subscriber's side.

    @Override
    public void request(long count) {
        if (count <= 0) {
            abort(new IllegalArgumentException("a demand is at least 1; this one is " + count));
            return;
        }
        demand.accumulateAndGet(count, (now, more) -> now + more < 0 ? Long.MAX_VALUE : now + more);
        drain();
    }

    @Override
    public void cancel() {
        isCancelled = true;
        drain();
    }

    // The connection's side.

    @Override
    public CompletionStage<Void> getBody() {
        return done;
    }

    @Override
    public void onSubscribe(Flow.Subscription connection) {
        this.connection = connection;
        drain();
    }

    @Override
    public void onNext(List<ByteBuffer> buffers) {
        brought.set(buffers);
        drain();
    }

    @Override
    public void onError(Throwable error) {
        endedBy = error;
        hasEnded = true;
        done.completeExceptionally(error);
        drain();
    }

    @Override
    public void onComplete() {
        hasEnded = true;
        done.complete(null);
        drain();
    }

    // The client's side.

    @Override
    public void accept(Core.ClientClosed closed) {
        abort(closed.exception(course()));
    }

    private void abort(Throwable error) {
        aborted.compareAndSet(null, error);
        drain();
    }

    private KvorumException.Course course() {
        return new KvorumException.Course(source.words(), null, 1, isBegun && source.isWrite());
    }

    private void drain() {
        if (work.getAndIncrement() != 0) {
            return;
        }
        int seen = 1;
        do {
            while (step()) {
                // Each step is one signal or one move of bytes.
            }
            seen = work.addAndGet(-seen);
        } while (seen != 0);
    }

    /** Does the next thing there is to do; false if there is none. */
    private boolean step() {
        if (isTerminated) {
            brought.set(null);
            return false;
        }
        if (isCancelled) {
            terminate();
            return false;
        }
        Throwable abort = aborted.get();
        if (abort != null) {
            terminate();
            subscriber.onError(abort);
            return false;
        }
        boolean isWanted = demand.get() > 0;
        if (!isBegun) {
            if (isWanted) {
                isBegun = true;
                begin();
            }
            return false;
        }
        if (lines.hasUnread()) {
            return isWanted && emit();
        }
        // Read before the bytes are: those that came before the end are seen then.
        boolean isEnd = hasEnded;
        List<ByteBuffer> buffers = brought.getAndSet(null);
        if (buffers != null) {
            isPulling = false;
            if (patience != null) {
                patience.cancel(false);
                patience = null;
            }
            lines.add(buffers);
            return true;
        }
        if (isEnd) {
            finish();
            return false;
        }
        if (isWanted && !isPulling && connection != null) {
            isPulling = true;
            patience = core.later(this::losePatience, Limits.nanos(timeout));
            connection.request(1);
            return true;
        }
        return false;
    }

    private void begin() {
        if (!core.enroll(this)) {
            abort(core.closed(course()));
            return;
        }
        CompletableFuture<Void> call = new Call<>(core, source.operation(this), timeout).start();
        this.call = call;
        call.whenComplete((nothing, error) -> {
            if (error == null) {
                holdsPlace.set(true);
                drain();
            } else if (!call.isCancelled()) {
                abort(error);
            }
        });
    }

    private boolean emit() {
        T line;
        try {
            line = lines.next();
        } catch (Json.MalformedException malformed) {
            terminate();
            subscriber.onError(new UnexpectedAnswerException(course(), malformed.getMessage(), malformed));
            return false;
        }
        if (line == null) {
            return true;
        }
        taken++;
        demand.updateAndGet(now -> now == Long.MAX_VALUE ? now : now - 1);
        try {
            subscriber.onNext(line);
        } catch (RuntimeException broken) {
            // A subscriber must not throw; one that did gets nothing more, and the connection is not left behind.
            isCancelled = true;
            terminate();
            throw broken;
        }
        return true;
    }

    private void finish() {
        Throwable error = endedBy;
        long whole = taken;
        boolean isCut = error != null || lines.isWithinLine() || !source.isWhole(whole);
        String why = error != null ? error.getMessage()
                : lines.isWithinLine() ? "it ended within a line" : "it ended early";
        terminate();
        if (isCut) {
            subscriber.onError(source.cut(course(), why, whole, error));
        } else {
            subscriber.onComplete();
        }
    }

    private void losePatience() {
        String why = "nothing came for " + timeout.toMillis() + " ms, after " + taken + " lines";
        abort(new OperationTimeoutException(course(), why, null));
    }

    /** Lets go of everything; no signal follows but the one that the caller is about to give. */
    private void terminate() {
        isTerminated = true;
        lines.clear();
        brought.set(null);
        core.strike(this);
        if (patience != null) {
            patience.cancel(false);
        }
        CompletableFuture<Void> call = this.call;
        if (call != null) {
            call.cancel(true);
            // The place is the stream's from the moment that the call succeeded, and nobody's after this.
            call.whenComplete((nothing, error) -> {
                if (error == null && holdsPlace.compareAndSet(true, false)) {
                    core.leave();
                }
            });
        }
        Flow.Subscription connection = this.connection;
        if (connection != null && !hasEnded) {
            connection.cancel();
            done.complete(null);
        }
    }
}
