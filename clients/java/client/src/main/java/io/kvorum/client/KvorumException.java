package io.kvorum.client;

import java.io.Serializable;
import java.net.URI;
import java.util.Optional;

/**
 * An operation failed. It says {@linkplain #attempted() what was attempted}, whether a write
 * {@linkplain #mayHaveTakenEffect() may have taken effect}, and whether to {@linkplain #retrySafe() try again} is safe.
 *
 * <p>Futures fail with one of these; {@link java.util.concurrent.CompletableFuture#join()} wraps it into a
 * {@link java.util.concurrent.CompletionException}, the blocking facade throws it as it is.
 */
public abstract class KvorumException extends RuntimeException {
    /**
     * What every failure knows.
     *
     * @param attempted the operation in words
     * @param node the node of the last attempt, or null where none was asked
     * @param attempts how many were made
     * @param mayHaveTakenEffect whether any of them, being a write, may have changed the key or may yet
     */
    record Course(String attempted, URI node, int attempts, boolean mayHaveTakenEffect) implements Serializable {}

    private static final long serialVersionUID = 1;

    private final Course course;
    private final boolean retrySafe;

    KvorumException(Course course, boolean retrySafe, String why, Throwable cause) {
        super(message(course, why), cause);
        this.course = course;
        this.retrySafe = retrySafe;
    }

    private static String message(Course course, String why) {
        StringBuilder text = new StringBuilder(course.attempted).append(": ").append(why);
        if (course.node != null) {
            text.append(" (").append(course.node);
            text.append(course.attempts > 1 ? ", attempt " + course.attempts + ")" : ")");
        }
        return text.append(course.mayHaveTakenEffect ? "; it may have taken effect" : "").toString();
    }

    /** What was attempted, in words, such as {@code PUT "user/7"}. */
    public String attempted() {
        return course.attempted;
    }

    /** The node of the last attempt; empty where none was asked. */
    public Optional<URI> node() {
        return Optional.ofNullable(course.node);
    }

    /** How many attempts were made. */
    public int attempts() {
        return course.attempts;
    }

    /**
     * Whether the operation, being a write, may have changed the key, or may do so at any later time. It is true if
     * any one of its attempts was of unknown outcome, and never for reads.
     */
    public boolean mayHaveTakenEffect() {
        return course.mayHaveTakenEffect;
    }

    /**
     * Whether the same operation can be tried again without harm, and with hope. False where the request itself is at
     * fault, or the client is closed.
     *
     * <p>For a write that {@linkplain #mayHaveTakenEffect() may have taken effect}, it says what the contract does:
     * to repeat is safe, the same value is written once more. Where others write the same key, the first attempt may
     * still surface after somebody's newer value; see {@link RetryPolicy}.
     */
    public boolean retrySafe() {
        return retrySafe;
    }
}
