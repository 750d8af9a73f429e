package io.kvorum.client;

import java.time.Duration;

/**
 * How often, and when, a failed attempt is repeated on the next node. Immutable.
 *
 * <p>Repeated are:
 * <ul>
 *   <li>for every operation, attempts of which it is certain that nothing was done: no connection could be made, or
 *       the node said that it is overloaded, starting or shutting down (503);
 *   <li>for reads, also a connection lost on the way, too few replicas (504), a node's own fault (other 5xx), and an
 *       answer that is not there within {@link #patience()} while another node can be asked;
 *   <li>for writes of unknown outcome (504, a connection lost on the way) only where
 *       {@link #repeatUnknownWrites(boolean) asked for}.
 * </ul>
 *
 * <p>A write of unknown outcome may take effect at any later time. To repeat it is safe for the store: the same value
 * is written once more, under a newer version. It may not be what you want where others write the same key: the first
 * attempt may surface after somebody else's newer value and replace it. This is why you have to ask for it.
 *
 * <p>No attempt begins after the operation's deadline, and none is waited for beyond it.
 */
public final class RetryPolicy {
    /** At most 4 attempts, waits from 20 ms to 500 ms between them, 2 s of patience, no repetition of unknown writes. */
    public static final RetryPolicy DEFAULT =
            new RetryPolicy(4, Duration.ofMillis(20), Duration.ofMillis(500), Duration.ofSeconds(2), false);

    /** Nothing is ever repeated. */
    public static final RetryPolicy NONE = DEFAULT.attemptsMax(1);

    private final int attemptsMax;
    private final Duration backoffMin;
    private final Duration backoffMax;
    private final Duration patience;
    private final boolean repeatUnknownWrites;

    private RetryPolicy(
            int attemptsMax, Duration backoffMin, Duration backoffMax, Duration patience, boolean repeatUnknownWrites) {
        this.attemptsMax = attemptsMax;
        this.backoffMin = backoffMin;
        this.backoffMax = backoffMax;
        this.patience = patience;
        this.repeatUnknownWrites = repeatUnknownWrites;
    }

    /** With so many attempts at most, the first one included. */
    public RetryPolicy attemptsMax(int attempts) {
        return new RetryPolicy(
                Limits.atLeast(1, attempts, "attempts"), backoffMin, backoffMax, patience, repeatUnknownWrites);
    }

    /**
     * With these waits between attempts: the first, which doubles with each attempt, and the longest.
     *
     * <p>What is really waited is between half of it and all of it, so that clients which failed together do not come
     * back together. A node that named a time to come back at ({@code Retry-After}) may be waited for longer.
     */
    public RetryPolicy backoff(Duration min, Duration max) {
        return new RetryPolicy(
                attemptsMax,
                Limits.notNegative(min, "the shortest wait"),
                Limits.notNegative(max, "the longest wait"),
                patience,
                repeatUnknownWrites);
    }

    /** With this time for an attempt of a read to be answered while another node can be asked. */
    public RetryPolicy patience(Duration patience) {
        return new RetryPolicy(
                attemptsMax, backoffMin, backoffMax, Limits.positive(patience, "patience"), repeatUnknownWrites);
    }

    /** With or without repetition of writes whose outcome is unknown; see above for what that means. */
    public RetryPolicy repeatUnknownWrites(boolean repeat) {
        return new RetryPolicy(attemptsMax, backoffMin, backoffMax, patience, repeat);
    }

    /** How many attempts at most, the first one included. */
    public int attemptsMax() {
        return attemptsMax;
    }

    /** How long an attempt of a read may take while another node can be asked. */
    public Duration patience() {
        return patience;
    }

    /** Whether writes of unknown outcome are repeated. */
    public boolean repeatUnknownWrites() {
        return repeatUnknownWrites;
    }

    /**
     * The wait before attempt number {@code attempts + 1}.
     *
     * @param attempts how many there were, from 1
     * @param chance from 0 to 1
     */
    Duration backoff(int attempts, double chance) {
        long min = Limits.nanos(backoffMin);
        long max = Limits.nanos(backoffMax);
        int doublings = Math.min(attempts - 1, 62);
        long doubled = min > max >> doublings ? max : min << doublings;
        return Duration.ofNanos(doubled / 2 + (long) (doubled / 2 * chance));
    }
}
