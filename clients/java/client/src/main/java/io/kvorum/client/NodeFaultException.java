package io.kvorum.client;

import java.util.Optional;

/** The node failed by its own fault (500), or something between failed in its place. */
public final class NodeFaultException extends KvorumException {
    private static final long serialVersionUID = 1;

    private final int status;
    private final String requestId;

    NodeFaultException(Course course, String why, int status, String requestId) {
        super(course, true, why, null);
        this.status = status;
        this.requestId = requestId;
    }

    /** The HTTP status. */
    public int status() {
        return status;
    }

    /** What names this failure in the node's log, if the node said so. */
    public Optional<String> requestId() {
        return Optional.ofNullable(requestId);
    }
}
