package io.kvorum.client;

/** The client was closed, before the operation or during it. */
public final class ClientClosedException extends KvorumException {
    private static final long serialVersionUID = 1;

    ClientClosedException(Course course, String why, Throwable cause) {
        super(course, false, why, cause);
    }
}
