package io.kvorum.client;

import java.io.BufferedInputStream;
import java.io.ByteArrayOutputStream;
import java.io.IOException;
import java.io.InputStream;
import java.io.OutputStream;
import java.io.UncheckedIOException;
import java.net.InetAddress;
import java.net.ServerSocket;
import java.net.Socket;
import java.nio.charset.StandardCharsets;
import java.util.List;
import java.util.Locale;
import java.util.Map;
import java.util.Set;
import java.util.TreeMap;
import java.util.concurrent.ConcurrentHashMap;
import java.util.concurrent.CopyOnWriteArrayList;
import java.util.concurrent.atomic.AtomicInteger;

/** A node that does what a test says: a thread per connection, and a script that answers each request. */
final class ScriptedServer implements AutoCloseable {
    /** A request as it came. */
    record Request(String method, String target, Map<String, String> headers, byte[] body) {
        boolean isEntity() {
            return target.startsWith("/v0/entity?");
        }
    }

    /** What a script answers with: it writes to the connection, and the connection ends if it throws. */
    interface Reply {
        void write(OutputStream out) throws IOException, InterruptedException;
    }

    /** The test's part. */
    interface Script {
        Reply reply(Request request);
    }

    private final ServerSocket listener;
    private final Set<Socket> sockets = ConcurrentHashMap.newKeySet();
    private volatile Script script;
    private volatile boolean isWell = true;
    /** Requests for entities, ranges and batches, in the order of their coming. */
    final List<Request> requests = new CopyOnWriteArrayList<>();
    /** Connections so far. */
    final AtomicInteger connections = new AtomicInteger();
    /** Connections that the client closed. */
    final AtomicInteger closedByClient = new AtomicInteger();

    ScriptedServer(Script script) {
        this(script, 0);
    }

    ScriptedServer(Script script, int port) {
        this.script = script;
        try {
            listener = new ServerSocket(port, 1000, InetAddress.getLoopbackAddress());
        } catch (IOException refused) {
            throw new UncheckedIOException(refused);
        }
        daemon(this::accept);
    }

    String url() {
        return "http://127.0.0.1:" + port();
    }

    int port() {
        return listener.getLocalPort();
    }

    void script(Script script) {
        this.script = script;
    }

    /** What {@code /v0/status} says. */
    void well(boolean isWell) {
        this.isWell = isWell;
    }

    private static void daemon(Runnable task) {
        Thread thread = new Thread(task, "scripted-server");
        thread.setDaemon(true);
        thread.start();
    }

    private void accept() {
        while (true) {
            try {
                Socket socket = listener.accept();
                socket.setTcpNoDelay(true);
                sockets.add(socket);
                connections.incrementAndGet();
                daemon(() -> serve(socket));
            } catch (IOException closed) {
                return;
            }
        }
    }

    private void serve(Socket socket) {
        try (socket) {
            InputStream in = new BufferedInputStream(socket.getInputStream());
            OutputStream out = socket.getOutputStream();
            while (true) {
                Request request = read(in);
                if (request == null) {
                    closedByClient.incrementAndGet();
                    return;
                }
                Reply reply;
                if (request.target.equals("/v0/status")) {
                    reply = answer(isWell ? 200 : 503, "", "state");
                } else {
                    if (request.target.startsWith("/v0/entit") || request.target.equals("/v0/batch")) {
                        requests.add(request);
                    }
                    reply = script.reply(request);
                }
                reply.write(out);
                out.flush();
            }
        } catch (IOException | InterruptedException ended) {
            closedByClient.incrementAndGet();
        } finally {
            sockets.remove(socket);
        }
    }

    private static Request read(InputStream in) throws IOException {
        String first = line(in);
        if (first == null) {
            return null;
        }
        Map<String, String> headers = new TreeMap<>();
        for (String line = line(in); line != null && !line.isEmpty(); line = line(in)) {
            int colon = line.indexOf(':');
            headers.put(line.substring(0, colon).toLowerCase(Locale.ROOT), line.substring(colon + 1).strip());
        }
        ByteArrayOutputStream body = new ByteArrayOutputStream();
        if ("chunked".equals(headers.get("transfer-encoding"))) {
            for (int size = chunk(in); size > 0; size = chunk(in)) {
                body.write(in.readNBytes(size));
                line(in);
            }
            line(in);
        } else {
            body.write(in.readNBytes(Integer.parseInt(headers.getOrDefault("content-length", "0"))));
        }
        String[] words = first.split(" ");
        return new Request(words[0], words[1], headers, body.toByteArray());
    }

    private static int chunk(InputStream in) throws IOException {
        return Integer.parseInt(line(in), 16);
    }

    private static String line(InputStream in) throws IOException {
        ByteArrayOutputStream line = new ByteArrayOutputStream();
        for (int b = in.read(); b != '\n'; b = in.read()) {
            if (b < 0) {
                return null;
            }
            line.write(b);
        }
        return line.toString(StandardCharsets.ISO_8859_1).stripTrailing();
    }

    static final String VERSION = "01a2010102a30000-f9b45b5d62102c41";

    /** An answer with these further header lines, each with its {@code \r\n}. */
    static Reply answer(int status, String headers, String body) {
        byte[] bytes = body.getBytes(StandardCharsets.UTF_8);
        return out -> {
            out.write(("HTTP/1.1 " + status + " X\r\ncontent-length: " + bytes.length + "\r\n" + headers + "\r\n")
                    .getBytes(StandardCharsets.US_ASCII));
            out.write(bytes);
        };
    }

    /** A value. */
    static Reply value(String body) {
        return answer(200, "etag: \"" + VERSION + "\"\r\n", body);
    }

    /** A write's success. */
    static Reply written(Request request) {
        return answer(request.method.equals("PUT") ? 201 : 202, "etag: \"" + VERSION + "\"\r\n", "");
    }

    /** No answer: the connection is closed. */
    static Reply hangUp() {
        return out -> {
            throw new IOException("as scripted");
        };
    }

    /** No answer for a long time. */
    static Reply stall() {
        return out -> Thread.sleep(60_000);
    }

    /** This, after a while. */
    static Reply after(long millis, Reply reply) {
        return out -> {
            Thread.sleep(millis);
            reply.write(out);
        };
    }

    @Override
    public void close() {
        try {
            listener.close();
            for (Socket socket : sockets) {
                socket.close();
            }
        } catch (IOException ignored) {
            // It is gone either way.
        }
    }
}
