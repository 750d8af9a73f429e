package io.kvorum.client;

import java.util.concurrent.atomic.AtomicLong;

/** What may be spent on second requests: each read earns a part of one, and only so many can be saved up. */
final class HedgeBudget {
    private static final long ONE = 1_000_000;
    /** A quiet hour must not pay for a burst that doubles the load of a cluster in trouble. */
    private static final long SAVED_MAX = 10 * ONE;

    private final long earned;
    private final AtomicLong saved = new AtomicLong(ONE);

    HedgeBudget(double budget) {
        this.earned = Math.round(budget * ONE);
    }

    void earn() {
        saved.updateAndGet(now -> Math.min(SAVED_MAX, now + earned));
    }

    boolean spend() {
        long before = saved.getAndUpdate(now -> now >= ONE ? now - ONE : now);
        return before >= ONE;
    }
}
