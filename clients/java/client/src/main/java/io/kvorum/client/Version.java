package io.kvorum.client;

import java.time.Instant;
import java.util.Optional;

/**
 * The version of a record: of two versions of a key, the higher is the newer.
 *
 * @param clock the hybrid logical clock: Unix milliseconds in the upper 48 bits, a counter in the lower 16; unsigned
 * @param node the id of the node that assigned it, which decides between equal clocks; unsigned
 */
public record Version(long clock, long node) implements Comparable<Version> {
    /**
     * Reads a version as the node writes it: two words of 16 hexadecimal digits with a {@code -} between, with or
     * without the quotes of an {@code ETag}. Empty where the text is none.
     */
    public static Optional<Version> parse(String text) {
        String bare = text.length() == 35 && text.startsWith("\"") && text.endsWith("\"")
                ? text.substring(1, 34) : text;
        if (bare.length() != 33 || bare.charAt(16) != '-') {
            return Optional.empty();
        }
        try {
            return Optional.of(new Version(
                    Long.parseUnsignedLong(bare, 0, 16, 16), Long.parseUnsignedLong(bare, 17, 33, 16)));
        } catch (NumberFormatException notHexadecimal) {
            return Optional.empty();
        }
    }

    /** The instant in it: about when it was written, by the clocks of the cluster. */
    public Instant instant() {
        return Instant.ofEpochMilli(clock >>> 16);
    }

    @Override
    public int compareTo(Version other) {
        int byClock = Long.compareUnsigned(clock, other.clock);
        return byClock != 0 ? byClock : Long.compareUnsigned(node, other.node);
    }

    /** As the node writes it, without quotes. */
    @Override
    public String toString() {
        return String.format("%016x-%016x", clock, node);
    }
}
