package io.kvorum.client;

import java.net.http.HttpHeaders;
import java.nio.charset.StandardCharsets;

/**
 * A whole answer of a node.
 *
 * @param status the HTTP status
 * @param headers the headers
 * @param body the body; empty where there is none
 */
record Answer(int status, HttpHeaders headers, byte[] body) {
    /** A header's first value, or null. */
    String header(String name) {
        return headers.firstValue(name).orElse(null);
    }

    /** The body as one line of text, cut to so many characters. */
    String line(int charsMax) {
        String text = new String(body, 0, Math.min(body.length, 4 * charsMax), StandardCharsets.UTF_8)
                .replaceAll("\\p{Cntrl}+", " ").strip();
        return text.length() > charsMax ? text.substring(0, charsMax) + "…" : text;
    }
}
