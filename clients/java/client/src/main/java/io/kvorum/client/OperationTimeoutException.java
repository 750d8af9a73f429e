package io.kvorum.client;

/** The operation's deadline passed: while it waited for its turn, for an answer, or for the next entry of a range. */
public final class OperationTimeoutException extends KvorumException {
    private static final long serialVersionUID = 1;

    OperationTimeoutException(Course course, String why, Throwable cause) {
        super(course, true, why, cause);
    }
}
