package io.kvorum.client;

import java.net.http.HttpRequest;
import java.net.http.HttpRequest.BodyPublisher;
import java.net.http.HttpRequest.BodyPublishers;
import java.net.http.HttpResponse.BodySubscriber;
import java.nio.charset.StandardCharsets;
import java.time.Duration;
import java.time.Instant;
import java.util.Optional;

/** What is asked of a node, and what its answer means; how that travels is the business of {@link Call}. */
abstract class Operation<T> {
    private static final int NOT_FOUND = 404;

    private final String method;
    private final Key key;
    private final Replicas replicas;
    private final String target;

    /**
     * @param key what it is about; for a range, its start
     * @param replicas what it asks for; null leaves it to the node
     */
    private Operation(String method, Key key, Replicas replicas, String target) {
        this.method = method;
        this.key = key;
        this.replicas = replicas;
        this.target = target;
    }

    private static StringBuilder entity(Key key, Replicas replicas) {
        StringBuilder target = new StringBuilder(32 + key.length()).append("/v0/entity?id=");
        key.appendEscaped(target);
        if (replicas != null) {
            target.append("&replicas=").append(replicas.ack()).append('/').append(replicas.from());
        }
        return target;
    }

    static Operation<Optional<Entry>> get(Key key, Replicas replicas) {
        return new Operation<>("GET", key, replicas, entity(key, replicas).toString()) {
            @Override
            HttpRequest.Builder request(HttpRequest.Builder request) {
                return request.GET();
            }

            @Override
            boolean isSuccess(int status) {
                return status == 200 || status == NOT_FOUND;
            }

            @Override
            Optional<Entry> decode(Answer answer) throws Json.MalformedException {
                if (answer.status() == NOT_FOUND) {
                    return Optional.empty();
                }
                String expires = answer.header("kvorum-expires");
                return Optional.of(new Entry(key, answer.body(), version(answer), instant(expires)));
            }
        };
    }

    static Operation<Optional<Head>> head(Key key, Replicas replicas) {
        return new Operation<>("HEAD", key, replicas, entity(key, replicas).toString()) {
            @Override
            HttpRequest.Builder request(HttpRequest.Builder request) {
                return request.method("HEAD", BodyPublishers.noBody());
            }

            @Override
            boolean isSuccess(int status) {
                return status == 200 || status == NOT_FOUND;
            }

            @Override
            Optional<Head> decode(Answer answer) throws Json.MalformedException {
                if (answer.status() == NOT_FOUND) {
                    return Optional.empty();
                }
                String length = answer.header("content-length");
                if (length == null || !length.matches("\\d{1,18}")) {
                    throw new Json.MalformedException("the answer has no length: Content-Length is " + length);
                }
                String expires = answer.header("kvorum-expires");
                return Optional.of(new Head(key, Long.parseLong(length), version(answer), instant(expires)));
            }
        };
    }

    /** The same on a condition; not repeated after an unknown outcome, whatever the policy. */
    static <T> Operation<T> on(Condition condition, Operation<T> write) {
        return new Operation<>(write.method, write.key, write.replicas, write.target) {
            @Override
            HttpRequest.Builder request(HttpRequest.Builder request) {
                return write.request(request).header(condition.header(), condition.tags());
            }

            @Override
            boolean isSendable() {
                return write.isSendable();
            }

            @Override
            boolean isSuccess(int status) {
                return write.isSuccess(status);
            }

            @Override
            T decode(Answer answer) throws Json.MalformedException {
                return write.decode(answer);
            }

            @Override
            boolean isOnce() {
                return true;
            }
        };
    }

    static Operation<Long> add(Key key, long addend, Replicas replicas) {
        String target = entity(key, replicas).append("&add=").append(addend).toString();
        return new Operation<>("POST", key, replicas, target) {
            @Override
            HttpRequest.Builder request(HttpRequest.Builder request) {
                return request.POST(BodyPublishers.noBody());
            }

            @Override
            boolean isSuccess(int status) {
                return status == 200;
            }

            @Override
            Long decode(Answer answer) throws Json.MalformedException {
                String number = new String(answer.body(), StandardCharsets.UTF_8);
                try {
                    return Long.parseLong(number);
                } catch (NumberFormatException wrong) {
                    throw new Json.MalformedException("the answer is no number of 64 bits");
                }
            }

            @Override
            boolean isOnce() {
                return true;
            }
        };
    }

    /** A TTL as nodes read it. */
    static String ttl(Duration ttl) {
        return ttl.getNano() == 0 ? ttl.getSeconds() + "s" : ttl.toMillis() + "ms";
    }

    static Operation<Version> put(Key key, Value value, WriteOptions options, Replicas replicas) {
        StringBuilder target = entity(key, replicas);
        options.ttl().ifPresent(ttl -> target.append("&ttl=").append(ttl(ttl)));
        return new Operation<>("PUT", key, replicas, target.toString()) {
            @Override
            HttpRequest.Builder request(HttpRequest.Builder request) {
                return request.PUT(value.body());
            }

            @Override
            boolean isSendable() {
                return value.isSendable();
            }

            @Override
            boolean isSuccess(int status) {
                return status == 201;
            }

            @Override
            Version decode(Answer answer) throws Json.MalformedException {
                return version(answer);
            }
        };
    }

    static Operation<Version> delete(Key key, Replicas replicas) {
        return new Operation<>("DELETE", key, replicas, entity(key, replicas).toString()) {
            @Override
            HttpRequest.Builder request(HttpRequest.Builder request) {
                return request.DELETE();
            }

            @Override
            boolean isSuccess(int status) {
                return status == 202;
            }

            @Override
            Version decode(Answer answer) throws Json.MalformedException {
                return version(answer);
            }
        };
    }

    /** A range whose stream, once it begins, is taken by {@code stream}; the result is there with its first byte. */
    static Operation<Void> range(Range range, BodySubscriber<Void> stream) {
        StringBuilder target = new StringBuilder("/v0/entities?start=");
        range.start().appendEscaped(target);
        range.end().ifPresent(end -> end.appendEscaped(target.append("&end=")));
        range.limit().ifPresent(limit -> target.append("&limit=").append(limit));
        if (range.scope() == Range.Scope.LOCAL) {
            target.append("&scope=local");
        }
        return new Streamed("RANGE", range.start(), target.toString(), stream) {
            @Override
            HttpRequest.Builder request(HttpRequest.Builder request) {
                // The plain format tells records apart by HTTP's chunks, which this HTTP client does not show.
                return request.GET().header("Accept", "application/x-ndjson");
            }

            @Override
            String words() {
                return "RANGE " + range;
            }
        };
    }

    /** A batch whose stream, once it begins, is taken by {@code stream}; the result is there with its first byte. */
    static Operation<Void> batch(String words, boolean isWrite, BodyPublisher body, BodySubscriber<Void> stream) {
        return new Streamed("BATCH", null, "/v0/batch", stream) {
            @Override
            HttpRequest.Builder request(HttpRequest.Builder request) {
                return request.POST(body).header("Content-Type", "application/x-ndjson");
            }

            @Override
            String words() {
                return words;
            }

            @Override
            boolean isWrite() {
                return isWrite;
            }

            @Override
            boolean isOnce() {
                // Lines may have conditions, and later ones may undo earlier ones.
                return isWrite;
            }
        };
    }

    private static Version version(Answer answer) throws Json.MalformedException {
        String etag = answer.header("etag");
        return Optional.ofNullable(etag)
                .flatMap(Version::parse)
                .orElseThrow(() -> new Json.MalformedException("the answer has no version: ETag is " + etag));
    }

    private static Instant instant(String millis) throws Json.MalformedException {
        if (millis == null) {
            return null;
        }
        if (millis.isEmpty() || !millis.chars().allMatch(digit -> digit >= '0' && digit <= '9')) {
            throw new Json.MalformedException("Kvorum-Expires is no number: " + millis);
        }
        try {
            return Instant.ofEpochMilli(Long.parseLong(millis));
        } catch (NumberFormatException tooLarge) {
            // As far away as this platform can say.
            return Instant.ofEpochMilli(Long.MAX_VALUE);
        }
    }

    /** Completes the request to a node. */
    abstract HttpRequest.Builder request(HttpRequest.Builder request);

    abstract boolean isSuccess(int status);

    /** The result that an answer with such a status means. */
    abstract T decode(Answer answer) throws Json.MalformedException;

    /** Who takes the body of a success while it comes; null where it is collected first. */
    BodySubscriber<Void> stream() {
        return null;
    }

    /** Whether it can (still) be sent from its beginning. */
    boolean isSendable() {
        return true;
    }

    /** In words. */
    String words() {
        return method + " " + key + (replicas == null ? "" : " " + replicas);
    }

    boolean isWrite() {
        return method.equals("PUT") || method.equals("DELETE") || method.equals("POST");
    }

    /** Whether it is not repeated after an unknown outcome, whatever the policy. */
    boolean isOnce() {
        return false;
    }

    boolean isHedgeable() {
        return method.equals("GET") || method.equals("HEAD");
    }

    /** The key by which it is routed; null where any node is as good. */
    Key routingKey() {
        return stream() == null ? key : null;
    }

    /** What it asks for; null leaves it to the node. */
    Replicas replicas() {
        return replicas;
    }

    /** Path and query. */
    String target() {
        return target;
    }

    /** One whose result is a stream: it is there with the first byte of a success. */
    private abstract static class Streamed extends Operation<Void> {
        private final BodySubscriber<Void> stream;

        Streamed(String method, Key key, String target, BodySubscriber<Void> stream) {
            super(method, key, null, target);
            this.stream = stream;
        }

        @Override
        boolean isSuccess(int status) {
            return status == 200;
        }

        @Override
        BodySubscriber<Void> stream() {
            return stream;
        }

        @Override
        Void decode(Answer answer) {
            return null;
        }
    }
}
