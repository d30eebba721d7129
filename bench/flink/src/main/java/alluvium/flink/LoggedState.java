package alluvium.flink;

import java.io.IOException;
import java.lang.reflect.InvocationHandler;
import java.lang.reflect.Method;
import java.util.ArrayList;
import java.util.Collection;
import java.util.List;
import java.util.Map;
import org.apache.flink.api.common.state.AppendingState;
import org.apache.flink.api.common.state.ListState;
import org.apache.flink.api.common.state.ListStateDescriptor;
import org.apache.flink.api.common.state.MapState;
import org.apache.flink.api.common.state.MapStateDescriptor;
import org.apache.flink.api.common.state.StateDescriptor;
import org.apache.flink.api.common.state.ValueState;
import org.apache.flink.api.common.typeutils.TypeSerializer;
import org.apache.flink.core.memory.DataOutputSerializer;
import org.apache.flink.runtime.state.KeyedStateBackend;
import org.apache.flink.runtime.state.VoidNamespace;
import org.apache.flink.runtime.state.internal.InternalAppendingState;
import org.apache.flink.runtime.state.internal.InternalKvState;
import org.apache.flink.streaming.api.windowing.windows.TimeWindow;

/**
 * A state whose calls are logged as the RocksDB backend makes them: an element that is added to a list
 * is a merge; one that is folded, a get and a put; a list that is replaced, a put; windows that are
 * merged, a get and a delete of each, and a merge or a put of the one that stays.
 */
final class LoggedState implements InvocationHandler {
    final Object proxy;
    Object namespace = VoidNamespace.INSTANCE;

    private final InternalKvState<?, ?, ?> state;
    private final KeyedStateBackend<?> backend;
    private final String name;
    private final TypeSerializer<Object> values;
    private final DataOutputSerializer bytes = new DataOutputSerializer(256);

    @SuppressWarnings("unchecked")
    LoggedState(InternalKvState<?, ?, ?> state, KeyedStateBackend<?> backend, StateDescriptor<?, ?> descriptor) {
        this.state = state;
        this.backend = backend;
        this.name = descriptor.getName();
        TypeSerializer<?> serializer = descriptor.getSerializer();
        if (descriptor instanceof ListStateDescriptor) {
            serializer = ((ListStateDescriptor<?>) descriptor).getElementSerializer();
        } else if (descriptor instanceof MapStateDescriptor) {
            serializer = ((MapStateDescriptor<?, ?>) descriptor).getValueSerializer();
        }
        this.values = (TypeSerializer<Object>) serializer;
        this.proxy = LoggingBackend.proxy(state, this);
    }

    @Override
    public Object invoke(Object proxy, Method method, Object[] arguments) throws Throwable {
        String call = method.getName();
        if (call.equals("setCurrentNamespace")) {
            namespace = arguments[0];
        } else if (call.equals("mergeNamespaces")) {
            logMerge(arguments[0], (Collection<?>) arguments[1]);
        } else if (state instanceof MapState) {
            return onMap(method, arguments);
        }
        Object result = LoggingBackend.call(state, method, arguments);
        if (state instanceof ValueState) {
            logValue(call, arguments);
        } else if (state instanceof ListState) {
            logList(call, arguments);
        } else if (state instanceof AppendingState) {
            logFolded(call);
        }
        return result;
    }

    private void logValue(String call, Object[] arguments) throws IOException {
        switch (call) {
            case "value" -> log("get", 0);
            case "update" -> {
                if (arguments[0] == null) {
                    log("delete", 0);
                } else {
                    log("put", size(arguments[0]));
                }
            }
            case "clear" -> log("delete", 0);
            default -> { }
        }
    }

    private void logList(String call, Object[] arguments) throws IOException {
        switch (call) {
            case "get", "getInternal" -> log("get", 0);
            case "add" -> log("merge", size(arguments[0]));
            case "addAll" -> log("merge", sizes((List<?>) arguments[0]));
            case "update", "updateInternal" -> {
                List<?> list = (List<?>) arguments[0];
                if (list == null || list.isEmpty()) {
                    log("delete", 0);
                } else {
                    log("put", sizes(list));
                }
            }
            case "clear" -> log("delete", 0);
            default -> { }
        }
    }

    private void logFolded(String call) throws Exception {
        switch (call) {
            case "get", "getInternal" -> log("get", 0);
            case "add" -> {
                log("get", 0);
                log("put", size(folded()));
            }
            case "updateInternal" -> log("put", size(folded()));
            case "clear" -> log("delete", 0);
            default -> { }
        }
    }

    private Object folded() throws Exception {
        return ((InternalAppendingState<?, ?, ?, ?, ?>) state).getInternal();
    }

    private void logMerge(Object target, Collection<?> sources) {
        for (Object source : sources) {
            AccessLog.access("get", key(source, null), 0);
            AccessLog.access("delete", key(source, null), 0);
        }
        if (!(state instanceof ListState)) {
            AccessLog.access("get", key(target, null), 0);
        }
        // What is merged has as many bytes as its parts; these are not known here.
        AccessLog.access(state instanceof ListState ? "merge" : "put", key(target, null), 16L * sources.size());
    }

    private Object onMap(Method method, Object[] arguments) throws Throwable {
        Object result = LoggingBackend.call(state, method, arguments);
        switch (method.getName()) {
            case "get", "contains" -> logAt("get", arguments[0], 0);
            case "put" -> logAt("put", arguments[0], size(arguments[1]));
            case "remove" -> logAt("delete", arguments[0], 0);
            case "entries" -> {
                List<Object> all = new ArrayList<>();
                ((Iterable<?>) result).forEach(all::add);
                AccessLog.access("seek", key(namespace, ""), 0);
                for (Object entry : all) {
                    logAt("next", ((Map.Entry<?, ?>) entry).getKey(), 0);
                }
                return all;
            }
            case "clear", "keys", "values", "iterator", "putAll", "isEmpty" ->
                throw new UnsupportedOperationException("no operator here asks for " + method.getName());
            default -> { }
        }
        return result;
    }

    private void log(String operation, long size) {
        AccessLog.access(operation, key(namespace, null), size);
    }

    private void logAt(String operation, Object place, long size) {
        AccessLog.access(operation, key(namespace, place), size);
    }

    /** A key of windows has the window's start; others have the state's name, and a map's own key. */
    private String key(Object of, Object place) {
        String key = String.valueOf(backend.getCurrentKey());
        if (of instanceof TimeWindow) {
            return key + '@' + ((TimeWindow) of).getStart();
        }
        return place == null ? key + '/' + name : key + '/' + name + '/' + place;
    }

    private long size(Object value) throws IOException {
        bytes.clear();
        values.serialize(value, bytes);
        return bytes.length();
    }

    private long sizes(List<?> all) throws IOException {
        long sum = 0;
        for (Object value : all) {
            sum += size(value);
        }
        return sum;
    }
}
