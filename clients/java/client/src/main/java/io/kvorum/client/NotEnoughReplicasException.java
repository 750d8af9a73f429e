package io.kvorum.client;

import java.util.OptionalInt;

/**
 * Fewer replicas confirmed than the operation asked for (504). A write stays on those that did, and may spread from
 * there: it is unknown, not undone.
 */
public final class NotEnoughReplicasException extends KvorumException {
    private static final long serialVersionUID = 1;

    private final int confirmed;
    private final int required;
    private final int from;

    NotEnoughReplicasException(Course course, String why, int confirmed, int required, int from) {
        super(course, true, why, null);
        this.confirmed = confirmed;
        this.required = required;
        this.from = from;
    }

    /** How many replicas confirmed, if the node said so. */
    public OptionalInt confirmed() {
        return known(confirmed);
    }

    /** How many had to, if that is known: asked for by the operation, or said by the node. */
    public OptionalInt required() {
        return known(required);
    }

    /** Of how many, if that is known. */
    public OptionalInt from() {
        return known(from);
    }

    private static OptionalInt known(int count) {
        return count < 0 ? OptionalInt.empty() : OptionalInt.of(count);
    }
}
