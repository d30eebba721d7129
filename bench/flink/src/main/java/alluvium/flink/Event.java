package alluvium.flink;

import java.io.BufferedReader;
import java.io.IOException;
import java.nio.file.Files;
import java.nio.file.Path;
import java.util.ArrayList;
import java.util.List;

/** An event, and the watermark after it. Times are whole units; a unit is a millisecond to Flink. */
public final class Event {
    public static final long NONE = Long.MIN_VALUE;

    public long key;
    public long time;
    public long amount;
    public boolean isLeft;
    public boolean finishes;
    /** No event before this time is promised after this one; {@link #NONE} says nothing. */
    public long watermark;

    public Event() {}

    /** Reads what {@code alluvium-gadget events} wrote: key, time, amount, side, FINISH or a dash, watermark. */
    static List<Event> read(Path file) throws IOException {
        List<Event> events = new ArrayList<>();
        try (BufferedReader lines = Files.newBufferedReader(file)) {
            for (String line = lines.readLine(); line != null; line = lines.readLine()) {
                events.add(parse(line, events.size() + 1));
            }
        }
        return events;
    }

    private static Event parse(String line, int number) {
        String[] words = line.split(" ");
        if (words.length != 6) {
            throw new IllegalArgumentException("line " + number + ": 6 words expected: " + line);
        }
        Event event = new Event();
        event.key = Long.parseLong(words[0]);
        event.time = Long.parseLong(words[1]);
        event.amount = Long.parseLong(words[2]);
        event.isLeft = words[3].equals("left");
        event.finishes = words[4].equals("FINISH");
        event.watermark = words[5].equals("-") ? NONE : Long.parseLong(words[5]);
        return event;
    }
}
