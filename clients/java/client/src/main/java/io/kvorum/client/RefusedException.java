package io.kvorum.client;

/** The node refused the request because of what it asks (400 to 499): it would be refused again. */
public final class RefusedException extends KvorumException {
    private static final long serialVersionUID = 1;

    private final int status;

    RefusedException(Course course, String why, int status) {
        super(course, false, why, null);
        this.status = status;
    }

    /** The HTTP status. */
    public int status() {
        return status;
    }
}
