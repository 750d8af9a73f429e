package io.kvorum.client;

import java.util.concurrent.CompletableFuture;
import java.util.concurrent.Flow;
import java.util.function.Consumer;

/** Hands a batch's results on; its future tells how that ended, and cancels the rest when it is cancelled. */
final class BatchSubscriber implements Flow.Subscriber<BatchResult> {
    private final Consumer<? super BatchResult> each;
    private final CompletableFuture<Void> result = new CompletableFuture<>();
    private Flow.Subscription subscription;

    BatchSubscriber(Consumer<? super BatchResult> each) {
        this.each = each;
    }

    CompletableFuture<Void> result() {
        return result;
    }

    @Override
    public void onSubscribe(Flow.Subscription subscription) {
        this.subscription = subscription;
        result.whenComplete((done, error) -> {
            if (error != null) {
                subscription.cancel();
            }
        });
        // Results are handed on one after the other, and more is taken from the connection only after that.
        subscription.request(Long.MAX_VALUE);
    }

    @Override
    public void onNext(BatchResult one) {
        try {
            each.accept(one);
        } catch (RuntimeException | Error thrown) {
            subscription.cancel();
            result.completeExceptionally(thrown);
        }
    }

    @Override
    public void onError(Throwable error) {
        result.completeExceptionally(error);
    }

    @Override
    public void onComplete() {
        result.complete(null);
    }
}
