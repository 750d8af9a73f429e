package io.kvorum.client;

/** No connection to a node could be made, or it was lost before the answer was complete. */
public final class UnreachableException extends KvorumException {
    private static final long serialVersionUID = 1;

    UnreachableException(Course course, String why, Throwable cause) {
        super(course, true, why, cause);
    }
}
