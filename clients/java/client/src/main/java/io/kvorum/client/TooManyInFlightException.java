package io.kvorum.client;

/** As many operations are in flight, and wait, as this client was allowed. Nothing was sent. */
public final class TooManyInFlightException extends KvorumException {
    private static final long serialVersionUID = 1;

    TooManyInFlightException(Course course, String why, Throwable cause) {
        super(course, true, why, cause);
    }
}
