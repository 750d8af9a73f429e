package io.kvorum.client;

import java.net.http.HttpHeaders;
import java.nio.charset.StandardCharsets;
import java.time.Instant;
import java.util.Map;
import java.util.Optional;

/** The outcome of one operation of a {@link Batch}. */
public final class BatchResult {
    private static final HttpHeaders NO_HEADERS = HttpHeaders.of(Map.of(), (name, value) -> true);

    private final int index;
    private final Batch.Line line;
    private final Replicas asked;
    private final int status;
    private final Version version;
    private final byte[] value;
    private final Instant expires;
    private final String message;

    private BatchResult(
            int index, Batch.Line line, Replicas asked, Map<String, Object> answer) throws Json.MalformedException {
        this.index = index;
        this.line = line;
        this.asked = asked;
        long status = Json.whole(answer.get("status"), "status");
        if (status < 100 || status > 599) {
            throw new Json.MalformedException("no status: " + status);
        }
        this.status = (int) status;
        Object version = answer.get("version");
        this.version = version == null ? null : EntryLines.version(version);
        boolean isValue = status == 200 && !line.isWrite();
        this.value = isValue ? EntryLines.bytes(answer, "value") : null;
        this.expires = EntryLines.instant(answer.get("expires"));
        Object message = answer.get("message");
        this.message = message == null ? "" : Json.string(message, "message");
        if (this.version == null && (isValue || status == 201 || status == 202)) {
            throw new Json.MalformedException("the answer has no version");
        }
    }

    /**
     * Reads the answer to a line.
     *
     * @param asked the replicas that were asked for; null where the node chose
     */
    static BatchResult parse(int index, Batch.Line line, Replicas asked, byte[] bytes, int length)
            throws Json.MalformedException {
        try {
            return new BatchResult(index, line, asked, Json.parseObject(bytes, 0, length));
        } catch (IllegalArgumentException notBase64) {
            throw new Json.MalformedException(notBase64.getMessage());
        }
    }

    /** The place of the operation in its batch, from 0. */
    public int index() {
        return index;
    }

    /** The key of the operation. */
    public Key key() {
        return line.key();
    }

    /** The status that the operation alone would have: 200, 201, 202, 404 (no value) or that of a failure. */
    public int status() {
        return status;
    }

    /** Whether it did what was asked. A key without a value, read, is a success. */
    public boolean isSuccess() {
        return line.isWrite() ? status == 201 || status == 202 : status == 200 || status == 404;
    }

    /** What was read; empty for writes, failures, and a key without a value. */
    public Optional<Entry> entry() {
        return value == null ? Optional.empty() : Optional.of(new Entry(line.key(), value, version, expires));
    }

    /** The version that was written or read; after a condition that failed (412), the current one, if there is a value. */
    public Optional<Version> version() {
        return Optional.ofNullable(version);
    }

    /** Why it failed: the exception that the operation alone would end with; empty after a success. */
    public Optional<KvorumException> failure() {
        if (isSuccess()) {
            return Optional.empty();
        }
        byte[] body = message.getBytes(StandardCharsets.UTF_8);
        Failure failure = Failure.status(new Answer(status, NO_HEADERS, body));
        boolean isUnknown = line.isWrite() && failure.isOutcomeUnknown();
        return Optional.of(failure.exception(new KvorumException.Course(line.words(), null, 1, isUnknown), asked));
    }

    long valueBytes() {
        return value == null ? 0 : value.length;
    }

    @Override
    public String toString() {
        return index + ": " + line.words() + ": " + status + (message.isEmpty() ? "" : " " + message);
    }
}
