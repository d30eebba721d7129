package alluvium.flink;

import java.time.Duration;
import org.apache.flink.api.common.functions.AggregateFunction;
import org.apache.flink.api.common.functions.JoinFunction;
import org.apache.flink.api.common.functions.OpenContext;
import org.apache.flink.api.common.state.ListState;
import org.apache.flink.api.common.state.ListStateDescriptor;
import org.apache.flink.api.common.state.ValueState;
import org.apache.flink.api.common.state.ValueStateDescriptor;
import org.apache.flink.api.java.functions.KeySelector;
import org.apache.flink.api.java.tuple.Tuple2;
import org.apache.flink.streaming.api.datastream.DataStream;
import org.apache.flink.streaming.api.datastream.KeyedStream;
import org.apache.flink.streaming.api.functions.co.KeyedCoProcessFunction;
import org.apache.flink.streaming.api.functions.co.ProcessJoinFunction;
import org.apache.flink.streaming.api.functions.windowing.ProcessWindowFunction;
import org.apache.flink.streaming.api.windowing.assigners.EventTimeSessionWindows;
import org.apache.flink.streaming.api.windowing.assigners.SlidingEventTimeWindows;
import org.apache.flink.streaming.api.windowing.assigners.TumblingEventTimeWindows;
import org.apache.flink.streaming.api.windowing.assigners.WindowAssigner;
import org.apache.flink.streaming.api.windowing.windows.TimeWindow;
import org.apache.flink.util.Collector;

/** The eleven operators of the Gadget paper, from Flink's API. */
record Operators(Duration length, Duration slide, Duration gap, Duration lower, Duration upper) {

    DataStream<Long> apply(String name, DataStream<Event> events) {
        return switch (name) {
            case "aggregation" -> keyed(events).reduce(Operators::added).map(event -> event.amount);
            case "tumbling-incremental" -> incremental(events, tumbling());
            case "tumbling-holistic" -> holistic(events, tumbling());
            case "sliding-incremental" -> incremental(events, sliding());
            case "sliding-holistic" -> holistic(events, sliding());
            case "session-incremental" -> incremental(events, EventTimeSessionWindows.withGap(gap));
            case "session-holistic" -> holistic(events, EventTimeSessionWindows.withGap(gap));
            case "tumbling-join" -> windowed(events, tumbling());
            case "sliding-join" -> windowed(events, sliding());
            case "interval-join" -> side(events, true).intervalJoin(side(events, false))
                    .between(lower, upper).process(new Pairs());
            case "continuous-join" -> side(events, true).connect(side(events, false))
                    .process(new ContinuousJoin());
            default -> throw new IllegalArgumentException("there is no operator " + name);
        };
    }

    private WindowAssigner<Object, TimeWindow> tumbling() {
        return TumblingEventTimeWindows.of(length);
    }

    private WindowAssigner<Object, TimeWindow> sliding() {
        return SlidingEventTimeWindows.of(length, slide);
    }

    /** The key, which also tells the log the time of the event that is processed next. */
    private static final class ByKey implements KeySelector<Event, Long> {
        @Override
        public Long getKey(Event event) {
            AccessLog.at(event.time);
            return event.key;
        }
    }

    private static KeyedStream<Event, Long> keyed(DataStream<Event> events) {
        return events.keyBy(new ByKey());
    }

    private static KeyedStream<Event, Long> side(DataStream<Event> events, boolean isLeft) {
        return keyed(events.filter(event -> event.isLeft == isLeft));
    }

    private static Event added(Event one, Event two) {
        Event sum = new Event();
        sum.key = one.key;
        sum.amount = one.amount + two.amount;
        return sum;
    }

    private static DataStream<Long> incremental(
            DataStream<Event> events, WindowAssigner<Object, TimeWindow> windows) {
        return keyed(events).window(windows).aggregate(new CountAndSum());
    }

    private static DataStream<Long> holistic(
            DataStream<Event> events, WindowAssigner<Object, TimeWindow> windows) {
        return keyed(events).window(windows).process(new SumOfAll());
    }

    private static DataStream<Long> windowed(
            DataStream<Event> events, WindowAssigner<Object, TimeWindow> windows) {
        DataStream<Event> left = events.filter(event -> event.isLeft);
        DataStream<Event> right = events.filter(event -> !event.isLeft);
        return left.join(right).where(new ByKey()).equalTo(new ByKey()).window(windows)
                .apply(new Product());
    }

    private static final class CountAndSum
            implements AggregateFunction<Event, Tuple2<Long, Long>, Long> {
        @Override
        public Tuple2<Long, Long> createAccumulator() {
            return Tuple2.of(0L, 0L);
        }

        @Override
        public Tuple2<Long, Long> add(Event event, Tuple2<Long, Long> sum) {
            return Tuple2.of(sum.f0 + 1, sum.f1 + event.amount);
        }

        @Override
        public Long getResult(Tuple2<Long, Long> sum) {
            return sum.f1;
        }

        @Override
        public Tuple2<Long, Long> merge(Tuple2<Long, Long> one, Tuple2<Long, Long> two) {
            return Tuple2.of(one.f0 + two.f0, one.f1 + two.f1);
        }
    }

    private static final class SumOfAll extends ProcessWindowFunction<Event, Long, Long, TimeWindow> {
        @Override
        public void process(Long key, Context context, Iterable<Event> all, Collector<Long> out) {
            long sum = 0;
            for (Event event : all) {
                sum += event.amount;
            }
            out.collect(sum);
        }
    }

    private static final class Product implements JoinFunction<Event, Event, Long> {
        @Override
        public Long join(Event left, Event right) {
            return left.amount * right.amount;
        }
    }

    private static final class Pairs extends ProcessJoinFunction<Event, Event, Long> {
        @Override
        public void processElement(Event left, Event right, Context context, Collector<Long> out) {
            out.collect(left.amount * right.amount);
        }
    }

    /** The last left event of a key stays; right events that come before it wait for it. */
    private static final class ContinuousJoin extends KeyedCoProcessFunction<Long, Event, Event, Long> {
        private transient ValueState<Event> last;
        private transient ListState<Event> waiting;

        @Override
        public void open(OpenContext context) {
            last = getRuntimeContext().getState(new ValueStateDescriptor<>("left", Event.class));
            waiting = getRuntimeContext().getListState(new ListStateDescriptor<>("right", Event.class));
        }

        @Override
        public void processElement1(Event left, Context context, Collector<Long> out) throws Exception {
            if (left.finishes) {
                last.clear();
                waiting.clear();
                return;
            }
            for (Event right : waiting.get()) {
                out.collect(left.amount * right.amount);
            }
            waiting.clear();
            last.update(left);
        }

        @Override
        public void processElement2(Event right, Context context, Collector<Long> out) throws Exception {
            Event left = last.value();
            if (left == null) {
                waiting.add(right);
            } else {
                out.collect(left.amount * right.amount);
            }
        }
    }
}
