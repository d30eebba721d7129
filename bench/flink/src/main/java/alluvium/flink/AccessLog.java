package alluvium.flink;

import java.io.IOException;
import java.io.PrintStream;
import java.io.UncheckedIOException;
import java.nio.charset.StandardCharsets;
import java.nio.file.Files;
import java.nio.file.Path;

/**
 * The accesses of a job to its state, one a line: time, operation, key, bytes that are written.
 *
 * <p>The time is that of the latest event that the operator has seen: a key selector tells it, which
 * Flink calls on the operator's thread before each event.
 */
final class AccessLog {
    private static final ThreadLocal<long[]> TIME = ThreadLocal.withInitial(() -> new long[] {Long.MIN_VALUE});
    private static PrintStream out;
    private static long last = Long.MIN_VALUE;
    private static long accesses;

    private AccessLog() {}

    static synchronized void begin(Path file) {
        try {
            out = new PrintStream(new java.io.BufferedOutputStream(Files.newOutputStream(file), 1 << 16),
                    false, StandardCharsets.US_ASCII);
        } catch (IOException error) {
            throw new UncheckedIOException(error);
        }
    }

    /** Ends the file; returns the number of accesses. */
    static synchronized long end() throws IOException {
        out.close();
        if (out.checkError()) {
            throw new IOException("the trace could not be written");
        }
        return accesses;
    }

    /** An event of this time is about to be processed on this thread. */
    static void at(long time) {
        long[] latest = TIME.get();
        latest[0] = Math.max(latest[0], time);
    }

    static synchronized void access(String operation, String key, long bytes) {
        last = Math.max(last, TIME.get()[0]);
        accesses++;
        out.append(Long.toString(last)).append(' ').append(operation).append(' ').append(key)
                .append(' ').append(Long.toString(bytes)).append('\n');
    }
}
