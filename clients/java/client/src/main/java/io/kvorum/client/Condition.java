package io.kvorum.client;

import java.util.Objects;

/** The condition of a write, judged by the cluster in one step with the write. Immutable. */
public final class Condition {
    private static final Condition ABSENT = new Condition("If-None-Match", "*");
    private static final Condition PRESENT = new Condition("If-Match", "*");

    private final String header;
    private final String tags;

    private Condition(String header, String tags) {
        this.header = header;
        this.tags = tags;
    }

    /** There is no value. */
    public static Condition absent() {
        return ABSENT;
    }

    /** There is a value. */
    public static Condition present() {
        return PRESENT;
    }

    /** The value has this version. */
    public static Condition version(Version version) {
        return new Condition("If-Match", "\"" + Objects.requireNonNull(version, "version") + "\"");
    }

    String header() {
        return header;
    }

    String tags() {
        return tags;
    }

    @Override
    public String toString() {
        return header + ": " + tags;
    }
}
