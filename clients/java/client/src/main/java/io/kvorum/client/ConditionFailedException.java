package io.kvorum.client;

/** The condition of a write did not hold (412): nothing was done. */
public final class ConditionFailedException extends KvorumException {
    private static final long serialVersionUID = 1;

    ConditionFailedException(Course course, String why) {
        super(course, false, why, null);
    }
}
