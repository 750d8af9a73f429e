package io.kvorum.client;

import static org.junit.jupiter.api.Assertions.assertEquals;
import static org.junit.jupiter.api.Assertions.assertTrue;

import java.io.BufferedReader;
import java.io.InputStreamReader;
import java.io.OutputStream;
import java.lang.management.ManagementFactory;
import java.lang.management.ThreadMXBean;
import java.nio.file.Path;
import java.time.Duration;
import java.util.ArrayList;
import java.util.HashSet;
import java.util.List;
import java.util.Set;
import java.util.concurrent.CompletableFuture;
import java.util.concurrent.TimeUnit;
import org.junit.jupiter.api.Test;
import org.junit.jupiter.api.Timeout;

/** Ten thousand at once. */
@Timeout(120)
class FlightTest {
    private static final int COUNT = 10_000;

    /**
     * 10,000 requests in flight take no thread each: as many threads as one request takes. And they all come to their
     * end: 5,000 by an answer, 5,000 by being cancelled; and 100 that waited meanwhile.
     */
    @Test
    void tenThousandRequestsInFlightAndNoThreadForThem() throws Exception {
        ThreadMXBean threads = ManagementFactory.getThreadMXBean();
        String java = Path.of(System.getProperty("java.home"), "bin", "java").toString();
        Process server = new ProcessBuilder(
                        java, "-Xmx512m", "-cp", System.getProperty("java.class.path"), StallingServer.class.getName())
                .redirectError(ProcessBuilder.Redirect.INHERIT)
                .start();
        try (BufferedReader out = new BufferedReader(new InputStreamReader(server.getInputStream()));
                OutputStream in = server.getOutputStream();
                KvorumClient client = KvorumClient.builder()
                        .nodes("http://127.0.0.1:" + out.readLine())
                        .maxInFlight(COUNT, Overflow.waitUpTo(100))
                        .connectTimeout(Duration.ofSeconds(60))
                        .timeout(Duration.ofSeconds(90))
                        .build()) {
            CompletableFuture<?> first = client.get("first");
            awaitRequests(1, in, out);
            first.cancel(true);
            Set<Thread> before = Thread.getAllStackTraces().keySet();
            threads.resetPeakThreadCount();
            List<CompletableFuture<?>> reads = new ArrayList<>();
            for (int read = 0; read < COUNT + 100; read++) {
                reads.add(client.get("key-" + read));
            }
            awaitRequests(COUNT + 1, in, out);
            assertEquals(COUNT, client.inFlight());
            assertEquals(100, client.waiting());
            Set<Thread> more = new HashSet<>(Thread.getAllStackTraces().keySet());
            more.removeAll(before);
            assertTrue(more.size() <= 2, "threads beside those of one request: " + more);
            for (int read = 0; read < COUNT; read += 2) {
                reads.get(read).cancel(true);
            }
            in.write("go\n".getBytes());
            in.flush();
            for (int read = 1; read < reads.size(); read += 2) {
                reads.get(read).get(60, TimeUnit.SECONDS);
            }
            for (int read = COUNT; read < reads.size(); read++) {
                reads.get(read).get(60, TimeUnit.SECONDS);
            }
            assertEquals(0, client.inFlight());
            System.out.println("threads for " + COUNT + " requests in flight, beside those for one: " + more.size()
                    + "; in all, also while they were answered: " + threads.getPeakThreadCount());
        } finally {
            server.destroyForcibly();
        }
    }

    private static void awaitRequests(int count, OutputStream in, BufferedReader out) throws Exception {
        int came = 0;
        while (came < count) {
            Thread.sleep(20);
            in.write('\n');
            in.flush();
            came = Integer.parseInt(out.readLine());
        }
        assertEquals(count, came);
    }
}
