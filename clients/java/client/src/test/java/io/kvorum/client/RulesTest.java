package io.kvorum.client;

import static org.junit.jupiter.api.Assertions.assertEquals;
import static org.junit.jupiter.api.Assertions.assertFalse;
import static org.junit.jupiter.api.Assertions.assertSame;
import static org.junit.jupiter.api.Assertions.assertThrows;
import static org.junit.jupiter.api.Assertions.assertTrue;

import java.io.IOException;
import java.net.ConnectException;
import java.net.http.HttpHeaders;
import java.time.Duration;
import java.util.List;
import java.util.Map;
import java.util.concurrent.CompletionException;
import org.junit.jupiter.api.Test;

/** What is decided without a socket or a clock. */
class RulesTest {
    private static final KvorumException.Course COURSE = new KvorumException.Course("GET \"k\"", null, 1, false);

    private static Failure status(int status, Map<String, List<String>> headers, String body) {
        return Failure.status(new Answer(status, HttpHeaders.of(headers, (n, v) -> true), body.getBytes()));
    }

    private static Failure status(int status) {
        return status(status, Map.of(), "why");
    }

    /** Each kind of failure: is it repeated for a read, a write, a write that may be; is the write's outcome unknown? */
    @Test
    void tableOfFailures() {
        check(Failure.thrown(new CompletionException(new ConnectException())), true, true, true, false);
        check(Failure.thrown(new IOException("reset")), true, false, true, true);
        check(Failure.impatient(Duration.ofSeconds(1)), true, false, true, true);
        check(Failure.unexpected("?"), false, false, false, true);
        check(Failure.thrown(new CompletionException(new Failure.TooLarge(1))), false, false, false, true);
        check(Failure.local(new IllegalArgumentException()), false, false, false, false);
        check(status(503), true, true, true, false);
        check(status(504), true, false, true, true);
        check(status(500), true, false, false, true);
        check(status(502), true, false, false, true);
        // A full disk refuses before anything is stored. Another try would meet the same disks.
        check(status(507), true, false, false, false);
        check(status(400), false, false, false, false);
        check(status(413), false, false, false, false);
        check(status(302), false, false, false, true);
    }

    private static void check(Failure failure, boolean read, boolean write, boolean boldWrite, boolean isUnknown) {
        RetryPolicy bold = RetryPolicy.DEFAULT.repeatUnknownWrites(true);
        assertEquals(read, failure.isRepeatable(false, RetryPolicy.DEFAULT), failure + " read");
        assertEquals(write, failure.isRepeatable(true, RetryPolicy.DEFAULT), failure + " write");
        assertEquals(boldWrite, failure.isRepeatable(true, bold), failure + " bold write");
        assertEquals(isUnknown, failure.isOutcomeUnknown(), failure + " unknown");
    }

    @Test
    void exceptions() {
        assertTrue(status(400).exception(COURSE, null) instanceof RefusedException refused
                && refused.status() == 400 && !refused.retrySafe());
        assertTrue(status(503, Map.of("retry-after", List.of("7")), "").exception(COURSE, null)
                instanceof OverloadedException busy && busy.retryAfter().orElseThrow().toSeconds() == 7);
        assertTrue(status(503, Map.of("retry-after", List.of("soon")), "").exception(COURSE, null)
                instanceof OverloadedException busy && busy.retryAfter().isEmpty());
        assertTrue(status(507).exception(COURSE, null) instanceof DiskFullException);
        assertTrue(status(500, Map.of("kvorum-request-id", List.of("id-1")), "").exception(COURSE, null)
                instanceof NodeFaultException fault && fault.requestId().orElseThrow().equals("id-1"));
        assertTrue(status(302).exception(COURSE, null) instanceof UnexpectedAnswerException);
        KvorumException lost = Failure.thrown(new IOException("reset"))
                .exception(new KvorumException.Course("PUT \"k\"", null, 2, true), null);
        assertTrue(lost.mayHaveTakenEffect() && lost.retrySafe(), "guarantee 7: to repeat is safe");
        assertEquals("PUT \"k\": the connection was lost: reset; it may have taken effect", lost.getMessage());
    }

    /** The counts come from the header, the request and the text, whichever has them. */
    @Test
    void notEnoughReplicas() {
        String text = "Not Enough Replicas: 1 of the 2 replicas that must confirm (of 3) did so in 1000 ms; http://x: gone";
        checkCounts(status(504, Map.of("kvorum-replicas", List.of("1/3")), text), null, 1, 2, 3);
        checkCounts(status(504, Map.of("kvorum-replicas", List.of("0/5")), "?"), Replicas.of(4, 5), 0, 4, 5);
        checkCounts(status(504, Map.of(), text), null, 1, 2, 3);
        checkCounts(status(504, Map.of("kvorum-replicas", List.of("many")), "?"), null, -1, -1, -1);
    }

    private static void checkCounts(Failure failure, Replicas asked, int confirmed, int required, int from) {
        NotEnoughReplicasException error = (NotEnoughReplicasException) failure.exception(COURSE, asked);
        assertEquals(confirmed, error.confirmed().orElse(-1));
        assertEquals(required, error.required().orElse(-1));
        assertEquals(from, error.from().orElse(-1));
    }

    @Test
    void backOffDoublesUpToItsEnd() {
        RetryPolicy policy = RetryPolicy.DEFAULT.backoff(Duration.ofMillis(20), Duration.ofMillis(500));
        assertEquals(Duration.ofMillis(20), policy.backoff(1, 1));
        assertEquals(Duration.ofMillis(10), policy.backoff(1, 0));
        assertEquals(Duration.ofMillis(40), policy.backoff(2, 1));
        assertEquals(Duration.ofMillis(320), policy.backoff(5, 1));
        assertEquals(Duration.ofMillis(500), policy.backoff(6, 1));
        assertEquals(Duration.ofMillis(500), policy.backoff(1_000_000, 1));
        assertEquals(Duration.ZERO, policy.backoff(Duration.ZERO, Duration.ZERO).backoff(3, 1));
    }

    @Test
    void choice() {
        Node a = Node.at("http://a:1");
        Node b = Node.at("http://b:1");
        Node c = Node.at("http://c:1");
        List<List<Node>> tiers = List.of(List.of(a, b), List.of(a, b, c));
        long now = System.nanoTime();
        assertSame(a, Choice.choose(tiers, 0, List.of(), now));
        assertSame(b, Choice.choose(tiers, 1, List.of(), now));
        assertSame(b, Choice.choose(tiers, -1, List.of(), now), "turns wrap around");
        assertSame(b, Choice.choose(tiers, 0, List.of(a), now), "another replica first");
        assertSame(c, Choice.choose(tiers, 0, List.of(a, b), now), "then any node");
        assertSame(a, Choice.choose(tiers, 0, List.of(a, b, c), now), "then those tried, the last one last");
        a.setAside();
        assertSame(b, Choice.choose(tiers, 0, List.of(), now));
        b.rest(now + 100);
        assertSame(c, Choice.choose(tiers, 0, List.of(), now), "not a replica, but well");
        c.rest(now + 50);
        assertSame(c, Choice.choose(tiers, 0, List.of(), now), "the rest that ends first");
        assertSame(b, Choice.choose(tiers, 0, List.of(), now + 100), "rested");
        b.setAside();
        c.setAside();
        assertSame(b, Choice.choose(tiers, 0, List.of(a), now), "even one that is set aside is better than none");
        a.takeBack();
        assertSame(a, Choice.choose(tiers, 1, List.of(), now));
    }

    @Test
    void nodesHaveOneSpelling() {
        assertEquals("http://host:1", Node.normalize("HTTP://HOST:1/"));
        assertEquals("http://[::1]:80", Node.normalize("http://[::1]:80"));
        for (String bad : new String[] {"host:1", "ftp://h", "http://h/path", "http://h?q", "http://u@h", "/x"}) {
            assertThrows(IllegalArgumentException.class, () -> Node.normalize(bad), bad);
        }
    }

    @Test
    void theTurnstileIsFairAndBounded() {
        Turnstile turnstile = new Turnstile(1, 2);
        Runnable first = () -> { };
        Runnable second = () -> first.run();
        Runnable third = () -> second.run();
        assertEquals(Turnstile.Entry.GRANTED, turnstile.enter(first));
        assertEquals(Turnstile.Entry.WAITING, turnstile.enter(second));
        assertEquals(Turnstile.Entry.WAITING, turnstile.enter(third));
        assertEquals(Turnstile.Entry.REFUSED, turnstile.enter(() -> { }));
        assertTrue(turnstile.giveUp(second));
        assertFalse(turnstile.giveUp(second));
        assertSame(third, turnstile.leave());
        assertEquals(1, turnstile.inside(), "the place went over");
        assertEquals(null, turnstile.leave());
        assertEquals(0, turnstile.inside());
    }

    @Test
    void hedgesAreBudgeted() {
        HedgeBudget budget = new HedgeBudget(0.1);
        assertTrue(budget.spend());
        assertFalse(budget.spend());
        for (int read = 0; read < 10; read++) {
            budget.earn();
        }
        assertTrue(budget.spend());
        assertFalse(budget.spend());
        for (int read = 0; read < 10_000; read++) {
            budget.earn();
        }
        int spent = 0;
        while (budget.spend()) {
            spent++;
        }
        assertEquals(10, spent, "a quiet hour does not pay for a storm");
    }
}
