package io.kvorum.client;

import java.io.IOException;
import java.net.ServerSocket;
import java.net.URI;
import java.net.http.HttpClient;
import java.net.http.HttpRequest;
import java.net.http.HttpResponse.BodyHandlers;
import java.nio.file.Files;
import java.nio.file.Path;
import java.time.Duration;
import java.util.ArrayList;
import java.util.Arrays;
import java.util.List;
import java.util.concurrent.TimeUnit;
import java.util.stream.Stream;

/** A real cluster: a process per node, on ports that were free, with data that goes with it. */
final class Cluster implements AutoCloseable {
    private final Path binary = binary();
    private final Path data;
    private final List<String> urls = new ArrayList<>();
    private final Process[] nodes;
    private final HttpClient http = HttpClient.newBuilder().version(HttpClient.Version.HTTP_1_1).build();

    Cluster(int count) throws Exception {
        data = Files.createTempDirectory("kvorum-java-test");
        nodes = new Process[count];
        List<ServerSocket> reserved = new ArrayList<>();
        for (int n = 0; n < count; n++) {
            ServerSocket socket = new ServerSocket(0);
            reserved.add(socket);
            urls.add("http://127.0.0.1:" + socket.getLocalPort());
        }
        for (ServerSocket socket : reserved) {
            socket.close();
        }
        for (int n = 0; n < count; n++) {
            start(n);
        }
        for (int n = 0; n < count; n++) {
            awaitReady(n);
        }
    }

    /** The node's binary: the property, the environment, or built from the workspace that this file is in. */
    static Path binary() throws Exception {
        String given = System.getProperty("kvorum.binary", "");
        if (given.isEmpty()) {
            given = System.getenv().getOrDefault("KVORUM_BINARY", "");
        }
        if (!given.isEmpty()) {
            return Path.of(given).toAbsolutePath();
        }
        Path workspace = Path.of("").toAbsolutePath();
        while (!Files.exists(workspace.resolve("Cargo.lock"))) {
            workspace = workspace.getParent();
            if (workspace == null) {
                throw new IllegalStateException("set KVORUM_BINARY: no workspace is above this folder to build it from");
            }
        }
        Process build = new ProcessBuilder("cargo", "build", "--release", "--locked", "-p", "kvorum")
                .directory(workspace.toFile()).inheritIO().start();
        if (build.waitFor() != 0) {
            throw new IllegalStateException("the node could not be built");
        }
        String target = System.getenv().getOrDefault("CARGO_TARGET_DIR", "target");
        return workspace.resolve(target).resolve("release/kvorum");
    }

    void start(int n) throws IOException {
        List<String> command = new ArrayList<>(Arrays.asList(
                binary.toString(), "serve", "--listen", urls.get(n).substring("http://".length()),
                "--data-dir", data.resolve("node-" + n).toString(), "--cluster", String.join(",", urls),
                "--threads", "1"));
        nodes[n] = new ProcessBuilder(command)
                .redirectErrorStream(true)
                .redirectOutput(ProcessBuilder.Redirect.appendTo(data.resolve("log-" + n).toFile()))
                .start();
    }

    void awaitReady(int n) throws Exception {
        for (int tenth = 0; tenth < 200; tenth++) {
            try {
                if (get(n, "/v0/status").length > 0) {
                    return;
                }
            } catch (IOException notYet) {
                Thread.sleep(100);
            }
        }
        throw new IllegalStateException("node " + n + " does not get ready: " + Files.readString(data.resolve("log-" + n)));
    }

    /** The body of a node's answer. */
    byte[] get(int n, String target) throws Exception {
        HttpRequest request = HttpRequest.newBuilder(URI.create(urls.get(n) + target))
                .timeout(Duration.ofSeconds(10)).build();
        var answer = http.send(request, BodyHandlers.ofByteArray());
        if (answer.statusCode() != 200) {
            throw new IOException("status " + answer.statusCode());
        }
        return answer.body();
    }

    /** Ends a node without giving it a chance. */
    void kill(int n) throws InterruptedException {
        nodes[n].destroyForcibly();
        nodes[n].waitFor();
    }

    /** Stops a node without ending it, or lets it go on. */
    void signal(int n, String signal) throws Exception {
        new ProcessBuilder("kill", "-" + signal, Long.toString(nodes[n].pid())).start().waitFor();
    }

    List<String> urls() {
        return urls;
    }

    @Override
    public void close() throws IOException {
        for (Process node : nodes) {
            if (node != null) {
                node.destroyForcibly();
            }
        }
        for (Process node : nodes) {
            try {
                node.waitFor(10, TimeUnit.SECONDS);
            } catch (InterruptedException interrupted) {
                Thread.currentThread().interrupt();
            }
        }
        try (Stream<Path> files = Files.walk(data)) {
            for (Path file : files.sorted(java.util.Comparator.reverseOrder()).toList()) {
                Files.deleteIfExists(file);
            }
        }
    }
}
