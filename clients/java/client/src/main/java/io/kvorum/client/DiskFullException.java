package io.kvorum.client;

/** The disk of a node is full (507): it refuses writes, and goes on to read. */
public final class DiskFullException extends KvorumException {
    private static final long serialVersionUID = 1;

    DiskFullException(Course course, String why, Throwable cause) {
        super(course, true, why, cause);
    }
}
