package io.kvorum.client;

import java.time.Duration;

/**
 * Reads that are slow are asked of a second node, too; the first answer wins and the other attempt is cancelled.
 * Immutable.
 *
 * <p>It cuts the tail of latencies at the price of more requests, so there is a budget: over time, no more than
 * {@code budget} second requests per read. A cluster that is slow as a whole is then not asked twice as much.
 */
public final class Hedging {
    /** No read is asked twice. */
    public static final Hedging OFF = new Hedging(Duration.ZERO, 0);

    private final Duration delay;
    private final double budget;

    private Hedging(Duration delay, double budget) {
        this.delay = delay;
        this.budget = budget;
    }

    /**
     * A second node is asked after {@code delay} without an answer.
     *
     * @param delay best near the 95th or 99th percentile of the cluster's latency
     * @param budget second requests per read at most, over time: 0.05 is 5 per cent
     * @throws IllegalArgumentException if the delay is not above 0 or the budget not above 0 and up to 1
     */
    public static Hedging after(Duration delay, double budget) {
        if (!(budget > 0 && budget <= 1)) {
            throw new IllegalArgumentException("a budget is above 0 and at most 1; this one is " + budget);
        }
        return new Hedging(Limits.positive(delay, "delay"), budget);
    }

    boolean isOn() {
        return budget > 0;
    }

    Duration delay() {
        return delay;
    }

    double budget() {
        return budget;
    }
}
