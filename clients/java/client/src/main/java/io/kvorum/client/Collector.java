package io.kvorum.client;

import java.net.http.HttpResponse.BodySubscriber;
import java.nio.ByteBuffer;
import java.util.ArrayList;
import java.util.List;
import java.util.concurrent.CompletableFuture;
import java.util.concurrent.CompletionStage;
import java.util.concurrent.Flow;
import java.util.function.Consumer;

/** Collects a body up to a limit and hands it over when it is complete; beyond the limit, the exchange fails. */
final class Collector implements BodySubscriber<Void> {
    private final int bytesMax;
    private final Consumer<byte[]> whole;
    private final CompletableFuture<Void> done = new CompletableFuture<>();
    /** The JDK hands its buffers over for good, so nothing is copied before the end. */
    private final List<ByteBuffer> buffers = new ArrayList<>();
    private long bytes;
    private Flow.Subscription subscription;

    Collector(int bytesMax, Consumer<byte[]> whole) {
        this.bytesMax = bytesMax;
        this.whole = whole;
    }

    @Override
    public CompletionStage<Void> getBody() {
        return done;
    }

    @Override
    public void onSubscribe(Flow.Subscription subscription) {
        this.subscription = subscription;
        subscription.request(Long.MAX_VALUE);
    }

    @Override
    public void onNext(List<ByteBuffer> more) {
        for (ByteBuffer buffer : more) {
            bytes += buffer.remaining();
            buffers.add(buffer);
        }
        if (bytes > bytesMax) {
            subscription.cancel();
            buffers.clear();
            done.completeExceptionally(new Failure.TooLarge(bytesMax));
        }
    }

    @Override
    public void onError(Throwable error) {
        buffers.clear();
        done.completeExceptionally(error);
    }

    @Override
    public void onComplete() {
        if (done.isDone()) {
            return;
        }
        byte[] body = new byte[(int) bytes];
        int at = 0;
        for (ByteBuffer buffer : buffers) {
            int length = buffer.remaining();
            buffer.get(body, at, length);
            at += length;
        }
        buffers.clear();
        try {
            whole.accept(body);
        } finally {
            done.complete(null);
        }
    }
}
