package io.kvorum.client;

import java.nio.charset.StandardCharsets;
import java.util.ArrayList;
import java.util.LinkedHashMap;
import java.util.List;
import java.util.Map;

/**
 * As much JSON as nodes write: a whole text from bytes to maps, lists, strings, numbers, booleans and null.
 *
 * <p>Written out because the JDK has none. It is strict about what it needs and never recurses deeper than
 * {@link #DEPTH_MAX}; whole numbers of up to 18 characters are {@code Long}, others
 * {@code Double}.
 */
final class Json {
    private static final int DEPTH_MAX = 32;

    private final byte[] bytes;
    private final int end;
    private int at;

    private Json(byte[] bytes, int begin, int end) {
        this.bytes = bytes;
        this.at = begin;
        this.end = end;
    }

    /** That bytes are no JSON, or not the JSON that was expected. */
    static final class MalformedException extends Exception {
        private static final long serialVersionUID = 1;

        MalformedException(String message) {
            super(message);
        }
    }

    /** The object that these bytes are. */
    static Map<String, Object> parseObject(byte[] bytes, int begin, int end) throws MalformedException {
        Json json = new Json(bytes, begin, end);
        Object value = json.value(0);
        json.skipSpace();
        if (json.at != end) {
            throw json.malformed("something follows the end");
        }
        return object(value, "the text");
    }

    static Map<String, Object> object(Object value, String name) throws MalformedException {
        if (!(value instanceof Map<?, ?>)) {
            throw new MalformedException(name + " is not an object");
        }
        @SuppressWarnings("unchecked") // Every map made here has keys that are strings.
        Map<String, Object> object = (Map<String, Object>) value;
        return object;
    }

    static String string(Object value, String name) throws MalformedException {
        if (value instanceof String string) {
            return string;
        }
        throw new MalformedException(name + " is not a string");
    }

    static long whole(Object value, String name) throws MalformedException {
        if (value instanceof Long whole) {
            return whole;
        }
        throw new MalformedException(name + " is not a whole number");
    }

    static List<?> list(Object value, String name) throws MalformedException {
        if (value instanceof List<?> list) {
            return list;
        }
        throw new MalformedException(name + " is not a list");
    }

    private Object value(int depth) throws MalformedException {
        if (depth > DEPTH_MAX) {
            throw malformed("it is too deep");
        }
        skipSpace();
        return switch (peek()) {
            case '{' -> object(depth);
            case '[' -> list(depth);
            case '"' -> string();
            case 't' -> word("true", Boolean.TRUE);
            case 'f' -> word("false", Boolean.FALSE);
            case 'n' -> word("null", null);
            default -> number();
        };
    }

    private Map<String, Object> object(int depth) throws MalformedException {
        Map<String, Object> object = new LinkedHashMap<>();
        at++;
        skipSpace();
        if (peek() == '}') {
            at++;
            return object;
        }
        while (true) {
            skipSpace();
            String name = string();
            skipSpace();
            expect(':');
            object.put(name, value(depth + 1));
            skipSpace();
            if (peek() == '}') {
                at++;
                return object;
            }
            expect(',');
        }
    }

    private List<Object> list(int depth) throws MalformedException {
        List<Object> list = new ArrayList<>();
        at++;
        skipSpace();
        if (peek() == ']') {
            at++;
            return list;
        }
        while (true) {
            list.add(value(depth + 1));
            skipSpace();
            if (peek() == ']') {
                at++;
                return list;
            }
            expect(',');
        }
    }

    private String string() throws MalformedException {
        expect('"');
        int begin = at;
        while (peek() != '"' && peek() != '\\') {
            at++;
        }
        if (peek() == '"') {
            return new String(bytes, begin, at++ - begin, StandardCharsets.UTF_8);
        }
        StringBuilder text = new StringBuilder();
        while (true) {
            text.append(new String(bytes, begin, at - begin, StandardCharsets.UTF_8));
            if (peek() == '"') {
                at++;
                return text.toString();
            }
            at++;
            int escape = peek();
            at++;
            switch (escape) {
                case '"', '\\', '/' -> text.append((char) escape);
                case 'b' -> text.append('\b');
                case 'f' -> text.append('\f');
                case 'n' -> text.append('\n');
                case 'r' -> text.append('\r');
                case 't' -> text.append('\t');
                case 'u' -> text.append(unicode());
                default -> throw malformed("an escape is not understood");
            }
            begin = at;
            while (peek() != '"' && peek() != '\\') {
                at++;
            }
        }
    }

    private char unicode() throws MalformedException {
        int code = 0;
        for (int digit = 0; digit < 4; digit++) {
            int value = Character.digit(peek(), 16);
            if (value < 0) {
                throw malformed("an escape is not understood");
            }
            code = code << 4 | value;
            at++;
        }
        return (char) code;
    }

    private Object number() throws MalformedException {
        int begin = at;
        while (at < end && "+-.eE0123456789".indexOf(bytes[at]) >= 0) {
            at++;
        }
        String text = new String(bytes, begin, at - begin, StandardCharsets.US_ASCII);
        try {
            // A whole number of 19 digits and more may be too large for a long.
            if (text.length() <= 18 && text.chars().allMatch(c -> c == '-' || c >= '0' && c <= '9')) {
                return Long.valueOf(text);
            }
            return Double.valueOf(text);
        } catch (NumberFormatException notANumber) {
            throw malformed("a value is not understood");
        }
    }

    private Object word(String word, Object value) throws MalformedException {
        for (int letter = 0; letter < word.length(); letter++) {
            expect(word.charAt(letter));
        }
        return value;
    }

    private void skipSpace() {
        while (at < end && (bytes[at] == ' ' || bytes[at] == '\n' || bytes[at] == '\r' || bytes[at] == '\t')) {
            at++;
        }
    }

    private int peek() throws MalformedException {
        if (at >= end) {
            throw malformed("it ends early");
        }
        return bytes[at];
    }

    private void expect(char wanted) throws MalformedException {
        if (peek() != wanted) {
            throw malformed("'" + wanted + "' is missing");
        }
        at++;
    }

    private MalformedException malformed(String why) {
        return new MalformedException("this is no JSON: at byte " + at + ", " + why);
    }
}
