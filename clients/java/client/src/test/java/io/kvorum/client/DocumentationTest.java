package io.kvorum.client;

import static org.junit.jupiter.api.Assertions.assertEquals;
import static org.junit.jupiter.api.Assertions.assertTrue;

import java.io.StringWriter;
import java.net.URI;
import java.nio.file.Files;
import java.nio.file.Path;
import java.util.List;
import java.util.regex.Matcher;
import java.util.regex.Pattern;
import javax.tools.JavaCompiler;
import javax.tools.JavaFileObject;
import javax.tools.SimpleJavaFileObject;
import javax.tools.ToolProvider;
import org.junit.jupiter.api.Assumptions;
import org.junit.jupiter.api.Test;

/** The examples of {@code docs/clients-java.md} compile: together, in their order, as one method. */
class DocumentationTest {
    @Test
    void examplesCompile() throws Exception {
        Path page = Path.of("../../../docs/clients-java.md");
        Assumptions.assumeTrue(Files.exists(page), "the client is built outside of its workspace");
        StringBuilder body = new StringBuilder();
        Matcher blocks = Pattern.compile("```java\n(.*?)```", Pattern.DOTALL).matcher(Files.readString(page));
        int count = 0;
        while (blocks.find()) {
            body.append(blocks.group(1));
            count++;
        }
        assertTrue(count >= 4, count + " examples");
        String source = "import io.kvorum.client.*; import java.time.*; import java.util.*; import java.util.concurrent.*;"
                + "import java.util.stream.*; class Examples { void all() {\n" + body + "}}";
        JavaCompiler compiler = ToolProvider.getSystemJavaCompiler();
        JavaFileObject file = new SimpleJavaFileObject(URI.create("string:///Examples.java"), JavaFileObject.Kind.SOURCE) {
            @Override
            public CharSequence getCharContent(boolean ignoreEncodingErrors) {
                return source;
            }
        };
        StringWriter complaints = new StringWriter();
        List<String> options = List.of("-proc:none", "-cp", System.getProperty("java.class.path"),
                "-d", Files.createTempDirectory("kvorum-examples").toString());
        Boolean isGood = compiler.getTask(complaints, null, null, options, null, List.of(file)).call();
        assertEquals(Boolean.TRUE, isGood, complaints.toString());
    }
}
