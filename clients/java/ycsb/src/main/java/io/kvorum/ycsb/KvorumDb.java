package io.kvorum.ycsb;

import io.kvorum.client.BlockingKvorumClient;
import io.kvorum.client.Entry;
import io.kvorum.client.Key;
import io.kvorum.client.KvorumClient;
import io.kvorum.client.KvorumException;
import io.kvorum.client.Overflow;
import io.kvorum.client.Range;
import io.kvorum.client.Replicas;
import io.kvorum.client.Value;
import java.io.ByteArrayInputStream;
import java.io.ByteArrayOutputStream;
import java.io.DataInputStream;
import java.io.DataOutputStream;
import java.io.IOException;
import java.io.InputStream;
import java.io.UncheckedIOException;
import java.nio.file.Files;
import java.nio.file.Path;
import java.security.GeneralSecurityException;
import java.security.KeyStore;
import java.security.cert.Certificate;
import java.security.cert.CertificateFactory;
import java.time.Duration;
import java.util.HashMap;
import java.util.Iterator;
import java.util.Map;
import java.util.Optional;
import java.util.Properties;
import java.util.Set;
import java.util.Vector;
import java.util.stream.Stream;
import javax.net.ssl.SSLContext;
import javax.net.ssl.TrustManagerFactory;
import site.ycsb.ByteArrayByteIterator;
import site.ycsb.ByteIterator;
import site.ycsb.DB;
import site.ycsb.DBException;
import site.ycsb.Status;

/**
 * Lets YCSB run against a kvorum cluster: {@code -db io.kvorum.ycsb.KvorumDb}.
 *
 * <p>A record of YCSB has named fields and a record here is bytes, so a value is the fields one after the other, each
 * a name, a length of four bytes, and the bytes. An update of some fields is therefore a read followed by a write,
 * which is not atomic: with {@code writeallfields=true} it is a write alone. The key is {@code table/key}.
 *
 * <p>Properties: {@code kvorum.nodes}, URLs with commas between; {@code kvorum.replicas}, such as {@code 2/3} (default:
 * what the cluster is configured to); {@code kvorum.timeout.ms} (default 5000); {@code kvorum.routing} (default true).
 */
public final class KvorumDb extends DB {
    /** One client for all of YCSB's threads, each of which has an object of this class. */
    private static KvorumClient shared;
    private static int users;

    private BlockingKvorumClient client;
    private int fieldCount;

    @Override
    public void init() throws DBException {
        Properties properties = getProperties();
        fieldCount = Integer.parseInt(properties.getProperty("fieldcount", "10"));
        synchronized (KvorumDb.class) {
            if (shared == null) {
                shared = connect(properties);
            }
            users++;
            client = shared.blocking();
        }
    }

    private static KvorumClient connect(Properties properties) throws DBException {
        String nodes = properties.getProperty("kvorum.nodes");
        if (nodes == null) {
            throw new DBException("kvorum.nodes is not set: the URLs of the nodes, with commas between");
        }
        KvorumClient.Builder builder = KvorumClient.builder()
                .nodes(nodes.split(","))
                .maxInFlight(4096, Overflow.waitUpTo(16_384))
                .timeout(Duration.ofMillis(Long.parseLong(properties.getProperty("kvorum.timeout.ms", "5000"))))
                .routing(Boolean.parseBoolean(properties.getProperty("kvorum.routing", "true")));
        String token = properties.getProperty("kvorum.token");
        if (token != null) {
            builder.token(token);
        }
        String authorities = properties.getProperty("kvorum.ca");
        if (authorities != null) {
            builder.sslContext(believing(Path.of(authorities)));
        }
        String replicas = properties.getProperty("kvorum.replicas");
        if (replicas != null) {
            String[] counts = replicas.split("/");
            builder.defaultReplicas(Replicas.of(Integer.parseInt(counts[0]), Integer.parseInt(counts[1])));
        }
        return builder.build();
    }

    /** Believes nodes that the authorities in this PEM file vouch for. */
    private static SSLContext believing(Path authorities) throws DBException {
        try (InputStream pem = Files.newInputStream(authorities)) {
            KeyStore trusted = KeyStore.getInstance(KeyStore.getDefaultType());
            trusted.load(null, null);
            for (Certificate one : CertificateFactory.getInstance("X.509").generateCertificates(pem)) {
                trusted.setCertificateEntry("authority-" + trusted.size(), one);
            }
            TrustManagerFactory trust = TrustManagerFactory.getInstance(TrustManagerFactory.getDefaultAlgorithm());
            trust.init(trusted);
            SSLContext context = SSLContext.getInstance("TLS");
            context.init(null, trust.getTrustManagers(), null);
            return context;
        } catch (IOException | GeneralSecurityException refused) {
            throw new DBException("kvorum.ca: " + refused.getMessage(), refused);
        }
    }

    @Override
    public void cleanup() {
        synchronized (KvorumDb.class) {
            if (--users == 0) {
                shared.close();
                shared = null;
            }
        }
    }

    private static Key key(String table, String key) {
        return Key.of(table + "/" + key);
    }

    @Override
    public Status read(String table, String key, Set<String> fields, Map<String, ByteIterator> result) {
        try {
            Optional<Entry> entry = client.get(key(table, key));
            if (entry.isEmpty()) {
                return Status.NOT_FOUND;
            }
            decode(entry.get().value(), fields, result);
            return Status.OK;
        } catch (KvorumException failed) {
            return failure(failed);
        }
    }

    @Override
    public Status scan(
            String table, String startkey, int recordcount, Set<String> fields,
            Vector<HashMap<String, ByteIterator>> result) {
        // Without an end a scan would run into the next table.
        Range range = Range.from(key(table, startkey)).to(Key.of(table + "0")).limit(recordcount);
        try (Stream<Entry> entries = client.range(range)) {
            for (Iterator<Entry> each = entries.iterator(); each.hasNext(); ) {
                HashMap<String, ByteIterator> record = new HashMap<>();
                decode(each.next().value(), fields, record);
                result.add(record);
            }
            return Status.OK;
        } catch (KvorumException failed) {
            return failure(failed);
        }
    }

    @Override
    public Status insert(String table, String key, Map<String, ByteIterator> values) {
        try {
            client.put(key(table, key), Value.of(encode(values)));
            return Status.OK;
        } catch (KvorumException failed) {
            return failure(failed);
        }
    }

    @Override
    public Status update(String table, String key, Map<String, ByteIterator> values) {
        if (values.size() >= fieldCount) {
            return insert(table, key, values);
        }
        Map<String, ByteIterator> record = new HashMap<>();
        Status read = read(table, key, null, record);
        if (!read.isOk()) {
            return read;
        }
        record.putAll(values);
        return insert(table, key, record);
    }

    @Override
    public Status delete(String table, String key) {
        try {
            client.delete(key(table, key));
            return Status.OK;
        } catch (KvorumException failed) {
            return failure(failed);
        }
    }

    /** Failures come out in YCSB's report by the exception's name. */
    private static Status failure(KvorumException failed) {
        return new Status(failed.getClass().getSimpleName(), failed.getMessage());
    }

    private static byte[] encode(Map<String, ByteIterator> values) {
        ByteArrayOutputStream bytes = new ByteArrayOutputStream(1200);
        DataOutputStream out = new DataOutputStream(bytes);
        try {
            for (Map.Entry<String, ByteIterator> field : values.entrySet()) {
                byte[] value = field.getValue().toArray();
                out.writeUTF(field.getKey());
                out.writeInt(value.length);
                out.write(value);
            }
        } catch (IOException impossible) {
            throw new UncheckedIOException(impossible);
        }
        return bytes.toByteArray();
    }

    private static void decode(byte[] record, Set<String> fields, Map<String, ByteIterator> result) {
        DataInputStream in = new DataInputStream(new ByteArrayInputStream(record));
        try {
            while (in.available() > 0) {
                String name = in.readUTF();
                byte[] value = in.readNBytes(in.readInt());
                if (fields == null || fields.contains(name)) {
                    result.put(name, new ByteArrayByteIterator(value));
                }
            }
        } catch (IOException impossible) {
            throw new UncheckedIOException(impossible);
        }
    }
}
