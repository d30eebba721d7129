package alluvium.flink;

import java.nio.file.Path;
import java.time.Duration;
import java.util.HashMap;
import java.util.List;
import java.util.Map;
import org.apache.flink.configuration.Configuration;
import org.apache.flink.configuration.StateBackendOptions;
import org.apache.flink.streaming.api.datastream.DataStream;
import org.apache.flink.streaming.api.environment.StreamExecutionEnvironment;
import org.apache.flink.streaming.api.functions.sink.v2.DiscardingSink;

/** Runs an operator in Flink on events of a file, and writes its accesses to state. */
public final class Main {
    /** The events: the job runs in this process. */
    private static List<Event> events;

    private Main() {}

    public static void main(String[] arguments) throws Exception {
        Map<String, String> options = options(arguments);
        events = Event.read(Path.of(needed(options, "events")));
        AccessLog.begin(Path.of(needed(options, "out")));
        Configuration configuration = new Configuration();
        configuration.set(StateBackendOptions.STATE_BACKEND, LoggingBackend.Factory.class.getName());
        StreamExecutionEnvironment environment =
                StreamExecutionEnvironment.createLocalEnvironment(1, configuration);
        DataStream<Event> stream = environment.fromSequence(0, events.size() - 1)
                .map(number -> events.get(number.intValue())).returns(Event.class)
                .assignTimestampsAndWatermarks(Watermarks.ofEvents());
        Operators operators = new Operators(
                millis(options, "length", 5), millis(options, "slide", 1), millis(options, "gap", 120),
                millis(options, "lower", -120), millis(options, "upper", 180));
        operators.apply(needed(options, "operator"), stream).sinkTo(new DiscardingSink<>());
        environment.execute();
        System.out.println(options.get("operator") + ": " + events.size() + " events, " + AccessLog.end()
                + " accesses, in " + options.get("out"));
    }

    private static Map<String, String> options(String[] arguments) {
        Map<String, String> options = new HashMap<>();
        for (int i = 0; i + 1 < arguments.length; i += 2) {
            options.put(arguments[i].replaceFirst("^--", ""), arguments[i + 1]);
        }
        return options;
    }

    private static String needed(Map<String, String> options, String name) {
        String value = options.get(name);
        if (value == null) {
            throw new IllegalArgumentException("--" + name + " is missing");
        }
        return value;
    }

    private static Duration millis(Map<String, String> options, String name, long usual) {
        String value = options.get(name);
        return Duration.ofMillis(value == null ? usual : Long.parseLong(value));
    }
}
