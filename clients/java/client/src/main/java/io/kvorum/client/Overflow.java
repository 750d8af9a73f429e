package io.kvorum.client;

/**
 * What becomes of an operation that begins while {@linkplain KvorumClient.Builder#maxInFlight(int, Overflow) as many
 * as allowed} are in flight. Immutable.
 */
public final class Overflow {
    /** It fails at once with a {@link TooManyInFlightException}. */
    public static final Overflow FAIL = new Overflow(0);

    private final int waitingMax;

    private Overflow(int waitingMax) {
        this.waitingMax = waitingMax;
    }

    /**
     * It waits for its turn, in the order of the calls and within its deadline, together with at most so many others;
     * beyond those, it fails. There is no boundless waiting, because that would only move the heap's end to another place.
     */
    public static Overflow waitUpTo(int waitingMax) {
        return new Overflow(Limits.atLeast(1, waitingMax, "the number of waiting operations"));
    }

    int waitingMax() {
        return waitingMax;
    }
}
