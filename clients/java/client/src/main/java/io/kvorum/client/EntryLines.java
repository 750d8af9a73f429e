package io.kvorum.client;

import java.nio.charset.StandardCharsets;
import java.time.Instant;
import java.util.Base64;
import java.util.Map;

/** Reads an entry of a range from its line of JSON. */
final class EntryLines {
    private EntryLines() {}

    static Entry parse(byte[] line, int length) throws Json.MalformedException {
        Map<String, Object> object = Json.parseObject(line, 0, length);
        try {
            return new Entry(
                    Key.of(bytes(object, "key")),
                    bytes(object, "value"),
                    version(object.get("version")),
                    instant(object.get("expires")));
        } catch (IllegalArgumentException notAKey) {
            throw new Json.MalformedException(notAKey.getMessage());
        }
    }

    static Version version(Object text) throws Json.MalformedException {
        String version = Json.string(text, "version");
        return Version.parse(version).orElseThrow(() -> new Json.MalformedException("no version: " + version));
    }

    static Instant instant(Object millis) throws Json.MalformedException {
        if (millis == null) {
            return null;
        }
        // A number of so many digits comes as a double: as far away as this platform can say.
        boolean isTooLarge = millis instanceof Double number && number >= 1e17;
        return Instant.ofEpochMilli(isTooLarge ? Long.MAX_VALUE : Json.whole(millis, "expires"));
    }

    static byte[] bytes(Map<String, Object> object, String name) throws Json.MalformedException {
        Object text = object.get(name);
        if (text != null) {
            return Json.string(text, name).getBytes(StandardCharsets.UTF_8);
        }
        return Base64.getDecoder().decode(Json.string(object.get(name + "_base64"), name));
    }
}
