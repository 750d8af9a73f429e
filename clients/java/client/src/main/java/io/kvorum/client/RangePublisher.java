package io.kvorum.client;

import java.time.Duration;
import java.util.Objects;
import java.util.concurrent.Flow;

/** A range to be read: each subscription reads it anew. */
final class RangePublisher implements Flow.Publisher<Entry> {
    private final Core core;
    private final Range range;
    private final Duration timeout;

    RangePublisher(Core core, Range range, Duration timeout) {
        this.core = core;
        this.range = range;
        this.timeout = timeout;
    }

    @Override
    public void subscribe(Flow.Subscriber<? super Entry> subscriber) {
        Objects.requireNonNull(subscriber, "subscriber");
        subscriber.onSubscribe(new LineSubscription<>(core, new LineSource.OfRange(range), timeout, subscriber));
    }
}
