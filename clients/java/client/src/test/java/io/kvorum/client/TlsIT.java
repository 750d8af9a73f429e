package io.kvorum.client;

import static org.junit.jupiter.api.Assertions.assertEquals;
import static org.junit.jupiter.api.Assertions.assertThrows;

import java.io.InputStream;
import java.net.ServerSocket;
import java.nio.file.Files;
import java.nio.file.Path;
import java.security.KeyFactory;
import java.security.KeyStore;
import java.security.PrivateKey;
import java.security.cert.Certificate;
import java.security.cert.CertificateFactory;
import java.security.spec.PKCS8EncodedKeySpec;
import java.util.Base64;
import java.util.List;
import java.util.concurrent.TimeUnit;
import java.util.stream.Stream;
import javax.net.ssl.KeyManagerFactory;
import javax.net.ssl.SSLContext;
import javax.net.ssl.TrustManagerFactory;
import org.junit.jupiter.api.Test;
import org.junit.jupiter.api.Timeout;

/** The client and three real nodes with TLS, tokens and certificates: {@code kvorum dev --secure}. */
@Timeout(120)
class TlsIT {
    private static final String VALUE = "hello";

    /** A token or a certificate opens the nodes that the client believes, through every node; nothing else does. */
    @Test
    void tokensAndCertificatesOverTls() throws Exception {
        Path data = Files.createTempDirectory("kvorum-java-tls");
        int port = freePorts();
        Process nodes = new ProcessBuilder(Cluster.binary().toString(), "dev", "--secure",
                "--base-port", Integer.toString(port), "--data-dir", data.toString())
                .redirectErrorStream(true)
                .redirectOutput(data.resolve("log").toFile())
                .start();
        try {
            for (int tenth = 0; !Files.readString(data.resolve("log")).contains("Ctrl-C stops all"); tenth++) {
                if (tenth == 300 || !nodes.isAlive()) {
                    throw new IllegalStateException(Files.readString(data.resolve("log")));
                }
                Thread.sleep(100);
            }
            List<String> urls = Stream.of(0, 1, 2).map(n -> "https://127.0.0.1:" + (port + n)).toList();
            String token = Files.readString(data.resolve("operator.token"));
            SSLContext believing = context(data, false);
            try (KvorumClient client = KvorumClient.builder().nodes(urls).sslContext(believing).token(token).build()) {
                for (int n = 0; n < 20; n++) {
                    client.blocking().put("k" + n, VALUE);
                    assertEquals(VALUE, client.blocking().get("k" + n).orElseThrow().valueUtf8());
                }
            }
            try (KvorumClient client = KvorumClient.builder().nodes(urls).sslContext(context(data, true)).build()) {
                assertEquals(VALUE, client.blocking().get("k1").orElseThrow().valueUtf8());
            }
            try (KvorumClient client = KvorumClient.builder().nodes(urls).sslContext(believing).build()) {
                assertThrows(RefusedException.class, () -> client.blocking().get("k1"));
            }
            // The JDK's own authorities do not vouch for the nodes: nothing is sent.
            try (KvorumClient client = KvorumClient.builder().nodes(urls).token(token).retry(RetryPolicy.NONE).build()) {
                assertThrows(KvorumException.class, () -> client.blocking().get("k1"));
            }
        } finally {
            nodes.destroy();
            if (!nodes.waitFor(20, TimeUnit.SECONDS)) {
                nodes.destroyForcibly();
            }
            try (Stream<Path> files = Files.walk(data)) {
                for (Path file : files.sorted(java.util.Comparator.reverseOrder()).toList()) {
                    Files.deleteIfExists(file);
                }
            }
        }
    }

    /** The first of three ports in a row that were free. */
    private static int freePorts() throws Exception {
        while (true) {
            try (ServerSocket first = new ServerSocket(0);
                    ServerSocket second = new ServerSocket(first.getLocalPort() + 1);
                    ServerSocket third = new ServerSocket(first.getLocalPort() + 2)) {
                return third.getLocalPort() - 2;
            } catch (java.io.IOException | IllegalArgumentException taken) {
                continue;
            }
        }
    }

    /** Believes the nodes in {@code data}, and shows the operator's certificate if {@code isKnown}. */
    private static SSLContext context(Path data, boolean isKnown) throws Exception {
        KeyStore trusted = KeyStore.getInstance(KeyStore.getDefaultType());
        trusted.load(null, null);
        trusted.setCertificateEntry("nodes", certificate(data.resolve("tls/nodes-ca.pem")));
        TrustManagerFactory trust = TrustManagerFactory.getInstance(TrustManagerFactory.getDefaultAlgorithm());
        trust.init(trusted);
        KeyManagerFactory keys = KeyManagerFactory.getInstance(KeyManagerFactory.getDefaultAlgorithm());
        KeyStore own = KeyStore.getInstance(KeyStore.getDefaultType());
        own.load(null, null);
        if (isKnown) {
            String pem = Files.readString(data.resolve("tls/admin.key")).replaceAll("-----[A-Z ]+-----|\\s", "");
            PrivateKey key = KeyFactory.getInstance("EC")
                    .generatePrivate(new PKCS8EncodedKeySpec(Base64.getDecoder().decode(pem)));
            Certificate[] chain = {certificate(data.resolve("tls/admin.pem"))};
            own.setKeyEntry("admin", key, new char[0], chain);
        }
        keys.init(own, new char[0]);
        SSLContext context = SSLContext.getInstance("TLS");
        context.init(isKnown ? keys.getKeyManagers() : null, trust.getTrustManagers(), null);
        return context;
    }

    private static Certificate certificate(Path file) throws Exception {
        try (InputStream bytes = Files.newInputStream(file)) {
            return CertificateFactory.getInstance("X.509").generateCertificate(bytes);
        }
    }
}
