package io.kvorum.client;

/**
 * The disks of the replicas are full (507): they refuse writes, and go on to read. Nothing was stored anywhere; where a
 * replica may have stored the value the node answers 504, a {@link NotEnoughReplicasException}.
 */
public final class DiskFullException extends KvorumException {
    private static final long serialVersionUID = 1;

    DiskFullException(Course course, String why, Throwable cause) {
        super(course, true, why, cause);
    }
}
