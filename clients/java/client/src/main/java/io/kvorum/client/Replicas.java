package io.kvorum.client;

/**
 * How many of how many replicas must confirm an operation.
 *
 * <p>A read sees a write, or something newer, whenever the two {@code ack}s together are more than the larger
 * {@code from}.
 *
 * @param ack how many must confirm: from 1 to {@code from}
 * @param from how many hold the key: up to the number of nodes, which the node checks
 */
public record Replicas(int ack, int from) {
    /** Refuses what no cluster could do. */
    public Replicas {
        if (ack < 1 || from < ack || from > 0xffff) {
            throw new IllegalArgumentException("1 <= ack <= from <= 65535 is needed; this is " + ack + "/" + from);
        }
    }

    /**
     * {@code ack} of {@code from}.
     *
     * @throws IllegalArgumentException unless 1 &lt;= ack &lt;= from
     */
    public static Replicas of(int ack, int from) {
        return new Replicas(ack, from);
    }

    @Override
    public String toString() {
        return ack + "/" + from;
    }
}
