package io.kvorum.client;

import java.util.Objects;
import java.util.Optional;
import java.util.OptionalLong;

/** A range of keys, sorted by their bytes: from one key on, up to and without another. Immutable. */
public final class Range {
    /** Whose records a range covers. */
    public enum Scope {
        /** Every live key of the cluster once, the freshest record among a read quorum of its replicas. */
        CLUSTER,
        /** What the node that answers stores, alone. */
        LOCAL
    }

    private final Key start;
    private final Key end;
    private final long limit;
    private final Scope scope;

    private Range(Key start, Key end, long limit, Scope scope) {
        this.start = start;
        this.end = end;
        this.limit = limit;
        this.scope = scope;
    }

    /** All keys from this one on. */
    public static Range from(Key start) {
        return new Range(Objects.requireNonNull(start, "start"), null, -1, Scope.CLUSTER);
    }

    /** All keys from this one on. */
    public static Range from(String start) {
        return from(Key.of(start));
    }

    /** All keys that begin with these bytes. */
    public static Range prefix(Key prefix) {
        byte[] end = prefix.bytes();
        int length = end.length;
        // The first key behind them: the last byte that can grow does, and what follows it goes.
        while (length > 0 && end[length - 1] == (byte) 0xff) {
            length--;
        }
        Range range = from(prefix);
        if (length == 0) {
            return range;
        }
        end[length - 1]++;
        return range.to(Key.of(java.util.Arrays.copyOf(end, length)));
    }

    /** All keys that begin with this text. */
    public static Range prefix(String prefix) {
        return prefix(Key.of(prefix));
    }

    /** Up to and without this key. */
    public Range to(Key end) {
        return new Range(start, Objects.requireNonNull(end, "end"), limit, scope);
    }

    /** Up to and without this key. */
    public Range to(String end) {
        return to(Key.of(end));
    }

    /**
     * At most so many entries.
     *
     * @throws IllegalArgumentException if it is less than 1
     */
    public Range limit(long limit) {
        if (limit < 1) {
            throw new IllegalArgumentException("a limit is at least 1; this one is " + limit);
        }
        return new Range(start, end, limit, scope);
    }

    /** With this scope. */
    public Range scope(Scope scope) {
        return new Range(start, end, limit, Objects.requireNonNull(scope, "scope"));
    }

    /** The first key. */
    public Key start() {
        return start;
    }

    /** The first key behind the range, if it has an end. */
    public Optional<Key> end() {
        return Optional.ofNullable(end);
    }

    /** How many entries at most, if that is limited. */
    public OptionalLong limit() {
        return limit < 0 ? OptionalLong.empty() : OptionalLong.of(limit);
    }

    /** Whose records. */
    public Scope scope() {
        return scope;
    }

    @Override
    public String toString() {
        return start + " to " + (end == null ? "the end" : end) + (limit < 0 ? "" : ", at most " + limit)
                + (scope == Scope.LOCAL ? ", local" : "");
    }
}
