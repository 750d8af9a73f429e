package io.kvorum.client;

import java.time.Duration;
import java.util.Optional;

/** The node has too much to do, is starting or is shutting down (503). This attempt did nothing. */
public final class OverloadedException extends KvorumException {
    private static final long serialVersionUID = 1;

    private final Duration retryAfter;

    OverloadedException(Course course, String why, Duration retryAfter) {
        super(course, true, why, null);
        this.retryAfter = retryAfter;
    }

    /** When the node wants to be asked again, if it said so. */
    public Optional<Duration> retryAfter() {
        return Optional.ofNullable(retryAfter);
    }
}
