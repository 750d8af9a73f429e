package io.kvorum.client;

import java.io.IOException;
import java.net.InetSocketAddress;
import java.nio.ByteBuffer;
import java.nio.channels.SelectionKey;
import java.nio.channels.Selector;
import java.nio.channels.ServerSocketChannel;
import java.nio.channels.SocketChannel;
import java.nio.charset.StandardCharsets;
import java.util.ArrayDeque;

/**
 * A node that takes any number of requests without bodies and answers them when it is told. A program of its own: both
 * ends of 10,000 connections are more files than one process may have here.
 *
 * <p>It prints its port, then a line with the requests that came for every line on its input. The line {@code go} lets
 * it answer those, and all later ones.
 */
final class StallingServer {
    private static final byte[] ANSWER = ("HTTP/1.1 200 X\r\netag: \"" + ScriptedServer.VERSION
            + "\"\r\ncontent-length: 1\r\n\r\nv").getBytes(StandardCharsets.US_ASCII);

    private static volatile int requests;
    private static volatile boolean isAnswering;

    private StallingServer() {}

    /** Serves until its input ends. */
    public static void main(String[] arguments) throws IOException {
        Selector selector = Selector.open();
        ServerSocketChannel listener = ServerSocketChannel.open();
        listener.bind(new InetSocketAddress("127.0.0.1", 0), 4096);
        listener.configureBlocking(false);
        listener.register(selector, SelectionKey.OP_ACCEPT);
        System.out.println(listener.socket().getLocalPort());
        Thread loop = new Thread(() -> {
            try {
                serve(selector, listener);
            } catch (IOException failed) {
                failed.printStackTrace();
                System.exit(1);
            }
        });
        loop.setDaemon(true);
        loop.start();
        for (String line = read(); line != null; line = read()) {
            if (line.equals("go")) {
                isAnswering = true;
                selector.wakeup();
            }
            System.out.println(requests);
        }
    }

    private static String read() throws IOException {
        StringBuilder line = new StringBuilder();
        for (int b = System.in.read(); b != '\n'; b = System.in.read()) {
            if (b < 0) {
                return null;
            }
            line.append((char) b);
        }
        return line.toString();
    }

    private static void serve(Selector selector, ServerSocketChannel listener) throws IOException {
        ArrayDeque<SocketChannel> waiting = new ArrayDeque<>();
        ByteBuffer buffer = ByteBuffer.allocate(16 << 10);
        while (true) {
            selector.select();
            for (SelectionKey key : selector.selectedKeys()) {
                if (key.isAcceptable()) {
                    for (SocketChannel c = listener.accept(); c != null; c = listener.accept()) {
                        c.configureBlocking(false);
                        c.register(selector, SelectionKey.OP_READ);
                    }
                } else if (key.isReadable()) {
                    // A request of this client without a body comes in one piece.
                    SocketChannel connection = (SocketChannel) key.channel();
                    buffer.clear();
                    int count;
                    try {
                        count = connection.read(buffer);
                    } catch (IOException reset) {
                        count = -1;
                    }
                    if (count < 0) {
                        connection.close();
                    } else {
                        requests++;
                        waiting.add(connection);
                    }
                }
            }
            selector.selectedKeys().clear();
            while (isAnswering && !waiting.isEmpty()) {
                SocketChannel connection = waiting.remove();
                try {
                    connection.write(ByteBuffer.wrap(ANSWER));
                } catch (IOException cancelled) {
                    connection.close();
                }
            }
        }
    }
}
