package io.kvorum.client;

import java.net.http.HttpRequest.BodyPublisher;
import java.net.http.HttpRequest.BodyPublishers;
import java.nio.ByteBuffer;
import java.nio.charset.StandardCharsets;
import java.util.Objects;
import java.util.concurrent.Flow;
import java.util.concurrent.atomic.AtomicBoolean;

/** A value to be written. */
public final class Value {
    private final BodyPublisher body;
    private final boolean isOneShot;

    private Value(BodyPublisher body, boolean isOneShot) {
        this.body = body;
        this.isOneShot = isOneShot;
    }

    /** A value of these bytes. They are not copied and must not change until the write is over. */
    public static Value of(byte[] bytes) {
        return new Value(BodyPublishers.ofByteArray(bytes), false);
    }

    /** A value of this text as UTF-8. */
    public static Value of(String text) {
        return new Value(BodyPublishers.ofByteArray(text.getBytes(StandardCharsets.UTF_8)), false);
    }

    /** A value of the buffer's remaining bytes, which are copied; its position stays where it is. */
    public static Value of(ByteBuffer buffer) {
        byte[] bytes = new byte[buffer.remaining()];
        buffer.duplicate().get(bytes);
        return new Value(BodyPublishers.ofByteArray(bytes), false);
    }

    /**
     * A value that the publisher makes while it is sent, such as a file's bytes.
     *
     * <p>Nobody can know whether a publisher makes the same bytes twice. So the client subscribes to it at most once,
     * and does not repeat an attempt after that. A value may be used for one write only.
     */
    public static Value of(BodyPublisher body) {
        return new Value(new OneShot(Objects.requireNonNull(body, "body")), true);
    }

    BodyPublisher body() {
        return body;
    }

    /** Whether the value can (still) be sent from its beginning. */
    boolean isSendable() {
        return !isOneShot || !((OneShot) body).subscribed.get();
    }

    private static final class OneShot implements BodyPublisher {
        private final BodyPublisher body;
        private final AtomicBoolean subscribed = new AtomicBoolean();

        OneShot(BodyPublisher body) {
            this.body = body;
        }

        @Override
        public long contentLength() {
            return body.contentLength();
        }

        @Override
        public void subscribe(Flow.Subscriber<? super ByteBuffer> subscriber) {
            if (subscribed.compareAndSet(false, true)) {
                body.subscribe(subscriber);
                return;
            }
            // The JDK repeats some requests by itself, and it would begin in the middle.
            subscriber.onSubscribe(new Flow.Subscription() {
                @Override
                public void request(long count) {
                    // There is nothing to give.
                }

                @Override
                public void cancel() {
                    // There is nothing to stop.
                }
            });
            subscriber.onError(new IllegalStateException("this value was sent before and cannot be sent again"));
        }
    }
}
