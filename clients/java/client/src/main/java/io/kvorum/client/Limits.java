package io.kvorum.client;

import java.time.Duration;

/** Checks of what callers set, and durations as nanoseconds. */
final class Limits {
    /** About 146 years: half of what a {@code long} of nanoseconds holds, so that sums of two do not overflow. */
    private static final long NANOS_MAX = Long.MAX_VALUE / 4;

    private Limits() {}

    static Duration positive(Duration duration, String name) {
        if (duration.isNegative() || duration.isZero()) {
            throw new IllegalArgumentException(name + " must be more than 0; it is " + duration);
        }
        return duration;
    }

    static Duration notNegative(Duration duration, String name) {
        if (duration.isNegative()) {
            throw new IllegalArgumentException(name + " must not be negative; it is " + duration);
        }
        return duration;
    }

    static int atLeast(int least, int value, String name) {
        if (value < least) {
            throw new IllegalArgumentException(name + " must be at least " + least + "; it is " + value);
        }
        return value;
    }

    static long nanos(Duration duration) {
        return duration.compareTo(Duration.ofNanos(NANOS_MAX)) > 0 ? NANOS_MAX : duration.toNanos();
    }
}
