package io.kvorum.client;

/**
 * A batch's answers ended before their end: the connection was lost, or the node could not go on. The results before it
 * are right; writes after them may have taken effect.
 */
public final class BatchCutException extends KvorumException {
    private static final long serialVersionUID = 1;

    private final long results;

    BatchCutException(Course course, String why, long results, Throwable cause) {
        super(course, false, why, cause);
        this.results = results;
    }

    /** How many results came before the cut. */
    public long results() {
        return results;
    }
}
