package io.kvorum.client;

/**
 * A range ended before its end: the connection was lost, or the cluster could not read the rest. The entries before
 * it are right; {@code Range.from(…)} the last of their keys, exclusive, reads on.
 */
public final class RangeCutException extends KvorumException {
    private static final long serialVersionUID = 1;

    private final long entries;

    RangeCutException(Course course, String why, long entries, Throwable cause) {
        super(course, true, why, cause);
        this.entries = entries;
    }

    /** How many entries came before the cut. */
    public long entries() {
        return entries;
    }
}
